"""Decides each criterion from the runtime's own records: met, unmet or inconclusive, with evidence.

Pure: the answers of the sandbox and of the checks are passed in. Invariant: mere claims of a model or of a proposed
script never meet a criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression
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
    """Evaluates every criterion, in the order of the mission; a check without an answer was not due."""
    if state.picks:
        return pick.results(state)
    found = [
        _threshold(state, one)
        if isinstance(one, MetricThreshold)
        else evaluate_one(state, one, answers.get(one.criterion_id))
        for one in state.criteria
    ]
    if not state.joins:
        return found
    joint = {one.criterion_id for one in state.thresholds if one.same_call}
    met = [one for one in found if one.criterion_id in joint and one.status == "met"]
    if len({one.source for one in met}) > 1:
        reason = "same_call: different calls meet these criteria; one call must meet them all"
        for one in met:
            found[found.index(one)] = replace(one, status="inconclusive", evidence={**one.evidence, "reason": reason})
    return found


def required_met(criteria: Sequence[AnyCriterion], results: Sequence[CriterionResult]) -> bool:
    """True if every required criterion is met; optional ones never block."""
    met = {result.criterion_id for result in results if result.status == "met"}
    return not [one for one in criteria if one.required and one.criterion_id not in met]


def observations_met(state: MissionState) -> bool:
    """True if all required criteria are met except, perhaps, checks and predicates."""
    plain = [one for one in state.mission.criteria if one.required and not isinstance(one, Predicate | Check)]
    return bool(plain) and required_met(plain, evaluate(state, {}))


def check_is_due(state: MissionState) -> bool:
    """True if a tool named in a check's `after` was called in the open iteration, so the check should run now."""
    calls = () if state.open is None else state.open.calls.values()
    called = {call.tool for call in calls if call.purpose != "check" and call.outcome == "ok"}
    return any(isinstance(one, Check) and one.after in called for one in state.mission.criteria)


def out_of_reach(criteria: Sequence[AnyCriterion], results: Sequence[CriterionResult]) -> str | None:
    """A required criterion that can never be met, according to a check or the end of all agents; or None."""
    never = [one.criterion_id for one in results if one.status == "unmet" and one.evidence.get("never") is True]
    if not never:
        return None
    said_by = {one.criterion_id for one in criteria if one.required and not isinstance(one, Predicate)}
    return next((one for one in never if one in said_by), None)


def evaluate_one(state: MissionState, criterion: AnyCriterion, answer: Answer | None) -> CriterionResult:
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
    candidates = state.confirmations.latest
    if candidates:
        candidate = candidates.get(criterion.criterion_id)
        if candidate is not None and candidate.place == point.place:
            return _confirmed(criterion, candidate, evidence, point)
    if criterion.confirm:
        evidence["needed"] = state.confirmations.in_force(criterion)
    if criterion.confirm and holds(criterion, point.value):
        evidence["reason"] = f"{point.value:g} meets it, but no fresh measurement confirms it yet"
        return _result(criterion, None, evidence, _source(point))
    return _result(criterion, holds(criterion, point.value), evidence, _source(point))


def _confirmed(
    criterion: MetricThreshold, candidate: Confirmation, evidence: dict[str, Any], point: Point
) -> CriterionResult:
    """The result of a threshold that only fresh measurements of a candidate call can meet."""
    evidence |= {"fresh": candidate.values[-MAX_CONFIRM:], criterion.confirm_by: candidate.value}
    evidence["needed"] = candidate.needed
    if candidate.missing:
        done, needed = len(candidate.values), candidate.needed
        evidence["reason"] = (
            f"{candidate.first:g} meets it; {done} of {needed} fresh measurements were made: "
            f"call {candidate.tool} again with the same arguments"
        )
        return _result(criterion, None, evidence, _source(point))
    if candidate.looked and not candidate.met:
        done = len(candidate.values) - candidate.looked
        evidence["reason"] = f"fresh measurements did not meet it; since then {done} of {candidate.needed} were made"
    return _result(criterion, candidate.met, evidence, _source(point))


def _out_of_date(criterion: MetricThreshold | MetricTrend, gap: Gap) -> CriterionResult:
    """The result for a metric that its tool no longer reports: inconclusive."""
    last = "" if gap.last is None else f"; it was {gap.last.value:g} in iteration {gap.last.iteration + 1}"
    reason = f"the latest call of {gap.tool} {gap.why}, so there is no current value of {criterion.metric!r}{last}"
    source = Source(tool=gap.tool, call_id=gap.call_id, iteration=gap.place[0])
    return _result(criterion, None, {"reason": reason}, source)


def _trend(state: MissionState, criterion: MetricTrend) -> CriterionResult:
    standing = state.series.standing(criterion.metric, criterion.source)
    if isinstance(standing, Gap) and not criterion.hold:
        return _out_of_date(criterion, standing)
    points = state.series.points(criterion.metric, criterion.source)[-criterion.window :]
    if len(points) < criterion.min_points:
        reason = f"{len(points)} of {criterion.min_points} points of {criterion.metric!r}"
        shown = _no_data(criterion, reason, criterion.source).evidence
        return _result(criterion, None, {**shown, "points": len(points)}, _source(points[-1]) if points else None)
    values = [point.value for point in points]
    scale = max(map(abs, values)) or 1.0
    unit = 1.0 if scale < HUGE else scale  # squares of huge numbers overflow
    slope = linear_regression(range(len(values)), [value / unit for value in values]).slope * unit
    away = slope if criterion.direction in ("decreasing", "non_increasing") else -slope
    flat = criterion.tolerance * scale
    met = away <= flat if criterion.direction.startswith("non_") else away < -flat
    evidence: dict[str, Any] = {"slope": slope, "points": len(points), "direction": criterion.direction}
    if not met:
        evidence["distance"] = away - flat if criterion.direction.startswith("non_") else away + flat
    return _result(criterion, met, evidence, _source(points[-1]))


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
        return _result(criterion, None, {"error": answer.error, **known}, answer.source)
    if isinstance(criterion, Check):
        return _result(criterion, answer.value["met"] is True, answer.value, answer.source)
    if not isinstance(answer.value, bool):
        error = "the expression must return True or False; wrap it in bool(...)"
        return _result(criterion, None, {"error": error, "value": answer.value})
    return _result(criterion, answer.value, {"value": answer.value})


def _result(
    criterion: AnyCriterion, met: bool | None, evidence: dict[str, Any], source: Source | None = None
) -> CriterionResult:
    status: CriterionStatus = "inconclusive" if met is None else "met" if met else "unmet"
    return CriterionResult(criterion_id=criterion.criterion_id, status=status, evidence=evidence, source=source)


def _no_data(criterion: AnyCriterion, reason: str, source: str | None) -> CriterionResult:
    return _result(criterion, None, {"reason": f"{reason} from {source}" if source else reason})


def _source(point: Point) -> Source:
    return Source(tool=point.tool, call_id=point.call_id, iteration=point.iteration)


def _current(state: MissionState) -> int:
    return state.open.index if state.open is not None else max(0, state.iteration_count - 1)
