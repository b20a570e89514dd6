"""Proposes every call from a plain Python loop: bisection on Newton's cubic x^3 - 2x - 5, whose root is 2.094551.

Pursuit keeps the budget, the criteria and the evidence; the loop only says what to try next.
"""

import tempfile
from pathlib import Path

import anyio

from pursuit import Budget, ClientProposer, Mission, Proposal, Runtime, ToolCall, metric, tool


@tool(read_only=True)
def cubic(x: float) -> dict:
    """The value of x^3 - 2x - 5."""
    value = x**3 - 2 * x - 5
    return {"metrics": {"value": value, "distance": abs(value)}}


MISSION = Mission(
    directive="Find x with |x^3 - 2x - 5| <= 0.000001.",
    criteria=[metric("distance", source="curve.cubic") <= 1e-6],
    budget=Budget(max_iterations=60),
    tool_allowlist=["curve.cubic"],
    stagnation_threshold="off",
    proposer=ClientProposer(),
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(state=Path(folder) / "ledger.db", servers={"curve": [cubic]}) as runtime:
            handle = await runtime.start(MISSION)
            low, middle, high = 2.0, 2.5, 3.0
            while True:
                call = ToolCall(tool_name="curve.cubic", args={"x": middle})
                step = await handle.iterate(proposal=Proposal(tool_calls=[call]))
                if step["status"] != "waiting":  # it waits for the next proposal, or it has ended
                    break
                value = (await handle.status()).metrics["value"]
                low, high = (low, middle) if value > 0 else (middle, high)
                middle = (low + high) / 2
            report = await handle.report()
    print(
        f"{report.status} ({report.verdict_reason}): x = {middle:.6f} after {report.data['iteration_count']} proposals"
    )


if __name__ == "__main__":
    anyio.run(main)
