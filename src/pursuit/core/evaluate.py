"""Decides each criterion from what the runtime itself recorded: met, unmet or inconclusive, with evidence.

Pure: the answers of the sandbox and of the checks are handed in. Invariant: nothing that a model or a proposed script
merely claims meets a criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from msgspec.structs import replace

from pursuit.core import pick
from pursuit.core.confirmation import Confirmation
from pursuit.core.criteria import (
    MAX_CONFIRM,
    AnyCriterion,
    Check,
    EventSeen,
    MetricThreshold,
    MetricTrend,
    Predicate,
    ToolCallSucceeded,
)
from pursuit.core.events import CriterionResult, CriterionStatus, Source
from pursuit.core.series import Gap, Point, holds
from pursuit.core.state import MissionState

HUGE = 1e150


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The sandbox's answer to a predicate, or the result of a check."""

    value: Any = None
    error: str | None = None
    source: Source | None = None


def evaluate(state: MissionState, answers: Mapping[str, Answer]) -> list[CriterionResult]:
    """Every criterion, in the order of the mission; a check without an answer was not due."""
    if state.mission.picks:
        return pick.results(state)
    found = [evaluate_one(state, one, answers.get(one.criterion_id)) for one in state.mission.criteria]
    joint = {one.criterion_id for one in state.thresholds if one.same_call}
    met = [one for one in found if one.criterion_id in joint and one.status == "met"]
    if len({one.source for one in met}) > 1:
        reason = "same_call: other calls meet the other criteria that have it; one call must meet them all"
        for one in met:
            found[found.index(one)] = replace(one, status="inconclusive", evidence={**one.evidence, "reason": reason})
    return found


def required_met(criteria: Sequence[AnyCriterion], results: Sequence[CriterionResult]) -> bool:
    """Whether every required criterion is met; an optional one never blocks."""
    met = {result.criterion_id for result in results if result.status == "met"}
    return all(criterion.criterion_id in met for criterion in criteria if criterion.required)


def observations_met(state: MissionState) -> bool:
    """Whether all that is decided by observations alone is met: nothing but checks and predicates may be left."""
    plain = [one for one in state.mission.criteria if one.required and not isinstance(one, Predicate | Check)]
    return bool(plain) and required_met(plain, evaluate(state, {}))


def check_is_due(state: MissionState) -> bool:
    """Whether a tool that a check comes `after` was called in the open iteration: the check should not wait longer."""
    calls = () if state.open is None else state.open.calls.values()
    called = {call.tool for call in calls if call.purpose != "check" and call.outcome == "ok"}
    return any(isinstance(one, Check) and one.after in called for one in state.mission.criteria)


def out_of_reach(criteria: Sequence[AnyCriterion], results: Sequence[CriterionResult]) -> str | None:
    """The required criterion that can never be met any more, as a check or the end of all agents says, or None."""
    never = [one.criterion_id for one in results if one.status == "unmet" and one.evidence.get("never") is True]
    if not never:
        return None
    said_by = {one.criterion_id for one in criteria if one.required and not isinstance(one, Predicate)}
    return next((one for one in never if one in said_by), None)


def evaluate_one(state: MissionState, criterion: AnyCriterion, answer: Answer | None) -> CriterionResult:
    """One criterion."""
    match criterion:
        case MetricThreshold():
            return _threshold(state, criterion)
        case MetricTrend():
            return _trend(state, criterion)
        case EventSeen():
            return _event(state, criterion)
        case ToolCallSucceeded():
            count = state.succeeded.get(criterion.tool_name, 0)
            evidence = {"count": count, "needed": criterion.min_count}
            source = state.last_success.get(criterion.tool_name)
            return _result(criterion, count >= criterion.min_count, evidence, source)
        case Predicate() | Check():
            return _answered(criterion, answer)
        case _:
            assert_never(criterion)


def _threshold(state: MissionState, criterion: MetricThreshold) -> CriterionResult:
    point = state.series.standing(criterion.metric, criterion.source)
    if isinstance(point, Gap):
        if not criterion.hold or point.last is None:
            return _out_of_date(criterion, point)
        point = state.series.latest(criterion.metric, criterion.source)
    if point is None or (criterion.scope == "iteration" and point.iteration != _current(state)):
        return _no_data(criterion, f"no value of {criterion.metric!r}", criterion.source)
    evidence: dict[str, Any] = {"value": point.value, "op": criterion.op, "target": criterion.target}
    candidate = state.confirmations.get(criterion.criterion_id)
    if candidate is not None and candidate.place == point.place:
        return _confirmed(criterion, candidate, evidence, point)
    if criterion.confirm:
        evidence["needed"] = state.confirmations.in_force(criterion)
    if criterion.confirm and holds(criterion, point.value):
        evidence["reason"] = f"{point.value:g} meets it, and no fresh measurement confirms it"
        return _inconclusive(criterion, evidence, _source(point))
    return _result(criterion, holds(criterion, point.value), evidence, _source(point))


def _confirmed(
    criterion: MetricThreshold, candidate: Confirmation, evidence: dict[str, Any], point: Point
) -> CriterionResult:
    """A threshold that counts only by fresh measurements of the call that met it once."""
    evidence |= {"fresh": candidate.values[-MAX_CONFIRM:], criterion.confirm_by: candidate.value}
    evidence["needed"] = candidate.needed
    if candidate.missing:
        done, needed = len(candidate.values), candidate.needed
        evidence["reason"] = (
            f"{candidate.first:g} meets it, and {done} of {needed} fresh measurements were made: "
            f"call {candidate.tool} again with the same arguments"
        )
        return _inconclusive(criterion, evidence, _source(point))
    if candidate.looked and not candidate.met:
        done = len(candidate.values) - candidate.looked
        evidence["reason"] = f"fresh measurements did not meet it; since then {done} of {candidate.needed} were made"
    return _result(criterion, candidate.met, evidence, _source(point))


def _out_of_date(criterion: MetricThreshold | MetricTrend, gap: Gap) -> CriterionResult:
    """Nothing is known of a metric whose tool no longer reports it."""
    last = "" if gap.last is None else f"; it was {gap.last.value:g} in iteration {gap.last.iteration + 1}"
    reason = f"the latest call of {gap.tool} {gap.why}, so there is no current value of {criterion.metric!r}{last}"
    source = Source(tool=gap.tool, call_id=gap.call_id, iteration=gap.place[0])
    return _inconclusive(criterion, {"reason": reason}, source)


def _trend(state: MissionState, criterion: MetricTrend) -> CriterionResult:
    standing = state.series.standing(criterion.metric, criterion.source)
    if isinstance(standing, Gap) and not criterion.hold:
        return _out_of_date(criterion, standing)
    points = state.series.points(criterion.metric, criterion.source)[-criterion.window :]
    if len(points) < criterion.min_points:
        reason = f"{len(points)} of {criterion.min_points} points of {criterion.metric!r}"
        shown = _no_data(criterion, reason, criterion.source).evidence
        return _inconclusive(criterion, {**shown, "points": len(points)}, _source(points[-1]) if points else None)
    values = [point.value for point in points]
    scale = max(map(abs, values)) or 1.0
    slope = least_squares_slope(values) if scale < HUGE else least_squares_slope([v / scale for v in values]) * scale
    away = slope if criterion.direction in ("decreasing", "non_increasing") else -slope
    flat = criterion.tolerance * scale
    met = away <= flat if criterion.direction.startswith("non_") else away < -flat
    evidence: dict[str, Any] = {"slope": slope, "points": len(points), "direction": criterion.direction}
    if not met:
        evidence["distance"] = away - flat if criterion.direction.startswith("non_") else away + flat
    return _result(criterion, met, evidence, _source(points[-1]))


def least_squares_slope(values: Sequence[float]) -> float:
    """The slope of the line that fits equally spaced values best."""
    count = len(values)
    middle = (count - 1) / 2
    mean = sum(values) / count
    over = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    return over / (count * (count * count - 1) / 12)


def _event(state: MissionState, criterion: EventSeen) -> CriterionResult:
    seen = state.events.find(criterion.event_name, criterion.source)
    if seen is None or (criterion.scope == "iteration" and seen.iteration != _current(state)):
        return _result(criterion, False, {"count": 0})
    source = Source(tool=seen.tool, call_id=seen.call_id, iteration=seen.iteration)
    return _result(criterion, True, {"count": seen.times}, source)


def _answered(criterion: Predicate | Check, answer: Answer | None) -> CriterionResult:
    if answer is None:
        return _no_data(criterion, "not due yet", None)
    if answer.error is not None:
        known = {} if answer.value is None else {"value": answer.value}
        return _inconclusive(criterion, {"error": answer.error, **known}, answer.source)
    if isinstance(criterion, Check):
        return _result(criterion, answer.value["met"] is True, answer.value, answer.source)
    if not isinstance(answer.value, bool):
        error = "the expression must give True or False; wrap it in bool(...)"
        return _inconclusive(criterion, {"error": error, "value": answer.value})
    return _result(criterion, answer.value, {"value": answer.value})


def _result(
    criterion: AnyCriterion, met: bool, evidence: Mapping[str, Any], source: Source | None = None
) -> CriterionResult:
    status: CriterionStatus = "met" if met else "unmet"
    return CriterionResult(criterion_id=criterion.criterion_id, status=status, evidence=dict(evidence), source=source)


def _no_data(criterion: AnyCriterion, reason: str, source: str | None) -> CriterionResult:
    return _inconclusive(criterion, {"reason": f"{reason} from {source}" if source else reason})


def _inconclusive(
    criterion: AnyCriterion, evidence: Mapping[str, Any], source: Source | None = None
) -> CriterionResult:
    name = criterion.criterion_id
    return CriterionResult(criterion_id=name, status="inconclusive", evidence=dict(evidence), source=source)


def _source(point: Point) -> Source:
    return Source(tool=point.tool, call_id=point.call_id, iteration=point.iteration)


def _current(state: MissionState) -> int:
    return state.open.index if state.open is not None else max(0, state.iteration_count - 1)
