"""Asks the person behind an MCP client, in whichever way the client's era has.

Owns: how a question looks there and how its answer is read. Questions and answers themselves lie in the ledger.
Invariant: the client is asked only if it says that it can ask a person; a dismissed question stays open.

Before 2026-07-28 the server sends `elicitation/create` while the call is under way. Since then the call is answered
with `input_required`, and the client calls again with the answers: the question's id is the key, so nothing else has to
be remembered between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.errors import Conflict, InvalidArgument
from pursuit.model.events import Permission
from pursuit.service.approvals import ApprovalNotFound, Approvals
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context, sendable

MOST_ROUNDS = 8
"""The SDK's client gives up after ten."""

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {
            "type": "string",
            "title": "May this call be made?",
            "oneOf": [
                {"const": "once", "title": "Yes, this once"},
                {"const": "arguments", "title": "Yes, with these arguments, in this mission"},
                {"const": "mission", "title": "Yes, this tool in this mission"},
                {"const": "denied", "title": "No"},
            ],
        },
        "reason": {"type": "string", "title": "Why (optional)", "maxLength": 500},
    },
    "required": ["answer"],
}


class AskClient(Exception):
    """The call ends here with questions; the client will call again with the answers."""

    def __init__(self, questions: Sequence[Mapping[str, Any]], rounds: int) -> None:
        super().__init__("input required")
        self.questions = questions
        self.rounds = rounds

    def result(self) -> InputRequiredResult:
        """What the client is answered; it hands back how often it was asked in this call."""
        requests: Any = {row["approval_id"]: ElicitRequest(params=_params(row)) for row in self.questions}
        return InputRequiredResult(input_requests=requests, request_state=str(self.rounds))


def can_ask(ctx: Context) -> bool:
    """Whether there is a person behind this client, as it says, and a way to ask once more."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    return _rounds(ctx) < MOST_ROUNDS if _modern(ctx) else ctx.session.can_send_request


Told = Literal["nothing", "answered", "dismissed"]


async def take_answers(ctx: Context, desk: Approvals) -> Told:
    """Records the answers that come with a repeated call, and says what came."""
    given: object = (ctx.params or {}).get("inputResponses")
    if not isinstance(given, Mapping) or not given:
        return "nothing"
    told: list[bool] = []
    for approval_id, said in cast("Mapping[str, Any]", given).items():
        content = cast("Mapping[str, Any]", said if isinstance(said, Mapping) else {})
        try:
            told.append(await _record(ctx, desk, approval_id, content))
        except Conflict:
            told.append(True)  # told twice; the first answer counts
        except (ApprovalNotFound, InvalidArgument):
            continue
    if not told:
        raise InvalidArgument(
            "no question waits for these answers; call again without them, with `after` set to what you know"
        )
    return "answered" if all(told) else "dismissed"


async def ask(ctx: Context, desk: Approvals, mission_id: str) -> bool:
    """Asks about everything that the mission waits for; whether there is an answer to each question now."""
    questions = await desk.open(mission_id)
    if _modern(ctx):
        raise AskClient(questions, _rounds(ctx) + 1)
    for row in questions:
        params = _params(row)
        answer = await ctx.session.elicit_form(params.message, params.requested_schema, ctx.request_id)
        said = {"action": answer.action, "content": answer.content or {}}
        if not await _record(ctx, desk, row["approval_id"], said):
            return False
    return bool(questions)


async def _record(ctx: Context, desk: Approvals, approval_id: str, said: Mapping[str, Any]) -> bool:
    """Stores one answer; False if the person dismissed the question."""
    action = said.get("action")
    content: Mapping[str, Any] = said.get("content") or {}
    chosen: Any = content.get("answer") if action == "accept" else "denied" if action == "decline" else None
    if chosen not in get_args(Permission):
        return False
    reason = content.get("reason")
    by = replace(caller_of(ctx), transport="elicitation")
    await desk.answer(approval_id, chosen, reason=reason if isinstance(reason, str) and reason else None, caller=by)
    return True


def _rounds(ctx: Context) -> int:
    """How often this call has come back with answers already."""
    state: object = (ctx.params or {}).get("requestState")
    return int(state) if isinstance(state, str) and state.isdecimal() and len(state) < 4 else 0


def _modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _params(row: Mapping[str, Any]) -> ElicitRequestFormParams:
    return ElicitRequestFormParams(message=sendable(row["description"]), requested_schema=FORM)
