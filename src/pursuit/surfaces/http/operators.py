"""Endpoints for operators alone.

Owns: how a request's token becomes its holder, and who is turned away. Knows no path and no document; Host and Origin
are checked by whoever serves the route. Invariant: on every address, also on this machine alone, a handler runs only
for a known operator's token; what cannot be checked is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from pursuit.errors import PursuitError
from pursuit.service.audit import Audit, Caller
from pursuit.surfaces.http.failure import Forbidden, MethodNotAllowed, Unauthorized, failed, told
from pursuit.surfaces.logs import event
from pursuit.surfaces.tokens import Holder, Tokens

Handler = Callable[[Request, Caller], Awaitable[dict[str, Any]]]

_SCHEME = "bearer "
_LONGEST = 80
_log = logging.getLogger(__name__)


class OperatorsOnly:
    """One method of one path. `verb` is its word in the audit, None for one that only looks."""

    def __init__(self, method: str, handler: Handler, *, tokens: Tokens, audit: Audit, verb: str | None = None) -> None:
        self._method = method
        self._handler = handler
        self._tokens = tokens
        self._audit = audit
        self._verb = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            response = told(await self._answer(Request(scope, receive)))
        except PursuitError as error:
            response = failed(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> dict[str, Any]:
        holder = holder_of(request, self._tokens)
        caller = Caller(who=holder.name, transport="http")
        right = request.method == self._method
        if not holder.operator:
            await self._turn_away(request, caller, self._verb if right else None)
        if not right:
            raise MethodNotAllowed(f"this path takes {self._method} alone", allowed=self._method)
        return await self._handler(request, caller)

    async def _turn_away(self, request: Request, caller: Caller, verb: str | None) -> None:
        """Refuses a client; that it tried to change something is in the audit."""
        needed = "this needs an operator's, which `pursuit token --operator` makes"
        refusal = Forbidden(f"{caller.who!r} is a client's token; {needed}")
        if verb is None:
            raise refusal
        given = {name: str(value)[:_LONGEST] for name, value in request.path_params.items()}
        async with self._audit.control(caller, verb, None, given):
            raise refusal


def holder_of(request: Request, tokens: Tokens) -> Holder:
    """Whose token the request shows."""
    shown = request.headers.get("authorization", "")
    if not shown.lower().startswith(_SCHEME):
        raise Unauthorized(
            "an operator's token is needed, as `Authorization: Bearer …`; make one with `pursuit token --operator`"
        )
    try:
        holder = tokens.holder(shown[len(_SCHEME) :])
    except PursuitError as error:
        event(_log, logging.ERROR, "no token can be checked, so nobody is let in", why=error.message)
        holder = None
    if holder is None:
        raise Unauthorized("this token is not known, or was revoked; make one with `pursuit token --operator`")
    return holder
