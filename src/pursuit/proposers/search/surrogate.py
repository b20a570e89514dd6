"""A sampler that learns a smooth model of every metric and looks for the best point of the model.

Invariant: the next point depends only on the seed, the trial's number and the trials added before.

Each limit and the objective get their own interpolant (cubic radial basis functions with a linear tail), so a few
dozen evaluations show where the limits run. A search without progress starts again elsewhere with a new design, and
afterwards polishes the overall best; the two take turns. Where measurements are noisy, three ways
take turns, because each fails on some functions: surfaces between the values, as near to them as leaving out each value
in turn shows to be right; surfaces through the mean of each point; and a step of TPE.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cmaes import CMA  # pyright: ignore[reportMissingTypeStubs]
from numpy.random import Generator

from pursuit.proposers.search.space import APART, LISTABLE, Rows, Space

RIDGE = 1e-9


def distances(rows: Rows, others: Rows) -> Rows:
    """The distance of each row from each of the others."""
    squares = (rows * rows).sum(axis=1)[:, None] + (others * others).sum(axis=1)[None, :] - 2 * rows @ others.T
    return np.sqrt(np.maximum(squares, 0.0))


class Interpolant:
    """A smooth surface through known values: cubic radial basis functions with a linear tail.

    Each column of values has its own surface. A small ridge keeps the system solvable. With `counts`, the numbers of
    measurements of each point, the values are noisy: each column gets the ridge that predicts left-out values best.
    """

    def __init__(self, points: Rows, values: Rows, counts: Rows | None = None) -> None:
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
        system[count:, count:] = -RIDGE * np.eye(width + 1)  # otherwise points in one plane leave the tail undetermined
        wanted = np.zeros((count + width + 1, values.shape[1]))
        wanted[:count] = values
        if counts is not None:
            self._weights = _smoothing_weights(system, wanted, counts)
            return
        try:
            self._weights = np.linalg.solve(system, wanted)
        except np.linalg.LinAlgError:
            self._weights = np.linalg.lstsq(system, wanted, rcond=None)[0]

    def __call__(self, rows: Rows) -> Rows:
        moved = (rows - self._middle) / self._spread
        ones = np.ones((len(rows), 1))
        return np.hstack([distances(moved, self._points) ** 3, ones, moved]) @ self._weights


SMOOTHING = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""The ridges to try on noisy values, from nearly none to nearly a plane."""


def _smoothing_weights(system: Rows, wanted: Rows, counts: Rows) -> Rows:
    """For each column the weights with the least error at left-out points; a mean of many values weighs more."""
    size = len(counts)
    found = np.zeros_like(wanted)
    least = np.full(wanted.shape[1], np.inf)
    for ridge in SMOOTHING:
        tried = system.copy()
        tried[np.arange(size), np.arange(size)] += ridge / counts
        inverse = np.linalg.pinv(tried) if not np.isfinite(np.linalg.cond(tried, 1)) else np.linalg.inv(tried)
        weights = inverse @ wanted
        # The error at a left-out point follows from the inverse of the whole fit.
        left_out = weights[:size] / np.diag(inverse)[:size, None]
        errors = np.average(left_out**2, axis=0, weights=counts)
        better = errors < least
        found[:, better], least[better] = weights[:, better], errors[better]
    return found


EXCESS, FAILED = "excess", "failed"
FITTED = 150
LEADERS = 30
GAPS = (0.05, 0.005, 0.0005, 0.0, 0.0)
"""The minimum distance of the next point from every known point, in turns: large to explore, zero to exploit."""

EDGE = 1e-3
"""While only limits count, in every second trial a value within this share of its range from a bound is moved to the
bound. Limits are often reached exactly there, and a point that misses the bound slightly exceeds them.
"""

ROUNDS, PARENTS, CHILDREN, PERTURBED = 12, 30, 150, 100
TAKEN = 1e3
LOWEST = 5
EVOLVES = 4
"""The number of epochs of the models before CMA-ES takes turns with them."""
STEP = 1 / 6
"""The first step of CMA-ES, as a share of each range."""
MAX_SEED = 2**32
SMOOTHED, THROUGH, TPE = 2, 0, 1
"""The sampler whose turn it is with noise, by the number of the trial modulo three."""
MODEL_COUNTS = 3.0
"""With noise, the number of values of a point that the models weigh as much as, when the best point is named."""
NEARBY = 0.1
SAME = 1e-9
"""Results of one point that differ by at most this share count as equal: the rest is rounding."""
GAIN = {True: 1e-3, False: 1e-4}
"""The minimum relative gain that counts: after a restart, and while polishing the best."""


class Seen:
    """The measurements so far, and whether the same point gave different results.

    `noise` is the mission's setting: None leaves it to detection.
    """

    def __init__(self, space: Space, *, aimless: bool, noise: float | bool | None = None) -> None:
        self.space = space
        self.aimless = aimless  # only the limits count: without an objective, or before it reaches its target
        self.noisy = bool(noise)
        self._open = noise is None
        self._points: list[Rows] = []
        self._excess: list[Sequence[float]] = []
        self._values: list[float] = []
        self._first: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}
        self.repeats = 0
        """The results equal to an earlier one of their point: they do not affect the search."""

    def __len__(self) -> int:
        return len(self._points)

    def add(self, point: Rows, excess: Sequence[float], value: float) -> bool:
        """Adds a result unless it is a repeat; a result that differs from an earlier one of its point shows noise."""
        key = point.tobytes()
        self._counts[key] = self._counts.get(key, 0) + 1
        first = self._first.setdefault(key, len(self._points))
        if first < len(self._points) and not self.noisy:
            before, now = [self._values[first], *self._excess[first]], [value, *excess]
            self.noisy = self._open and not np.allclose(before, now, rtol=SAME, atol=0.0)
            if not self.noisy:
                self.repeats += 1
                return False
        self._points.append(point)
        self._excess.append(excess)
        self._values.append(value)
        return True

    def count(self, point: Rows) -> int:
        return self._counts.get(point.tobytes(), 0)

    @property
    def settled(self) -> bool:
        """True if the presence of noise is known: from the settings, or from a point that was measured twice."""
        return not self._open or self.noisy or self.repeats > 0

    def rows(self, first: int = 0) -> tuple[Rows, Rows, Rows, Rows | None]:
        """Points, excesses and objective values from a row on; with noise their means, and the counts of values."""
        points, excess = np.array(self._points[first:]), np.array(self._excess[first:])
        values = np.array(self._values[first:])
        if not self.noisy:
            return points, excess, values, None
        keys: dict[bytes, int] = {}
        place = np.array([keys.setdefault(one.tobytes(), len(keys)) for one in self._points[first:]])
        counts = np.bincount(place).astype(float)
        starts = np.unique(place, return_index=True)[1]
        means = np.zeros((len(counts), excess.shape[1]))
        np.add.at(means, place, excess)
        return points[starts], means / counts[:, None], np.bincount(place, values) / counts, counts

    def alike(self, point: Rows) -> list[Rows]:
        """The measured points with the choices of this one, in their order."""
        count = len(self.space.ranges)
        return [one for one in self._points if (one[count:] == point[count:]).all()]

    def leader(self) -> Rows | None:
        """The best measured point or, with noise, the best point by the model of all results."""
        if not self._points:
            return None
        if self.noisy and len(self._first) >= self.space.width + 2:
            return _Models(self, 0, SMOOTHED, np.random.default_rng(0)).best_known()
        return self.ranked()[0]

    def ranked(self) -> Rows:
        """The measured points by their own results, the best first."""
        points, excess, values, _ = self.rows()
        over = np.maximum(excess / _scale_of(excess), 0.0).sum(axis=1) if excess.shape[1] else np.zeros(len(points))
        return points[np.lexsort((values, over))]


class Surrogate:
    """Chooses each next point by a model of the measured points."""

    def __init__(self, seen: Seen, seed: int) -> None:
        self.space = seen.space
        self._seen = seen
        self._seed = seed
        self._failures: list[Rows] = []
        self.epochs = Epochs(seen)
        self._evolution: tuple[int, Evolution] | None = None

    def learn(self, number: int, point: Rows, excess: Sequence[float], value: float) -> None:
        """Counts a result that was added to `seen`."""
        number = self._place(number)
        if self.epochs.evolving and number >= self.epochs.first_trial:
            self._evolve().tell(point, value)
        self.epochs.count_trial(number, excess, value)

    def avoid(self, point: Rows) -> None:
        """Avoids a point where the tool failed."""
        self._failures.append(point)

    def _place(self, number: int) -> int:
        """The number of a trial, not counting earlier repeats, which do not affect the search."""
        return number - self._seen.repeats

    def doubts(self, number: int) -> bool:
        """True if it is time to test for noise: after the design, or when the models stop gaining."""
        due = self.space.first_design if self.epochs.count == 0 else self.epochs.first_trial
        if self.epochs.count > 1 or number != due or self._seen.settled:
            return False
        leader = self._seen.leader()
        return leader is not None and not any((leader == one).all() for one in self._failures)  # repeating it fails

    def yields(self, number: int) -> bool:
        """True if TPE chooses this trial: with noise every third, unless it belongs to a design or to CMA-ES."""
        number = self._place(number)
        if not self._seen.noisy or self._seen.aimless or self.epochs.evolving or number % 3 != TPE:
            return False
        place, listed = number - self.epochs.first_trial, self.space.size is not None and self.space.size <= LISTABLE
        return not listed and not (self.epochs.fresh and place < self.space.first_design)

    def ask(self, number: int, pending: Sequence[Rows]) -> Rows:
        """The point of a trial, different from the `pending` ones."""
        number = self._place(number)
        chance = np.random.default_rng([self._seed, 0, number])
        first = self.epochs.first_row
        place = number - self.epochs.first_trial
        if self.epochs.fresh and place < self.space.first_design:
            return self._design()[place]
        if self.epochs.evolving:
            return self.space.snap(self._evolve().ask(int(chance.integers(0, MAX_SEED)))[None])[0]
        if len(self._seen) - first < self.space.width + 2:
            return self.space.snap(chance.random((1, self.space.width)))[0]
        models = _Models(self._seen, first, number, chance, avoided=self._avoided(pending))
        if self.space.size is not None and self.space.size <= LISTABLE:
            return models.best_of(self.space.everything())
        return models.search()

    def _evolve(self) -> Evolution:
        """The CMA-ES of this epoch, from any starting point."""
        count = self.epochs.count
        if self._evolution is None or self._evolution[0] != count:
            chance = np.random.default_rng([self._seed, 6, count])
            start = chance.uniform(0.1, 0.9, self.space.width)
            self._evolution = count, Evolution(start, int(chance.integers(0, MAX_SEED)))
        return self._evolution[1]

    def from_best(self, number: int, pending: Sequence[Rows]) -> Rows:
        """A step from the best point: alternately to other numbers or, twice as often, to another choice.

        A model finds good numbers in a few steps, and a wrong choice costs more than slightly wrong numbers.
        """
        leader = self._seen.leader()
        chance = np.random.default_rng([self._seed, 5, number])
        if leader is None:
            return chance.random(self.space.width)
        alike, count = self._seen.alike(leader), len(self.space.ranges)
        others = self._other_choices(leader) if number // 3 % 3 else []  # every third trial is such a step
        if others:
            row = others[int(chance.integers(0, len(others)))]
        elif len(alike) < count + 2:  # too few to model
            row = np.array(leader)
            row[:count] += chance.normal(size=count) * 10 ** chance.uniform(-2, -0.5)
        else:
            row = _Models(self._seen, 0, number, chance, avoided=self._avoided(pending), like=leader).search()
        return self.space.snap(row[None])[0]

    def _other_choices(self, leader: Rows) -> list[Rows]:
        """The best point with one other choice, for each choice that was not tried with about the same numbers.

        The numbers are those of the best point, or of the best point with the other choice: either may suit it.
        """
        ranked, count = self._seen.ranked(), len(self.space.ranges)
        found: list[Rows] = []
        for one in self.space.choices:
            for at in range(one.columns.start, one.columns.stop):
                row = np.array(leader)
                row[one.columns] = 0.0
                row[at] = APART
                alike = self._seen.alike(row)
                for numbers in (row, next((point for point in ranked if point[at] > 0), row)):
                    tried = np.concatenate([numbers[:count], row[count:]])
                    if all(np.linalg.norm(known - tried) > NEARBY for known in alike):
                        found.append(tried)
        return found

    def _design(self) -> Rows:
        """A Latin hypercube: it covers each parameter's range evenly, independent of the others."""
        chance = np.random.default_rng([self._seed, 1, self.epochs.count])
        size = self.space.first_design
        cells = np.array([chance.permutation(size) for _ in range(self.space.width)]).T
        return self.space.snap((cells + chance.random((size, self.space.width))) / size)

    def _avoided(self, pending: Sequence[Rows]) -> tuple[Rows, Rows]:
        """The last points where the tool failed, and those in progress."""
        width = self.space.width
        failed = np.array(self._failures[-FITTED:]).reshape(-1, width)
        return failed, np.array(pending).reshape(-1, width)


class Epochs:
    """Determines when to restart: after a number of trials without a gain."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        parameters = len(seen.space.names)
        self._patience = {True: 15 + 5 * parameters, False: 10 + 2 * parameters}
        self.count = 0
        self.first_trial = 0
        self.first_row = 0
        self._scale: Rows | None = None
        self._best: tuple[float, float] | None = None
        self._overall: tuple[float, float] | None = None
        self._lowest: list[tuple[float, float]] = []
        self._idle = 0
        self._evolves = False

    @property
    def fresh(self) -> bool:
        """True if this epoch began with a new design; the next one polishes the best instead."""
        return self.count % 2 == 0 if self.count < EVOLVES or not self._evolves else self.count % 3 == 2

    @property
    def evolving(self) -> bool:
        """True if CMA-ES drives this epoch: without limits and late in a run, every third."""
        return self._evolves and self.count >= EVOLVES and self.count % 3 == 1

    def count_trial(self, number: int, excess: Sequence[float], value: float) -> None:
        """Counts a trial; the first trial that exceeds a limit sets its scale."""
        over = np.maximum(np.array(excess, dtype=float), 0.0)
        self._evolves = not len(over) and len(self._seen.space.ranges) > 1 and not self._seen.space.choices
        if self._scale is None:
            self._scale = np.zeros_like(over)
        self._scale = np.where((self._scale == 0) & (over > 0), over, self._scale)
        total = float(np.sum(over / np.where(self._scale > 0, self._scale, 1.0)))
        if self._seen.noisy:
            # One lucky value would hide each later gain; the mean of a few values does not.
            self._lowest = sorted([*self._lowest, (total, value)])[:LOWEST]
            total, value = (float(one) for one in np.mean(self._lowest, axis=0))
        if self._gains(total, value):
            self._best, self._idle = (total, value), 0
        else:
            self._idle += 1
        self._overall = min(self._overall or (total, value), (total, value))
        if self._idle >= self._patience[self.fresh or self.evolving]:
            self.count += 1
            self.first_trial = number + 1
            self.first_row = len(self._seen) if self.fresh else 0
            self._best, self._idle = (self._overall if self._polishing else None), 0
            self._lowest = []

    @property
    def _polishing(self) -> bool:
        return not self.fresh and not self.evolving

    def _gains(self, total: float, value: float) -> bool:
        least = GAIN[not self._polishing]
        if self._best is None or total < self._best[0] * (1 - least):
            return True
        return total <= self._best[0] and value < self._best[1] - least * abs(self._best[1])


class Evolution:
    """CMA-ES from a point of the cube; the generation of a trial follows from the added trials."""

    def __init__(self, start: Rows, seed: int) -> None:
        bounds = np.tile([0.0, 1.0], (len(start), 1))
        self._cma = CMA(mean=start, sigma=STEP, bounds=bounds, seed=seed)
        self._told: list[tuple[Rows, float]] = []

    def ask(self, seed: int) -> Rows:
        self._cma.reseed_rng(seed)
        return self._cma.ask()

    def tell(self, point: Rows, value: float) -> None:
        """Adds a result; a whole generation moves the search."""
        self._told.append((point, value))
        if len(self._told) == self._cma.population_size:
            self._cma.tell(self._told)
            self._told = []


class _Models:
    """The models of all metrics for one choice of a point, and their predictions."""

    def __init__(
        self,
        seen: Seen,
        first: int,
        number: int,
        chance: Generator,
        *,
        avoided: tuple[Rows, Rows] | None = None,
        like: Rows | None = None,
    ) -> None:
        self._space, self._chance = seen.space, chance
        none = np.zeros((0, self._space.width))
        self._failed, pending = avoided or (none, none)
        points, excess, values, counts = seen.rows(first)
        self._like = like
        if like is not None:  # only the numbers vary, so only the results with these choices count
            same = (points[:, len(self._space.ranges) :] == like[len(self._space.ranges) :]).all(axis=1)
            points, excess, values = points[same], excess[same], values[same]
            counts = None if counts is None else counts[same]
        limits = np.arcsinh(excess / _scale_of(excess)) if excess.shape[1] else np.zeros((len(points), 0))
        smoothed = counts is not None and number % 3 != THROUGH
        # With noise both scales take turns: each suits another kind of noise.
        goal = _noisy_goal_of(values) if smoothed and number % 2 == 0 else _goal_of(values)
        self._aimless = seen.aimless
        order = np.lexsort((goal, np.maximum(limits, 0.0).sum(axis=1)))
        chosen = _fitted(points, order, max(FITTED, 3 * self._space.width))
        limits = _deepened(points[chosen], limits[chosen])
        self._known = np.vstack([points[chosen], self._failed, pending])
        self._limits = limits.shape[1]
        weights = None if counts is None or not smoothed else counts[chosen]
        self._means = np.column_stack([limits, goal[chosen]])
        self._model = Interpolant(points[chosen], self._means, weights)
        self._gap = max(GAPS[number % len(GAPS)], 1e-9)
        self._edged = seen.aimless and number % 2 == 0
        self._margin = 10 ** chance.uniform(-5, -1.5) if chance.random() < 0.7 else 0.0
        self._measured = points[chosen]
        self._counts = np.ones(len(chosen)) if counts is None else counts[chosen]
        self._leaders = points[order[:5]] if counts is None else self._measured[self._order_of(self._measured)[:5]]

    def best_known(self) -> Rows:
        """The measured point with the best estimate, from the mean of its values and the models.

        The models weigh as much as a few values: they know the neighbours, and are wrong about narrow valleys.
        """
        own = (self._counts / (self._counts + MODEL_COUNTS))[:, None]
        return self._measured[self._best_first(own * self._means + (1 - own) * self._model(self._measured))[0]]

    def best_of(self, points: Rows) -> Rows:
        return points[self._ranked(points)[0]]

    def search(self) -> Rows:
        """The point with the best prediction, found by a small evolution on the models without an evaluation."""
        chance, width = self._chance, self._space.width
        starts = np.repeat(self._leaders, 200 // len(self._leaders), axis=0)
        anywhere = chance.random((100, width))
        if self._like is not None:
            anywhere[:, len(self._space.ranges) :] = self._like[len(self._space.ranges) :]
        pool = self._placed(np.vstack([anywhere, self._perturbed(starts, -3.0, -0.5)]))
        for _ in range(ROUNDS):
            parents = pool[self._ranked(pool)[:PARENTS]]
            a, b, c = chance.integers(0, len(parents), (3, CHILDREN))
            children = parents[a] + chance.uniform(0.2, 0.9, (CHILDREN, 1)) * (parents[b] - parents[c])
            perturbed = self._perturbed(parents[chance.integers(0, min(10, len(parents)), PERTURBED)], -4.5, -1.0)
            pool = np.vstack([parents, self._placed(np.vstack([children, perturbed]))])
        return self.best_of(pool)

    def _placed(self, rows: Rows) -> Rows:
        """The nearest existing points, and in some trials a bound instead of a value next to it."""
        if self._edged:
            unit = rows[:, : len(self._space.ranges)]
            unit[unit < EDGE] = 0.0
            unit[unit > 1 - EDGE] = 1.0
        return self._space.snap(rows)

    def _perturbed(self, rows: Rows, least: float, most: float) -> Rows:
        """The rows moved slightly, in steps of many sizes, over the grid and to other choices."""
        chance, count = self._chance, len(self._space.ranges)
        moved = rows.copy()
        shape = (len(rows), count)
        noise = chance.normal(size=shape) * 10 ** chance.uniform(least, most, (len(rows), 1))
        hops = chance.choice([-1.0, 1.0], size=shape) * self._space.spacing * (chance.random(shape) < 0.3)
        moved[:, :count] += noise * (chance.random(shape) < 0.7) + hops
        for one in self._space.choices if self._like is None else ():
            other = chance.random(len(rows)) < 0.2
            moved[other, one.columns] = chance.random((int(other.sum()), len(one.choices)))
        return moved

    def _ranked(self, rows: Rows) -> NDInts:
        """The rows by prediction: limits first, then the objective; rows too near to a known point come last."""
        near = distances(rows, self._known).min(axis=1)
        over = np.where(near < self._gap, TAKEN, 0.0)
        if len(self._failed):
            over += np.where(distances(rows, self._failed).min(axis=1) <= near, 1.0, 0.0)
        return self._order_of(rows, over)

    def _order_of(self, rows: Rows, over: Rows | float = 0.0) -> NDInts:
        """The rows by the models' predictions alone, with `over` added to the excess."""
        return self._best_first(self._model(rows), self._margin, over)

    def _best_first(self, seen: Rows, margin: float = 0.0, over: Rows | float = 0.0) -> NDInts:
        """The order of rows with these limits and objectives."""
        limits = seen[:, : self._limits]
        beyond = np.maximum(limits + margin, 0.0).sum(axis=1) + over
        goal = limits.max(axis=1) if self._aimless and self._limits else seen[:, self._limits]
        return np.lexsort((goal, beyond))


NDInts = np.ndarray[tuple[int], np.dtype[np.intp]]


def _fitted(points: Rows, order: NDInts, most: int) -> NDInts:
    """The points to fit a model to: up to `most`, all; else the best few and the points nearest to the best."""
    if len(points) <= most:
        return np.arange(len(points))
    near = np.argsort(distances(points, points[order[:1]])[:, 0], kind="stable")
    return np.union1d(near[: most - LEADERS], order[:LEADERS])


def _deepened(points: Rows, limits: Rows) -> Rows:
    """The limits; a limit that is reported as zero wherever it is kept gets a depth: the distance to violated points.

    Otherwise the surface would be flat there, and would not show where the limit begins.
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


def _goal_of(values: Rows) -> Rows:
    """The objective on a scale on which a few huge values do not dominate the others."""
    centred = values - np.median(values)
    return np.arcsinh(centred / _scale_of(centred[:, None])[0])


def _noisy_goal_of(values: Rows) -> Rows:
    """As `_goal_of` with noise, which often grows with the values: logarithmic down to the best twentieth."""
    gap = values - values.min()
    near = np.sort(gap)[: max(4, len(gap) // 20)]
    return np.log1p(gap / max(float(near[-1]), 1e-300))


def _scale_of(columns: Rows) -> Rows:
    scale = np.median(np.abs(columns), axis=0)
    return np.where(scale > 0, scale, np.maximum(np.abs(columns).max(axis=0), 1e-300))
