"""Approvals over HTTP, for operators: lists pending approvals and accepts answers.

Invariant: only a token with the scope `approvals:answer`, such as an operator's, sees or answers approvals, also on
loopback, and a client with it cannot approve its own calls; a refused request changes nothing.

    GET  /approvals[?session_id=ID]   {"approvals": […]}
    GET  /approvals/{approval_id}[?reveal=true]   the question with its full arguments
    POST /approvals/{approval_id}     {"answer": "once" | "arguments" | "mission" | "denied", "reason"?: text,
                                       "unseen"?: true}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from pydantic import StringConstraints, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pursuit.config.servers import LIMITS, MessageLimits
from pursuit.core.base_model import InputModel, faults_of
from pursuit.core.events import Permission
from pursuit.core.report import ApprovalRow
from pursuit.errors import PursuitError, ValidationFailed, advice
from pursuit.server.access import KeysUnavailable, Verifier, challenge, unambiguous
from pursuit.server.errors import OPERATOR_SCOPE, owner_of
from pursuit.server.tokens import Scope as TokenScope
from pursuit.server.tokens import Tokens
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Audit, Caller
from pursuit.service.service import MAX_REASON, Service

if TYPE_CHECKING:
    from pursuit.server.oauth import OAuth

SCOPE: Final[TokenScope] = "approvals:answer"
STATUSES: Final[Mapping[str, int]] = {
    "malformed_json": 400,
    "invalid_argument": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "policy_denied": 403,
    "approval_needed": 403,
    "session_not_found": 404,
    "approval_not_found": 404,
    "task_not_found": 404,
    "problem_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "session_terminal": 409,
    "session_paused": 409,
    "not_paused": 409,
    "task_terminal": 409,
    "too_large": 413,
    "validation_error": 422,
    "internal_error": 500,
    "upstream_unavailable": 503,
    "ledger_unavailable": 503,
    "ledger_too_new": 503,
}
"""The HTTP status of each error code (default 500); the body is `{code, message, details}`."""


class MalformedJson(PursuitError, code="malformed_json"):
    """The body is not JSON."""


class Unauthorized(PursuitError, code="unauthorized"):
    """The token is missing or unknown."""


class Forbidden(PursuitError, code="forbidden"):
    """The token lacks the scope."""


class MethodNotAllowed(PursuitError, code="method_not_allowed"):
    """The path does not support this method."""


class RequestTimeout(PursuitError, code="request_timeout"):
    """The body was not complete in time."""


class TooLarge(PursuitError, code="too_large"):
    """The body is too large."""


def _response(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(document, default=str)  # plain ASCII: a call's arguments may hold lone surrogates
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def _error_response(error: PursuitError, oauth: OAuth | None) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = challenge(oauth)
    elif isinstance(error, Forbidden):
        headers["WWW-Authenticate"] = challenge(oauth, error="insufficient_scope", scope=SCOPE)
    elif isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.details["allowed"]
    elif isinstance(error, RequestTimeout):
        headers["Connection"] = "close"  # the rest of the body may still arrive
    elif isinstance(error, KeysUnavailable):
        headers["Retry-After"] = "10"
    return _response(error.as_dict(), STATUSES.get(error.code, STATUSES["internal_error"]), headers)


Handler = Callable[[Request, Caller], Awaitable[dict[str, Any]]]

_LONGEST = 80


class OperatorsOnly:
    """A path with the handlers of its methods; `verb` is the name of a POST in the audit."""

    def __init__(
        self, handlers: Mapping[str, Handler], *, tokens: Tokens, oauth: OAuth | None, audit: Audit, verb: str = ""
    ) -> None:
        self._handlers = handlers
        self._verifier = Verifier(tokens, oauth)
        self._oauth = oauth
        self._audit = audit
        self._verb = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = _response(await self._answer(Request(scope, receive)))
        except PursuitError as error:
            response = _error_response(error, self._oauth)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> dict[str, Any]:
        caller, scopes = await self._caller(request)
        handler = self._handlers.get(request.method)
        if SCOPE not in scopes:
            needed = (
                f"this needs the scope {SCOPE}, as `{advice('pursuit token --operator')}` gives it; with "
                "OAuth also the subject in [serve.oauth] approvers"
            )
            refusal = Forbidden(f"{caller.who!r} is a client's token; {needed}")
            if handler is None or request.method != "POST":
                raise refusal
            given = {name: str(value)[:_LONGEST] for name, value in request.path_params.items()}
            async with self._audit.control(caller, self._verb, None, given):  # records the attempted change
                raise refusal
        if handler is None:
            known = ", ".join(self._handlers)
            raise MethodNotAllowed(f"only {known} is allowed", allowed=known)
        return await handler(request, caller)

    async def _caller(self, request: Request) -> tuple[Caller, Collection[str]]:
        user = await self._verifier.user(request)
        if user is None:
            needed = (
                f"an operator's token is required, as `Authorization: Bearer …`: `{advice('pursuit token --operator')}`"
            )
            unknown = f"this token is unknown, revoked or expired; use `{advice('pursuit token')}`"
            raise Unauthorized(unknown if "authorization" in request.headers else needed)
        token = user.access_token
        owner = owner_of(token)
        subject = None if OPERATOR_SCOPE in token.scopes else owner
        return Caller(who=token.client_id, transport="http", subject=subject, holder=owner), token.scopes


PATH: Final = "/approvals"
MAX_BODY: Final = 64 * 1024


class ApprovalAnswer(InputModel):
    answer: Permission
    reason: Annotated[str, StringConstraints(max_length=MAX_REASON)] | None = None
    unseen: bool = False


def approval_routes(
    service: Service, tokens: Tokens, oauth: OAuth | None = None, limits: MessageLimits = LIMITS
) -> list[Route]:
    """The routes; `tokens` and `oauth` decide who may answer."""
    approvals = Approvals(service)

    async def waiting(request: Request, _caller: Caller) -> dict[str, Any]:
        found = await approvals.open(request.query_params.get("session_id"))
        return {"approvals": [ApprovalRow.of(one).as_json() for one in found]}

    async def show(request: Request, caller: Caller) -> dict[str, Any]:
        reveal = request.query_params.get("reveal") == "true"
        found = await approvals.show(request.path_params["approval_id"], reveal=reveal, caller=caller)
        return ApprovalRow.of(found).as_json()

    async def answer(request: Request, caller: Caller) -> dict[str, Any]:
        said = _parse(await read_body(request, limits.request_seconds))
        approval_id: str = request.path_params["approval_id"]
        answered = await approvals.answer(
            approval_id, said.answer, reason=said.reason, caller=caller, channel="api", unseen=said.unseen
        )
        return answered.row()

    served = partial(OperatorsOnly, tokens=tokens, oauth=oauth, audit=service.audit)
    return [
        Route(PATH, served({"GET": waiting})),
        Route(f"{PATH}/{{approval_id}}", served({"GET": show, "POST": answer}, verb="approve")),
    ]


async def read_body(request: Request, seconds: float) -> bytes:
    """Reads the body, up to the limits of size and time; only for authorized callers."""
    received = bytearray()
    try:
        with anyio.fail_after(seconds):
            async with aclosing(request.stream()) as stream:
                async for chunk in stream:
                    received += chunk
                    if len(received) > MAX_BODY:
                        raise TooLarge(f"the body is larger than {MAX_BODY} bytes", limit=MAX_BODY)
    except TimeoutError:
        why = f"the body was not complete within {seconds:g} s (limit `request_seconds`); send it again"
        raise RequestTimeout(why, limit=seconds) from None
    return bytes(received)


def _parse(body: bytes) -> ApprovalAnswer:
    try:
        document = json.loads(body, object_pairs_hook=unambiguous)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"the body is not JSON: {error}") from None
    try:
        return ApprovalAnswer.model_validate(document)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, ApprovalAnswer)) from None
