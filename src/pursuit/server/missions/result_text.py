"""The texts of tool results, with everything that a model needs to continue.

Many clients give their model the text of a result but not its structured content, so the text has the values, targets,
evidence and results of calls. Invariant: every text is bounded, whatever a tool returned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.core.caps import BudgetUse
from pursuit.core.observe import text_of, value_of
from pursuit.core.report import Status
from pursuit.core.truncate import cut_text
from pursuit.server.approval_form import how_to_approve

MAX_VALUE = 600
"""Characters of one value: evidence, metrics, a call's result."""
MAX_CALLS = 24_000
"""Characters of the calls of all iterations together."""
MAX_ITERATIONS = 20
MAX_APPROVALS = 20
MAX_MESSAGE = 80
MAX_RESULT = 8_000
MAX_ERROR_LINES = 20


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut_text(text, MAX_VALUE)


def page_lines(rows: Sequence[str], next_cursor: str | None, *, none: str) -> list[str]:
    lines = list(rows) or [none]
    return lines if next_cursor is None else [*lines, f"next_cursor: {next_cursor}"]


def status_lines(status: Status) -> list[str]:
    head = f"{status.mission_id}: {status.status}"
    if status.resume is not None:
        head += f", no process drives it; continue with mission_iterate or `{status.resume}`"
    if status.next is not None:
        head += f"; continue with {status.next}"
    if status.waiting_for is not None:
        head += f", waiting for {status.waiting_for}"
    if status.verdict is not None:
        head += f" ({status.verdict}: {status.verdict_reason})"
    met = sum(row.status == "met" for row in status.criteria)
    lines = [
        head,
        f"goal: {shown(status.directive)}",
        f"proposer: {status.proposer}; tools: {shown(', '.join(status.tool_allowlist))}",
        f"used: {_used(status.budget)}",
        f"{met} of {len(status.criteria)} criteria met",
    ]
    for row in status.criteria:
        need = "" if row.required else " (optional)"
        source = "" if row.source is None else f", from {row.source.tool}"
        wanted = f"{row.criterion_id}{need}: {shown(row.description)}"
        lines.append(f"- {wanted}: {row.status}, {shown(row.evidence)}{source}")
    best = {"metrics": status.metrics, "best": status.best, "best_point": msgspec.to_builtins(status.best_point)}
    lines += [f"{key}: {shown(value)}" for key, value in best.items() if value]
    lines += [f"warning: {warning}" for warning in status.warnings]
    said = {"rationale": status.rationale, "failure": status.failure}
    lines += [f"{key}: {shown(value)}" for key, value in said.items() if value is not None]
    if status.report is not None:
        lines.append(f"The final report is the resource {status.report}.")
    return [*lines, *approval_lines([one.as_json() for one in status.pending_approvals])]


def _used(budget: BudgetUse) -> str:
    """The usage of each cap: `3 of 10 iterations`."""
    parts: list[str] = []
    for use in budget.caps.values():
        of = "" if use.limit is None else f" of {use.limit:g}"
        if of or use.used:
            parts.append(f"{'unknown' if use.used is None else f'{use.used:g}'}{of} {use.cap.used}")
    return ", ".join(parts) or "nothing"


def run_lines(answer: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = answer["iterations"]
    head = f"{answer['session_id']} is {answer['status']}; this call ran {len(rows)} iteration{'s' * (len(rows) != 1)}."
    warnings = [f"warning: {warning}" for warning in answer.get("warnings", ())]
    warnings += [f"paused: {answer['paused_reason']}"] if "paused_reason" in answer else []
    return [
        head,
        *iteration_lines(rows[-MAX_ITERATIONS:]),
        *warnings,
        *approval_lines(answer.get("pending_approvals", ())),
    ]


def iteration_lines(rows: Sequence[Mapping[str, Any]], *, raw: bool = False) -> list[str]:
    """The iterations with the results of their calls; of the oldest only the verdicts, if space is short.

    The results are values, or recorded MCP results (`raw`).
    """
    told: list[list[str]] = []
    left = MAX_CALLS
    for row in reversed(rows):
        calls: Sequence[Mapping[str, Any]] = row.get("calls", ())
        details = [f"  {_call_line(call, raw=raw)}" for call in calls]
        metrics = row.get("metrics") or row.get("observation", {}).get("metrics")
        details += [f"  metrics: {shown(metrics)}"] if metrics else []
        script: Mapping[str, Any] = row.get("script", {})
        details += [f"  script {key}: {shown(script[key])}" for key in ("printed", "error") if key in script]
        left -= sum(map(len, details))
        told.append([iteration_line(row), *(details if left >= 0 else [])])
    return [line for lines in reversed(told) for line in lines]


def iteration_line(row: Mapping[str, Any]) -> str:
    return f"iteration {row['iteration_index'] + 1}: {row['verdict']} ({row['verdict_reason']})"


def _call_line(call: Mapping[str, Any], *, raw: bool) -> str:
    said = call.get("result")
    said = call.get("error") if said is None else value_of(said) if raw else said
    asked = shown(call["args"]) if call.get("args") else ""
    return f"{call['tool']}({asked}) {call['outcome']}" + ("" if said is None else f": {shown(said)}")


def approval_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{row['tool']}({shown(row['args'])}) needs the operator's approval: {how_to_approve(row['approval_id'])}"
        for row in rows[:MAX_APPROVALS]
    ]


def task_lines(row: Mapping[str, Any]) -> list[str]:
    answer: Mapping[str, Any] = row.get("result", {})
    failed: Mapping[str, Any] = answer.get("structuredContent") or {}
    lines = [task_line(row), *(f"stderr: {line}" for line in failed.get("stderr_tail", ())[-MAX_ERROR_LINES:])]
    said = text_of(answer)
    return [*lines, cut_text(said, MAX_RESULT)] if said and said != row.get("message") else lines


def task_line(row: Mapping[str, Any]) -> str:
    units = f", {row['units_done']} of {row['units_total']} units" if "units_total" in row else ""
    message = f": {row['message']}" if "message" in row else ""
    return f"{row['task_id']} ({row['title'][:MAX_MESSAGE]}) is {row['status']}{units}{message}"
