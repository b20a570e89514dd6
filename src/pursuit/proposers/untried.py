"""The points of a small space, each of which is tried once before any is tried twice.

Owns: which points of a space that can be listed were tried, and the nearest other one. Knows no method of searching.
Invariant: what is untried follows from the trials begun and ended, and a choice among equals from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from pursuit.proposers.space import Rows, Space

COUNTABLE = 65_536
"""The points of the largest space that is kept as a list."""


class Points:
    """Every point of a space, counted; `of` gives none for a space that is too large."""

    def __init__(self, axes: Mapping[str, Sequence[Any]], numeric: frozenset[str], seed: int) -> None:
        self._axes = axes
        self._shape = tuple(len(axis) for axis in axes.values())
        self._places = {name: {value: place for place, value in enumerate(axis)} for name, axis in axes.items()}
        self.size = math.prod(self._shape)
        self._grid: Rows = np.array(np.unravel_index(np.arange(self.size), self._shape), dtype=float).T
        # The ends of a range are as far apart as any two choices are.
        self._unit: Rows = np.array(
            [max(1.0, len(axis) - 1.0) if name in numeric else 1.0 for name, axis in axes.items()]
        )
        self._order = np.random.default_rng([seed, 2]).permutation(self.size)
        self._tried = np.zeros(self.size, dtype=bool)
        self._open: list[int] = []

    @classmethod
    def of(cls, space: Space, seed: int) -> Points | None:
        """The points of a space, if they can be listed."""
        if space.size is None or space.size > COUNTABLE:
            return None
        axes = space.axes()
        return cls(axes, frozenset(one.name for one in space.ranges), seed)

    @property
    def left(self) -> int:
        """How many were never tried; one that is being tried counts until its end."""
        return self.size - int(self._tried.sum())

    def begin(self, args: Mapping[str, Any]) -> None:
        """These arguments are being tried."""
        if (place := self._place(args)) is not None:
            self._open.append(place)

    def end(self, args: Mapping[str, Any], *, made: bool) -> None:
        """They were tried, or the call was never made."""
        place = self._place(args)
        if place is not None and place in self._open:
            self._open.remove(place)
            self._tried[place] |= made

    def fresh(self, args: dict[str, Any]) -> dict[str, Any]:
        """These arguments if they are new, else the nearest that are; these again if there are no others."""
        place = self._place(args)
        taken = self._tried.copy()
        taken[self._open] = True
        if place is None or not taken[place] or taken.all():
            return args
        parts = np.minimum(np.abs(self._grid - self._grid[place]) / self._unit, 1.0)
        far = np.where(taken, np.inf, np.sum(parts**2, axis=1))
        nearest = int(np.lexsort((self._order, far))[0])
        found = np.unravel_index(nearest, self._shape)
        return {name: axis[int(at)] for (name, axis), at in zip(self._axes.items(), found, strict=True)}

    def _place(self, args: Mapping[str, Any]) -> int | None:
        """The number of a point; none for arguments of another space, as an older ledger may have them."""
        found = [places.get(args.get(name)) for name, places in self._places.items()]
        if any(place is None for place in found):
            return None
        return int(np.ravel_multi_index([place or 0 for place in found], self._shape))


class Fresh(optuna.samplers.BaseSampler):
    """Another sampler, whose points are exchanged for their nearest neighbours when they were tried before."""

    def __init__(self, inner: optuna.samplers.BaseSampler, space: Space, points: Points) -> None:
        self._inner = inner
        self._space = space
        self._points = points

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All of it, always: only a whole point is new or not."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """What the other sampler proposes, or its nearest neighbour that is new."""
        inner = self._inner
        found = inner.sample_relative(study, trial, inner.infer_relative_search_space(study, trial))
        for name, one in search_space.items():
            if name not in found:
                single = _only(one) if one.single() else None
                found[name] = inner.sample_independent(study, trial, name, one) if single is None else single
        return self._space.told(self._points.fresh(self._space.heard(found)))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """For a parameter that is not of the space; a search has none."""
        raise NotImplementedError(param_name)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """The other sampler takes in what became of a trial."""
        self._inner.after_trial(study, trial, state, values)


def _only(one: BaseDistribution) -> float | int | None:
    """The one value of a distribution that has no other."""
    match one:
        case IntDistribution() | FloatDistribution():
            return one.low
        case CategoricalDistribution():
            return 0
        case _:
            return None
