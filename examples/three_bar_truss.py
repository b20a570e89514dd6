"""Sizes a three-bar truss for least weight under stress limits: plain functions as tools, a script as proposer.

The problem is Nowacki's (1974). The best design that has been published weighs 263.896, at a1 = 0.7887 and
a2 = 0.4082 (Ray and Liew, "Society and civilization", IEEE Trans. Evolutionary Computation 7(4), 2003).
"""

import tempfile
from math import sqrt
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Runtime, metric, tool

LENGTH, LOAD, STRESS = 100.0, 2.0, 2.0


@tool(read_only=True)  # so several may run at once, and one that a crash cut off is sent again
def evaluate(a1: float, a2: float) -> dict:
    """The weight of a truss with these cross sections, and by how much its worst bar is over-stressed."""
    shared = sqrt(2) * a1 * a1 + 2 * a1 * a2
    stresses = ((sqrt(2) * a1 + a2) / shared, a2 / shared, 1 / (a1 + sqrt(2) * a2))
    violation = max(0.0, max(LOAD * stress - STRESS for stress in stresses))
    return {"metrics": {"weight": (2 * sqrt(2) * a1 + a2) * LENGTH, "violation": violation}}


SCRIPT = """
import asyncio, random

memory = state.memory
best = memory.get("best", {"a1": 1.0, "a2": 1.0})
weight, step = memory.get("weight", 1e9), memory.get("step", 0.2)

near = [{name: min(1, max(0.01, best[name] + random.gauss(0, step))) for name in best} for _ in range(10)]
results = await asyncio.gather(*[truss.evaluate(**design) for design in near])
found = [(r["metrics"]["weight"], d) for r, d in zip(results, near) if r["metrics"]["violation"] == 0]
if found and min(found, key=lambda pair: pair[0])[0] < weight:
    weight, best = min(found, key=lambda pair: pair[0])
    step *= 1.5
else:
    step *= 0.7
memory["best"], memory["weight"], memory["step"] = best, weight, max(step, 1e-6)
truss.evaluate(**best)  # the last word of an iteration is what a threshold looks at
"""

MISSION = Mission(
    directive="Find a three-bar truss that weighs at most 263.91 and over-stresses no bar.",
    criteria=[metric("weight", source="truss.evaluate") <= 263.91, metric("violation", source="truss.evaluate") <= 0],
    budget=Budget(max_iterations=400),
    tool_allowlist=["truss.evaluate"],
    stagnation_threshold="off",
    proposer={"kind": "script", "script": SCRIPT},
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"truss": [evaluate]}) as runtime:
            report = await runtime.pursue(MISSION)
    print(f"{report.status}: weight {report.metric('weight'):.3f} after {report.data['iteration_count']} iterations")
    print("published: 263.896")


if __name__ == "__main__":
    anyio.run(main)
