"""How a number stands towards a threshold.

Owns: comparison, distance and "better". Pure. Invariant: distance is zero exactly when the threshold holds.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable

from pursuit.model.criteria import Comparison, MetricThreshold
from pursuit.model.series import Point

COMPARE: dict[Comparison, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
TOLERANCE = 1e-6


def holds(criterion: MetricThreshold, value: float) -> bool:
    """Whether the value meets the threshold."""
    return COMPARE[criterion.op](value, criterion.target)


def distance(criterion: MetricThreshold, value: float) -> float:
    """How far the value is from its target; zero when the threshold holds."""
    return 0.0 if holds(criterion, value) else max(abs(value - criterion.target), sys.float_info.min)


def better(criterion: MetricThreshold, point: Point, best: Point | None) -> bool:
    """Whether a point beats the best one so far, in the direction that the threshold wants."""
    if best is None:
        return True
    match criterion.op:
        case "<" | "<=":
            return point.value < best.value
        case ">" | ">=":
            return point.value > best.value
        case "==" | "!=":
            return distance(criterion, point.value) < distance(criterion, best.value)


def closer(criterion: MetricThreshold, value: float, before: float | None) -> bool:
    """Whether the best value came closer to the target by more than the tolerance."""
    if before is None:
        return True
    if value == before:
        return False
    was = distance(criterion, before)
    return distance(criterion, value) < was * (1 - TOLERANCE)
