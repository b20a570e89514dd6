"""Shared parts of all servers: JSON-RPC errors, the caller of a request, encodable text.

Invariant: an error message states the fault and the remedy, is bounded, and is valid Unicode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    SERVER_INFO_META_KEY,
    LoggingLevel,
    PaginatedRequestParams,
)
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
from pursuit.upstream.tasks import EXTENSION

if TYPE_CHECKING:
    from pursuit.service.service import Service

LEVELS: tuple[str, ...] = get_args(LoggingLevel)
"""The log levels of MCP, the least severe first."""

RESOURCE_NOT_FOUND = -32002
"""The error code for 2025-era clients; since 2026-07-28 the code is that of invalid params."""

FIRST_VERSIONS = frozenset({"2025-11-25"})
"""The protocol versions with the first generation of tasks."""

Context = ServerRequestContext[Any, Any]
MAX_TEXT = 4_000
NEEDED_CAPABILITY: Mapping[str, str] = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
"""The capability that a client must declare to get such a request."""

MAX_CLIENT = 100
OPERATOR_SCOPE = "operator"
"""The scope of an operator's token."""
MAY_APPROVE = "pursuit/mayApprove"
"""The key in `_meta` of a gateway's request: False if its client may not answer approvals."""
APPROVE_OWN = "approve-own"
"""The scope of a token whose client may submit its user's answers to approvals over HTTP."""
Question = TypeVar("Question")


def is_modern(version: str) -> bool:
    """True for protocol versions without a handshake and without requests from the server (2026-07-28)."""
    return version in MODERN_PROTOCOL_VERSIONS


def log_level(params: Mapping[str, Any]) -> str | None:
    """The log level that a request of 2026-07-28 sets in `_meta`."""
    level = as_object(params.get("_meta")).get(LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def is_wanted(level: str | None, params: Mapping[str, Any]) -> bool:
    """True if a log message has this level or above; a message without a known level counts as above."""
    given = params.get("level")
    if level is None:
        return False
    return given not in LEVELS or LEVELS.index(cast("str", given)) >= LEVELS.index(level)


def generation_of(ctx: Context) -> Literal[0, 1, 2]:
    """The generation of tasks that the client supports; 0: none, or 2026-07-28 without the extension."""
    if is_modern(ctx.protocol_version):
        extensions = as_object(capabilities_of(ctx).get("extensions"))
        return 2 if extensions.get(EXTENSION) is not None else 0
    return 1 if ctx.protocol_version in FIRST_VERSIONS else 0


def capabilities_of(ctx: Context) -> Mapping[str, Any]:
    """The client's capabilities, from this request or the handshake."""
    if is_modern(ctx.protocol_version):
        meta = as_object((ctx.params or {}).get("_meta"))
        return as_object(meta.get(CLIENT_CAPABILITIES_META_KEY))
    said = ctx.session.client_params
    return {} if said is None else said.capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)


def connection_of(ctx: Context) -> Connection:
    """The connection of a request; it identifies a legacy client, whose state ends with it."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage] - the SDK has no public way to it


def wire_error(error: PursuitError) -> MCPError:
    """Converts an error to JSON-RPC: internal error if the fault is ours, else invalid params; `data` has our code."""
    ours = isinstance(error, LedgerUnavailable | UpstreamUnavailable)
    message = error.message
    if isinstance(error, ValidationFailed):
        message = f"{message}: {'; '.join(map(str, error.faults))}"
    return MCPError(INTERNAL_ERROR if ours else INVALID_PARAMS, sendable(message), _data(error))


@contextmanager
def mcp_errors() -> Generator[None]:
    try:
        yield
    except PursuitError as error:
        raise wire_error(error) from error


@contextmanager
def resource_errors(ctx: Context, uri: str) -> Generator[None]:
    """Like `wire_error`, for a resource: a missing resource gets the code of the protocol version."""
    try:
        yield
    except (SessionNotFound, InvalidArgument) as error:
        code = INVALID_PARAMS if is_modern(ctx.protocol_version) else RESOURCE_NOT_FOUND
        raise MCPError(code, sendable(error.message), {"uri": sendable(uri), **_data(error)}) from error
    except PursuitError as error:
        raise wire_error(error) from error


def one_page(params: PaginatedRequestParams | None) -> None:
    """Refuses a cursor for a list with a single page."""
    if params is not None and params.cursor is not None:
        raise wire_error(InvalidArgument("this list has a single page; omit the cursor", cursor=params.cursor[:100]))


def sendable(text: str) -> str:
    """Returns the text with a bounded length and without unencodable characters."""
    cut = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return cut.encode(errors="replace").decode()


def _data(error: PursuitError) -> dict[str, Any]:
    written = json.dumps(error.details, ensure_ascii=False, default=str).encode(errors="replace")
    return {"code": error.code, "details": json.loads(written)}


def caller_of(ctx: Context) -> Caller:
    """The caller: the name of its token, or without tokens the user who runs the server."""
    request = ctx.request
    server = None if request is None else request.scope.get("server")
    # A unix socket has a path and no port (ASGI, HTTP connection scope); its peer is the user that runs the server.
    transport = "stdio" if request is None else "http" if server is None or server[1] is not None else "socket"
    token = get_access_token()
    who = token.client_id if token is not None else "anyone on this machine" if transport == "http" else user_name()
    params = ctx.session.client_params
    client = None
    if params is not None:
        client = sendable(f"{params.client_info.name} {params.client_info.version}"[:MAX_CLIENT]).strip()
    if token is None:
        return Caller(who=who, transport=transport, client=client, subject=local_subject())
    owner = owner_of(token)
    subject = None if OPERATOR_SCOPE in token.scopes else owner
    return Caller(
        who=who, transport=transport, client=client, credential=token.client_id, subject=subject, holder=owner
    )


def owner_of(token: AccessToken) -> str:
    """The owner of a token holder's records; for an OAuth token, its issuer and subject.

    An issuer never contains `#` (RFC 8414, section 2), so the text is unique.
    """
    issuer = (token.claims or {}).get("iss")
    return f"token:{token.subject or token.client_id}" if issuer is None else f"oauth:{issuer}#{token.subject}"


def elicitation_channel(ctx: Context, channels: Collection[Channel]) -> Channel | None:
    """The channel over which this client submits its user's answers to approvals; None if it may not.

    Over stdio the user, or a gateway on the user's behalf, runs the server. Over HTTP a client can fake its user's
    answer: the operator must list that channel and create the token with `--may approve-own`.
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


APPS = "io.modelcontextprotocol/ui"
APP_TYPE = "text/html;profile=mcp-app"
APP_URI = "ui://pursuit/mission"
"""The view of a mission in clients with MCP Apps (2026-01-26), which name the extension and the MIME type."""


def shows_apps(ctx: Context) -> bool:
    extensions = as_object(capabilities_of(ctx).get("extensions"))
    types = as_object(extensions.get(APPS)).get("mimeTypes")
    return isinstance(types, list) and APP_TYPE in types


TASKS: Mapping[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""The capability of a server with tasks of the first generation."""

LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
GREETINGS = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})
"""The requests that concern only the connection."""
READS = frozenset(
    {"resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get", "completion/complete"}
)
UNCOUNTED = frozenset(
    GREETINGS | LISTS | {f"tasks/{verb}" for verb in ("get", "result", "list", "cancel", "update")}
) | {"subscriptions/listen"}
"""The requests that `[limits] calls_a_minute` does not count, because they reach neither servers nor missions."""

CLIENT_NOTIFICATIONS = frozenset(
    f"notifications/{name}" for name in ("initialized", "cancelled", "progress", "roots/list_changed")
)
"""The protocol's client notifications: they need no scope and are not counted. A gateway forwards others."""


CACHEABLE = LISTS | {"server/discover", "resources/read"}
NEVER_CACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}


def modern_result(method: str, result: Mapping[str, Any], info: Mapping[str, Any] | None) -> dict[str, Any]:
    """A result of 2026-07-28: with its type, its server and, where it may be cached, how long."""
    body = {**result}
    body.setdefault("resultType", "complete")
    if method in CACHEABLE and body["resultType"] == "complete":
        for key, value in NEVER_CACHED.items():
            body.setdefault(key, value)
    meta = body.get("_meta")
    if info is not None and (meta is None or isinstance(meta, Mapping)):
        body["_meta"] = {SERVER_INFO_META_KEY: info} | dict(as_object(meta))
    return body


def request_limits(service: Service) -> list[ServerMiddleware[Any]]:
    """The middleware that counts requests of clients; empty without such a limit.

    A notification over the limit is dropped: it has no response, and recording it would only add cost.
    """
    limits = service.limits
    if not limits.counts_requests:
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
