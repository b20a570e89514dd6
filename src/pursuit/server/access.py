"""Access control of HTTP requests: bearer tokens (our own or those of an OAuth issuer) and scopes.

A request without a valid token gets 401, one with a token that lacks the scope 403; both name in `WWW-Authenticate`
what a client must ask its authorization server for (MCP 2026-07-28, Authorization; RFC 6750, section 3).
Invariant: with a token that lacks a scope, a request passes only if all JSON parsers read it identically.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.errors import PursuitError, UpstreamUnavailable
from pursuit.server.errors import CLIENT_NOTIFICATIONS, GREETINGS, LISTS, OPERATOR_SCOPE, READS, as_object
from pursuit.server.logs import REDACTED, event
from pursuit.server.tokens import CLIENT_SCOPES, PREFIX, Tokens
from pursuit.server.tokens import Scope as TokenScope

_log = logging.getLogger(__name__)

_FREE = GREETINGS | LISTS - {"resources/list"}
"""Requests that need a token but no scope: they describe the server and reveal no mission."""
READING_TOOLS: Final = frozenset(
    {"mission_tools", "mission_status", "mission_checkpoint", "mission_history", "mission_list"}
)
_READING = READS | {"resources/list", "subscriptions/listen"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRules:
    """The scopes of a kind of server: clients request `basic` first; a request requires `needed`."""

    basic: tuple[TokenScope, ...]
    needed: Callable[[str, Mapping[str, Any]], TokenScope | None]

    def missing(self, message: object, granted: frozenset[str]) -> list[TokenScope]:
        """The scopes that a JSON-RPC message or batch needs and the token lacks."""
        messages = cast("list[object]", message) if isinstance(message, list) else [message]
        needed: dict[TokenScope | None, None] = dict.fromkeys(self._one(as_object(one)) for one in messages)
        return [scope for scope in needed if scope is not None and scope not in granted]

    def _one(self, message: Mapping[str, Any]) -> TokenScope | None:
        method = message.get("method")
        # Responses have no method. A message with an id and a notification's name is a custom request.
        if not isinstance(method, str) or method in _FREE or (method in CLIENT_NOTIFICATIONS and "id" not in message):
            return None
        if method.startswith("tasks/"):
            return "tasks:*"
        return self.needed(method, as_object(message.get("params")))


def _for_missions(method: str, params: Mapping[str, Any]) -> TokenScope:
    if method in _READING:
        return "missions:read"
    name = params.get("name")
    if method != "tools/call" or not isinstance(name, str):
        return "missions:write"
    if name.startswith("mission_"):
        return "missions:read" if name in READING_TOOLS else "missions:write"
    return "tasks:*" if name.startswith("task_") else "tools:call"


MISSIONS: Final = ScopeRules(basic=CLIENT_SCOPES, needed=_for_missions)
UPSTREAM: Final = ScopeRules(basic=("tools:call", "tasks:*"), needed=lambda _method, _params: "tools:call")
"""For gateways and problems: everything that reaches a server behind them is a call."""


class OAuthVerifier(Protocol):
    metadata_url: str

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token if it is valid for this server; raises `KeysUnavailable`."""


class KeysUnavailable(UpstreamUnavailable):
    """The keys of the authorization server cannot be read now."""


class Verifier:
    """The SDK's token verifier over our own tokens and, where it is configured, those of an OAuth issuer."""

    def __init__(self, tokens: Tokens, oauth: OAuthVerifier | None = None) -> None:
        self._tokens = tokens
        self._oauth = oauth

    async def user(self, connection: HTTPConnection) -> AuthenticatedUser | None:
        """The user of a request's bearer token if it is valid; raises `KeysUnavailable`."""
        found = await BearerAuthBackend(self).authenticate(connection)
        return None if found is None else found[1]

    async def verify_token(self, token: str) -> AccessToken | None:
        if self._oauth is not None and not token.startswith(PREFIX):
            return await self._oauth.verify_token(token)
        try:
            holder = self._tokens.holder(token)
        except PursuitError as error:
            event(_log, logging.ERROR, "tokens cannot be read; every request is refused", why=error.message)
            return None
        if holder is None:
            return None
        # The subject ties a session to this token and its rotations; a later token may have the same name.
        scopes = [*holder.granted, *([OPERATOR_SCOPE] if holder.operator else []), *holder.may]
        return AccessToken(token=REDACTED, client_id=holder.name, scopes=scopes, subject=holder.owner)


def challenge(oauth: OAuthVerifier | None, **parameters: str) -> str:
    """The value of `WWW-Authenticate`, with the address of the metadata if an authorization server is configured."""
    if oauth is not None:
        parameters["resource_metadata"] = oauth.metadata_url
    return " ".join(["Bearer", ", ".join(f'{name}="{value}"' for name, value in parameters.items())]).strip()


class RequireToken:
    """ASGI middleware that passes on requests with a valid token; others get 401."""

    def __init__(self, app: ASGIApp, rules: ScopeRules, tokens: Tokens, oauth: OAuthVerifier | None) -> None:
        self._app = AuthContextMiddleware(app)
        self._rules = rules
        self._verifier = Verifier(tokens, oauth)
        self._oauth = oauth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            user = await self._verifier.user(HTTPConnection(scope))
        except KeysUnavailable as error:  # no token can be verified
            said = {"error": "temporarily_unavailable", "error_description": error.message}
            await JSONResponse(said, 503, {"Retry-After": "10"})(scope, receive, send)
            return
        if user is not None:
            scope["user"] = user
            await self._app(scope, receive, send)
            return
        # RFC 6750, section 3.1: a request that shows no token gets no error code.
        shown = "authorization" in Headers(scope=scope)
        said = {"error": "invalid_token", "error_description": "the token is unknown, revoked or expired"}
        scopes = {} if self._oauth is None else {"scope": " ".join(self._rules.basic)}
        header = challenge(self._oauth, **(said if shown else {}), **scopes)
        body = said if shown else {"error_description": "a token is required, as `Authorization: Bearer …`"}
        await JSONResponse(body, 401, {"WWW-Authenticate": header})(scope, receive, send)


class RequireScope:
    """ASGI middleware that passes on requests whose token has the required scope; others get 403.

    For a token that lacks a scope it reads the body and refuses ambiguous JSON, in which the server could read a
    different method.
    """

    def __init__(self, app: ASGIApp, rules: ScopeRules, oauth: OAuthVerifier | None) -> None:
        self._app = app
        self._rules = rules
        self._oauth = oauth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        granted = frozenset(cast("AuthenticatedUser", scope["user"]).scopes)
        if "missions:write" in granted:  # write implies read
            granted |= {"missions:read"}
        if scope["method"] != "POST" or granted.issuperset(self._rules.basic):
            await self._app(scope, receive, send)
            return
        first = await receive()
        if first["type"] == "http.request" and not first.get("more_body", False):  # the SDK refuses a longer one
            try:
                message = json.loads(first["body"], object_pairs_hook=unambiguous)
            except (ValueError, RecursionError):
                refused = {"error_description": "the body is not JSON, or repeats a key"}
                await JSONResponse(refused, 400)(scope, receive, send)
                return
            if missing := self._rules.missing(message, granted):
                await self._refuse(missing, scope, receive, send)
                return
        await self._app(scope, replayed(first, receive), send)

    async def _refuse(self, missing: list[TokenScope], scope: Scope, receive: Receive, send: Send) -> None:
        needed = " ".join(missing)
        said = {"error": "insufficient_scope", "error_description": f"this request needs the scope {needed}"}
        header = challenge(self._oauth, **said, scope=needed)
        await JSONResponse({**said, "scope": needed}, 403, {"WWW-Authenticate": header})(scope, receive, send)


def replayed(first: Message, receive: Receive) -> Receive:
    """Receives a message that was already read, then the rest."""
    unread = [first]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `json.loads`; raises `ValueError` for a repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found
