"""Sizes a pressure vessel (Sandgren, 1990) by the proposer `search`: no model, no script, plates in 1/16 inch.

The best that has been published costs 6059.71. Needs `pip install 'pursuit[search]'`.
"""

import tempfile
from math import pi
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Runtime, SearchProposer, metric, tool


@tool(read_only=True)  # so several may run at once, and one that a crash cut off is sent again
def evaluate(shell: float, head: float, radius: float, length: float) -> dict:
    """What a vessel costs, and how far it is from holding 1,296,000 cubic inches under pressure."""
    cost = 0.6224 * shell * radius * length + 1.7781 * head * radius**2 + shell**2 * (3.1661 * length + 19.84 * radius)
    volume = pi * radius**2 * length + 4 / 3 * pi * radius**3
    thin = max(0.0193 * radius - shell, 0.00954 * radius - head)
    return {"metrics": {"cost": cost, "too_thin": thin, "volume": volume}}


PLATE = {"low": 0.0625, "high": 6.1875, "step": 0.0625}
BODY = {"low": 10, "high": 200}

MISSION = Mission(
    directive="Find a pressure vessel that holds and costs at most 6200.",
    criteria=[metric("cost") <= 6_200, metric("too_thin") <= 0, metric("volume") >= 1_296_000],
    budget=Budget(max_iterations=500),
    tool_allowlist=["vessel.evaluate"],
    proposer=SearchProposer(
        tool_name="vessel.evaluate",
        parameters={"shell": PLATE, "head": PLATE, "radius": BODY, "length": BODY},
        seed=3,
    ),
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"vessel": [evaluate]}) as runtime:
            report = await runtime.pursue(MISSION)
    print(f"{report.status}: {report.metric('cost'):.2f} after {report.data['iteration_count']} evaluations")


if __name__ == "__main__":
    anyio.run(main)
