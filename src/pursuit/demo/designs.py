"""Engineering designs from the literature as plain functions; the shipped problems state the ranges used there.

Each returns `cost` and its constraints `g1`, `g2`, …, which hold at or below zero. Constraints are relative to their
limits, so one tolerance means the same for all. All numbers in the ranges give finite results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import pi, sqrt
from typing import Any


def metrics(cost: float, limits: Iterable[float]) -> dict[str, float]:
    return {"cost": cost, **{f"g{place}": value for place, value in enumerate(limits, 1)}}


LOAD = 6_000.0  # lb
OVERHANG = 14.0  # in
YOUNG_MODULUS = 30e6  # psi
SHEAR_MODULUS = 12e6  # psi
MAX_SHEAR_STRESS = 13_600.0  # psi
MAX_BENDING_STRESS = 30_000.0  # psi
MAX_DEFLECTION = 0.25  # in
MAX_PARTIAL_COST = 5.0
MIN_WELD_HEIGHT = 0.125  # in


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A welded beam and the quantities that follow from its dimensions.

    A bar is welded to a wall and carries a load at its free end. Choose the weld's height `h` and length `l` and the
    bar's height `t` and thickness `b`, in inches, so that it holds and costs as little as possible. This is the form
    with seven constraints, first in S. S. Rao, "Engineering Optimization" (1996), and used since by K. Deb (2000) and
    C. A. Coello Coello (2000): 6,000 lb at 14 in. The best published cost is 1.724852.
    """

    h: float
    l: float  # noqa: E741  the literature's own name for the weld's length
    t: float
    b: float

    @property
    def cost(self) -> float:
        """Weld material and labour, and the bar's material."""
        return 1.10471 * self.h**2 * self.l + 0.04811 * self.t * self.b * (OVERHANG + self.l)

    @property
    def shear_stress(self) -> float:
        """Stress in the weld: the direct part and the torsional part, added as vectors."""
        lever = ((self.h + self.t) / 2) ** 2
        radius = sqrt(self.l**2 / 4 + lever)
        polar_moment = 2 * sqrt(2) * self.h * self.l * (self.l**2 / 12 + lever)
        direct = LOAD / (sqrt(2) * self.h * self.l)
        torsional = LOAD * (OVERHANG + self.l / 2) * radius / polar_moment
        return sqrt(direct**2 + direct * torsional * self.l / radius + torsional**2)

    @property
    def bending_stress(self) -> float:
        """Stress in the bar at the wall."""
        return 6 * LOAD * OVERHANG / (self.b * self.t**2)

    @property
    def deflection(self) -> float:
        """The deflection of the free end."""
        return 4 * LOAD * OVERHANG**3 / (YOUNG_MODULUS * self.b * self.t**3)

    @property
    def buckling_load(self) -> float:
        """The load at which the bar buckles sideways."""
        ideal = 4.013 * YOUNG_MODULUS * sqrt(self.t**2 * self.b**6 / 36) / OVERHANG**2
        return ideal * (1 - self.t / (2 * OVERHANG) * sqrt(YOUNG_MODULUS / (4 * SHEAR_MODULUS)))

    def constraints(self) -> dict[str, float]:
        """g1 to g7 in the literature's order, each relative to its limit: positive means violated."""
        partial_cost = 0.10471 * self.h**2 + 0.04811 * self.t * self.b * (OVERHANG + self.l)
        return {
            "shear_stress": self.shear_stress / MAX_SHEAR_STRESS - 1,
            "bending_stress": self.bending_stress / MAX_BENDING_STRESS - 1,
            "weld_not_thicker_than_bar": self.h / self.b - 1,
            "partial_cost": partial_cost / MAX_PARTIAL_COST - 1,
            "least_weld_height": 1 - self.h / MIN_WELD_HEIGHT,
            "deflection": self.deflection / MAX_DEFLECTION - 1,
            "buckling_load": 1 - self.buckling_load / LOAD,
        }

    def violations(self) -> dict[str, float]:
        """The violated constraints, and by how much, relative to their limits."""
        return {name: value for name, value in self.constraints().items() if value > 0}


def welded_beam(**variables: float) -> dict[str, float]:
    """A beam welded to a wall; see `Beam`."""
    beam = Beam(**variables)
    return metrics(beam.cost, beam.constraints().values())


def three_bar_truss(a1: float, a2: float) -> dict[str, float]:
    """A truss of three bars (Nowacki 1974; 100 cm, 2 kN)."""
    shared = sqrt(2) * a1 * a1 + 2 * a1 * a2
    stresses = (2 * (sqrt(2) * a1 + a2) / shared, 2 * a2 / shared, 2 / (a1 + sqrt(2) * a2))
    return metrics((2 * sqrt(2) * a1 + a2) * 100, [stress / 2 - 1 for stress in stresses])


def speed_reducer(*, b: float, m: float, z: int, l1: float, l2: float, d1: float, d2: float) -> dict[str, float]:
    """A gear box (Golinski 1973); `z` is the number of teeth."""
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
    return metrics(weight, limits)


def pressure_vessel(shell: float, head: float, radius: float, length: float) -> dict[str, float]:
    """A vessel of rolled plates, which come in sixteenths of an inch (Sandgren 1990)."""
    cost = (
        0.6224 * shell * radius * length
        + 1.7781 * head * radius**2
        + 3.1661 * shell**2 * length
        + 19.84 * shell**2 * radius
    )
    volume = pi * radius**2 * length + 4 / 3 * pi * radius**3
    limits = (0.0193 * radius / shell - 1, 0.00954 * radius / head - 1, 1 - volume / 1_296_000, length / 240 - 1)
    return metrics(cost, limits)


def gear_train(driver1: int, driver2: int, driven1: int, driven2: int) -> dict[str, float]:
    """Four gears whose ratio should be 1 to 6.931 (Sandgren 1990): the squared error."""
    return metrics((1 / 6.931 - driver1 * driver2 / (driven1 * driven2)) ** 2, ())


def spring(wire: float, coil: float, turns: float) -> dict[str, float]:
    """A spring under tension or compression (Belegundu 1982; Arora 1989): its weight."""
    inner = coil - wire
    shear = (4 * coil**2 - wire * coil) / (12_566 * wire**3 * inner) if inner > 0 else 1e6 * (1 - inner)
    limits = (
        1 - coil**3 * turns / (71_785 * wire**4),
        shear + 1 / (5_108 * wire**2) - 1,
        1 - 140.45 * wire / (coil**2 * turns),
        (coil + wire) / 1.5 - 1,
    )
    return metrics((turns + 2) * coil * wire**2, limits)


@dataclass(frozen=True, slots=True)
class Design:
    """One family of designs; `about` describes the cost. Its problem states the variables and the constraints."""

    about: str
    numbers: Callable[..., dict[str, float]]


DESIGNS: Mapping[str, Design] = {
    "welded-beam": Design("a welded beam, in dollars", welded_beam),
    "three-bar-truss": Design("a truss of three bars, which is its volume in cm^3", three_bar_truss),
    "speed-reducer": Design("a gear box, which is its volume in cm^3", speed_reducer),
    "pressure-vessel": Design("a pressure vessel, in dollars", pressure_vessel),
    "gear-train": Design("a gear train, which is the squared error of its ratio", gear_train),
    "spring": Design("a spring, which stands for its weight, in in^3", spring),
}


@cache
def problem_of(name: str) -> dict[str, Any]:
    """The table of the shipped problem with this name."""
    manifest = files("pursuit.problems") / "shipped" / name / "problem.toml"
    return tomllib.loads(manifest.read_text(encoding="utf-8"))


def tells(name: str) -> str:
    """The results of a design in words."""
    count = len(problem_of(name)["scorer"].get("constraints", ()))
    limits = f", and its constraints `g1` to `g{count}`, each of which holds at or below zero"
    return f"the `cost` of {DESIGNS[name].about}{limits if count else ''}"


def evaluate(name: str, given: Mapping[str, Any]) -> dict[str, float]:
    """The results of one design; raises `ValueError` for values outside the ranges."""
    variables: dict[str, dict[str, Any]] = problem_of(name)["submission"]["properties"]
    for key, limits in variables.items():
        value, low, high = given.get(key), limits["minimum"], limits["maximum"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"{key} must be a number from {low:g} to {high:g}")
        grid = 1.0 if limits["type"] == "integer" else limits.get("multipleOf")
        if grid is not None and abs(value / grid - round(value / grid)) > 1e-9:
            raise ValueError(f"{key} must be a multiple of {grid:g}")
    return DESIGNS[name].numbers(**{key: given[key] for key in variables})
