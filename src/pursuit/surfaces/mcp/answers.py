"""A tool's answer: structured for programs, a few lines for people.

Owns: the lines, and how an error looks to a model. Knows no service. Invariant: a refusal is a tool error with
`code`, `message` and `details`, never a failed request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pursuit.errors import PursuitError, ValidationFailed
from pursuit.surfaces.mcp.forms import how_to_approve

Answer = Mapping[str, Any]
Lines = Callable[[Answer], list[str]]

MOST_ROWS = 20


def result(answer: Answer, lines: list[str]) -> dict[str, Any]:
    """The answer of a call that was done."""
    return _result(answer, lines, is_error=False)


def refusal(error: PursuitError, besides: Answer) -> dict[str, Any]:
    """The answer of a call that was refused; `besides` is what such an answer has unless the error knows more."""
    body = {**besides, **json.loads(json.dumps(error.as_dict(), default=str).encode(errors="replace"))}
    if "iterations" in error.details:
        body["iterations"] = body["details"].pop("iterations")
    lines = [f"{error.code}: {error.message}"]
    if isinstance(error, ValidationFailed):
        lines += [f"- {fault}" for fault in error.faults]
    return _result(body, lines, is_error=True)


def _result(body: Answer, lines: list[str], *, is_error: bool) -> dict[str, Any]:
    """A result as the wire has it: a plain mapping costs half of what a model does."""
    text = "\n".join(lines).encode(errors="replace").decode()
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "structuredContent": body,
        "isError": is_error,
    }


def started(answer: Answer) -> list[str]:
    """A mission that was accepted."""
    return [
        f"{answer['session_id']} is {answer['status']}; nothing runs yet.",
        *(f"warning: {warning}" for warning in answer["warnings"]),
        f"Proposer: {answer['proposer']}. Go on with mission_iterate.",
    ]


def status(answer: Answer) -> list[str]:
    """How a mission stands."""
    criteria: list[Answer] = answer["criteria"]
    met = sum(row["status"] == "met" for row in criteria)
    head = f"{answer['session_id']}: {answer['status']}"
    if "waiting_for" in answer:
        head += f", waiting for {answer['waiting_for']}"
    if "verdict" in answer:
        head += f" ({answer['verdict']}: {answer['verdict_reason']})"
    used = answer["budget"]["used"]
    lines = [
        head,
        f"goal: {answer['directive'][:200]}",
        f"{answer['iteration_count']} iterations, {used['tool_calls']} calls; {met} of {len(criteria)} criteria met",
    ]
    for row in criteria:
        need = "" if row["required"] else " (optional)"
        lines.append(f"- {row['criterion_id']}: {row['status']}{need}")
    return [*lines, *_approvals(answer)]


def iterated(answer: Answer) -> list[str]:
    """What iterations came to."""
    rows: list[Answer] = answer["iterations"]
    lines = [f"{answer['session_id']} is {answer['status']} after {len(rows)} iteration{'s' * (len(rows) != 1)}."]
    lines += [_iteration(row) for row in rows[-MOST_ROWS:]]
    return [*lines, *_approvals(answer)]


def checkpoint(answer: Answer) -> list[str]:
    """The verdict again."""
    return [f"{answer['session_id']}: {_iteration(answer)}"]


def ended(answer: Answer) -> list[str]:
    """Where an operator's word left a mission."""
    return [f"{answer['session_id']} is {answer['status']}."]


def history(answer: Answer) -> list[str]:
    """Some iterations."""
    rows: list[Answer] = answer["iterations"]
    lines = [_iteration(row) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more on this page")
    return [*(lines or ["no iteration has ended yet"]), *_more(answer)]


def listing(answer: Answer) -> list[str]:
    """Some missions."""
    rows: list[Answer] = answer["sessions"]
    lines = [
        f"{row['session_id']}  {row['status']}  {row['iteration_count']} iterations  {row['directive'][:80]}"
        for row in rows[:MOST_ROWS]
    ]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more on this page")
    return [*(lines or ["no missions"]), *_more(answer)]


def _iteration(row: Answer) -> str:
    return f"iteration {row['iteration_index']}: {row['verdict']} ({row['verdict_reason']})"


def _approvals(answer: Answer) -> list[str]:
    """What waits for a person's yes, and how the operator gives it."""
    rows: list[Answer] = answer.get("pending_approvals", [])
    return [f"{row['tool']} needs the operator's yes: {how_to_approve(row['approval_id'])}" for row in rows[:MOST_ROWS]]


def _more(answer: Answer) -> list[str]:
    return [f"next_cursor: {answer['next_cursor']}"] if "next_cursor" in answer else []
