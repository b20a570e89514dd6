"""What all servers need of a request and its answer: errors as JSON-RPC errors, the caller, text that can be encoded.

Invariant: a message says what is wrong and what to do, is bounded, and is valid Unicode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.config.servers import RELAYED
from pursuit.core.approvals import APPROVAL_ID
from pursuit.core.events import Channel
from pursuit.core.tools import as_object
from pursuit.errors import (
    InvalidArgument,
    LedgerUnavailable,
    LimitReached,
    PursuitError,
    SessionNotFound,
    UpstreamUnavailable,
    ValidationFailed,
)
from pursuit.service.audit import Caller, local_subject, user_name
from pursuit.service.service import Service

RESOURCE_NOT_FOUND = -32002
"""For 2025-era clients; since 2026-07-28 it is invalid params."""

Context = ServerRequestContext[Any, Any]
MOST_TEXT = 4_000
NEEDED_CAPABILITY: Mapping[str, str] = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
"""The capability that a client must declare to get such a request."""

LONGEST_CLIENT = 100
OPERATOR_SCOPE = "operator"
"""The scope of an operator's token."""
MAY_APPROVE = "pursuit/mayApprove"
"""The key in `_meta` of a gateway's request: False if the answers of its client to approvals do not count."""
APPROVE_OWN = "approve-own"
"""The scope of a token whose client may bring its user's answers to approvals over HTTP."""
Question = TypeVar("Question")


def is_modern(version: str) -> bool:
    """Whether a protocol version has no handshake and no requests from the server (2026-07-28)."""
    return version in MODERN_PROTOCOL_VERSIONS


def connection_of(ctx: Context) -> Connection:
    """The connection of a request: it identifies a legacy client, and what belongs to that client ends with it."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage] - the SDK has no public way to it


def wire_error(error: PursuitError) -> MCPError:
    """The JSON-RPC error: an internal error if the fault is ours, else invalid params; our code is in `data`."""
    ours = isinstance(error, LedgerUnavailable | UpstreamUnavailable)
    message = error.message
    if isinstance(error, ValidationFailed):
        message = f"{message}: {'; '.join(map(str, error.faults))}"
    return MCPError(INTERNAL_ERROR if ours else INVALID_PARAMS, sendable(message), _data(error))


@contextmanager
def mcp_errors() -> Generator[None]:
    """Raises a `PursuitError` as an `MCPError`."""
    try:
        yield
    except PursuitError as error:
        raise wire_error(error) from error


@contextmanager
def resource_errors(ctx: Context, uri: str) -> Generator[None]:
    """The same for a request about a resource: one that does not exist has the code of the protocol version."""
    try:
        yield
    except (SessionNotFound, InvalidArgument) as error:
        code = INVALID_PARAMS if is_modern(ctx.protocol_version) else RESOURCE_NOT_FOUND
        raise MCPError(code, sendable(error.message), {"uri": sendable(uri), **_data(error)}) from error
    except PursuitError as error:
        raise wire_error(error) from error


def one_page(params: PaginatedRequestParams | None) -> None:
    """Refuses a cursor of a list that has one page."""
    if params is not None and params.cursor is not None:
        raise wire_error(InvalidArgument("this list has one page; ask without a cursor", cursor=params.cursor[:100]))


def sendable(text: str) -> str:
    """Text that can be encoded, of a bounded length."""
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return cut.encode(errors="replace").decode()


def _data(error: PursuitError) -> dict[str, Any]:
    written = json.dumps(error.details, ensure_ascii=False, default=str).encode(errors="replace")
    return {"code": error.code, "details": json.loads(written)}


def caller_of(ctx: Context) -> Caller:
    """The caller: a token's name, or without tokens the user that runs the server."""
    request = ctx.request
    server = None if request is None else request.scope.get("server")
    # A unix socket has a path and no port (ASGI, HTTP connection scope); its peer is the user that runs the server.
    transport = "stdio" if request is None else "http" if server is None or server[1] is not None else "socket"
    token = get_access_token()
    who = token.client_id if token is not None else "anyone on this machine" if transport == "http" else user_name()
    params = ctx.session.client_params
    client = None
    if params is not None:
        client = sendable(f"{params.client_info.name} {params.client_info.version}"[:LONGEST_CLIENT]).strip()
    if token is None:
        return Caller(who=who, transport=transport, client=client, subject=local_subject())
    owner = owner_of(token)
    subject = None if OPERATOR_SCOPE in token.scopes else owner
    return Caller(
        who=who, transport=transport, client=client, credential=token.client_id, subject=subject, holder=owner
    )


def owner_of(token: AccessToken) -> str:
    """What the records of a token's holder belong to; of an OAuth token the issuer and its subject.

    No issuer holds a `#` (RFC 8414, section 2), so two pairs are never the same text.
    """
    issuer = (token.claims or {}).get("iss")
    return f"token:{token.subject or token.client_id}" if issuer is None else f"oauth:{issuer}#{token.subject}"


def elicitation_channel(ctx: Context, channels: Collection[Channel]) -> Channel | None:
    """The channel by which this client brings its user's answers to approvals; None if its answers do not count.

    Over stdio the user runs the server, or a gateway runs it and says for whom. Over HTTP a client can claim that its
    user said yes: so the operator must have listed that channel, and made the token with `--may approve-own`.
    """
    if as_object((ctx.params or {}).get("_meta")).get(MAY_APPROVE, True) is not True:
        return None
    if ctx.request is None:
        direct = os.environ.get(RELAYED, "stdio") == "stdio"
        return "stdio-elicitation" if direct and "stdio-elicitation" in channels else None
    token = get_access_token()
    own = token is not None and APPROVE_OWN in token.scopes
    return "http-elicitation" if own and "http-elicitation" in channels else None


def answerable(ctx: Context, questions: Mapping[str, Question], channels: Collection[Channel]) -> dict[str, Question]:
    """The questions of a task, by their keys, that this client may answer; the key of an approval is its id."""
    if elicitation_channel(ctx, channels) is not None:
        return dict(questions)
    return {key: one for key, one in questions.items() if APPROVAL_ID.match(key) is None}


LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
GREETINGS = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})
"""The requests that are about the connection alone."""
READS = frozenset(
    {"resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get", "completion/complete"}
)
UNCOUNTED = frozenset(
    GREETINGS | LISTS | {f"tasks/{verb}" for verb in ("get", "result", "list", "cancel", "update")}
) | {"subscriptions/listen"}
"""The requests that `[limits] calls_a_minute` does not count: they reach no server and no mission."""

CLIENT_NOTIFICATIONS = frozenset(
    f"notifications/{name}" for name in ("initialized", "cancelled", "progress", "roots/list_changed")
)
"""The notifications of clients in the protocol: they need no scope and are not counted. A gateway sends others on."""


def request_limits(service: Service) -> list[ServerMiddleware[Any]]:
    """The middleware that counts the requests of clients; none if no limit is about them.

    A notification over the limit is dropped: it has no answer, and its record in the ledger would be one more cost.
    """
    limits = service.limits
    if limits is None or not limits.counts_requests:
        return []

    async def counted(ctx: Context, call_next: CallNext) -> HandlerResult:
        notification = ctx.request_id is None
        if ctx.method not in (CLIENT_NOTIFICATIONS if notification else UNCOUNTED):
            try:
                limits.count_request(caller_of(ctx))
            except LimitReached as error:
                if notification:
                    return None
                raise wire_error(error) from error
        return await call_next(ctx)

    return [counted]


def without_surrogates(value: Any) -> Any:
    """The value without lone surrogates, which JSON can express and UTF-8 cannot."""
    if isinstance(value, str):
        return value if value.isascii() else _without_surrogates(value)
    if isinstance(value, Mapping):
        return {
            without_surrogates(key): without_surrogates(item) for key, item in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [without_surrogates(item) for item in cast("list[Any]", value)]
    return value


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
