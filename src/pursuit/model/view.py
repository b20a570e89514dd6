"""The bounded views of a mission that predicates and scripts see.

Owns: their shape. Pure. Invariant: a view's size does not grow with the mission's age.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pursuit.model.criteria import MetricThreshold
from pursuit.model.observe import value_of
from pursuit.model.records import CallRecord, Iteration
from pursuit.model.state import MissionState

MOST_BYTES = 256 * 1024
MOST_POINTS = 100_000
PREVIEW = 200


def observation_view(state: MissionState) -> dict[str, Any]:
    """What a predicate sees as `obs`: the newest results whole as far as they fit, older ones previewed."""
    window = [*state.recent, *([state.open] if state.open is not None else [])][-20:]
    names = list(state.series.names())
    each = max(10, MOST_POINTS // max(1, len(names)))
    return {
        "metrics": state.metrics,
        "metric_history": {name: [p.value for p in state.series.points(name)[-each:]] for name in names},
        "events": state.events.counts(),
        "tool_results": _bounded([row for iteration in window for row in _rows(iteration)]),
        "errors": [error for iteration in window for _tool, error in iteration.errors()],
        "iteration": state.open.index if state.open is not None else max(0, state.iteration_count - 1),
    }


def _bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, the newest ones whole until the bytes are used up; of the others the beginning of the result."""
    room = MOST_BYTES
    for row in reversed(rows):
        body = msgspec.json.encode([row["args"], row["result"]])
        if len(body) > room:
            row["result"], row["args"] = body[:PREVIEW].decode(errors="replace"), {}
            continue
        room -= len(body)
    return rows


def script_view(state: MissionState) -> dict[str, Any]:
    """What a script sees as `state`, besides its memory."""
    last = state.last
    return {
        "iteration": state.iteration_count,
        "metrics": dict(state.metrics),
        "best": {
            criterion.metric: point.value
            for criterion in state.mission.criteria
            if isinstance(criterion, MetricThreshold) and (point := state.best.get(criterion.criterion_id)) is not None
        },
        "results": [] if last is None else _rows(last),
        "errors": [] if last is None else [error for _tool, error in last.errors()],
        "advice": state.last_ended.rationale if state.last_ended is not None else None,
        "memory": state.memory,
    }


def call_value(call: CallRecord) -> Any:
    """The result of a call as a program wants it; a large one is its preview."""
    return call.preview if call.result is None else value_of(call.result)


def _rows(iteration: Iteration) -> list[dict[str, Any]]:
    return [
        {
            "iteration": iteration.index,
            "tool": call.tool,
            "args": call.args,
            "outcome": call.outcome,
            "result": call_value(call),
            "error": call.error,
        }
        for call in iteration.calls.values()
    ]
