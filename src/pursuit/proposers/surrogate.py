"""A sampler for Optuna that learns a smooth model of every metric and looks for the best point of the model.

Invariant: the next point follows from the seed, the trial's number and the trials told before, and from nothing else.

Each limit and the objective get an interpolant of their own (cubic radial basis functions with a linear tail), so a
few dozen evaluations show where the limits run. A search that no longer gains begins afresh elsewhere with a new
design, and afterwards polishes the best of everything; the two take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.random import Generator
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from pursuit.proposers.space import LISTABLE, Rows, Space

RIDGE = 1e-9


def distances(rows: Rows, others: Rows) -> Rows:
    """How far each row is from each of the others."""
    squares = (rows * rows).sum(axis=1)[:, None] + (others * others).sum(axis=1)[None, :] - 2 * rows @ others.T
    return np.sqrt(np.maximum(squares, 0.0))


class Interpolant:
    """A smooth surface through known values: cubic radial basis functions with a linear tail.

    Each column of values has a surface of its own. A small ridge keeps the system solvable.
    """

    def __init__(self, points: Rows, values: Rows) -> None:
        count, width = points.shape
        self._middle = points.mean(axis=0)
        spread = float(np.sqrt(((points - self._middle) ** 2).sum(axis=1)).max())
        self._spread = spread if spread > 0 else 1.0
        self._points = (points - self._middle) / self._spread
        tail = np.hstack([np.ones((count, 1)), self._points])
        system = np.zeros((count + width + 1, count + width + 1))
        system[:count, :count] = distances(self._points, self._points) ** 3 + RIDGE * np.eye(count)
        system[:count, count:] = tail
        system[count:, :count] = tail.T
        system[count:, count:] = -RIDGE * np.eye(width + 1)  # points in one plane leave the tail open otherwise
        wanted = np.zeros((count + width + 1, values.shape[1]))
        wanted[:count] = values
        try:
            self._weights = np.linalg.solve(system, wanted)
        except np.linalg.LinAlgError:
            self._weights = np.linalg.lstsq(system, wanted, rcond=None)[0]

    def __call__(self, rows: Rows) -> Rows:
        """The surfaces at the rows."""
        moved = (rows - self._middle) / self._spread
        ones = np.ones((len(rows), 1))
        return np.hstack([distances(moved, self._points) ** 3, ones, moved]) @ self._weights


EXCESS, FAILED = "excess", "failed"
FITTED = 150
LEADERS = 30
GAPS = (0.05, 0.005, 0.0005, 0.0, 0.0)
"""The least distance of the next point from every known point, in turns: far to explore, none to exploit."""

ROUNDS, PARENTS, CHILDREN, PERTURBED = 12, 30, 150, 100
TAKEN = 1e3
GAIN = {True: 1e-3, False: 1e-4}
"""The least gain that counts, as a share: after a fresh start, and while polishing the best."""


class Surrogate(optuna.samplers.BaseSampler):
    """Chooses each next point by a model of what was seen."""

    def __init__(self, space: Space, seed: int, *, aimless: bool = False) -> None:
        self.space = space
        self.aimless = aimless  # there is no objective: only the limits count
        self._seed = seed
        self._pending: dict[int, Rows] = {}
        self._points: list[Rows] = []
        self._excess: list[Sequence[float]] = []
        self._values: list[float] = []
        self._failures: list[Rows] = []
        self._epochs = Epochs(len(space.distributions))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The whole space, always."""
        return self.space.distributions

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """For a parameter outside of the space; a search has none."""
        raise NotImplementedError(param_name)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The arguments of the next trial."""
        args = self.space.decode(self._next(trial.number))
        self._pending[trial.number] = self.space.encode(args)
        return self.space.to_optuna(args)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Learns from the end of a trial."""
        self._pending.pop(trial.number, None)
        point = self.space.encode(self.space.from_optuna(trial.params))
        if state == TrialState.COMPLETE and values:
            self._points.append(point)
            self._excess.append(trial.user_attrs[EXCESS])
            self._values.append(values[0])
            self._epochs.count_trial(trial.number, len(self._points), trial.user_attrs[EXCESS], values[0])
        elif trial.user_attrs.get(FAILED):
            self._failures.append(point)

    def _next(self, number: int) -> Rows:
        chance = np.random.default_rng([self._seed, 0, number])
        first = self._epochs.first_row
        place = number - self._epochs.first_trial
        if self._epochs.fresh and place < self._design_size:
            return self._design()[place]
        if len(self._points) - first < self.space.width + 2:
            return self.space.snap(chance.random((1, self.space.width)))[0]
        if self.space.size is not None and self.space.size <= LISTABLE:
            return _Models(self, first, number, chance).best_of(self.space.everything())
        return _Models(self, first, number, chance).search()

    @property
    def _design_size(self) -> int:
        return len(self.space.distributions) + self.space.width + 2

    def _design(self) -> Rows:
        """A Latin hypercube: each parameter's range is covered evenly, whatever the others do."""
        chance = np.random.default_rng([self._seed, 1, self._epochs.count])
        size = self._design_size
        cells = np.array([chance.permutation(size) for _ in range(self.space.width)]).T
        return self.space.snap((cells + chance.random((size, self.space.width))) / size)

    def pending(self) -> Rows:
        """The points that are being tried."""
        return np.array(list(self._pending.values())).reshape(-1, self.space.width)

    def seen(self, first: int) -> tuple[Rows, Rows, Rows]:
        """Points, excesses and objective values from a row on."""
        return np.array(self._points[first:]), np.array(self._excess[first:]), np.array(self._values[first:])

    def failed(self) -> Rows:
        """The last points where the tool failed."""
        return np.array(self._failures[-FITTED:]).reshape(-1, self.space.width)


class Epochs:
    """When to start afresh: after a number of trials without a gain."""

    def __init__(self, parameters: int) -> None:
        self._patience = {True: 15 + 5 * parameters, False: 10 + 2 * parameters}
        self.count = 0
        self.first_trial = 0
        self.first_row = 0
        self._scale: Rows | None = None
        self._best: tuple[float, float] | None = None
        self._overall: tuple[float, float] | None = None
        self._idle = 0

    @property
    def fresh(self) -> bool:
        """Whether this epoch began with a design of its own; every second one polishes the best instead."""
        return self.count % 2 == 0

    def count_trial(self, number: int, rows: int, excess: Sequence[float], value: float) -> None:
        """Counts a trial; the first trial that exceeds a limit sets its scale."""
        over = np.maximum(np.array(excess, dtype=float), 0.0)
        if self._scale is None:
            self._scale = np.zeros_like(over)
        self._scale = np.where((self._scale == 0) & (over > 0), over, self._scale)
        total = float(np.sum(over / np.where(self._scale > 0, self._scale, 1.0)))
        if self._gains(total, value):
            self._best, self._idle = (total, value), 0
        else:
            self._idle += 1
        self._overall = min(self._overall or (total, value), (total, value))
        if self._idle >= self._patience[self.fresh]:
            self.count += 1
            self.first_trial = number + 1
            self.first_row = rows if self.fresh else 0
            self._best, self._idle = (None if self.fresh else self._overall), 0

    def _gains(self, total: float, value: float) -> bool:
        least = GAIN[self.fresh]
        if self._best is None or total < self._best[0] * (1 - least):
            return True
        return total <= self._best[0] and value < self._best[1] - least * abs(self._best[1])


class _Models:
    """The models of all metrics for one choice of a point, and what they promise."""

    def __init__(self, sampler: Surrogate, first: int, number: int, chance: Generator) -> None:
        self._space, self._chance = sampler.space, chance
        self._failed = sampler.failed()
        points, excess, values = sampler.seen(first)
        limits = np.arcsinh(excess / _scale_of(excess)) if excess.shape[1] else np.zeros((len(points), 0))
        centred = values - np.median(values)
        goal = np.arcsinh(centred / _scale_of(centred[:, None])[0])
        order = np.lexsort((goal, np.maximum(limits, 0.0).sum(axis=1)))
        chosen = _fitted(points, order, max(FITTED, 3 * self._space.width))
        limits = _deepened(points[chosen], limits[chosen])
        self._known = np.vstack([points[chosen], self._failed, sampler.pending()])
        self._limits = limits.shape[1]
        self._model = Interpolant(points[chosen], np.column_stack([limits, goal[chosen]]))
        self._leaders = points[order[:5]]
        self._aimless = sampler.aimless
        self._gap = max(GAPS[number % len(GAPS)], 1e-9)
        self._margin = 10 ** chance.uniform(-5, -1.5) if chance.random() < 0.7 else 0.0

    def best_of(self, points: Rows) -> Rows:
        """The most promising of these points."""
        return points[self._ranked(points)[0]]

    def search(self) -> Rows:
        """The most promising point that a small evolution on the models finds; it makes no evaluation."""
        chance, width = self._chance, self._space.width
        starts = np.repeat(self._leaders, 200 // len(self._leaders), axis=0)
        pool = self._space.snap(np.vstack([chance.random((100, width)), self._perturbed(starts, -3.0, -0.5)]))
        for _ in range(ROUNDS):
            parents = pool[self._ranked(pool)[:PARENTS]]
            a, b, c = chance.integers(0, len(parents), (3, CHILDREN))
            children = parents[a] + chance.uniform(0.2, 0.9, (CHILDREN, 1)) * (parents[b] - parents[c])
            perturbed = self._perturbed(parents[chance.integers(0, min(10, len(parents)), PERTURBED)], -4.5, -1.0)
            pool = np.vstack([parents, self._space.snap(np.vstack([children, perturbed]))])
        return self.best_of(pool)

    def _perturbed(self, rows: Rows, least: float, most: float) -> Rows:
        """The rows moved a little, in steps of many sizes, over the grid and to other choices."""
        chance, count = self._chance, len(self._space.ranges)
        moved = rows.copy()
        shape = (len(rows), count)
        noise = chance.normal(size=shape) * 10 ** chance.uniform(least, most, (len(rows), 1))
        hops = chance.choice([-1.0, 1.0], size=shape) * self._space.spacing * (chance.random(shape) < 0.3)
        moved[:, :count] += noise * (chance.random(shape) < 0.7) + hops
        for one in self._space.choices:
            other = chance.random(len(rows)) < 0.2
            moved[other, one.columns] = chance.random((int(other.sum()), len(one.choices)))
        return moved

    def _ranked(self, rows: Rows) -> NDInts:
        """The rows by promise: limits first, then the objective; rows too near to a known point come last."""
        seen = self._model(rows)
        limits = seen[:, : self._limits]
        over = np.maximum(limits + self._margin, 0.0).sum(axis=1)
        near = distances(rows, self._known).min(axis=1)
        over += np.where(near < self._gap, TAKEN, 0.0)
        if len(self._failed):
            over += np.where(distances(rows, self._failed).min(axis=1) <= near, 1.0, 0.0)
        goal = limits.max(axis=1) if self._aimless and self._limits else seen[:, self._limits]
        return np.lexsort((goal, over))


NDInts = np.ndarray[tuple[int], np.dtype[np.intp]]


def _fitted(points: Rows, order: NDInts, most: int) -> NDInts:
    """The points to fit a model to: all while they are few, then the best and those near the best one."""
    if len(points) <= most:
        return np.arange(len(points))
    near = np.argsort(distances(points, points[order[:1]])[:, 0], kind="stable")
    return np.union1d(near[: most - LEADERS], order[:LEADERS])


def _deepened(points: Rows, limits: Rows) -> Rows:
    """The limits; one that its tool reports as zero wherever it is kept gets a depth: the distance to violated points.

    Without it the surface would be flat there, and would not show where the limit begins.
    """
    found = limits.copy()
    for column in range(limits.shape[1]):
        kept = limits[:, column] <= 0
        if not kept.any() or kept.all() or limits[:, column].min() < 0:
            continue
        apart = distances(points[kept], points[~kept])
        slope = float(np.median(limits[~kept, column] / np.maximum(apart.min(axis=0), 1e-9)))
        found[kept, column] = -slope * apart.min(axis=1)
    return found


def _scale_of(columns: Rows) -> Rows:
    """A typical size of each column."""
    scale = np.median(np.abs(columns), axis=0)
    return np.where(scale > 0, scale, np.maximum(np.abs(columns).max(axis=0), 1e-300))
