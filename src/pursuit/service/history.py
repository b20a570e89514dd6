"""The iterations of a mission, page by page, from its events.

Owns: the shape of a history row. Reads the ledger, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from pursuit.ledger.contract import Ledger
from pursuit.model.events import (
    AnyEvent,
    CallIntended,
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    ScriptEnded,
    decode,
)
from pursuit.model.report import iso

PAGE = 100


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some iterations, and the index of the first one that follows."""

    iterations: list[dict[str, Any]]
    next_first: int | None


async def history_page(
    ledger: Ledger, mission_id: str, *, full: bool, first: int, limit: int = PAGE, after: int = 0
) -> HistoryPage:
    """The ended iterations from `first` on; what lies before event `after` is not looked at."""
    rows: dict[int, dict[str, Any]] = {}
    last = first + limit
    more = False
    for stored in await ledger.read(mission_id, after):
        event = decode(stored.type, stored.body)
        index = getattr(event, "iteration", None)
        if index is None or index < first:
            continue
        if index >= last:
            more = more or isinstance(event, IterationEnded)
            continue
        row = rows.setdefault(index, {"iteration_index": index})
        _add(row, event, full=full)
    ended = [row for _index, row in sorted(rows.items()) if "verdict" in row]
    return HistoryPage(ended, last if more else None)


def _add(row: dict[str, Any], event: AnyEvent, *, full: bool) -> None:
    match event:
        case IterationProposed():
            row["started_at"] = iso(event.at)
            if full:
                row["strategy"] = _strategy(event)
                row["calls"] = []
        case IterationEnded():
            row["verdict"], row["verdict_reason"], row["ended_at"] = event.verdict, event.reason, iso(event.at)
            if full:
                row["rationale"] = event.rationale
                row["checkpoint"] = event.facts.checkpoint
                row["criteria"] = [msgspec.to_builtins(result) for result in event.criteria]
        case CallIntended() | CallSettled() | CallRefused() | ScriptEnded() if full:
            _add_detail(row, event)
        case _:
            pass


def _add_detail(row: dict[str, Any], event: CallIntended | CallSettled | CallRefused | ScriptEnded) -> None:
    calls: list[dict[str, Any]] = row.setdefault("calls", [])
    observation: dict[str, Any] = row.setdefault("observation", {"metrics": {}, "events": [], "errors": []})
    match event:
        case CallIntended():
            if all(call["call_id"] != event.call_id for call in calls):
                calls.append(
                    {"call_id": event.call_id, "tool": event.tool, "args": event.args, "purpose": event.purpose}
                )
        case CallRefused():
            calls.append(
                {
                    "call_id": event.call_id,
                    "tool": event.tool,
                    "args": event.args,
                    "purpose": event.purpose,
                    "outcome": event.outcome,
                    "error": event.reason,
                }
            )
            observation["errors"].append(event.reason)
        case CallSettled():
            for call in calls:
                if call["call_id"] == event.call_id:
                    call.update(outcome=event.outcome, seconds=event.seconds, result=event.result or event.preview)
                    if event.error is not None:
                        call["error"] = event.error
            _observe(observation, event.metrics, event.events, event.error)
        case ScriptEnded():
            _observe(observation, event.observed, event.events, event.error)
            if event.printed:
                row["printed"] = event.printed


def _observe(
    observation: dict[str, Any], metrics: dict[str, Any], events: list[dict[str, Any]], error: str | None
) -> None:
    observation["metrics"].update(metrics)
    observation["events"].extend(events)
    if error is not None:
        observation["errors"].append(error)


def _strategy(event: IterationProposed) -> dict[str, Any]:
    strategy: dict[str, Any] = {"proposer": event.proposer}
    if event.script is not None:
        strategy["script"] = event.script
    else:
        strategy["tool_calls"] = [{"tool_name": call.tool, "args": call.args} for call in event.calls]
    if event.rationale is not None:
        strategy["rationale"] = event.rationale
    if event.failed:
        strategy["failed"] = event.failed
    return strategy
