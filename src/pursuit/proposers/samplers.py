"""The samplers of a search, behind Optuna's ask and tell.

Invariant: trials are asked for and told in the order of their numbers, so the same history gives the same next trial.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from pursuit.core.search import Sampler
from pursuit.proposers.objective import Score
from pursuit.proposers.space import LISTABLE, Rows, Space
from pursuit.proposers.surrogate import EXCESS, FAILED, Surrogate

COUNTABLE = 65_536
"""The points of the largest space that is kept as a list."""


class Points:
    """Every point of a small space: each is tried once before any is tried twice.

    What is untried follows from the trials begun and ended, and the choice among equals from the seed.
    """

    def __init__(self, axes: Mapping[str, Sequence[Any]], numeric: frozenset[str], seed: int) -> None:
        self._axes = axes
        self._shape = tuple(len(axis) for axis in axes.values())
        self._places = {name: {value: place for place, value in enumerate(axis)} for name, axis in axes.items()}
        self.size = math.prod(self._shape)
        self._grid: Rows = np.array(np.unravel_index(np.arange(self.size), self._shape), dtype=float).T
        # The ends of a range are as far apart as any two choices.
        self._unit: Rows = np.array(
            [max(1.0, len(axis) - 1.0) if name in numeric else 1.0 for name, axis in axes.items()]
        )
        self._order = np.random.default_rng([seed, 2]).permutation(self.size)
        self._tried = np.zeros(self.size, dtype=bool)
        self._open: list[int] = []

    @classmethod
    def of(cls, space: Space, seed: int) -> Points | None:
        """The points of a space; None if they are too many."""
        if space.size is None or space.size > COUNTABLE:
            return None
        axes = space.axes()
        return cls(axes, frozenset(one.name for one in space.ranges), seed)

    @property
    def left(self) -> int:
        """How many were never tried; a point that is being tried counts until its trial ends."""
        return self.size - int(self._tried.sum())

    def begin(self, args: Mapping[str, Any]) -> None:
        """A trial of these arguments begins."""
        if (place := self._place(args)) is not None:
            self._open.append(place)

    def end(self, args: Mapping[str, Any], *, made: bool) -> None:
        """A trial of these arguments ended; it counts if its call was `made`."""
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
        """The number of a point; None for arguments of another space, which an older ledger may have."""
        found = [places.get(args.get(name)) for name, places in self._places.items()]
        if any(place is None for place in found):
            return None
        return int(np.ravel_multi_index([place or 0 for place in found], self._shape))


class Fresh(optuna.samplers.BaseSampler):
    """Wraps another sampler: a point that was tried before is replaced by its nearest untried neighbour."""

    def __init__(self, inner: optuna.samplers.BaseSampler, space: Space, points: Points) -> None:
        self._inner = inner
        self._space = space
        self._points = points

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The whole space, always: only a whole point is new or not."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of the other sampler, or its nearest untried neighbour."""
        inner = self._inner
        found = inner.sample_relative(study, trial, inner.infer_relative_search_space(study, trial))
        for name, one in search_space.items():
            if name not in found:
                # A distribution with one value: the low end of a range, or the first choice.
                only: Any = getattr(one, "low", 0)
                found[name] = only if one.single() else inner.sample_independent(study, trial, name, one)
        return self._space.to_optuna(self._points.fresh(self._space.from_optuna(found)))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """For a parameter outside of the space; a search has none."""
        raise NotImplementedError(param_name)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes the end of a trial on to the other sampler."""
        self._inner.after_trial(study, trial, state, values)


LARGEST_SEED = 2**32


class Study:
    """One search: its space, its sampler, and the trials so far."""

    def __init__(self, space: Space, *, sampler: Sampler, seed: int, aimless: bool) -> None:
        self.space = space
        self.kind = suited(space) if sampler == "auto" else sampler
        self._seed = seed
        self._aimless = aimless
        self._totals = Totals()
        self._asked: deque[optuna.Trial] = deque()
        self._count = 0
        self._steady: optuna.samplers.BaseSampler | None = None
        if self.kind == "surrogate":
            self._steady = Surrogate(space, seed, aimless=aimless)
        elif self.kind == "cmaes":
            self._steady = optuna.samplers.CmaEsSampler(seed=seed % LARGEST_SEED, warn_independent_sampling=False)
        self._points = Points.of(space, seed)
        with _silence():
            first = self._steady or optuna.samplers.RandomSampler(seed=0)
            self._study = optuna.create_study(sampler=self._sampler(first))

    @property
    def remembers(self) -> bool:
        """Whether its sampler keeps more state than the told trials, so a new process must ask it for each again."""
        return self.kind == "cmaes"

    def ask(self) -> dict[str, Any]:
        """The searched arguments of the next trial."""
        match self.kind:
            case "tpe":
                inner = optuna.samplers.TPESampler(seed=self._seed_of(self._count), multivariate=True)
                self._study.sampler = self._sampler(inner)
            case "random":
                inner = optuna.samplers.RandomSampler(seed=self._seed_of(self._count))
                self._study.sampler = self._sampler(inner)
            case _:
                pass
        return self._begun()

    def take(self, args: Mapping[str, Any]) -> None:
        """Makes these arguments the next trial, without asking the sampler."""
        self._study.enqueue_trial(self.space.to_optuna(args))
        self._begun()

    @property
    def size(self) -> int | None:
        """How many points its space has; None if there are too many to list."""
        return None if self._points is None else self._points.size

    @property
    def left(self) -> int | None:
        """How many of them were never tried."""
        return None if self._points is None else self._points.left

    def _begun(self) -> dict[str, Any]:
        self._count += 1
        self._asked.append(self._study.ask(self.space.distributions))
        args = self.space.from_optuna(self._asked[-1].params)
        if self._points is not None:
            self._points.begin(args)
        return args

    def _sampler(self, inner: optuna.samplers.BaseSampler) -> optuna.samplers.BaseSampler:
        return inner if self._points is None else Fresh(inner, self.space, self._points)

    def tell(self, score: Score | None, *, failed: bool = False, made: bool = True) -> None:
        """Tells the oldest trial that is not told yet: no score means no result, `failed` arguments to avoid.

        A trial that was not `made` says nothing about its arguments: they are still untried.
        """
        trial = self._asked.popleft()
        if self._points is not None:
            self._points.end(self.space.from_optuna(trial.params), made=made)
        if score is None:
            if failed:
                trial.set_user_attr(FAILED, True)
            self._study.tell(trial, state=TrialState.FAIL)
            return
        value, excess = self._value(score), score.excess
        trial.set_user_attr(EXCESS, list(excess))
        if self.kind == "tpe" and not self._aimless:
            for place, over in enumerate(excess):
                trial.set_constraint(str(place), over)
        self._study.tell(trial, value)

    def _value(self, score: Score) -> float:
        """The number by which Optuna ranks; a sampler that supports constraints gets the objective itself."""
        total = self._totals.of(score)
        if score.objective is None:
            return total if self.kind != "surrogate" else 0.0
        if self.kind == "cmaes":
            return self._totals.ranked(score.objective, total)
        return score.objective

    def _seed_of(self, number: int) -> int:
        return (self._seed * 1_000_003 + number) % LARGEST_SEED


class Totals:
    """All limits of a trial in one number, each in units of its usual size."""

    def __init__(self) -> None:
        self._count = 0
        self._usual: list[float] = []
        self._worst: float | None = None

    def of(self, score: Score) -> float:
        """The sum of all excesses; zero if every limit is kept."""
        self._count += 1
        if not self._usual:
            self._usual = [0.0] * len(score.excess)
        self._usual = [
            mean + (abs(over) - mean) / self._count for mean, over in zip(self._usual, score.excess, strict=True)
        ]
        over = [max(0.0, over) / usual for over, usual in zip(score.excess, self._usual, strict=True) if usual > 0]
        return sum(over)

    def ranked(self, objective: float, total: float) -> float:
        """The objective if all limits are kept; otherwise a number worse than any of those, by the excess."""
        if total <= 0:
            self._worst = objective if self._worst is None else max(self._worst, objective)
            return objective
        return (self._worst or 0.0) + 1.0 + total


def suited(space: Space) -> Sampler:
    """`surrogate` where there are numbers to model, or few points at all; otherwise `tpe`, for choices."""
    few = space.size is not None and space.size <= LISTABLE
    return "surrogate" if space.ranges or few else "tpe"


@contextmanager
def _silence() -> Generator[None]:
    """Suppresses Optuna's log line for each new study; the program's own verbosity is restored."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
