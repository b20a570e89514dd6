"""The iterations of a mission, page by page, from its events.

Owns: the shape of a history row. Reads the ledger, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from pursuit.core.events import (
    AnyEvent,
    CallIntended,
    CallRefused,
    CallSettled,
    IterationEnded,
    IterationProposed,
    ScriptEnded,
    decode,
)
from pursuit.core.report import iso
from pursuit.ledger.contract import Ledger

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
                row["calls"] = {}
        case IterationEnded():
            row["verdict"], row["verdict_reason"], row["ended_at"] = event.verdict, event.reason, iso(event.at)
            if full:
                row["rationale"] = event.rationale
                row["checkpoint"] = event.facts.checkpoint
                row["criteria"] = [msgspec.to_builtins(result) for result in event.criteria]
                row["observation"] = _observation(row)
                row["calls"] = list(row["calls"].values())
        case CallIntended() | CallSettled() | CallRefused() | ScriptEnded() if full:
            _add_detail(row, event)
        case _:
            pass


def _add_detail(row: dict[str, Any], event: CallIntended | CallSettled | CallRefused | ScriptEnded) -> None:
    calls: dict[str, dict[str, Any]] = row.setdefault("calls", {})
    match event:
        case CallIntended() | CallRefused():
            call = calls.setdefault(event.call_id, {"call_id": event.call_id})
            call.update(tool=event.tool, args=event.args, purpose=event.purpose)
            if isinstance(event, CallRefused):
                call.update(outcome=event.outcome, error=event.reason)
        case CallSettled():
            call = calls.setdefault(event.call_id, {"call_id": event.call_id})
            call.update(outcome=event.outcome, seconds=event.seconds, result=event.result or event.preview)
            found = {"error": event.error, "metrics": event.metrics, "events": event.events}
            call.update({key: value for key, value in found.items() if value})
        case ScriptEnded():
            said = {"metrics": event.observed, "events": event.events}
            found = {"error": event.error, "printed": event.printed, "claimed" if event.claimed else "observed": said}
            row["script"] = {key: value for key, value in found.items() if value}


def _observation(row: dict[str, Any]) -> dict[str, Any]:
    """What the iteration learned: its calls in the order that they were proposed in, then its script."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    errors: list[str] = list(row["strategy"].get("failed", ()))
    script: dict[str, Any] = row.get("script", {})
    parts: list[dict[str, Any]] = [*row["calls"].values(), {**script.get("observed", {}), "error": script.get("error")}]
    for part in parts:
        metrics.update(part.get("metrics", {}))
        events.extend(part.get("events", ()))
        if part.get("error"):
            errors.append(part["error"])
    return {"metrics": metrics, "events": events, "errors": errors}


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
