"""Four engineering design problems with published best costs, as plain functions that return metrics.

Each gives `cost` and its constraints `g1`, `g2`, …, which hold at or below zero, in the units of the literature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

from pursuit.demo.welded_beam import Beam


def welded_beam(h: float, l: float, t: float, b: float) -> dict[str, Any]:  # noqa: E741 - the literature's names
    """A beam welded to a wall (Rao 1996, the form with seven constraints): best published cost 1.724852."""
    beam = Beam(h=h, l=l, t=t, b=b)
    return _metrics(beam.cost, beam.constraints().values())


def three_bar_truss(a1: float, a2: float) -> dict[str, Any]:
    """A truss of three bars (Nowacki 1974; 100 cm, 2 kN): best published weight 263.8958."""
    shared = sqrt(2) * a1 * a1 + 2 * a1 * a2
    stresses = (2 * (sqrt(2) * a1 + a2) / shared, 2 * a2 / shared, 2 / (a1 + sqrt(2) * a2))
    return _metrics((2 * sqrt(2) * a1 + a2) * 100, [stress - 2 for stress in stresses])


def speed_reducer(b: float, m: float, z: int, l1: float, l2: float, d1: float, d2: float) -> dict[str, Any]:
    """A gear box (Golinski 1973): `z` is a number of teeth; best published weight 2994.47."""
    weight = (
        0.7854 * b * m**2 * (3.3333 * z**2 + 14.9334 * z - 43.0934)
        - 1.508 * b * (d1**2 + d2**2)
        + 7.4777 * (d1**3 + d2**3)
        + 0.7854 * (l1 * d1**2 + l2 * d2**2)
    )
    limits = (
        27 / (b * m**2 * z) - 1,
        397.5 / (b * m**2 * z**2) - 1,
        1.93 * l1**3 / (m * z * d1**4) - 1,
        1.93 * l2**3 / (m * z * d2**4) - 1,
        sqrt((745 * l1 / (m * z)) ** 2 + 16.9e6) / (110 * d1**3) - 1,
        sqrt((745 * l2 / (m * z)) ** 2 + 157.5e6) / (85 * d2**3) - 1,
        m * z / 40 - 1,
        5 * m / b - 1,
        b / (12 * m) - 1,
        (1.5 * d1 + 1.9) / l1 - 1,
        (1.1 * d2 + 1.9) / l2 - 1,
    )
    return _metrics(weight, limits)


def pressure_vessel(shell: float, head: float, radius: float, length: float) -> dict[str, Any]:
    """A vessel of rolled plates (Sandgren 1990), which come in sixteenths of an inch: best published 6059.714."""
    cost = (
        0.6224 * shell * radius * length
        + 1.7781 * head * radius**2
        + 3.1661 * shell**2 * length
        + 19.84 * shell**2 * radius
    )
    volume = pi * radius**2 * length + 4 / 3 * pi * radius**3
    limits = (0.0193 * radius - shell, 0.00954 * radius - head, 1_296_000 - volume, length - 240)
    return _metrics(cost, limits)


def _metrics(cost: float, limits: Any) -> dict[str, Any]:
    return {"metrics": {"cost": cost, **{f"g{place}": value for place, value in enumerate(limits, 1)}}}


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
