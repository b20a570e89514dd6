"""Decides whether a mission makes progress.

A checkpoint shows progress if a required criterion is met for the first time, or if an unmet required one moved:

- *threshold*: a new best value; or the distances from its target fall over the window by Mann-Kendall's test, or vary
  but are too few for the test; or, with `confirm`, more fresh measurements than ever
- *count*: more successful calls than ever
- *trend*: more points than ever until there are enough, then a slope that is nearer than ever
- *check*: a status, an exit code or an expected value not seen before; its text does not count
- *event*: it was reported again

If none of them is a threshold or has been measured yet (events, predicates, checks that are not due, tools not
called), a result not seen before is progress. Repeated calls whose results differ only in numbers and identifiers are
not: a counter or a clock is not news. For an agent's turn, its git tree counts. Optional criteria never count.

Pure. The first checkpoint has nothing to compare with.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from pursuit.core.criteria import (
    AnyCriterion,
    Check,
    EventSeen,
    MetricThreshold,
    MetricTrend,
    Predicate,
    ToolCallSucceeded,
    describe,
)
from pursuit.core.events import CriterionResult
from pursuit.core.series import closer
from pursuit.core.state import MissionState, fingerprint

WINDOW = 10
"""The window, in thresholds: 30 checkpoints by default. Half of it shows a drift of a fifth of the noise."""
LEAST = 4
"""The minimum points for the test, in thresholds. With 12, improving runs rarely look flat."""
SIGNIFICANT = 1.0
"""The minimum z of a trend. Noise reaches it in one window of six, and rarely in several consecutive ones."""
Judged = tuple[AnyCriterion, CriterionResult]


def falling(distances: Sequence[float]) -> float:
    """Mann-Kendall's standard score of a trend, corrected for ties; positive if the distances fall."""
    pairs, before = 0, list[float]()
    for value in distances:
        pairs += len(before) - bisect_right(before, value) - bisect_left(before, value)
        insort(before, value)
    count = len(before)
    ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(before).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    return 0.0 if variance <= 0 or pairs == 0 else (pairs - math.copysign(1, pairs)) / math.sqrt(variance)


def without_progress(state: MissionState, results: Sequence[CriterionResult]) -> tuple[int, int | None]:
    """The number of consecutive checkpoints without progress, including the open one, and the threshold in force.

    The default threshold is off while only events and predicates are unmet. The number then stays at 0, so that
    criteria measured later start from 0.
    """
    if not results:
        return state.no_progress, state.stagnation
    unmet = _unmet(state, results)
    explicit = state.mission.stagnation_threshold is not None or state.stagnation is None
    if not explicit and all(isinstance(one, EventSeen | Predicate) for one, _ in unmet):
        return 0, None
    if state.checkpoints == 0:
        return 0, state.stagnation
    if len(unmet) < len(results):
        pairs = zip(state.criteria, results, strict=True)
        met = {one.criterion_id for one, result in pairs if one.required and result.status == "met"}
        if not met <= state.ever_met:
            return 0, state.stagnation
    new = _news_counts(unmet) and (state.news or (state.open is not None and state.is_new(state.open)))
    for criterion, result in () if new else unmet:
        if _moved(state, criterion, result):
            return 0, state.stagnation
    return 0 if new else state.no_progress + 1, state.stagnation


def _unmet(state: MissionState, results: Sequence[CriterionResult]) -> list[Judged]:
    pairs = zip(state.criteria, results, strict=True)
    return [(one, result) for one, result in pairs if result.status != "met" and one.required]


def _news_counts(unmet: list[Judged]) -> bool:
    """True if none of them is a threshold, and no call has given any of them a number or an outcome yet."""
    return not [one for one, result in unmet if result.source is not None or isinstance(one, MetricThreshold)]


def _moved(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> bool:
    name = criterion.criterion_id
    if isinstance(criterion, MetricThreshold):
        new_best = name in state.nearest and closer(state.nearest[name], state.least.get(name))
        if new_best or _improves(state, criterion):
            return True
        if not criterion.confirm:
            return False
    if isinstance(criterion, Check):
        return standing(result) not in state.standings
    return risen(state, criterion, result) is not None


Level = tuple[int, float]
"""A number that grows and, for equal numbers, a distance that falls."""


def risen(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> Level | None:
    """The level of a criterion if it exceeds those at all earlier checkpoints, else None."""
    now, before = _level(state, criterion, result), state.levels.get(criterion.criterion_id)
    if now is None or before is None or now[0] > before[0]:
        return now
    return now if now[0] == before[0] and closer(now[1], before[1]) else None


def _level(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> Level | None:
    """The level of a criterion that counts something; None for other kinds, or if nothing is known."""
    evidence: dict[str, Any] = result.evidence
    match criterion:
        case MetricThreshold():
            return (state.confirmations.fresh(criterion.criterion_id), 0.0) if criterion.confirm else None
        case MetricTrend() if "points" in evidence:
            return min(evidence["points"], criterion.min_points), evidence.get("distance", math.inf)
        case ToolCallSucceeded() if "count" in evidence:
            return evidence["count"], 0.0
        case EventSeen():
            seen = state.events.find(criterion.event_name, criterion.source)
            return (0 if seen is None else seen.times), 0.0
        case _:
            return None


def standing(result: CriterionResult) -> str:
    """The outcome of a check: its status, and each expectation with its value, such as the exit code or a count."""
    rows = {name: (one.get("value"), one.get("met")) for name, one in _expectations(result).items()}
    return fingerprint([result.criterion_id, result.status, rows])


def _expectations(result: CriterionResult) -> dict[str, Mapping[str, Any]]:
    evidence: dict[str, Any] = result.evidence
    return {name: cast("Mapping[str, Any]", one) for name, one in evidence.items() if isinstance(one, Mapping)}


def figures(state: MissionState, results: Sequence[CriterionResult], counter: int) -> str:
    """A sentence with the numbers that show the lack of progress."""
    unmet = _unmet(state, results)
    words = [_words(state, criterion, result) for criterion, result in unmet]
    if state.open is not None and state.open.tree is not None and state.open.outputs() in state.outputs_seen:
        words.append("the workspace is as it was after an earlier turn")
    elif _news_counts(unmet):
        words.append("results differ from earlier ones only in numbers")
    return f"No progress for {counter} checkpoint{'s' * (counter != 1)}: {'; '.join(words)}."


def _words(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> str:
    evidence: dict[str, Any] = result.evidence
    said = evidence.get("reason", "not met")
    match criterion:
        case MetricThreshold():
            return _about_threshold(state, criterion)
        case ToolCallSucceeded():
            said = f"{evidence.get('count', 0)} of {criterion.min_count} calls"
        case MetricTrend() if "slope" in evidence:
            said = f"a slope of {evidence['slope']:.3g}"
        case Check():
            failed = {name: one for name, one in _expectations(result).items() if one.get("met") is False}
            said = ", ".join(f"{name} {one.get('value', 'not met')}" for name, one in failed.items()) or said
        case _:
            pass
    return f"{describe(criterion)}: {said}, as before"


def _distances(state: MissionState, criterion: MetricThreshold) -> list[float]:
    """The distances from its target up to this checkpoint; empty without a new value of the metric."""
    name = criterion.criterion_id
    if name not in state.nearest or state.stagnation is None:
        return []
    return [*state.trail.get(name, ()), state.nearest[name]][-WINDOW * state.stagnation :]


def _improves(state: MissionState, criterion: MetricThreshold) -> bool:
    """True if the distances fall by more than noise explains, or are too few to tell."""
    distances = _distances(state, criterion)
    steps = [after - before for before, after in pairwise(distances)]
    if not steps or steps[-1] == 0 or not min(steps) < 0 < max(steps):
        return False  # it did not move, or only away from its target
    return len(distances) < LEAST * (state.stagnation or 0) or falling(distances) >= SIGNIFICANT


def _about_threshold(state: MissionState, criterion: MetricThreshold) -> str:
    """The best value, a note if it violates a limit, and the trend of the distance."""
    known, best = "no value", state.best_points.of(criterion.criterion_id)
    point = None if best is None else best.point or best.infeasible
    if best is not None and point is not None:
        limits = ", which violates a limit" if best.point is None else ""
        known = f"best {point.value:g} in iteration {point.iteration + 1}{limits}"
    distances = _distances(state, criterion)
    if not distances:
        return f"{describe(criterion)} has no new value ({known})"
    trend = f"its distance shows no fall over {len(distances)} checkpoints"
    return f"{describe(criterion)}: {known}; {trend}, z {falling(distances):.2f} of {SIGNIFICANT:g} needed"
