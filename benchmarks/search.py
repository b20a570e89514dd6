"""The proposer search on four engineering problems, against random search on the same budget of evaluations.

Each run is a whole mission: `cost <= target` and every constraint at or below zero are its criteria, the function is a
tool, and nothing else is told. Random search draws evenly from the same space and keeps its best feasible design.
The sampler alone is compared with Optuna's and with its own past (`sampling.py`).

Run: python benchmarks/search.py [--check | --smoke] [--only PART …] [--seeds FIRST COUNT]
     [--sampler auto|surrogate|cmaes|tpe] [--record] [--long]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import anyio
import numpy as np
from engineering import PROBLEMS, Problem
from figures import SMOKE, Figure, finish, sized
from sampling import INSTANCES, against_before, against_peers, bbob_tasks, choice_tasks, own_time

from pursuit import Budget, Mission, Runtime, SearchProposer, metric, tool
from pursuit.config.configuration import Configuration
from pursuit.proposers.search.settings import Parameter
from pursuit.proposers.search.space import Space

FIRST, COUNT = 11, sized(10, 1)  # no test has these seeds; what was tuned was tuned on 100 and above


@dataclass(frozen=True)
class Found:
    """How one run ended; no evaluations means that it did not get there."""

    evaluations: int | None
    cost: float
    random: float


async def searched(problem: Problem, seed: int, sampler: str) -> tuple[int | None, float]:
    """The evaluations until the mission was completed, and the cost of the design that completed it."""
    limits = [metric(f"g{place}") <= 0 for place in range(1, problem.constraints + 1)]
    mission = Mission(
        directive=f"Find a {problem.name} that costs at most {problem.target:g}",
        criteria=[metric("cost") <= problem.target, *limits],
        budget=Budget(max_iterations=problem.evaluations),
        allow_all_tools=True,
        proposer=SearchProposer(
            tool_name=f"problem.{problem.evaluate.__name__}",
            parameters={name: Parameter(**given) for name, given in problem.parameters.items()},
            seed=seed,
            sampler=sampler,
        ),
    )
    evaluate = tool(read_only=True)(problem.evaluate)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "ledger.db"
        async with Runtime(state=state, config=Configuration(), servers={"problem": [evaluate]}) as runtime:
            report = await runtime.pursue(mission)
    if not report.completed:
        return None, math.inf
    return report.data["iteration_count"], report.metric("cost")


def drawn(problem: Problem, seed: int) -> float:
    """The best feasible cost of as many evenly drawn designs as the problem may be evaluated."""
    space = Space({name: Parameter(**given) for name, given in problem.parameters.items()})
    rows = space.snap(np.random.default_rng(seed).random((problem.evaluations, space.width)))
    found = [problem.evaluate(**space.decode(row))["metrics"] for row in rows]
    return min((one["cost"] for one in found if max(v for k, v in one.items() if k != "cost") <= 0), default=math.inf)


PARTS = ("missions", "constrained", "bbob", "noise", "choices", "time")


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--check", action="store_true")
    words.add_argument("--smoke", action="store_true", help="one seed of the three-bar truss, and a few evaluations")
    words.add_argument("--sampler", default="auto", help="that of the missions")
    words.add_argument("--seeds", nargs=2, type=int, help="default: 11 10 (missions), 11 15 (BBOB), 11 5 (the others)")
    words.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    words.add_argument("--record", action="store_true", help="keep the constrained runs as those before")
    words.add_argument("--long", action="store_true", help="the constrained problems at 1,000 evaluations")
    asked = words.parse_args()
    first, count = asked.seeds or (FIRST, COUNT)
    seeds = range(first, first + (count if asked.seeds else sized(5, 1)))
    figures: list[Figure] = []
    if "missions" in asked.only:
        figures += missions(first, count, asked.sampler)
    if "constrained" in asked.only:
        figures += against_before(seeds, record=asked.record, long=asked.long)
    for part in (one for one in ("bbob", "noise") if one in asked.only):
        tasks = [task for task in bbob_tasks() if task.noisy is (part == "noise")]
        # Each instance once: a median over five of them is luck for f21, and for f8 with noise in 20 dimensions.
        each = seeds if asked.seeds or SMOKE else range(first, first + INSTANCES)
        figures += against_peers(tasks, each)
    if "choices" in asked.only:
        figures += against_peers(choice_tasks(), seeds)
    if "time" in asked.only:
        figures += own_time(sized(1_000, 40))
    finish("Search", figures)


def missions(first: int, count: int, sampler: str) -> list[Figure]:
    """The four engineering problems as missions."""
    figures: list[Figure] = []
    for problem in (one for one in PROBLEMS if not SMOKE or one.name == "three-bar truss"):
        found = [
            Found(*anyio.run(searched, problem, seed, sampler), drawn(problem, seed))
            for seed in range(first, first + count)
        ]
        print(f"{problem.name}, published best {problem.best:g}, target {problem.target:g}", flush=True)
        for seed, one in enumerate(found, first):
            made = f"{one.evaluations:>5} evaluations" if one.evaluations else "   not found"
            print(f"  seed {seed:>3}  {made}  cost {one.cost:<12.6g} random {one.random:.6g}", flush=True)
        reached = [one for one in found if one.evaluations is not None]
        needed = statistics.median(one.evaluations or math.inf for one in found)
        ratio = statistics.median(one.cost for one in found) / statistics.median(one.random for one in found)
        within = f"{problem.within:.1%}"
        figures += [
            Figure(
                what=f"{problem.name}: within {within} in at most {problem.evaluations} evaluations",
                value=10 * len(reached) / count,
                unit="of 10 seeds",
                rule=">=",
                limit=9,
            ),
            Figure(what=f"{problem.name}: evaluations, median", value=needed, unit="", limit=problem.evaluations),
            Figure(
                what=f"{problem.name}: cost by random search's, median",
                value=100 * ratio,
                unit="%",
                rule="<",
                limit=100,
            ),
        ]
    return figures


if __name__ == "__main__":
    main()
