"""The bounded views of a mission that predicates and scripts see.

Owns: their shape. Pure. Invariant: a view's size does not grow with the mission's age.
"""

from __future__ import annotations

from typing import Any

from pursuit.model.criteria import MetricThreshold
from pursuit.model.observe import value_of
from pursuit.model.records import CallRecord, Iteration
from pursuit.model.state import MissionState


def observation_view(state: MissionState) -> dict[str, Any]:
    """What a predicate sees as `obs`."""
    window = [*state.recent, *([state.open] if state.open is not None else [])][-20:]
    return {
        "metrics": state.metrics,
        "metric_history": {name: [p.value for p in state.series.points(name)] for name in state.series.names()},
        "events": state.events.counts(),
        "tool_results": [row for iteration in window for row in _rows(iteration)],
        "errors": [error for iteration in window for _tool, error in iteration.errors()],
        "iteration": state.open.index if state.open is not None else max(0, state.iteration_count - 1),
    }


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
