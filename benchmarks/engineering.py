"""Four engineering design problems with published best costs, as plain functions that return metrics.

Each gives `cost` and its constraints `g1`, `g2`, …, which hold at or below zero, in the units of the literature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from pursuit.demo import designs


def told(numbers: Callable[..., dict[str, float]]) -> Callable[..., dict[str, Any]]:
    """The function as a tool of a mission, with its own signature: its numbers are metrics."""

    @wraps(numbers)
    def tool(*args: Any, **given: Any) -> dict[str, Any]:
        return {"metrics": numbers(*args, **given)}

    tool.__annotations__ = {**numbers.__annotations__, "return": dict[str, Any]}
    return tool


welded_beam, three_bar_truss = told(designs.welded_beam), told(designs.three_bar_truss)
speed_reducer, pressure_vessel = told(designs.speed_reducer), told(designs.pressure_vessel)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem: its function, the space that is searched, what is known, and what is asked of a search."""

    name: str
    evaluate: Callable[..., dict[str, Any]]
    parameters: Mapping[str, Mapping[str, Any]]
    constraints: int
    best: float
    within: float
    evaluations: int

    @property
    def target(self) -> float:
        """The cost that counts as found."""
        return self.best * (1 + self.within)


PLATE = {"low": 0.0625, "high": 6.1875, "step": 0.0625}

PROBLEMS = (
    Problem(
        name="welded beam",
        evaluate=welded_beam,
        parameters={
            "h": {"low": 0.1, "high": 2.0},
            "l": {"low": 0.1, "high": 10.0},
            "t": {"low": 0.1, "high": 10.0},
            "b": {"low": 0.1, "high": 2.0},
        },
        constraints=7,
        best=1.724852,
        within=0.02,
        evaluations=1_000,
    ),
    Problem(
        name="three-bar truss",
        evaluate=three_bar_truss,
        parameters={"a1": {"low": 0.001, "high": 1.0}, "a2": {"low": 0.001, "high": 1.0}},
        constraints=3,
        best=263.8958,
        within=0.005,
        evaluations=300,
    ),
    Problem(
        name="speed reducer",
        evaluate=speed_reducer,
        parameters={
            "b": {"low": 2.6, "high": 3.6},
            "m": {"low": 0.7, "high": 0.8},
            "z": {"low": 17, "high": 28, "kind": "int"},
            "l1": {"low": 7.3, "high": 8.3},
            "l2": {"low": 7.3, "high": 8.3},
            "d1": {"low": 2.9, "high": 3.9},
            "d2": {"low": 5.0, "high": 5.5},
        },
        constraints=11,
        best=2_994.471,
        within=0.03,
        evaluations=1_000,
    ),
    Problem(
        name="pressure vessel",
        evaluate=pressure_vessel,
        parameters={
            "shell": PLATE,
            "head": PLATE,
            "radius": {"low": 10.0, "high": 200.0},
            "length": {"low": 10.0, "high": 200.0},
        },
        constraints=4,
        best=6_059.714,
        within=0.03,
        evaluations=1_000,
    ),
)
