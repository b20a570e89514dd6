"""Who is behind a request.

Owns: how a request's credential, its client and its transport become a `Caller`. Knows no tool.
"""

from __future__ import annotations

from mcp.server.auth.middleware.auth_context import get_access_token

from pursuit.service.caller import Caller, user_name
from pursuit.surfaces.mcp.failure import Context, sendable

LONGEST = 100


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
