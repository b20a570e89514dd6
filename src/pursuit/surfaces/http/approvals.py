"""Approvals over HTTP: what waits for a person, and the person's answer.

Owns: the two routes, and what a request to them may be. Questions and answers are the service's.
Invariant: only an operator's token sees or answers a question; a request that is refused has changed nothing.

    GET  /approvals[?session_id=ID]   {"approvals": […]}
    POST /approvals/{approval_id}     {"answer": "once" | "arguments" | "mission" | "denied", "reason"?: text}
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Annotated, Any, Final

from pydantic import StringConstraints, ValidationError
from starlette.requests import Request
from starlette.routing import Route

from pursuit.core.base_model import InputModel, faults_of
from pursuit.core.events import Permission
from pursuit.errors import Fault, ValidationFailed
from pursuit.service.approvals import LONGEST_REASON, Approvals
from pursuit.service.audit import Caller
from pursuit.service.service import Service
from pursuit.surfaces.http.failure import MalformedJson, TooLarge
from pursuit.surfaces.http.operators import OperatorsOnly
from pursuit.surfaces.tokens import Tokens

PATH: Final = "/approvals"
LARGEST_BODY: Final = 64 * 1024
_LONGEST = 80
_FILTER = "session_id"


class Answer(InputModel):
    """What a person says to a question."""

    answer: Permission
    reason: Annotated[str, StringConstraints(max_length=LONGEST_REASON)] | None = None


def approval_routes(service: Service, tokens: Tokens) -> list[Route]:
    """The routes, for whoever serves this service's missions; `tokens` says who is an operator."""
    desk = Approvals(service)

    async def waiting(request: Request, _caller: Caller) -> dict[str, Any]:
        return {"approvals": await desk.open(_asked_for(request))}

    async def answer(request: Request, caller: Caller) -> dict[str, Any]:
        said = _parse(await _body(request))
        approval_id: str = request.path_params["approval_id"]
        return await desk.answer(approval_id, said.answer, reason=said.reason, caller=caller)

    asked = OperatorsOnly("GET", waiting, tokens=tokens, audit=service.audit)
    answered = OperatorsOnly("POST", answer, tokens=tokens, audit=service.audit, verb="approve")
    return [Route(PATH, asked), Route(f"{PATH}/{{approval_id}}", answered)]


def _asked_for(request: Request) -> str | None:
    """The mission whose questions are asked for; None for those of all."""
    given = request.query_params.multi_items()
    faults = [
        Fault(field=name[:_LONGEST], reason=f"is not a known parameter; there is {_FILTER}")
        for name, _ in given
        if name != _FILTER
    ]
    missions = [value for name, value in given if name == _FILTER]
    if len(missions) > 1:
        faults.append(Fault(field=_FILTER, reason=f"is given {len(missions)} times; name one mission"))
    if faults:
        raise ValidationFailed(faults, "wrong parameters")
    return missions[0] if missions else None


async def _body(request: Request) -> bytes:
    """The body, of which no more is kept than it may have."""
    received = bytearray()
    async with aclosing(request.stream()) as stream:
        async for chunk in stream:
            received += chunk
            if len(received) > LARGEST_BODY:
                raise TooLarge(f"the body is larger than {LARGEST_BODY} bytes", limit=LARGEST_BODY)
    return bytes(received)


def _parse(body: bytes) -> Answer:
    try:
        document = json.loads(body, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"the body is no JSON: {error}") from None
    try:
        return Answer.model_validate(document)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, Answer)) from None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ: two answers in one are none."""
    whole = dict(pairs)
    if len(whole) < len(pairs):
        raise ValueError("a key is given twice")
    return whole
