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
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

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


class Trend(NamedTuple):
    """How the distances from a target change: per checkpoint, against noise, over so many points.

    `z` is Mann-Kendall's, positive where the distances fall. `noise` is the standard deviation that the differences of
    neighbours show. `wavers` is whether the distances both rise and fall, and have just moved.
    """

    points: int
    slope: float
    noise: float
    z: float
    wavers: bool


def trend_of(distances: Sequence[float]) -> Trend:
    """The trend of distances from a target, the newest last."""
    count = len(distances)
    if count < 2:
        return Trend(count, 0.0, 0.0, 0.0, wavers=False)
    scale = max(map(abs, distances)) or 1.0
    scaled = [one / scale for one in distances]  # squares of huge numbers are no numbers
    steps = [after - before for before, after in pairwise(scaled)]
    noise = math.sqrt(sum(step * step for step in steps) / (2 * len(steps))) * scale
    wavers = min(steps) < 0 < max(steps) and steps[-1] != 0
    return Trend(count, least_squares_slope(scaled) * scale, noise, _mann_kendall(distances), wavers)


def _mann_kendall(values: Sequence[float]) -> float:
    """The standard score of the number of falling pairs over that of rising ones; ties are allowed for."""
    count = len(values)
    falling = sum((a > b) - (a < b) for place, a in enumerate(values) for b in values[place + 1 :])
    ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    return 0.0 if variance <= 0 or falling == 0 else (falling - math.copysign(1, falling)) / math.sqrt(variance)


class Judgement(NamedTuple):
    """The number of checkpoints in a row without progress, and the figures behind it."""

    counter: int
    figures: str | None = None


def judge(state: MissionState, results: Sequence[CriterionResult]) -> Judgement:
    """The counter after this checkpoint, which is still open."""
    if state.checkpoints == 0 or any(one.status == "met" and one.criterion_id not in state.ever_met for one in results):
        return Judgement(0)
    if not state.thresholds:
        new = state.news or (state.open is not None and state.is_new(state.open))
        return Judgement(0) if new else _stuck(state, _nothing_new(state))
    if state.stagnation is None:
        return Judgement(0 if any(_new_best(state, one) for one in state.aims) else state.no_progress + 1)
    trends: list[str] = []
    for criterion in state.aims:
        trend = _trend(state, criterion)
        if _new_best(state, criterion) or (trend is not None and _improves(trend, state.stagnation)):
            return Judgement(0)
        trends.append(_words(state, criterion, trend))
    return _stuck(state, "; ".join(trends))


def _nothing_new(state: MissionState) -> str:
    iteration = state.open
    if iteration is None or iteration.tree is None:
        return "no result differs from earlier ones in more than numbers"
    if iteration.outputs() in state.outputs_seen:
        return "the workspace is as it was after an earlier turn"
    return "the checks fail as they did before"


def _stuck(state: MissionState, figures: str) -> Judgement:
    counter = state.no_progress + 1
    checkpoints = f"checkpoint{'s' * (counter != 1)}"
    return Judgement(counter, f"No progress for {counter} {checkpoints}: {figures}.")


def _new_best(state: MissionState, criterion: MetricThreshold) -> bool:
    name = criterion.criterion_id
    return name in state.nearest and closer(state.nearest[name], state.least.get(name))


def _trend(state: MissionState, criterion: MetricThreshold) -> Trend | None:
    """The trend up to this checkpoint; None if the metric has no new value."""
    name = criterion.criterion_id
    if name not in state.nearest or state.stagnation is None:
        return None
    return trend_of([*state.trail.get(name, ()), state.nearest[name]][-WINDOW * state.stagnation :])


def _improves(trend: Trend, threshold: int) -> bool:
    """Whether the distances fall by more than noise does by chance, or there are too few of them to tell."""
    if trend.wavers and trend.points < LEAST * threshold:
        return True
    return trend.wavers and trend.z >= SIGNIFICANT


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
