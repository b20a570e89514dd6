"""Sizes a three-bar truss (Nowacki, 1974) for least weight: plain functions as tools, a script as proposer.

The best that has been published weighs 263.896 (Ray and Liew, IEEE Trans. Evolutionary Computation 7(4), 2003).
"""

import tempfile
from math import sqrt
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Runtime, ScriptProposer, metric, tool


@tool(read_only=True)  # so several may run at once, and one that a crash cut off is sent again
def evaluate(a1: float, a2: float) -> dict:
    """The weight of a truss with these cross sections (100 cm, 2 kN), and the highest stress in it."""
    shared = sqrt(2) * a1 * a1 + 2 * a1 * a2
    stresses = ((sqrt(2) * a1 + a2) / shared, a2 / shared, 1 / (a1 + sqrt(2) * a2))
    return {"metrics": {"weight": (2 * sqrt(2) * a1 + a2) * 100, "stress": 2 * max(stresses)}}


@tool(idempotent=True)
def certify(a1: float, a2: float) -> dict:
    """The weight of a design that keeps to 2 kN/cm2; an error for one that does not."""
    if (found := evaluate(a1, a2)["metrics"])["stress"] > 2:
        raise ValueError(f"the stress is {found['stress']}")
    return {"metrics": {"certified_weight": found["weight"]}}


SCRIPT = """import asyncio
middle, width = state.memory.get("search", [1.0, 0.9])  # of the ratio a2 / a1
ratios = [middle + width * place / 4 for place in range(-4, 5)]
found = await asyncio.gather(*[truss.evaluate(a1=1, a2=ratio) for ratio in ratios])
scaled = [(r["metrics"]["weight"] * r["metrics"]["stress"], r["metrics"]["stress"] / 2) for r in found]
best, (_, size) = min(zip(ratios, scaled), key=lambda pair: pair[1][0])
state.memory["search"] = [best, min(width / 2, best * 0.9)]
truss.certify(size * 1.0000001, size * best * 1.0000001)
"""

MISSION = Mission(
    directive="Find a three-bar truss that weighs at most 263.9 and over-stresses no bar.",
    criteria=[metric("certified_weight", source="truss.certify") <= 263.9],
    budget=Budget(max_iterations=50),
    tool_allowlist=["truss.*"],
    proposer=ScriptProposer(script=SCRIPT),
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"truss": [evaluate, certify]}) as runtime:
            report = await runtime.pursue(MISSION)
    print(f"{report.status}: {report.metric('certified_weight'):.3f} after {report.data['iteration_count']} iterations")


if __name__ == "__main__":
    anyio.run(main)
