"""Approvals over HTTP, for operators: which calls wait for an answer, and the answer.

Invariant: only a token with the scope `approvals:answer`, as an operator's has it, sees or answers an approval, on
loopback, too, and a client with it does not approve its own calls; a refused request changes nothing.

    GET  /approvals[?session_id=ID]   {"approvals": […]}
    GET  /approvals/{approval_id}[?reveal=true]   the question with its arguments whole
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
from pursuit.errors import Fault, PursuitError, UpstreamUnavailable, ValidationFailed, advice
from pursuit.server.access import KeysUnavailable, Verifier, challenge, unambiguous
from pursuit.server.errors import OPERATOR_SCOPE, owner_of
from pursuit.server.tokens import Scope as TokenScope
from pursuit.server.tokens import Tokens
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Audit, Caller
from pursuit.service.service import LONGEST_REASON, Service

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
"""The HTTP status of each code that a request can end with, others are 500; the body is `{code, message, details}`."""


class MalformedJson(PursuitError):
    """The body is not JSON."""

    code = "malformed_json"


class Unauthorized(PursuitError):
    """There is no token, or an unknown one."""

    code = "unauthorized"


class Forbidden(PursuitError):
    """The token lacks the scope."""

    code = "forbidden"


class MethodNotAllowed(PursuitError):
    """The path has another method."""

    code = "method_not_allowed"


class RequestTimeout(PursuitError):
    """The body did not arrive whole in time."""

    code = "request_timeout"


class TooLarge(PursuitError):
    """The body is too large."""

    code = "too_large"


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
        headers["Connection"] = "close"  # the rest of the body could still come
    elif isinstance(error, UpstreamUnavailable):
        headers["Retry-After"] = "10"
    return _response(error.as_dict(), STATUSES.get(error.code, STATUSES["internal_error"]), headers)


Handler = Callable[[Request, Caller], Awaitable[dict[str, Any]]]

_SCHEME = "bearer "
_LONGEST = 80


class OperatorsOnly:
    """One path with the handlers of its methods; `verb` is the name of a POST in the audit."""

    def __init__(
        self, handlers: Mapping[str, Handler], *, tokens: Tokens, oauth: OAuth | None, audit: Audit, verb: str = ""
    ) -> None:
        self._handlers = handlers
        self._verifier = Verifier(tokens, oauth)
        self._oauth = oauth
        self._audit = audit
        self._verb = verb

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
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
            async with self._audit.control(caller, self._verb, None, given):  # an attempt to change something
                raise refusal
        if handler is None:
            known = ", ".join(self._handlers)
            raise MethodNotAllowed(f"this path takes {known} alone", allowed=known)
        return await handler(request, caller)

    async def _caller(self, request: Request) -> tuple[Caller, Collection[str]]:
        """The holder of the request's token, and its scopes."""
        shown = request.headers.get("authorization", "")
        if not shown.lower().startswith(_SCHEME):
            raise Unauthorized(
                f"an operator's token is needed, as `Authorization: Bearer …`: `{advice('pursuit token --operator')}`"
            )
        try:
            found = await self._verifier.verify_token(shown[len(_SCHEME) :])
        except KeysUnavailable as error:
            raise UpstreamUnavailable(str(error)) from error
        if found is None:
            raise Unauthorized(f"this token is not known, was revoked or has expired; use `{advice('pursuit token')}`")
        owner = owner_of(found)
        subject = None if OPERATOR_SCOPE in found.scopes else owner
        return Caller(who=found.client_id, transport="http", subject=subject, holder=owner), found.scopes


PATH: Final = "/approvals"
LARGEST_BODY: Final = 64 * 1024
_FILTER = "session_id"
_REVEAL = "reveal"


class ApprovalAnswer(InputModel):
    """The body of an answer."""

    answer: Permission
    reason: Annotated[str, StringConstraints(max_length=LONGEST_REASON)] | None = None
    unseen: bool = False


def approval_routes(
    service: Service, tokens: Tokens, oauth: OAuth | None = None, limits: MessageLimits = LIMITS
) -> list[Route]:
    """The routes; `tokens` and `oauth` say who may answer."""
    approvals = Approvals(service)

    async def waiting(request: Request, _caller: Caller) -> dict[str, Any]:
        return {"approvals": [ApprovalRow.of(one).as_json() for one in await approvals.open(_one_of(request, _FILTER))]}

    async def show(request: Request, caller: Caller) -> dict[str, Any]:
        reveal = _one_of(request, _REVEAL) or "false"
        if reveal not in ("true", "false"):
            raise ValidationFailed([Fault(field=_REVEAL, reason="must be true or false")], "wrong parameters")
        found = await approvals.show(request.path_params["approval_id"], reveal=reveal == "true", caller=caller)
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


def _one_of(request: Request, known: str) -> str | None:
    """The one parameter that the query may have, or None."""
    given = request.query_params.multi_items()
    faults = [
        Fault(field=name[:_LONGEST], reason=f"is not a known parameter; there is {known}")
        for name, _ in given
        if name != known
    ]
    values = [value for name, value in given if name == known]
    if len(values) > 1:
        faults.append(Fault(field=known, reason=f"is given {len(values)} times; give it once"))
    if faults:
        raise ValidationFailed(faults, "wrong parameters")
    return values[0] if values else None


async def read_body(request: Request, seconds: float) -> bytes:
    """The body; reading stops at the limits of size and time. It is read only for a caller that may send one."""
    received = bytearray()
    try:
        with anyio.fail_after(seconds):
            async with aclosing(request.stream()) as stream:
                async for chunk in stream:
                    received += chunk
                    if len(received) > LARGEST_BODY:
                        raise TooLarge(f"the body is larger than {LARGEST_BODY} bytes", limit=LARGEST_BODY)
    except TimeoutError:
        why = f"the body did not arrive whole within {seconds:g} s (limit `request_seconds`); send it again"
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
