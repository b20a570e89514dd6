"""Says early that a mission cannot succeed: a metric that never appears, a proposer that fails in the same way.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pursuit.core.base_model import nearest
from pursuit.core.criteria import MetricThreshold, MetricTrend
from pursuit.core.events import MissionWarned
from pursuit.core.observe import source_matches
from pursuit.core.state import SCRIPT_SOURCE, CallRecord, IterationRecord, MissionState

FEW = 3
"""Iterations without a value before a warning, and equal failures before the end."""
MOST_NAMES = 10
LONGEST = 1_000
COMMANDS = "commands."
METRIC_CRITERIA = (MetricThreshold, MetricTrend)


def missing_metrics(state: MissionState, *, now: float) -> list[MissionWarned]:
    """A warning for each metric of a criterion that has no value after a few iterations; each is given once."""
    done = state.current_index + 1
    if done < FEW:
        return []
    warned = {name for event in state.raised for name in event.criteria}
    found: dict[tuple[str, str | None], list[str]] = {}
    for criterion in state.mission.criteria:
        if not isinstance(criterion, METRIC_CRITERIA) or criterion.criterion_id in warned:
            continue
        if state.series.latest(criterion.metric, criterion.source) is not None:
            continue
        if _tried(state, criterion.source):
            found.setdefault((criterion.metric, criterion.source), []).append(criterion.criterion_id)
    return [
        MissionWarned(
            at=now,
            iteration=state.current_index,
            code="metric_missing",
            message=_missing(state, metric, source, done),
            criteria=ids,
        )
        for (metric, source), ids in found.items()
    ]


def _tried(state: MissionState, source: str | None) -> bool:
    """Whether a source that counts was asked; the tool that a search calls at its end may still give the metric."""
    if state.facts.reports_metrics and source_matches(source, SCRIPT_SOURCE):
        return True
    if any(source_matches(source, last) and last not in state.succeeded for last in state.facts.later_tools):
        return False
    return any(source_matches(source, call.tool) for call in _recent_calls(state))


def _recent_calls(state: MissionState) -> Iterable[CallRecord]:
    for iteration in (*state.recent, state.open):
        if iteration is not None:
            yield from iteration.calls.values()


def _missing(state: MissionState, metric: str, source: str | None, done: int) -> str:
    seen = sorted(state.series.names())
    words = f"no value for `{metric}`{f' from {source}' if source else ''} after {done} iterations"
    if metric in seen:
        others = sorted({point.tool for point in state.series.points(metric)})
        return f"{words}; it comes from {', '.join(others)}, which the criterion's source does not match"
    if (note := _note(state, metric, source)) is not None:
        words = f"{words}; {note}"
    if not seen:
        return f"{words}; no metric was seen yet"
    more = f" and {len(seen) - MOST_NAMES} more" if len(seen) > MOST_NAMES else ""
    return f"{words}; seen: {', '.join(f'`{name}`' for name in seen[:MOST_NAMES])}{more}{nearest(metric, seen)}"


def _note(state: MissionState, metric: str, source: str | None) -> str | None:
    """What the last command that should give the metric says about it."""
    for call in reversed(list(_recent_calls(state))):
        if source_matches(source, call.tool):
            for note in cast("list[Any]", _body(call).get("notes") or []):
                if isinstance(note, str) and note.startswith(f"metric {metric}: "):
                    return f"{call.tool}: {note.removeprefix(f'metric {metric}: ')}"
    return None


def repeated_failure(state: MissionState, iteration: IterationRecord) -> tuple[int, str | None]:
    """How often in a row the operator's script or command failed in the same way, up to now, and how.

    A command counts that has never succeeded and that a search, or a `repeat` without a pace, calls: one that polls
    may fail until what it waits for is there. A search tries its whole first design: a part of the space may be bad.
    """
    how, patience = _failure(state, iteration), state.facts.patience
    if how is None:
        return 0, None
    count = 1
    for before in reversed(state.recent):
        if _failure(state, before) != how:
            break
        count += 1
    if patience > FEW and count >= FEW:
        if state.tool_calls < patience:
            return FEW - 1, how
        how = f"{how}; none of the {state.tool_calls} trials succeeded"
    return count, how


def _failure(state: MissionState, iteration: IterationRecord) -> str | None:
    made = [call for call in iteration.calls.values() if call.purpose != "check"]
    failed = [call for call in made if call.outcome == "failed"]
    if (not failed and iteration.script is None) or any(call.unapproved for call in made):
        return None
    whose = state.facts.failures
    if whose is None or (whose == "calls_without_pace" and state.mission.pace is not None):
        return None
    if whose == "script":
        error = None if iteration.script is None else iteration.script.error
        if error is None:
            return None
        return f"script: {_of_command(failed[-1]) if failed and failed[-1].tool in error else error[:LONGEST]}"
    if not made or len(failed) < len(made):
        return None
    if any(not call.tool.startswith(COMMANDS) or call.tool in state.succeeded for call in made):
        return None
    ways = {_of_command(call) for call in made}
    return ways.pop() if len(ways) == 1 else None


def _of_command(call: CallRecord) -> str:
    """How a call failed, without what differs from run to run: a command's exit code and its last line of stderr."""
    body = _body(call)
    if "exit_code" not in body:
        return f"{call.tool}: {(call.error or '')[:LONGEST]}"
    lines = [one for one in cast("list[Any]", body.get("stderr_tail") or []) if isinstance(one, str) and one.strip()]
    last = f": {lines[-1].strip()[:LONGEST]}" if lines else ""
    return f"{call.tool} ended with exit code {body['exit_code']}{last}"


def _body(call: CallRecord) -> Mapping[str, Any]:
    result = call.result
    body = cast("Mapping[str, Any]", result).get("structuredContent") if isinstance(result, Mapping) else None
    return cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {}
