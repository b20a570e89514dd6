"""Whether a mission makes progress: the trend of its metrics over a window, against the noise that was seen.

At a checkpoint there is progress if

- a criterion is met for the first time; or
- a required threshold has a new best value; or
- the distances from a threshold's target fall over the window, by Mann-Kendall's test; or
- they go up and down, and there are too few of them to tell.

A mission without thresholds makes progress with a result that it has not seen before. Calls that were made before, with
results that differ in numbers and identifiers alone, are no progress: a counter or a clock is no news. A turn of an
agent is no progress if it leaves a tree that was seen before, or if the checks fail as they did before.

Pure. The first checkpoint compares with nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from pursuit.core.criteria import MetricThreshold, describe
from pursuit.core.evaluate import least_squares_slope
from pursuit.core.events import CriterionResult
from pursuit.core.series import closer
from pursuit.core.state import MissionState

WINDOW = 10
"""The window, in thresholds: by default the last 30 checkpoints. Half of it shows a drift of a fifth of the noise."""
LEAST = 4
"""The fewest points that noise is judged by, in thresholds. With 12, hardly a run that improves looks flat."""
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


def without_progress(state: MissionState, results: Sequence[CriterionResult]) -> int:
    """The number of checkpoints in a row without progress, this one included, which is still open."""
    return 0 if _progresses(state, results) else state.no_progress + 1


def _progresses(state: MissionState, results: Sequence[CriterionResult]) -> bool:
    if state.checkpoints == 0 or any(one.status == "met" and one.criterion_id not in state.ever_met for one in results):
        return True
    if not state.thresholds:
        return state.news or (state.open is not None and state.is_new(state.open))
    return any(_new_best(state, one) or _improves(state, one) for one in state.aims)


def figures(state: MissionState, counter: int) -> str:
    """The numbers behind so many checkpoints without progress."""
    trends = [_words(state, one, _trend(state, one)) for one in state.aims]
    words = trends if state.thresholds else [_nothing_new(state)]
    return f"No progress for {counter} checkpoint{'s' * (counter != 1)}: {'; '.join(words)}."


def _nothing_new(state: MissionState) -> str:
    iteration = state.open
    if iteration is None or iteration.tree is None:
        return "no result differs from earlier ones in more than numbers"
    if iteration.outputs() in state.outputs_seen:
        return "the workspace is as it was after an earlier turn"
    return "the checks fail as they did before"


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


def _words(state: MissionState, criterion: MetricThreshold, trend: Trend | None) -> str:
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
