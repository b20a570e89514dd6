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

from pursuit.proposers.search.objective import Score
from pursuit.proposers.search.settings import Sampler
from pursuit.proposers.search.space import LISTABLE, Rows, Space
from pursuit.proposers.search.surrogate import EXCESS, FAILED, Seen, Surrogate, WholePoints

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


class Fresh(WholePoints):
    """Wraps another sampler: without noise, a point that was tried is replaced by an untried neighbour."""

    def __init__(self, inner: optuna.samplers.BaseSampler, seen: Seen, points: Points | None, seed: int) -> None:
        super().__init__(seen.space)
        self._inner = inner
        self._seen = seen
        self._points = points
        self._seed = seed

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of the other sampler, or an untried neighbour."""
        inner = self._inner
        if isinstance(inner, Surrogate) and inner.yields(trial.number):
            inner = optuna.samplers.TPESampler(seed=seed_of(self._seed, trial.number))
        found = inner.sample_relative(study, trial, inner.infer_relative_search_space(study, trial))
        for name, one in self.space.distributions.items():
            if name not in found:
                # A distribution with one value: the low end of a range, or the first choice.
                only: Any = getattr(one, "low", 0)
                found[name] = only if one.single() else inner.sample_independent(study, trial, name, one)
        args = self.space.from_optuna(found)
        if self._seen.noisy:
            return found
        if self._points is not None:
            return self.space.to_optuna(self._points.fresh(args))
        row = self.space.encode(args)
        if not self._seen.count(row):
            return found
        return self.space.to_optuna(self.space.decode(self._neighbour(row, trial.number)))

    def _neighbour(self, row: Rows, number: int) -> Rows:
        """A random untried point that differs in one parameter, or in more if those were all tried."""
        chance = np.random.default_rng([self._seed, 4, number])
        moved = row.copy()
        for _ in range(TRIES):
            at = int(chance.integers(0, len(self.space.distributions)))
            columns = slice(at, at + 1)
            if at >= len(self.space.ranges):
                columns = self.space.choices[at - len(self.space.ranges)].columns
            moved[columns] = chance.random(columns.stop - columns.start)
            moved = self.space.snap(moved[None])[0]
            if not self._seen.count(moved):
                break
        return moved

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes the end of a trial on to the other sampler."""
        self._inner.after_trial(study, trial, state, values)


TRIES = 100


class Mixed(WholePoints):
    """Choices beside numbers: three ways to go on take turns, for no one of them suits every such space.

    TPE; models over everything; and steps from the best so far, to other numbers by a model of those with its choices,
    and to another choice. TPE learns from its own trials alone: the others, which soon nearly all have the same
    choices, would keep it there.
    """

    def __init__(self, surrogate: Surrogate, seed: int, *, aimless: bool) -> None:
        super().__init__(surrogate.space)
        self._aimless = aimless
        self._surrogate = surrogate
        self._seed = seed
        self._own = optuna.create_study()
        self._open: dict[int, optuna.Trial] = {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The arguments of the next trial."""
        match trial.number % 3:
            case 1:
                return self._surrogate.sample_relative(study, trial, search_space)
            case 2:
                return self.space.to_optuna(self._surrogate.from_best(trial.number))
            case _:
                pass
        self._own.sampler = optuna.samplers.TPESampler(seed=seed_of(self._seed, trial.number), multivariate=True)
        self._open[trial.number] = self._own.ask(search_space)
        return self._open[trial.number].params

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes the end of a trial on to the models, and to TPE if it was TPE's."""
        self._surrogate.after_trial(study, trial, state, values)
        if trial.number % 3:
            return
        own = self._open.pop(trial.number, None)
        if own is None or own.params != trial.params:  # another process asked for it, or it was tried before
            self._own.enqueue_trial(trial.params)
            own = self._own.ask(self.space.distributions)
        if state == TrialState.COMPLETE and values:
            for place, over in enumerate(() if self._aimless else trial.user_attrs[EXCESS]):
                own.set_constraint(str(place), over)
            self._own.tell(own, values)
        else:
            self._own.tell(own, state=TrialState.FAIL)


def seed_of(seed: int, number: int) -> int:
    """The seed of a sampler that is made for one trial."""
    return (seed * 1_000_003 + number) % LARGEST_SEED


LARGEST_SEED = 2**32
REPEAT, MOST_REPEATS = 10, 8
"""With noise each tenth trial measures the best point again, up to eight times: the mean then has a third of it. More
repeats leave too few trials to find the best peak of many."""


class Study:
    """One search: its space, its sampler, and the trials so far."""

    def __init__(
        self,
        space: Space,
        *,
        sampler: Sampler,
        seed: int,
        aimless: bool,
        noise: float | bool | None = None,
        target: float | None = None,
    ) -> None:
        self.space = space
        self._target = target
        self.seen = Seen(space, aimless=aimless, noise=noise)
        self.kind = suited(space) if sampler == "auto" else sampler
        self._seed = seed
        self._aimless = aimless
        self._totals = Totals()
        self._asked: deque[optuna.Trial] = deque()
        self._count = 0
        self._steady: optuna.samplers.BaseSampler | None = None
        if self.kind == "surrogate":
            self._steady = Surrogate(self.seen, seed)
        elif self.kind == "auto":
            with quietly():
                self._steady = Mixed(Surrogate(self.seen, seed), seed, aimless=aimless)
        elif self.kind == "cmaes":
            self._steady = optuna.samplers.CmaEsSampler(seed=seed % LARGEST_SEED, warn_independent_sampling=False)
        self._points = Points.of(space, seed)
        with quietly():
            first = self._steady or optuna.samplers.RandomSampler(seed=0)
            self._study = optuna.create_study(sampler=self._sampler(first))

    def recall(self, args: Mapping[str, Any]) -> None:
        """Begins a trial that another process planned.

        Optuna's CMA-ES keeps more state than the told trials, so it is asked for each of its own again.
        """
        if self.kind == "cmaes" and (self._due() is not None or not self.seen.count(self.space.encode(args))):
            self.ask()
        else:
            self.take(args)

    def ask(self) -> dict[str, Any]:
        """The searched arguments of the next trial."""
        if (again := self._due()) is not None:
            return self.take(again)
        match self.kind:
            case "tpe":
                inner = optuna.samplers.TPESampler(seed=seed_of(self._seed, self._count), multivariate=True)
                self._study.sampler = self._sampler(inner)
            case "random":
                inner = optuna.samplers.RandomSampler(seed=seed_of(self._seed, self._count))
                self._study.sampler = self._sampler(inner)
            case _:
                pass
        return self._begun()

    def take(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Makes these arguments the next trial, without asking the sampler."""
        self._study.enqueue_trial(self.space.to_optuna(args))
        return self._begun()

    @property
    def best(self) -> dict[str, Any] | None:
        """The best arguments so far; with noise those that the model of all results ranks best."""
        leader = self.seen.leader()
        return None if leader is None else self.space.decode(leader)

    def _due(self) -> dict[str, Any] | None:
        """The arguments that are measured again: with noise in turns the best ones, which luck may have made so.

        Where it is not known whether there is noise, once: the best point of the first design.
        """
        if self.seen.noisy:
            due = self._count % REPEAT == REPEAT - 1
        else:
            due = isinstance(self._steady, Surrogate) and self._steady.doubts(self._count) and self._points is None
        leader = self.seen.leader() if due else None
        if leader is None or self.seen.count(leader) >= (MOST_REPEATS if self.seen.noisy else 2):
            return None
        return self.space.decode(leader)

    @property
    def size(self) -> int | None:
        """How many points its space has; None if there are too many to list."""
        return None if self._points is None else self._points.size

    @property
    def left(self) -> int | None:
        """How many of them were never tried; None also with noise, where a second trial tells more."""
        return None if self._points is None or self.seen.noisy else self._points.left

    def _begun(self) -> dict[str, Any]:
        self._count += 1
        self._asked.append(self._study.ask(self.space.distributions))
        args = self.space.from_optuna(self._asked[-1].params)
        if self._points is not None:
            self._points.begin(args)
        return args

    def _sampler(self, inner: optuna.samplers.BaseSampler) -> optuna.samplers.BaseSampler:
        return Fresh(inner, self.seen, self._points, self._seed)

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
        if self._target is not None and score.objective is not None and excess and self.kind in ("surrogate", "auto"):
            # The objective's target is one more limit. Until it is reached only limits count: the objective alone
            # would stay in the first corner of what the others allow, where each small step loses.
            excess = (score.objective - self._target, *excess)
            reached = max(excess) <= 0
            self.seen.aimless = not reached and (self.seen.aimless or not len(self.seen))
        point = self.space.encode(self.space.from_optuna(trial.params))
        self.seen.add(point, excess, value)
        trial.set_user_attr(EXCESS, list(excess))
        if self.kind in ("tpe", "auto", "surrogate") and not self._aimless:
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
    """`surrogate` for numbers, or few points at all; `tpe` for choices; for both the two in turns, `auto`."""
    if space.size is not None and space.size <= LISTABLE:
        return "surrogate"
    if not space.choices:
        return "surrogate"
    return "auto" if space.ranges else "tpe"


@contextmanager
def quietly() -> Generator[None]:
    """Suppresses Optuna's log line for each new study; the program's own verbosity is restored."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
