"""The form in which a client's user is asked whether a call may be made, and what was filled in.

Owns: the form's shape, how an answer is read, and how an operator answers instead. Does not know: who asks, or what
a yes leads to. Invariant: what is not clearly one of the four answers is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_args

from pursuit.core.events import Permission


class Filled(NamedTuple):
    """What a person answered, and why, if they said."""

    answer: Permission
    reason: str | None


def how_to_approve(approval_id: str) -> str:
    """What the operator does where the client's user is not asked."""
    return f"`pursuit approve {approval_id}`, or `POST /approvals/{approval_id}` with an operator's token"


def form(*, where: str) -> dict[str, Any]:
    """The form; `where` says how far the wider answers reach, such as "in this mission"."""
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


def filled(said: object) -> Filled | None:
    """The answer in an elicitation's result; None if the person dismissed the question."""
    result = cast("Mapping[str, Any]", said if isinstance(said, Mapping) else {})
    if result.get("action") == "decline":
        return Filled("denied", None)
    content: object = result.get("content") if result.get("action") == "accept" else None
    given = cast("Mapping[str, Any]", content if isinstance(content, Mapping) else {})
    answer: Any = given.get("answer")
    reason: object = given.get("reason")
    if answer not in get_args(Permission):
        return None
    return Filled(answer, reason if isinstance(reason, str) and reason else None)
