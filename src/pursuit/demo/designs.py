"""Engineering designs from the literature as plain functions, with the ranges used there.

Each returns `cost` and its constraints `g1`, `g2`, …, which hold at or below zero. Constraints are relative to their
limits, so one tolerance means the same for all. All numbers in the ranges give finite results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableRange:
    low: float
    high: float
    about: str
    whole: bool = False
    step: float | None = None

    def schema(self) -> dict[str, Any]:
        body: dict[str, Any] = {"type": "integer" if self.whole else "number", "minimum": self.low}
        body |= {"maximum": self.high, "description": self.about}
        return body if self.step is None else {**body, "multipleOf": self.step}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One family of designs: its variables and results; `about` describes the cost."""

    about: str
    variables: Mapping[str, VariableRange]
    numbers: Callable[..., dict[str, float]]
    constraints: int = 0

    def tells(self) -> str:
        limits = f", and its constraints `g1` to `g{self.constraints}`, each of which holds at or below zero"
        return f"the `cost` of {self.about}{limits if self.constraints else ''}"


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


_PLATE = 0.0625
_GEARS = {
    "driver1": "gear that drives",
    "driver2": "second gear that drives",
    "driven1": "gear that is driven first",
    "driven2": "last gear",
}
_AREA = VariableRange(low=0.001, high=1.0, about="cross-section, in square centimetres")

DESIGNS: Mapping[str, Design] = {
    "welded-beam": Design(
        about="a welded beam, in dollars",
        constraints=7,
        variables={
            "h": VariableRange(low=0.1, high=2.0, about="height of the weld, in inches"),
            "l": VariableRange(low=0.1, high=10.0, about="length of the weld, in inches"),
            "t": VariableRange(low=0.1, high=10.0, about="height of the bar, in inches"),
            "b": VariableRange(low=0.1, high=2.0, about="thickness of the bar, in inches"),
        },
        numbers=welded_beam,
    ),
    "three-bar-truss": Design(
        about="a truss of three bars, which is its volume in cm^3",
        constraints=3,
        variables={"a1": _AREA, "a2": _AREA},
        numbers=three_bar_truss,
    ),
    "speed-reducer": Design(
        about="a gear box, which is its volume in cm^3",
        constraints=11,
        variables={
            "b": VariableRange(low=2.6, high=3.6, about="width of the face, in centimetres"),
            "m": VariableRange(low=0.7, high=0.8, about="module of the teeth, in centimetres"),
            "z": VariableRange(low=17, high=28, about="teeth of the pinion", whole=True),
            "l1": VariableRange(low=7.3, high=8.3, about="length of the first shaft, in centimetres"),
            "l2": VariableRange(low=7.3, high=8.3, about="length of the second shaft, in centimetres"),
            "d1": VariableRange(low=2.9, high=3.9, about="diameter of the first shaft, in centimetres"),
            "d2": VariableRange(low=5.0, high=5.5, about="diameter of the second shaft, in centimetres"),
        },
        numbers=speed_reducer,
    ),
    "pressure-vessel": Design(
        about="a pressure vessel, in dollars",
        constraints=4,
        variables={
            "shell": VariableRange(low=_PLATE, high=6.1875, about="thickness of the shell, in inches", step=_PLATE),
            "head": VariableRange(low=_PLATE, high=6.1875, about="thickness of the heads, in inches", step=_PLATE),
            "radius": VariableRange(low=10.0, high=200.0, about="inner radius, in inches"),
            "length": VariableRange(low=10.0, high=200.0, about="length without the heads, in inches"),
        },
        numbers=pressure_vessel,
    ),
    "gear-train": Design(
        about="a gear train, which is the squared error of its ratio",
        variables={
            name: VariableRange(low=12, high=60, about=f"teeth of the {word}", whole=True)
            for name, word in _GEARS.items()
        },
        numbers=gear_train,
    ),
    "spring": Design(
        about="a spring, which stands for its weight, in in^3",
        constraints=4,
        variables={
            "wire": VariableRange(low=0.05, high=2.0, about="diameter of the wire, in inches"),
            "coil": VariableRange(low=0.25, high=1.3, about="mean diameter of the coil, in inches"),
            "turns": VariableRange(low=2.0, high=15.0, about="number of active coils"),
        },
        numbers=spring,
    ),
}


def evaluate(name: str, given: Mapping[str, Any]) -> dict[str, float]:
    """The results of one design; raises `ValueError` for values outside the ranges."""
    design = DESIGNS[name]
    for key, limits in design.variables.items():
        value = given.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not limits.low <= value <= limits.high:
            raise ValueError(f"{key} must be a number from {limits.low:g} to {limits.high:g}")
        grid = 1.0 if limits.whole else limits.step
        if grid is not None and abs(value / grid - round(value / grid)) > 1e-9:
            raise ValueError(f"{key} must be a multiple of {grid:g}")
    return design.numbers(**{key: given[key] for key in design.variables})
