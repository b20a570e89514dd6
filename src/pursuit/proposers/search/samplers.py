"""The study of a search: the next arguments to try, by one of the samplers.

Invariant: trials are requested and added in the order of their numbers, so the same history gives the same next trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, create_trial

from pursuit.proposers.search.objective import Score
from pursuit.proposers.search.settings import Sampler
from pursuit.proposers.search.space import APART, LISTABLE, Rows, Space
from pursuit.proposers.search.surrogate import MAX_SEED, Evolution, Seen, Surrogate

COUNTABLE = 65_536
"""Maximum points of a space that is searched completely."""
TRIES = 100
REPEAT, MAX_REPEATS = 10, 8
"""With noise every tenth trial measures the best point again, up to eight times; the mean then has a third of the
noise. More repeats leave too few trials to find the best peak of many.
"""


class Tpe:
    """Optuna's TPE: its suggestions follow from the added points, the seed and a number.

    In Optuna's study each range is a number from 0 to 1, and each choice is its position.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._told: list[FrozenTrial] = []
        self._distributions: dict[str, BaseDistribution] = {one.name: FloatDistribution(0, 1) for one in space.ranges}
        for one in space.choices:
            self._distributions[one.name] = CategoricalDistribution(range(len(one.choices)))
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise each new study logs a line
        self._study = optuna.create_study()
        optuna.logging.set_verbosity(before)

    @property
    def study(self) -> optuna.Study:
        self._study.add_trials(self._told)
        self._told.clear()
        return self._study

    def ask(self, number: int) -> Rows:
        study = self.study
        seed = seed_of(self._seed, number)
        # Trials that are requested here are not added here: they must not count as running.
        study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=False)
        found = study.ask(self._distributions).params
        row = np.zeros(self._space.width)
        row[: len(self._space.ranges)] = [found[one.name] for one in self._space.ranges]
        for one in self._space.choices:
            row[one.column + found[one.name]] = APART
        return row

    def tell(self, row: Rows, value: float, limits: Sequence[float] = ()) -> None:
        numbers = np.clip(row[: len(self._space.ranges)], 0.0, 1.0).tolist()
        params = dict(zip((one.name for one in self._space.ranges), numbers, strict=True))
        params |= {one.name: int(np.argmax(row[one.columns])) for one in self._space.choices}
        constraints = {str(place): over for place, over in enumerate(limits)}
        known = self._distributions
        self._told.append(create_trial(value=value, params=params, distributions=known, constraints=constraints))


def seed_of(seed: int, number: int) -> int:
    """The seed of the request for one trial."""
    return (seed * 1_000_003 + number) % MAX_SEED


class Study:
    """One search: its space, its samplers, and the trials so far."""

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
        self.size = None if space.size is None or space.size > COUNTABLE else space.size
        """The number of points in its space; None if they are too many to try each."""
        self.seen = Seen(space, aimless=aimless, noise=noise)
        self.kind = suited(space) if sampler == "auto" else sampler
        self.surrogate = Surrogate(self.seen, seed)
        self._tpe = Tpe(space, seed)
        evolves = self.kind == "cmaes" and space.width > 1  # CMA-ES needs two dimensions
        self._evolution = Evolution(np.full(space.width, 0.5), seed % MAX_SEED) if evolves else None
        self._target = target
        self._seed = seed
        self._aimless = aimless
        self._totals = Totals()
        self._count = 0
        self._asked: deque[tuple[int, Rows]] = deque()
        self._tried: set[bytes] = set()

    @property
    def left(self) -> int | None:
        """The number of untried points; None if they are too many, and with noise, where repetitions help."""
        return None if self.size is None or self.seen.noisy else self.size - len(self._tried)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best arguments so far; with noise, the best by the model of all results."""
        leader = self.seen.leader()
        return None if leader is None else self.space.decode(leader)

    def ask(self) -> dict[str, Any]:
        again = self._due()
        return self.take(self._untried(self.space.decode(self._suggested())) if again is None else again)

    def take(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Makes these arguments the next trial, without asking a sampler."""
        self._asked.append((self._count, self.space.encode(args)))
        self._count += 1
        return dict(args)

    def tell(self, score: Score | None, *, failed: bool = False, made: bool = True) -> None:
        """Adds the oldest open trial: no score means no result; `failed` arguments are avoided.

        A trial that was not `made` gives no information about its arguments: they are still untried.
        """
        number, row = self._asked.popleft()
        if made:
            self._tried.add(row.tobytes())
        if score is None:
            if failed:
                self.surrogate.avoid(row)
            return
        total, value, excess = self._totals.of(score), score.objective, score.excess
        if self._target is not None and value is not None and excess:
            # The objective's target is one more limit. Until it is reached only limits count: the objective alone would
            # keep the search in the first corner that the others allow, where each small step gets worse.
            excess = (value - self._target, *excess)
            reached = max(excess) <= 0
            self.seen.aimless = not reached and (self.seen.aimless or not len(self.seen))
        if self.seen.add(row, excess, value or 0.0):
            self.surrogate.learn(number, row, excess, value or 0.0)
        if self.kind != "auto" or number % 3 == 0:
            # If samplers take turns, TPE learns only from its own trials: soon nearly all others have the same choices.
            self._tpe.tell(row, total if value is None else value, () if self._aimless else excess)
        if self._evolution is not None:
            self._evolution.tell(row, total if value is None else self._totals.ranked(value, total))

    def _suggested(self) -> Rows:
        """The point of the sampler whose turn it is: for mixed spaces, no single sampler suits all."""
        number, turn, pending = self._count, self._count % 3, [row for _, row in self._asked]
        if self._evolution is not None:
            return self._evolution.ask(seed_of(self._seed, number))
        if self.kind == "tpe" or (self.kind == "auto" and turn == 0):
            return self._tpe.ask(number)
        if self.kind == "auto" and turn == 2:
            return self.surrogate.from_best(number, pending)
        if self.kind == "surrogate" and self.surrogate.yields(number):
            return self._tpe.ask(number)
        if self.kind in ("surrogate", "auto"):
            return self.surrogate.ask(number, pending)
        return np.random.default_rng([self._seed, 3, number]).random(self.space.width)

    def _untried(self, args: dict[str, Any]) -> dict[str, Any]:
        """These arguments; without noise, if they were tried, others that differ in one or more parameters."""
        taken = {row.tobytes() for _, row in self._asked}
        chance = np.random.default_rng([self._seed, 4, self._count])

        def is_new(args: dict[str, Any]) -> bool:
            key = self.space.encode(args).tobytes()
            return self.seen.noisy or not (key in taken or key in self._tried)

        for _ in range(TRIES):
            if is_new(args):
                return args
            row, at = self.space.encode(args), int(chance.integers(0, len(self.space.names)))
            columns = slice(at, at + 1)
            if at >= len(self.space.ranges):
                columns = self.space.choices[at - len(self.space.ranges)].columns
            row[columns] = chance.random(columns.stop - columns.start)
            args = self.space.decode(self.space.snap(row[None])[0])
        rest = self.space.points() if self.size is not None else ()
        return next((one for one in rest if is_new(one)), args)

    def _due(self) -> dict[str, Any] | None:
        """The arguments to measure again: with noise, from time to time the best ones, which may be best by chance.

        Once, if it is not known whether there is noise: the best point of the first design.
        """
        if self.seen.noisy:
            due = self._count % REPEAT == REPEAT - 1
        else:
            due = self.kind == "surrogate" and self.size is None and self.surrogate.doubts(self._count)
        leader = self.seen.leader() if due else None
        if leader is None or self.seen.count(leader) >= (MAX_REPEATS if self.seen.noisy else 2):
            return None
        return self.space.decode(leader)


class Totals:
    """The total excess of a trial over its limits, each in units of its usual size."""

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
    """`surrogate` for numbers, or few points; `tpe` for choices; for both, `auto` alternates the two."""
    if not space.choices or (space.size is not None and space.size <= LISTABLE):
        return "surrogate"
    return "auto" if space.ranges else "tpe"
