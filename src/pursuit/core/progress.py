"""Whether a mission makes progress: whether an unmet required criterion has moved, in the terms of its kind.

At a checkpoint there is progress if a required criterion is met for the first time, or if an unmet required one moved:

- *threshold*: a new best value; or the distances from its target fall over the window, by Mann-Kendall's test, or waver
  and are too few to tell; or more fresh measurements than ever, where it asks for them
- *count*: more successful calls than ever
- *trend*: more points than ever until there are enough, then a slope that is nearer than ever
- *check*: a status, an exit code or an expected value not seen before; its text does not count
- *event*: it was reported again

If nothing has measured one of them yet (events, predicates, checks that are not due, tools not called) and none is a
threshold, a result not seen before is progress. Calls that were made before, with results that differ in numbers and
identifiers alone, are no progress: a counter or a clock is no news. Of an agent's turn its tree counts. Optional
criteria never count.

Pure. The first checkpoint compares with nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
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
from pursuit.core.evaluate import least_squares_slope
from pursuit.core.events import CriterionResult
from pursuit.core.series import closer
from pursuit.core.state import MissionState, fingerprint

WINDOW = 10
"""The window, in thresholds: by default the last 30 checkpoints. Half of it shows a drift of a fifth of the noise."""
LEAST = 4
"""The fewest points that noise is judged by, in thresholds. With 12, hardly a run that improves looks flat."""
Judged = tuple[AnyCriterion, CriterionResult]
SIGNIFICANT = 1.0
"""The least z of a trend. Noise alone has it in one window of six, and hardly in every one of several."""


class Trend:
    """How the distances from a target change, the newest last; what nobody asks for is not computed."""

    def __init__(self, distances: Sequence[float]) -> None:
        self._distances = distances
        self.points = len(distances)

    @property
    def wavers(self) -> bool:
        """Whether the distances both rise and fall."""
        return self.points > 1 and min(self._steps) < 0 < max(self._steps)

    @property
    def slope(self) -> float:
        """The change per checkpoint."""
        return 0.0 if self.points < 2 else least_squares_slope(self._scaled) * self._scale

    @property
    def noise(self) -> float:
        """The standard deviation that the differences of neighbours show."""
        steps = self._steps
        return math.sqrt(sum(step * step for step in steps) / (2 * len(steps))) * self._scale if steps else 0.0

    @cached_property
    def z(self) -> float:
        """Mann-Kendall's standard score, positive where the distances fall; ties are allowed for."""
        falling, before = 0, list[float]()
        for value in self._distances:
            falling += len(before) - bisect_right(before, value) - bisect_left(before, value)
            insort(before, value)
        count = self.points
        ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(before).values())
        variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
        return 0.0 if variance <= 0 or falling == 0 else (falling - math.copysign(1, falling)) / math.sqrt(variance)

    @cached_property
    def _scale(self) -> float:
        return max(map(abs, self._distances), default=0.0) or 1.0  # squares of huge numbers are no numbers

    @cached_property
    def _scaled(self) -> list[float]:
        return [one / self._scale for one in self._distances]

    @cached_property
    def _steps(self) -> list[float]:
        return [after - before for before, after in pairwise(self._scaled)]


def without_progress(state: MissionState, results: Sequence[CriterionResult]) -> tuple[int, int | None]:
    """The number of checkpoints in a row without progress, this open one included, and the threshold in force.

    The default threshold is off while only events and predicates are unmet. The number stays at 0 then, so that it
    counts for what is measured later.
    """
    if not results:
        return state.no_progress, state.stagnation
    unmet = _unmet(state, results)
    explicit = state.mission.stagnation_threshold is not None or state.stagnation is None
    if not explicit and all(isinstance(one, EventSeen | Predicate) for one, _ in unmet):
        return 0, None
    if state.checkpoints == 0 or _met_first(state, results):
        return 0, state.stagnation
    new = _news_counts(unmet) and (state.news or (state.open is not None and state.is_new(state.open)))
    for criterion, result in () if new else unmet:
        if _moved(state, criterion, result):
            return 0, state.stagnation
    return 0 if new else state.no_progress + 1, state.stagnation


def _unmet(state: MissionState, results: Sequence[CriterionResult]) -> list[Judged]:
    """The required criteria that are not met, each with its result."""
    pairs = zip(state.mission.criteria, results, strict=True)
    return [(one, result) for one, result in pairs if one.required and result.status != "met"]


def _met_first(state: MissionState, results: Sequence[CriterionResult]) -> bool:
    """Whether a required criterion is met that never was before."""
    for criterion, result in zip(state.mission.criteria, results, strict=True):
        if result.status == "met" and criterion.required and criterion.criterion_id not in state.ever_met:
            return True
    return False


def _news_counts(unmet: list[Judged]) -> bool:
    """Whether none of them is a threshold, and no call has given one of them a number or an outcome yet."""
    return all(not isinstance(one, MetricThreshold) and result.source is None for one, result in unmet)


def _moved(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> bool:
    if isinstance(criterion, MetricThreshold) and (_new_best(state, criterion) or _improves(state, criterion)):
        return True
    if isinstance(criterion, Check):
        return standing(result) not in state.standings
    return risen(state, criterion, result) is not None


Level = tuple[int, float]
"""A number that grows, and at the same number a distance that falls."""


def risen(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> Level | None:
    """The level of a criterion if it is above all levels at earlier checkpoints, else None."""
    now, before = _level(state, criterion, result), state.levels.get(criterion.criterion_id)
    if now is None or before is None or now[0] > before[0]:
        return now
    return now if now[0] == before[0] and closer(now[1], before[1]) else None


def _level(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> Level | None:
    """How far a criterion has come that counts something; None if its kind does not, or nothing is known."""
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
    """What a check came to: its status, and each expectation with its value, such as the exit code or a count."""
    rows = {name: (one.get("value"), one.get("met")) for name, one in _expectations(result).items()}
    return fingerprint([result.criterion_id, result.status, rows])


def _expectations(result: CriterionResult) -> dict[str, Mapping[str, Any]]:
    """What a check expects, each with whether it is met."""
    evidence: dict[str, Any] = result.evidence
    return {name: cast("Mapping[str, Any]", one) for name, one in evidence.items() if isinstance(one, Mapping)}


def figures(state: MissionState, results: Sequence[CriterionResult], counter: int) -> str:
    """The numbers behind so many checkpoints without progress."""
    unmet = _unmet(state, results)
    words = [_words(state, criterion, result) for criterion, result in unmet]
    if state.open is not None and state.open.tree is not None and state.open.outputs() in state.outputs_seen:
        words.append("the workspace is as it was after an earlier turn")
    elif _news_counts(unmet):
        words.append("no result differs from earlier ones in more than numbers")
    return f"No progress for {counter} checkpoint{'s' * (counter != 1)}: {'; '.join(words)}."


def _words(state: MissionState, criterion: AnyCriterion, result: CriterionResult) -> str:
    evidence: dict[str, Any] = result.evidence
    said = evidence.get("reason", "not met")
    match criterion:
        case MetricThreshold():
            return _about_threshold(state, criterion, _trend(state, criterion))
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


def _new_best(state: MissionState, criterion: MetricThreshold) -> bool:
    name = criterion.criterion_id
    return name in state.nearest and closer(state.nearest[name], state.least.get(name))


def _trend(state: MissionState, criterion: MetricThreshold) -> Trend | None:
    """The trend up to this checkpoint; None if the metric has no new value."""
    name = criterion.criterion_id
    if name not in state.nearest or state.stagnation is None:
        return None
    return Trend([*state.trail.get(name, ()), state.nearest[name]][-WINDOW * state.stagnation :])


def _improves(state: MissionState, criterion: MetricThreshold) -> bool:
    """Whether the distances fall by more than noise does by chance, or there are too few of them to tell."""
    name = criterion.criterion_id
    before = state.trail.get(name)
    if not before or before[-1] == state.nearest.get(name):
        return False  # it has not moved
    trend = _trend(state, criterion)
    if trend is None or not trend.wavers:
        return False
    return trend.points < LEAST * (state.stagnation or 0) or trend.z >= SIGNIFICANT


def _about_threshold(state: MissionState, criterion: MetricThreshold, trend: Trend | None) -> str:
    known = _best(state, criterion)
    if trend is None:
        return f"{describe(criterion)} has no new value ({known})"
    change = f"its distance changes by {trend.slope:.3g} per checkpoint over {trend.points}, noise {trend.noise:.3g}"
    return f"{describe(criterion)}: {known}; {change}, z {trend.z:.2f} of {SIGNIFICANT:g} needed"


def _best(state: MissionState, criterion: MetricThreshold) -> str:
    """The best value among the points that keep the limits; without one, that it violates them."""
    best = state.best_points.of(criterion.criterion_id)
    if best is not None and best.point is not None:
        return f"best {best.point.value:g} in iteration {best.point.iteration + 1}"
    if best is not None and best.infeasible is not None:
        return f"best {best.infeasible.value:g} in iteration {best.infeasible.iteration + 1}, which violates a limit"
    return "no value"
