"""The elicitation form that asks a client's user to approve a call, and the reading of its answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from pursuit.core.events import Channel, Permission
from pursuit.errors import ApprovalNotFound, Conflict, PolicyDenied, advice
from pursuit.server.errors import as_object
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller


class Filled(NamedTuple):
    answer: Permission
    reason: str | None


def how_to_approve(approval_id: str) -> str:
    return f"`{advice('pursuit approve {}', approval_id)}`, or `POST /approvals/{approval_id}` with an operator's token"


def approval_schema(*, where: str) -> dict[str, Any]:
    """The form; `where` is the scope of the wider answers, such as "in this mission"."""
    return {
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "title": "May this call be made?",
                "oneOf": [
                    {"const": "once", "title": "Yes, this once"},
                    {"const": "arguments", "title": f"Yes, with these arguments, {where}"},
                    {"const": "mission", "title": f"Yes, this tool, {where}"},
                    {"const": "denied", "title": "No"},
                ],
            },
            "reason": {"type": "string", "title": "Why (optional)", "maxLength": 500},
        },
        "required": ["answer"],
    }


def answer_in(said: object) -> Filled | None:
    """The answer in an elicitation's result; None if it was dismissed or is not one of the four answers."""
    result = as_object(said)
    if result.get("action") == "decline":
        return Filled("denied", None)
    given = as_object(result.get("content") if result.get("action") == "accept" else None)
    answer: Any = given.get("answer")
    reason: object = given.get("reason")
    if answer not in get_args(Permission):
        return None
    return Filled(answer, reason if isinstance(reason, str) and reason else None)


async def store_answer(
    approvals: Approvals, approval_id: str, said: object, *, caller: Caller, channel: Channel, stream: str
) -> None:
    """Stores the answer of a client's user; a dismissed, late or unauthorized answer changes nothing."""
    filled = answer_in(said)
    if filled is None:
        return
    with suppress(Conflict, ApprovalNotFound, PolicyDenied):
        await approvals.answer(
            approval_id,
            filled.answer,
            reason=filled.reason,
            caller=replace(caller, transport="elicitation"),
            channel=channel,
            stream=stream,
            unseen=True,  # the form showed the full arguments
        )
