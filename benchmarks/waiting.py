"""What waiting missions cost: a thousand of them, each twenty iterations old, in one process.

Every iteration goes through the front door, `service.iterate` with a proposal, fifty missions at a time. The
baseline is the memory of the same process before the first mission was started; the peak is the operating system's own.

Run: python benchmarks/waiting.py [--check | --smoke]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
from figures import Figure, finish, sized

from pursuit import Budget, ClientProposer, Mission, Proposal, Runtime, ToolCall, metric
from pursuit.config.configuration import Configuration

MISSIONS = sized(1_000, 3)
ITERATIONS = sized(20, 2)
AT_A_TIME = 50
MEGABYTE = 1024 * 1024


def measure_part(x: int) -> dict[str, Any]:
    """One measurement of the work."""
    return {"metrics": {"loss": 1.0 + 1.0 / (1 + x)}, "note": f"part {x} was measured"}


def resident() -> float:
    return psutil.Process().memory_info().rss / MEGABYTE


def peak() -> float:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024 if sys.platform != "darwin" else kilobytes / MEGABYTE


async def start(runtime: Runtime) -> str:
    mission = Mission(
        directive="Bring the loss to zero",
        criteria=[metric("loss") <= 0],
        budget=Budget(max_iterations=1_000),
        tool_allowlist=["bench.measure_part"],
        stagnation_threshold="off",
        proposer=ClientProposer(),
    )
    return (await runtime.runner.start(mission)).session_id


async def live(runtime: Runtime, mission_id: str, turn: anyio.CapacityLimiter) -> None:
    async with turn:
        for number in range(ITERATIONS):
            proposal = Proposal(tool_calls=[ToolCall(tool_name="bench.measure_part", args={"x": number})])
            await runtime.runner.iterate(mission_id, proposal=proposal)


async def measure(folder: Path) -> list[Figure]:
    servers = {"bench": [measure_part]}
    async with Runtime(state=folder / "ledger.db", config=Configuration(), servers=servers) as runtime:
        before = resident()
        begin = time.perf_counter()
        names = [await start(runtime) for _ in range(MISSIONS)]
        turn = anyio.CapacityLimiter(AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(live, runtime, name, turn)
        seconds = time.perf_counter() - begin
        for name in names:
            status = (await runtime.runner.status(name)).as_json()
            assert status["waiting_for"] == "proposal", status
            assert status["iteration_count"] == ITERATIONS, status
        after = resident()
    rate = MISSIONS * ITERATIONS / seconds
    return [
        Figure(what="before the first mission", value=before, unit="MB"),
        Figure(what=f"{MISSIONS:,} missions waiting", value=after, unit="MB", rule="<", limit=300),
        Figure(what="peak", value=peak(), unit="MB"),
        Figure(what="getting there", value=rate, unit="iterations/s"),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        figures = anyio.run(measure, Path(name))
    finish(f"{MISSIONS:,} missions of {ITERATIONS} iterations, waiting for a proposal", figures)


if __name__ == "__main__":
    main()
