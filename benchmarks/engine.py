"""What a step costs: one mission against the floor of the disk, fifty side by side against LangGraph.

The floor is two single-row commits in SQLite (WAL, synchronous=FULL) on the same disk. A step is one durable intent,
one call and one durable settlement: `ledger only` appends those two events, `engine` runs whole iterations of a mission
(propose, schema check, policy, call, observe, evaluate, decide). In the varied form each step has other arguments and
another result, and the loop guard watches it; in the other form all steps are the same. Rounds of all candidates are
interleaved.

Run: python benchmarks/engine.py [--check | --smoke]
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized
from langgraph_peer import langgraph_peer
from ledger_floor import PAIRS, floor_pair_seconds, open_floor
from mcp.server import Server

from pursuit import Budget, Mission, Proposal, RepeatProposer, ReplayProposer, Runtime, ToolCall, metric
from pursuit.config.configuration import Configuration
from pursuit.core.events import CallIntended, CallSettled, encode
from pursuit.core.state import MissionState
from pursuit.engine.driver import RunOrder
from pursuit.ledger.contract import Draft, Ledger
from pursuit.ledger.sqlite import SqliteLedger

ROUNDS = sized(15, 1)
MISSIONS = sized(50, 2)
STEPS = sized(100, 3)
ROUNDS_TOGETHER = sized(7, 1)
PLAIN, SERVED = "bench.step", "server.step"
TOOLS = {"plain function": PLAIN, "in-process MCP server": SERVED}
VARIED, SAME = FORMS = ("varied", "always the same")


def step(x: int) -> dict[str, Any]:
    """One step of the work: a loss that jumps up and down and never gets to zero."""
    return {"metrics": {"loss": 1.0 + x * 7_919 % 10_007 / 10_007}}


def in_process_server() -> Server[Any]:
    """The same tool behind the SDK's low-level server."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="step", input_schema=schema)])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = step(**(params.arguments or {}))
        return types.CallToolResult(content=[], structured_content=answer)

    return Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)


def open_runtime(folder: Path) -> Runtime:
    servers = {"bench": [step], "server": in_process_server()}
    return Runtime(state=folder / "engine.db", config=Configuration(), servers=servers)


def mission(tool: str, form: str = SAME, iterations: int = 1_000_000) -> Mission:
    """A mission that never reaches its goal."""
    same = RepeatProposer(tool_name=tool, args={"x": 1})
    calls = [ToolCall(tool_name=tool, args={"x": number}) for number in range(max(PAIRS, STEPS))]
    varied = ReplayProposer(proposals=[Proposal(tool_calls=[call]) for call in calls])
    return Mission(
        directive="Bring the loss to zero",
        criteria=[metric("loss") <= 0],
        budget=Budget(max_iterations=iterations),
        tool_allowlist=[tool],
        stagnation_threshold="off",
        proposer=varied if form == VARIED else same,
    )


async def append_steps(ledger: Ledger, stream: str, steps: int) -> None:
    """The intent and the settlement of each step, as the engine writes them, under compare-and-set."""
    row = await ledger.row(stream)
    seq = row.head.seq if row else 0
    for number in range(steps):
        call_id = f"{stream}:{number}:0"
        answer = step(number)
        intent = CallIntended(at=time.time(), call_id=call_id, iteration=number, tool="bench.step", args={"x": number})
        seq = (await ledger.append(stream, seq, [Draft(*encode(intent))])).seq
        settled = CallSettled(
            at=time.time(),
            call_id=call_id,
            iteration=number,
            outcome="ok",
            result={"content": [], "structuredContent": answer},
            digest="0123456789abcdef",
            metrics=answer["metrics"],
            seconds=0.001,
        )
        seq = (await ledger.append(stream, seq, [Draft(*encode(settled))])).seq


async def ledger_step_seconds(ledger: SqliteLedger) -> float:
    begin = time.perf_counter()
    await append_steps(ledger, "alone", PAIRS)
    return (time.perf_counter() - begin) / PAIRS


async def iteration_seconds(runtime: Runtime, tool: str, form: str) -> float:
    """From the first proposal of a run to its last decision, for one iteration."""
    started = await runtime.runner.start(mission(tool, form))
    times: list[float] = []

    def observe(_mission: str, phase: str, _state: MissionState) -> None:
        if phase == "decided" or not times:
            times.append(time.perf_counter())

    await runtime.runner.driver.drive(RunOrder(started.session_id, iterations=PAIRS, observer=observe))
    assert len(times) == PAIRS + 1
    return (times[-1] - times[0]) / PAIRS


async def together(one: Callable[[str], Coroutine[Any, Any, object]], names: list[str], steps: int = STEPS) -> float:
    """Steps a second over all, from the first start to the last end."""
    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)
    return len(names) * steps / (time.perf_counter() - begin)


async def missions_rate(runtime: Runtime, tool: str, form: str) -> float:
    names = [(await runtime.runner.start(mission(tool, form))).session_id for _ in range(MISSIONS)]
    return await together(lambda name: runtime.runner.driver.drive(RunOrder(name, iterations=STEPS)), names)


async def ledger_rate(ledger: SqliteLedger) -> float:
    return await together(partial(append_steps, ledger, steps=STEPS), [f"m{number}" for number in range(MISSIONS)])


CANDIDATES = {f"engine, {kind}, {form}": (tool, form) for kind, tool in TOOLS.items() for form in FORMS}
FLOOR, LEDGER = "the floor: two commits of one row", "ledger only"
FLOOR_LIMITS = {LEDGER: 2.5, "engine, plain function, varied": 4}
PEER_GOALS = {
    LEDGER: {"asyncio tasks": 20, "threads": 20},
    "engine, plain function, varied": {"asyncio tasks": 12, "threads": 8},
    "engine, in-process MCP server, varied": {"asyncio tasks": 3.5, "threads": 2.2},
}


async def one_mission(folder: Path) -> list[Figure]:
    """The first table: the cost of a step of a lone mission, by the floor."""
    floor, ledger = open_floor(folder), SqliteLedger.open(folder / "ledger.db")
    found: dict[str, list[float]] = {name: [] for name in (FLOOR, LEDGER, *CANDIDATES)}
    async with open_runtime(folder) as runtime:
        for number in range(ROUNDS + 1):
            measured = [floor_pair_seconds(floor), await ledger_step_seconds(ledger)]
            measured += [await iteration_seconds(runtime, *one) for one in CANDIDATES.values()]
            if number > 0:  # the first round warms everything up
                for kept, seconds in zip(found.values(), measured, strict=True):
                    kept.append(seconds)
    await ledger.close()
    floor.close()
    floors = found.pop(FLOOR)
    return [
        Figure(what=FLOOR, value=statistics.median(floors) * 1e6, unit="us"),
        *(
            Figure(what=name, value=ratio_of_rounds(times, floors), unit="x the floor", limit=FLOOR_LIMITS.get(name))
            for name, times in found.items()
        ),
    ]


async def fifty_missions(folder: Path) -> list[Figure]:
    """The second table: steps a second of fifty at once, by LangGraph's, run in each of its two ways."""
    ledger = SqliteLedger.open(folder / "together.db")
    peers: dict[str, list[float]] = {}
    found: dict[str, list[float]] = {name: [] for name in (LEDGER, *CANDIDATES)}
    if SMOKE:
        print("LangGraph, the peer, is left out of the smoke form")
    with nullcontext() if SMOKE else langgraph_peer(folder, MISSIONS, STEPS) as peer:
        async with open_runtime(folder) as runtime:
            for number in range(ROUNDS_TOGETHER + 1):
                theirs = {} if peer is None else peer.steps_per_second()
                ours = [await ledger_rate(ledger)]
                ours += [await missions_rate(runtime, *one) for one in CANDIDATES.values()]
                if number == 0:  # the first round warms everything up
                    continue
                for way, rate in theirs.items():
                    peers.setdefault(way, []).append(rate)
                for kept, rate in zip(found.values(), ours, strict=True):
                    kept.append(rate)
        name = "" if peer is None else f"LangGraph {peer.version}"
    await ledger.close()
    figures = [
        Figure(what=f"the peer: {name}, {way}", value=statistics.median(rates), unit="steps/s")
        for way, rates in peers.items()
    ]
    for what, rates in found.items():
        figures.append(Figure(what=what, value=statistics.median(rates), unit="steps/s"))
        for way, theirs in peers.items():
            ratio, goal = ratio_of_rounds(rates, theirs), PEER_GOALS.get(what, {}).get(way)
            figures.append(Figure(what="", value=ratio, unit=f"x {way}", rule=">=", limit=goal))
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        alone = anyio.run(one_mission, Path(name))
        side_by_side = anyio.run(fifty_missions, Path(name))
    print(f"Python {platform.python_version()}, medians of {ROUNDS} and {ROUNDS_TOGETHER} interleaved rounds")
    finish(f"One step of one mission, and {MISSIONS} missions side by side", [*alone, *side_by_side])


if __name__ == "__main__":
    main()
