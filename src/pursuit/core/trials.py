"""The trials of a mission: each call of a tool that gives metrics, with its arguments and what came of it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pursuit.core.audit import redacted
from pursuit.core.events import AnyEvent, CallIntended, CallSettled, MissionCreated
from pursuit.core.observe import leaves
from pursuit.core.truncate import cut_text

LONGEST_ERROR = 500
Row = Mapping[str, Any]


def trials_of(events: Iterable[AnyEvent], best_call: str | None = None) -> list[dict[str, Any]]:
    """The trials in the order of the calls; `best_call` is the call of the best point."""
    intents: dict[str, CallIntended] = {}
    settled: dict[str, CallSettled] = {}
    measuring: set[str] = set()
    for event in events:
        match event:
            case CallIntended():
                if event.purpose != "check":
                    intents[event.call_id] = event
            case CallSettled():
                if event.call_id in intents:
                    settled[event.call_id] = event
                    if event.metrics:
                        measuring.add(intents[event.call_id].tool)
            case MissionCreated():
                proposer: Mapping[str, Any] = event.mission["proposer"]
                if proposer.get("kind") == "search":
                    measuring.add(str(proposer.get("tool_name")))
            case _:
                pass
    known = [one for one in intents.values() if one.tool in measuring]
    known.sort(key=lambda one: (one.iteration, one.order))
    return [_row(number, one, settled.get(one.call_id), best_call) for number, one in enumerate(known)]


def _row(number: int, call: CallIntended, end: CallSettled | None, best_call: str | None) -> dict[str, Any]:
    return {
        "trial": number,
        "iteration": call.iteration,
        "tool": call.tool,
        "args": redacted(call.args),
        "metrics": {} if end is None else dict(leaves(end.metrics)),
        "outcome": None if end is None else end.outcome,
        # A call that becomes a task is settled by whichever process finds its end, so only the clock knows its time.
        "seconds": None if end is None else end.seconds or round(max(0.0, end.at - call.at), 3),
        "started_at": datetime.datetime.fromtimestamp(call.at, tz=datetime.UTC).isoformat(timespec="milliseconds"),
        "call_id": call.call_id,
        "best": call.call_id == best_call,
        **({"error": cut_text(end.error, LONGEST_ERROR)} if end is not None and end.error is not None else {}),
    }


HEAD = ("trial", "iteration", "tool", "outcome", "best", "seconds", "started_at")
TAIL = ("error", "call_id")


def table_of(trials: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows of a flat table: each argument and each metric has its own column.

    A metric with the name of another column is `metric.NAME`, an argument `arg.NAME`; what is no number, text or flag
    stays a list or a table.
    """
    args = list(dict.fromkeys(name for row in trials for name in row["args"]))
    metrics = list(dict.fromkeys(name for row in trials for name in row["metrics"]))
    taken = {*HEAD, *TAIL}
    arg_names = [f"arg.{name}" if name in taken or name in metrics else name for name in args]
    metric_names = [f"metric.{name}" if name in taken or name in args else name for name in metrics]
    rows = [
        [
            *(row[name] for name in HEAD),
            *(row["args"].get(name) for name in args),
            *(row["metrics"].get(name) for name in metrics),
            *(row.get(name) for name in TAIL),
        ]
        for row in trials
    ]
    return [*HEAD, *arg_names, *metric_names, *TAIL], rows
