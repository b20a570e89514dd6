"""The space of a search, as points of a unit cube: turns a tool's arguments into rows of numbers and back.

Invariant: the results of `decode` are within the bounds and on the grid, however large the numbers, and `encode` gives
the same point, or the nearest that floating point can represent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pursuit.proposers.search.settings import Parameter, first_design

Rows = NDArray[np.float64]
APART = math.sqrt(0.5)
"""The coordinate of the chosen value: two different choices are one unit apart."""

LISTABLE = 1_024


@dataclass(frozen=True, slots=True)
class Range:
    """A numeric parameter; `step` is 0 for one without a grid."""

    name: str
    low: float
    high: float
    step: float
    log: bool
    whole: bool

    @classmethod
    def of(cls, name: str, given: Parameter) -> Range:
        """The range with its upper bound on the grid."""
        low, high, whole = given.low, given.high, given.kind == "int"
        if low is None or high is None:
            raise ValueError(f"{name} lacks bounds")  # the start of the mission checks it
        step = given.step or 0.0
        if whole:
            low, step = int(low), int(step) or 1
            high = low + (int(high) - low) // step * step
        elif step:
            high = min(high, neat(low + math.floor((high - low) / step + 1e-9) * step, step))
        return cls(name, low, high, step, given.log, whole)

    @property
    def levels(self) -> int | None:
        if self.whole:
            return int((self.high - self.low) // self.step) + 1
        return round((self.high - self.low) / self.step) + 1 if self.step else None

    def values(self) -> list[float | int]:
        return list(dict.fromkeys(self.value(self.low + place * self.step) for place in range(self.levels or 1)))

    def nearest(self, number: float) -> float | int:
        return self.value(number if self.step else neat(number, self.high - self.low))

    def value(self, number: float) -> float | int:
        """The argument nearest to a number, in the type of the tool."""
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step)
            return min(high, max(low, low + (round(number) - low + step // 2) // step * step))
        return min(self.high, max(self.low, neat(number, self.step) if self.step else number))


@dataclass(frozen=True, slots=True)
class ChoiceColumns:
    """A parameter with listed values: one column for each value, from `column` on."""

    name: str
    choices: Sequence[Any]
    column: int

    @property
    def columns(self) -> slice:
        return slice(self.column, self.column + len(self.choices))


class Space:
    """All searched parameters together: numeric ones first, each a column from 0 to 1, then the choices."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.ranges = [Range.of(name, one) for name, one in parameters.items() if one.choices is None]
        self.choices: list[ChoiceColumns] = []
        self.width = len(self.ranges)
        for name, one in parameters.items():
            if one.choices is not None:
                self.choices.append(ChoiceColumns(name, tuple(one.choices), self.width))
                self.width += len(one.choices)
        self.first_design = first_design(parameters)
        self.names = tuple(parameters)
        self._log = np.array([one.log for one in self.ranges], dtype=bool)
        self._low = np.array([one.low for one in self.ranges], dtype=float)
        self._step = np.array([one.step for one in self.ranges], dtype=float)
        self._high = np.array([one.high for one in self.ranges], dtype=float)
        self._from, self._to = self._scaled(self._low), self._scaled(self._high)
        self._span = np.where(self._to > self._from, self._to - self._from, 1.0)

    @cached_property
    def size(self) -> int | None:
        levels = [one.levels for one in self.ranges]
        if any(level is None for level in levels):
            return None
        return math.prod([level or 1 for level in levels] + [len(one.choices) for one in self.choices])

    @cached_property
    def spacing(self) -> Rows:
        """The distance of neighbours on the grid for each numeric column; 0 without a grid."""
        return np.where(self._log, 0.0, self._step / self._span)

    def points(self) -> Iterator[dict[str, Any]]:
        """The arguments of every point of a finite space, without steps that rounding removes."""
        axes = [*(one.values() for one in self.ranges), *(one.choices for one in self.choices)]
        for point in product(*axes):
            found = dict(zip((one.name for one in (*self.ranges, *self.choices)), point, strict=True))
            yield {name: found[name] for name in self.names}

    def everything(self) -> Rows:
        return np.array([self.encode(args) for args in self.points()])

    def snap(self, rows: Rows) -> Rows:
        """The nearest points of the space."""
        count = len(self.ranges)
        found = np.zeros_like(rows)
        unit = np.clip(rows[:, :count], 0.0, 1.0)
        found[:, :count] = (self._scaled(self._numbers(unit)) - self._from) / self._span
        for one in self.choices:
            taken = np.argmax(rows[:, one.columns], axis=1)
            found[np.arange(len(rows)), one.column + taken] = APART
        return found

    def encode(self, args: Mapping[str, Any]) -> Rows:
        row = np.zeros(self.width)
        numbers = np.array([float(args[one.name]) for one in self.ranges])
        row[: len(self.ranges)] = (self._scaled(numbers) - self._from) / self._span
        for one in self.choices:
            row[one.column + one.choices.index(args[one.name])] = APART
        return row

    def decode(self, row: Rows) -> dict[str, Any]:
        numbers = self._numbers(np.clip(row[None, : len(self.ranges)], 0.0, 1.0))[0]
        found: dict[str, Any] = {one.name: one.nearest(float(x)) for one, x in zip(self.ranges, numbers, strict=True)}
        for one in self.choices:
            found[one.name] = one.choices[int(np.argmax(row[one.columns]))]
        return {name: found[name] for name in self.names}

    def _scaled(self, numbers: Rows) -> Rows:
        return np.where(self._log, np.log(np.where(self._log, numbers, 1.0)), numbers)

    def _numbers(self, unit: Rows) -> Rows:
        scaled = self._from + unit * (self._to - self._from)
        numbers = np.where(self._log, np.exp(np.where(self._log, scaled, 0.0)), scaled)
        step = np.where(self._step > 0, self._step, 1.0)
        gridded = self._low + np.round((numbers - self._low) / step) * step
        return np.clip(np.where(self._step > 0, gridded, numbers), self._low, self._high)


def neat(number: float, scale: float) -> float:
    """The number with twelve digits, unless further digits matter on this scale: they are rounding errors."""
    short = float(f"{number:.12g}")
    return short if abs(short - number) <= scale * 1e-9 else number
