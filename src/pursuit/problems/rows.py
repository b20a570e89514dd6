"""What a judge said, in the one shape of a score.

Owns: the forms that a scorer may answer in, and what makes a submission feasible and solved. Pure.
Invariant: every metric of the manifest has exactly one row, in the manifest's order; a value is a finite number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pursuit.core.attempts import ScoreRow
from pursuit.problems.manifest import Metric, Scorer


class CannotScore(Exception):
    """The judge gave no score; the message says why."""


@dataclass(frozen=True, slots=True)
class Score:
    """The rows, and whether every target is reached."""

    rows: tuple[ScoreRow, ...]
    solved: bool


def score_of(scorer: Scorer, said: Any) -> Score:
    """The score in what a judge said: a number, or a table of metrics; `feasible` may stand beside them.

    Raises `CannotScore`.
    """
    numbers, feasible = _numbers(scorer, said)
    kept = all(numbers[name] <= scorer.tolerance for name in scorer.constraints)
    feasible = feasible and kept
    rows = tuple(
        ScoreRow(
            metric=metric.name,
            value=numbers[metric.name],
            unit=metric.unit,
            direction=metric.direction,
            feasible=feasible,
        )
        for metric in scorer.metrics
    )
    return Score(rows, feasible and all(metric.met(numbers[metric.name]) for metric in scorer.metrics))


def _numbers(scorer: Scorer, said: Any) -> tuple[dict[str, float], bool]:
    if isinstance(said, bool | int | float):
        said = {scorer.metrics[0].name: said}
    if not isinstance(said, Mapping):
        raise CannotScore(f"the scorer answered with {type(said).__name__}; it must be a number or a table of metrics")
    table = cast("Mapping[str, Any]", said)
    inner = table.get("metrics")
    metrics = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else table
    feasible = table.get("feasible", True)
    if not isinstance(feasible, bool):
        raise CannotScore("feasible must be true or false")
    wanted = [*(metric.name for metric in scorer.metrics), *scorer.constraints]
    missing = [name for name in wanted if name not in metrics]
    if missing:
        raise CannotScore(f"the scorer gave no {', '.join(missing)}")
    return {name: _finite(name, metrics[name]) for name in wanted}, feasible


def _finite(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        raise CannotScore(f"{name} is a whole number that is too large for a score") from None
    raise CannotScore(f"{name} must be a finite number, not {value!r}"[:300])


def better(metric: Metric, one: ScoreRow, other: ScoreRow) -> bool:
    """Whether one row beats another: what is feasible beats what is not, then the value decides."""
    if one.feasible != other.feasible:
        return one.feasible
    return one.value > other.value if metric.direction == "maximize" else one.value < other.value
