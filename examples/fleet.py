"""A fleet: one mission starts two children out of its own budget, side by side, and ends when one has succeeded.

Each child looks for the square root of 2 in a bracket of its own. What a child does not use comes back to the parent.
"""

import tempfile
from pathlib import Path

import anyio

from pursuit import Budget, Fleet, Mission, Runtime, event, tool

LOOK = '''
import asyncio
BISECT = """
low, high = state.memory.get("bracket", BRACKET)
numbers.gap(x=(middle := (low + high) / 2))
state.memory["bracket"] = [middle, high] if middle * middle < 2 else [low, middle]
"""
async def look(low, high):
    return await fleet.spawn(
        directive=f"Find the square root of 2 between {low} and {high}.",
        criteria=[{"criterion_id": "near", "kind": "metric_threshold", "metric": "gap", "op": "<=", "target": 1e-6}],
        budget={"max_iterations": 30, "max_tool_calls": 30},
        proposer={"kind": "script", "script": BISECT.replace("BRACKET", str([low, high]))},
        stagnation_threshold=10,
    )
await asyncio.gather(look(0, 1), look(1, 2))
'''


@tool(read_only=True, parallel_safe=True)
def gap(x: float) -> dict:
    """How far the square of x is from 2."""
    return {"metrics": {"gap": abs(x * x - 2)}}


MISSION = Mission(
    directive="Find the square root of 2, wherever it lies.",
    criteria=[event("mission_completed", source="fleet.spawn")],
    budget=Budget(max_iterations=70, max_tool_calls=70),
    tool_allowlist=["numbers.gap"],
    fleet=Fleet(max_children=2, at_once=2),
    proposer={"kind": "script", "script": LOOK},
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"numbers": [gap]}) as runtime:
            report = await runtime.pursue(MISSION)
            for child in report.data["children"]:
                told = await runtime.report(child["session_id"])
                print(f"{told.data['directive']} {told.status} ({told.verdict_reason})")
    print(f"{report.status}: {report.data['budget']['used']['tool_calls']} of 70 calls")


if __name__ == "__main__":
    anyio.run(main)
