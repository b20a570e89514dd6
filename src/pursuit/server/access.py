"""Who may send which request over HTTP: bearer tokens, our own or those of an OAuth issuer, and scopes.

A request without a valid token gets 401, one with a token that lacks the scope 403; both name in `WWW-Authenticate`
what a client must ask its authorization server for (MCP 2026-07-28, Authorization; RFC 6750, section 3).
Invariant: with a token that lacks a scope, a request is handed on only if every reader of JSON finds the same in it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthenticationError
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.errors import PursuitError
from pursuit.server.errors import CLIENT_NOTIFICATIONS, GREETINGS, LISTS, OPERATOR_SCOPE, READS, as_object
from pursuit.server.logs import REDACTED, event
from pursuit.server.tokens import CLIENT_SCOPES, PREFIX, Tokens
from pursuit.server.tokens import Scope as TokenScope

_log = logging.getLogger(__name__)

_FREE = GREETINGS | LISTS - {"resources/list"}
"""Requests that need a token and no scope: they show what the server offers, and nothing of any mission."""
READING_TOOLS: Final = frozenset(
    {"mission_tools", "mission_status", "mission_checkpoint", "mission_history", "mission_list"}
)
_READING = READS | {"resources/list", "subscriptions/listen"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRules:
    """The scopes of one kind of server: `basic` is what a client asks for first, `needed` what a request needs."""

    basic: tuple[TokenScope, ...]
    needed: Callable[[str, Mapping[str, Any]], TokenScope | None]

    def missing(self, message: object, granted: frozenset[str]) -> list[TokenScope]:
        """The scopes that a JSON-RPC message, or a batch of them, needs and the token does not have."""
        messages = cast("list[object]", message) if isinstance(message, list) else [message]
        needed: dict[TokenScope, None] = {}
        for one in messages:
            found = self._one(as_object(one))
            if found is not None and found not in granted:
                needed[found] = None
        return list(needed)

    def _one(self, message: Mapping[str, Any]) -> TokenScope | None:
        method = message.get("method")
        # An answer to a question of ours has no method. With an id, the name of a notification is a custom request.
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
"""A gateway and a problem: everything that reaches a server behind them is a call."""


class OAuthVerifier(Protocol):
    """Verifies the tokens of an authorization server."""

    metadata_url: str

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token if it is valid for this server; raises `KeysUnavailable`."""
        ...


class KeysUnavailable(AuthenticationError):
    """The keys of the authorization server cannot be read now."""


class Verifier:
    """The SDK's token verifier over our own tokens and, where it is configured, those of an OAuth issuer."""

    def __init__(self, tokens: Tokens, oauth: OAuthVerifier | None = None) -> None:
        self._tokens = tokens
        self._oauth = oauth

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token's name, subject and scopes; None if it is not valid."""
        if self._oauth is not None and not token.startswith(PREFIX):
            return await self._oauth.verify_token(token)
        try:
            holder = self._tokens.holder(token)
        except PursuitError as error:
            event(_log, logging.ERROR, "tokens cannot be read; every request is refused", why=error.message)
            return None
        if holder is None:
            return None
        # The subject ties a session to this token and those that it is rotated to; a later one may have the same name.
        scopes = [*holder.granted, *([OPERATOR_SCOPE] if holder.operator else []), *holder.may]
        return AccessToken(token=REDACTED, client_id=holder.name, scopes=scopes, subject=holder.owner)


def challenge(oauth: OAuthVerifier | None, **parameters: str) -> str:
    """The value of `WWW-Authenticate`; the address of the metadata is there if there is an authorization server."""
    if oauth is not None:
        parameters["resource_metadata"] = oauth.metadata_url
    return " ".join(["Bearer", ", ".join(f'{name}="{value}"' for name, value in parameters.items())]).strip()


class RequireToken:
    """ASGI middleware that hands on requests with a valid token; the others get 401."""

    def __init__(self, app: ASGIApp, rules: ScopeRules, oauth: OAuthVerifier | None) -> None:
        self._app = app
        self._rules = rules
        self._oauth = oauth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if isinstance(scope.get("user"), AuthenticatedUser):
            await self._app(scope, receive, send)
            return
        # RFC 6750, section 3.1: a request that shows no token gets no error code.
        shown = "authorization" in Headers(scope=scope)
        said = {"error": "invalid_token", "error_description": "the token is unknown, revoked or expired"}
        scopes = {} if self._oauth is None else {"scope": " ".join(self._rules.basic)}
        header = challenge(self._oauth, **(said if shown else {}), **scopes)
        body = said if shown else {"error_description": "a token is needed, as `Authorization: Bearer …`"}
        await JSONResponse(body, 401, {"WWW-Authenticate": header})(scope, receive, send)


class RequireScope:
    """ASGI middleware that hands on requests whose token has the scope that they need; the others get 403.

    It reads the body of a token that lacks a scope. A body that it cannot read in one way only is refused: the server
    behind it could read another method than this one.
    """

    def __init__(self, app: ASGIApp, rules: ScopeRules, oauth: OAuthVerifier | None) -> None:
        self._app = app
        self._rules = rules
        self._oauth = oauth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, whose body comes whole."""
        granted = frozenset(cast("AuthenticatedUser", scope["user"]).scopes)
        if "missions:write" in granted:  # who may write may read
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


def keys_unavailable(_connection: HTTPConnection, error: AuthenticationError) -> JSONResponse:
    """The answer while the keys of the authorization server cannot be read: no token can be judged."""
    said = {"error": "temporarily_unavailable", "error_description": str(error)}
    return JSONResponse(said, 503, {"Retry-After": "10"})


def replayed(first: Message, receive: Receive) -> Receive:
    """Receives a message that was read already, and then what follows."""
    unread = [first]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `json.loads`; raises `ValueError` if a key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found
