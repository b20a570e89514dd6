"""What a call leaves in a mission's state: its record, its metrics and events, and what the loop guard counts.

Owns: the steps of the fold that are about calls. Pure: no clock, no I/O. Invariant: the later call wins, not the one
that happened to come back later.
"""

from __future__ import annotations

from typing import Any

from pursuit.model.events import CallIntended, CallRefused, CallSettled, Source
from pursuit.model.lending import give_back, lend
from pursuit.model.observe import leaves, source_matches
from pursuit.model.records import CallRecord
from pursuit.model.series import Point
from pursuit.model.state import MissionState
from pursuit.model.thresholds import better


def intended(state: MissionState, event: CallIntended) -> None:
    """A call is about to be sent."""
    if event.attempt == 1:
        state.tool_calls += 1
    if event.task is not None:
        lend(state, event)
    if state.open is not None:
        state.open.calls[event.call_id] = CallRecord(
            call_id=event.call_id,
            iteration=event.iteration,
            tool=event.tool,
            args=event.args,
            purpose=event.purpose,
            order=event.order,
            attempt=event.attempt,
            criterion_id=event.criterion_id,
            repeatable=event.repeatable,
            task=event.task,
        )


def refused(state: MissionState, event: CallRefused) -> None:
    """A call was not sent."""
    if state.open is not None:
        state.open.calls[event.call_id] = CallRecord(
            call_id=event.call_id,
            iteration=event.iteration,
            tool=event.tool,
            args=event.args,
            purpose=event.purpose,
            order=event.order,
            outcome=event.outcome,
            error=event.reason,
        )


def settled(state: MissionState, event: CallSettled) -> None:
    """A call has an outcome, and what it said counts."""
    state.elapsed = max(state.elapsed, event.elapsed)
    call = state.open.calls.get(event.call_id) if state.open is not None else None
    if call is None:
        return
    call.outcome = event.outcome
    call.result, call.blob, call.preview = event.result, event.blob, event.preview
    call.digest, call.error = event.digest, event.error
    if call.task is not None:
        give_back(state, call, event)
    if event.outcome == "ok":
        state.succeeded[call.tool] = state.succeeded.get(call.tool, 0) + 1
        state.last_success[call.tool] = Source(tool=call.tool, call_id=call.call_id, iteration=call.iteration)
    learn(state, event.metrics, event.events, tool=call.tool, call_id=call.call_id, order=call.order)
    if state.guarded and call.purpose != "check":
        _guard(state, call)


def _guard(state: MissionState, call: CallRecord) -> None:
    """Counts identical calls in a row while nothing changed: only a result seen before lets the count grow."""
    key = call.key
    changed = call.digest not in state.results_seen
    state.guard_count = 1 if key != state.guard_key or changed else state.guard_count + 1
    state.guard_key = key
    state.results_seen.add(call.digest)


def learn(
    state: MissionState, metrics: dict[str, Any], events: list[dict[str, Any]], *, tool: str, call_id: str, order: int
) -> None:
    """Takes metrics and events into the state, each with whose word it is."""
    iteration = state.open.index if state.open is not None else state.iteration_count
    for name, value in metrics.items():
        # The later call wins, not the one that happened to come back later.
        if (iteration, order) >= state.metric_order.get(name, (0, 0)):
            state.metrics[name] = value
            state.metric_order[name] = (iteration, order)
    for name, value in leaves(metrics):
        point = Point(iteration, order, value, tool, call_id)
        state.series.add(name, point)
        _best(state, name, point)
    for event in events:
        state.events.add(event["event_name"], tool=tool, call_id=call_id, iteration=iteration)


def _best(state: MissionState, name: str, point: Point) -> None:
    for criterion in state.thresholds:
        if criterion.metric == name:
            counts = source_matches(criterion.source, point.tool)
            if counts and better(criterion, point, state.best.get(criterion.criterion_id)):
                state.best[criterion.criterion_id] = point
