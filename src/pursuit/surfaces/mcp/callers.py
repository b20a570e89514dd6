"""Who is behind a request, and whether they may answer approvals.

Owns: how a request's credential, its client and its transport become a `Caller`. Knows no tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mcp.server.auth.middleware.auth_context import get_access_token

from pursuit.service.approvals import APPROVAL_ID
from pursuit.service.audit import Caller, user_name
from pursuit.surfaces.mcp.failure import Context, sendable

LONGEST = 100
Question = TypeVar("Question")


def caller_of(ctx: Context) -> Caller:
    """The caller: a token's name, or on this machine without one whoever runs the server."""
    over_http = ctx.request is not None
    token = get_access_token()
    who = token.client_id if token is not None else "anyone on this machine" if over_http else user_name()
    params = ctx.session.client_params
    client = None
    if params is not None:
        client = sendable(f"{params.client_info.name} {params.client_info.version}"[:LONGEST]).strip()
    transport = "http" if over_http else "stdio"
    return Caller(who=who, transport=transport, client=client, credential=None if token is None else token.client_id)


def may_approve(ctx: Context) -> bool:
    """Whether the client may bring a person's answer to an approval: over stdio alone.

    There the person runs the server. Over HTTP a client's token is no operator's: with it a client would approve its
    own calls by saying that its user did.
    """
    return ctx.request is None


def answerable(ctx: Context, questions: Mapping[str, Question]) -> dict[str, Question]:
    """Of the questions of a task, by their keys, those that this client is asked; an approval's key is its id."""
    return {key: one for key, one in questions.items() if may_approve(ctx) or APPROVAL_ID.match(key) is None}
