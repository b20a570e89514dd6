"""The samplers alone, by ask and tell: constrained problems, BBOB with and without noise, and choices.

Owns: the runs of Pursuit's sampler and of Optuna's on one problem with one seed and one budget, and their figures.
Invariant: every sampler gets the same seeds, the same number of evaluations and the same noise.

A run without noise ends with its best value; a run with noise with the true value of the point that it would hand on:
Optuna's best trial, and the best by Pursuit's model of all results.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from constrained import PROBLEMS
from figures import SMOKE, Figure

from pursuit.proposers.search.objective import Score
from pursuit.proposers.search.samplers import Study
from pursuit.proposers.search.settings import Parameter
from pursuit.proposers.search.space import Space

BEFORE = Path(__file__).with_name("search_before.json")
"""The runs of the sampler before noise and choices were looked at (commit cf94037), on the same seeds."""
MARKS = (6, 12) if SMOKE else (100, 300)
LONG = 1_000
LEAST = 1e-8
"""Values this near to the optimum are equal: the precision of BBOB."""
INSTANCES = 15
"""The instances of each function of BBOB."""
PEERS = ("TPE", "CMA-ES", "GP")
WORST = 1.2
Measured = tuple[float, float, tuple[float, ...]]
"""The true gap to the optimum (infinite if a limit is exceeded), and what the sampler is told: a value and limits."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem for samplers; `evaluator` makes the function for one seed."""

    name: str
    parameters: Mapping[str, Mapping[str, Any]]
    evaluator: Callable[[int], Callable[[Mapping[str, Any]], Measured]]
    noisy: bool = False

    @property
    def space(self) -> Space:
        """What is searched."""
        return Space({name: Parameter(**given) for name, given in self.parameters.items()})


def constrained_tasks() -> list[Task]:
    """The twelve constrained problems; their gap is relative to the published optimum."""

    def task(problem: Any) -> Task:
        def evaluate(args: Mapping[str, Any]) -> Measured:
            value, limits = problem.evaluate(*args.values())
            gap = max(0.0, value - problem.best) / abs(problem.best)
            return (gap if max(limits) <= 0 else math.inf), value, limits

        return Task(name=problem.name, parameters=problem.parameters, evaluator=lambda _: evaluate)

    return [task(problem) for problem in PROBLEMS]


@cache
def bbob(function: int, dimension: int, instance: int) -> tuple[Any, Any, float]:
    """The suite, which owns the problem, the problem, and its optimum."""
    import cocoex

    suite = cocoex.Suite("bbob", "", f"dimensions:{dimension} function_indices:{function} instance_indices:{instance}")
    problem = suite[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        problem._best_parameter("print")  # into a file; there is no other way to the optimum
        best = np.loadtxt("._bbob_problem_best_parameter.txt")
    return suite, problem, float(problem(best))


def bbob_tasks() -> list[Task]:
    """Sphere, Rosenbrock, Rastrigin and Gallagher's 101 peaks; the noise is 30 % of the gap to the optimum."""

    def task(function: int, dimension: int, *, noisy: bool) -> Task:
        def evaluator(seed: int) -> Callable[[Mapping[str, Any]], Measured]:
            _, problem, optimum = bbob(function, dimension, 1 + seed % INSTANCES)
            chance = np.random.default_rng([seed, 77])

            def evaluate(args: Mapping[str, Any]) -> Measured:
                gap = float(problem(list(args.values()))) - optimum
                return gap, optimum + gap * (1 + 0.3 * chance.normal() if noisy else 1.0), ()

            return evaluate

        name = f"f{function}, {dimension} dimensions" + (", noise" if noisy else "")
        space = {f"x{place}": {"low": -5, "high": 5} for place in range(dimension)}
        return Task(name=name, parameters=space, evaluator=evaluator, noisy=noisy)

    functions, dimensions = ((1,), (5,)) if SMOKE else ((1, 8, 15, 21), (5, 20))
    return [task(f, d, noisy=noisy) for noisy in (False, True) for d in dimensions for f in functions]


def rosenbrock(x: float, y: float) -> float:
    return (100 * (2.048 * y - (2.048 * x) ** 2) ** 2 + (1 - 2.048 * x) ** 2) / 300


def camel(x: float, y: float) -> float:
    a = 2 * x
    return ((4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * y + (4 * y**2 - 4) * y**2) / 10


def beale(x: float, y: float) -> float:
    a, b = 4.5 * x, 4.5 * y
    return ((1.5 - a + a * b) ** 2 + (2.25 - a + a * b**2) ** 2 + (2.625 - a + a * b**3) ** 2) / 50


SURFACES = {"rosenbrock": rosenbrock, "camel": camel, "beale": beale}
MORE = {**SURFACES, "bowl": lambda x, y: 0.1 + x * x + y * y, "ridge": lambda x, y: 0.05 + abs(x + y)}
CAMEL = -0.103162845
RING, KINDS = 8, 6


def surfaces(args: Mapping[str, Any]) -> Measured:
    """Two choices of a surface and a point of both; the best is the camel's, twice."""
    gap = SURFACES[args["one"]](args["x"], args["y"]) + MORE[args["two"]](args["x"], args["y"]) - 2 * CAMEL
    return gap, gap, ()


def ring(seed: int) -> Callable[[Mapping[str, Any]], Measured]:
    """Eight choices of six in a ring: each has a cost, and each two neighbours have one together."""
    chance = np.random.default_rng([6, seed])
    own, pair = chance.random((RING, KINDS)), chance.random((RING, KINDS, KINDS)) * 0.6
    best = math.inf
    for first in range(KINDS):
        cost = {first: own[0, first]}
        for at in range(1, RING):
            cost = {b: min(v + pair[at - 1, a, b] for a, v in cost.items()) + own[at, b] for b in range(KINDS)}
        best = min(best, *(v + pair[RING - 1, a, first] for a, v in cost.items()))

    def evaluate(args: Mapping[str, Any]) -> Measured:
        taken = [int(one[1:]) for one in args.values()]
        gap = sum(own[at, one] + pair[at, one, taken[(at + 1) % RING]] for at, one in enumerate(taken)) - best
        return float(gap), float(gap), ()

    return evaluate


RECIPE = {"act": 4, "opt": 5, "mat": 6}


def recipe(seed: int) -> Callable[[Mapping[str, Any]], Measured]:
    """Three choices that depend on each other, and two numbers whose best values depend on one of the choices."""
    chance = np.random.default_rng([5, seed])
    pair, centre = chance.random((4, 5)), chance.random((5, 2))
    own, other = chance.random(6), chance.random((4, 6)) * 0.5
    best = float((pair.min(axis=1)[:, None] + own[None, :] + other).min())

    def evaluate(args: Mapping[str, Any]) -> Measured:
        act, opt, mat = (int(args[name][1:]) for name in RECIPE)
        away = (args["u"] - centre[opt, 0]) ** 2 + (args["v"] - centre[opt, 1]) ** 2
        gap = float(pair[act, opt] + own[mat] + other[act, mat] - best + 4 * away)
        return gap, gap, ()

    return evaluate


def choice_tasks() -> list[Task]:
    """Choices beside numbers, and choices alone."""
    unit = {"low": 0, "high": 1}
    three = {name: {"choices": [f"k{at}" for at in range(count)]} for name, count in RECIPE.items()}
    numbers = {"low": -1, "high": 1}
    space = {"one": {"choices": list(SURFACES)}, "two": {"choices": list(MORE)}, "x": numbers, "y": numbers}
    kinds = {"choices": [f"k{place}" for place in range(KINDS)]}
    return [
        Task(name="surfaces, two choices and two numbers", parameters=space, evaluator=lambda _: surfaces),
        Task(
            name="recipe, three choices and two numbers", parameters={**three, "u": unit, "v": unit}, evaluator=recipe
        ),
        Task(name="ring, eight choices", parameters={f"c{at}": kinds for at in range(RING)}, evaluator=ring),
    ]


def ours(task: Task, seed: int, *, told: bool = True, marks: Sequence[int] = MARKS) -> list[float]:
    """The gap of Pursuit's sampler at each mark; of noise it is `told`, or it has to notice it."""
    given = {"noise": True} if task.noisy and told else {}
    study = Study(task.space, sampler="auto", seed=seed, aimless=False, **given)
    evaluate, best, found = task.evaluator(seed), math.inf, list[float]()
    true = task.evaluator(seed)  # its own noise: looking at the best point must not change what the sampler is told
    for number in range(1, marks[-1] + 1):
        gap, value, limits = evaluate(study.ask())
        study.tell(Score(value, limits, met=False))
        best = min(best, gap)
        if number in marks:
            found.append(true(study.best or {})[0] if task.noisy else best)
    return found


def peer(task: Task, seed: int, name: str) -> list[float]:
    """The gap of a sampler of Optuna at each mark; GP makes the first mark alone."""
    samplers: Mapping[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "TPE": lambda: optuna.samplers.TPESampler(seed=seed),
        "CMA-ES": lambda: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        "GP": lambda: optuna.samplers.GPSampler(seed=seed),
    }
    study = optuna.create_study(sampler=samplers[name]())
    evaluate, best, lowest, found = task.evaluator(seed), math.inf, math.inf, list[float]()
    for number in range(1, MARKS[0 if name == "GP" else -1] + 1):
        trial = study.ask({key: distribution(one) for key, one in task.parameters.items()})
        gap, value, _ = evaluate(trial.params)
        study.tell(trial, value)
        if not task.noisy or value < lowest:
            best = gap if task.noisy else min(best, gap)
        lowest = min(lowest, value)
        if number in MARKS:
            found.append(best)
    return found


def distribution(parameter: Mapping[str, Any]) -> optuna.distributions.BaseDistribution:
    """A searched parameter as Optuna takes it; no task has a grid or a logarithmic scale."""
    if "choices" in parameter:
        return optuna.distributions.CategoricalDistribution(parameter["choices"])
    return optuna.distributions.FloatDistribution(parameter["low"], parameter["high"])


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """The median over the runs at each mark, not below what counts as found."""
    return [max(LEAST, statistics.median(at)) for at in zip(*runs, strict=True)]


def against_peers(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Figure]:
    """Each task's gap by that of the better of TPE and CMA-ES; GP, where torch is installed, is shown beside them."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    figures: list[Figure] = []
    peers = [name for name in PEERS if name != "GP" or (find_spec("torch") and not SMOKE)]
    for task in tasks:
        own = medians([ours(task, seed) for seed in seeds])
        untold = medians([ours(task, seed, told=False) for seed in seeds]) if task.noisy else []
        others = {name: medians([peer(task, seed, name) for seed in seeds]) for name in peers}
        for place, mark in enumerate(MARKS):
            shown = ", ".join(f"{name} {gaps[place]:.3g}" for name, gaps in others.items() if place < len(gaps))
            also = f" (noise not told: {untold[place]:.3g})" if untold else ""
            print(f"{task.name}, {mark} evaluations: {own[place]:.3g}{also}; {shown}", flush=True)
            better = min(gaps[place] for name, gaps in others.items() if name != "GP")
            what = f"{task.name}, {mark} evaluations"
            figures.append(Figure(what=what, value=own[place] / better, unit="x the better peer", limit=WORST))
    return figures


def against_before(seeds: Sequence[int], *, record: bool, long: bool) -> list[Figure]:
    """The constrained problems by the recorded runs of the sampler before, on the same seeds.

    A `long` comparison is one at 1,000 evaluations, on the seeds that were recorded so far.
    """
    tasks = constrained_tasks()[1:3] if SMOKE else constrained_tasks()
    stored = json.loads(BEFORE.read_text(encoding="utf-8"))
    name, marks = ("long", (LONG,)) if long else ("short", MARKS)
    seeds = seeds if record or not long else stored[name]["seeds"]
    runs = {task.name: [ours(task, seed, marks=marks) for seed in seeds] for task in tasks}
    if record:
        stored[name] = {"seeds": list(seeds), "gaps": runs}
        BEFORE.write_text(json.dumps(stored, indent=1) + "\n")
    recorded = stored[name]
    before = {
        name: [gaps for seed, gaps in zip(recorded["seeds"], recorded["gaps"][name], strict=True) if seed in seeds]
        for name in runs
    }
    figures: list[Figure] = []
    for place, mark in enumerate(marks):
        for what, most in (("feasible", math.inf), ("within 1 % of the optimum", 0.01)):
            now, then = (
                100
                * statistics.mean(
                    gaps[place] <= most and gaps[place] < math.inf for one in kept.values() for gaps in one
                )
                for kept in (runs, before)
            )
            what = f"{len(tasks)} constrained problems, {mark} evaluations: {what}"
            figures.append(Figure(what=what, value=now, unit="% of runs", rule=">=", limit=then))
    for name, gaps in runs.items():
        old = [f"{statistics.median(at):.3g}" for at in zip(*before[name], strict=True)]
        new = [f"{statistics.median(at):.3g}" for at in zip(*gaps, strict=True)]
        print(f"{name}: gap {' / '.join(new)}, before {' / '.join(old)}", flush=True)
    return figures


def own_time(trials: int) -> list[Figure]:
    """The sampler's own processor time for a trial late in a run, by that in the middle: it does not grow."""
    task = bbob_tasks()[0]
    study, evaluate = Study(task.space, sampler="auto", seed=1, aimless=False), task.evaluator(1)
    spent: list[float] = []
    for _ in range(trials):
        begun = time.process_time()
        args = study.ask()
        spent.append(time.process_time() - begun)
        _, value, limits = evaluate(args)
        begun = time.process_time()
        study.tell(Score(value, limits, met=False))
        spent[-1] += time.process_time() - begun
    part = trials // 5
    late, middle = statistics.mean(spent[-part:]), statistics.mean(spent[2 * part : 3 * part])
    return [
        Figure(what=f"a trial of the sampler at {trials} trials, 5 dimensions", value=1e3 * late, unit="ms of CPU"),
        Figure(what="the same by one in the middle of the run", value=late / middle, unit="x", limit=1.3),
    ]
