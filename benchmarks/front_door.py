"""What the front door costs: `mission_status` and the start of `pursuit serve`, by the smallest server of the SDK.

The floor (`smallest_server.py`) has one tool that reads one row of SQLite, and the SDK's own transport. Both run as
processes of their own and are asked by the same client of the SDK, in both eras of the protocol and in interleaved
rounds. That the client checks each answer against the declared output schema is part of what is measured. Over HTTP
the figures are only shown. A start is timed from the spawn to the first listing of the tools.

Run: python benchmarks/front_door.py [--check | --smoke]    (--smoke: statuses over HTTP, starts over stdio)
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from engine import PLAIN, VARIED, mission, open_runtime
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from smallest_server import NAME, make, smallest

from pursuit import ClientProposer
from pursuit.engine.driver import RunOrder
from pursuit.server.missions.server import mission_server

ERAS = {"2026-07-28": "2026-07-28"} if SMOKE else {"legacy": "2025 era", "2026-07-28": "2026-07-28"}
YOUNG, OLD = sized(10, 2), sized(10_000, 4)
ROUNDS = 11
CALLS = sized(30, 2)
ROUNDS_OVER_HTTP = sized(5, 1)
STARTS = sized(11, 1)
WARM_STARTS = sized(1, 0)
OURS = "from pursuit.cli.main import main; main()"
FLOOR = str(Path(__file__).with_name("smallest_server.py"))

ENVIRONMENT = get_default_environment() | {"PURSUIT_TRUST": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The files that both servers serve: one row, and a ledger with a young and an old mission."""

    folder: Path
    young: str
    old: str

    @property
    def floor(self) -> list[str]:
        return [FLOOR, str(self.folder / "row.db")]

    @property
    def ours(self) -> list[str]:
        state, config = self.folder / "engine.db", self.folder / "pursuit.toml"
        return ["-c", OURS, "serve", "--state", str(state), "--config", str(config), "--log-level", "error"]


async def set_up(folder: Path) -> Stage:
    make(str(folder / "row.db"))
    words = [json.dumps(word) for word in (sys.executable, FLOOR, str(folder / "row.db"))]
    server = f"[servers.row]\ncommand = {words[0]}\nargs = [{words[1]}, {words[2]}]\n"
    (folder / "pursuit.toml").write_text(f'{server}[policy]\nmode = "auto"\n')
    names: list[str] = []
    async with open_runtime(folder) as runtime:
        for iterations in (YOUNG, OLD):
            names.append((await runtime.runner.start(mission(PLAIN))).session_id)
            await runtime.runner.driver.drive(RunOrder(names[-1], iterations=iterations))
    return Stage(folder=folder, young=names[0], old=names[1])


@asynccontextmanager
async def over_stdio(words: list[str], era: str) -> AsyncGenerator[Client]:
    # The environment is the SDK's short list: without PYTHONDONTWRITEBYTECODE, so that both have compiled modules.
    transport = stdio_client(StdioServerParameters(command=sys.executable, args=words, env=ENVIRONMENT))
    async with Client(transport, mode=era, cache=None) as client:
        yield client


@contextmanager
def over_http(words: list[str]) -> Generator[str]:
    """A server on a port of its own; its URL."""
    ours = "serve" in words
    more = ["--http", "--port", "0", "--no-token", "--log-level", "info"] if ours else ["--http"]
    out, err = (None, subprocess.PIPE) if ours else (subprocess.PIPE, None)
    command = [sys.executable, *words, *more]
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=out, stderr=err) as child:
        told = child.stderr or child.stdout
        assert told is not None
        try:
            line = told.readline()
            yield json.loads(line)["url"] if ours else line.strip()
        finally:
            child.terminate()


async def p50(client: Client, tool: str, arguments: dict[str, Any]) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        answer = await client.call_tool(tool, arguments)
        times.append(time.perf_counter() - begin)
        assert not answer.is_error, answer
    return statistics.median(times)


async def statuses(
    stage: Stage, floor: Client, ours: Client, rounds: int
) -> tuple[float, list[tuple[float, float, float]]]:
    """The seconds of the old mission's very first status; then of the floor, the young and the old in each round."""
    await ours.list_tools()
    begin = time.perf_counter()
    cold = await ours.call_tool("mission_status", {"session_id": stage.old})
    first = time.perf_counter() - begin
    assert cold.structured_content and cold.structured_content["iteration_count"] == OLD, cold
    found: list[tuple[float, float, float]] = []
    for number in range(rounds + 1):
        measured = (
            await p50(floor, NAME, {"id": "a"}),
            await p50(ours, "mission_status", {"session_id": stage.young}),
            await p50(ours, "mission_status", {"session_id": stage.old}),
        )
        if number > 0:  # the first round warms everything up
            found.append(measured)
    return first, found


def status_figures(way: str, first: float, rounds: list[tuple[float, float, float]], *, required: bool) -> list[Figure]:
    floors, young, old = zip(*rounds, strict=True)
    limit = 1.5 if required else None
    return [
        Figure(what=f"{way}: the floor, one row", value=statistics.median(floors) * 1e6, unit="us"),
        Figure(what="  mission_status", value=ratio_of_rounds(young, floors), unit="x the floor", limit=limit),
        Figure(what=f"  of {OLD:,} iterations by {YOUNG}", value=ratio_of_rounds(old, young), unit="x", limit=limit),
        Figure(what=f"  of {OLD:,} iterations, the very first", value=first * 1e3, unit="ms"),
    ]


async def status_over_stdio(stage: Stage, era: str) -> list[Figure]:
    async with over_stdio(stage.floor, era) as floor, over_stdio(stage.ours, era) as ours:
        found = await statuses(stage, floor, ours, ROUNDS)
    return status_figures(f"stdio, {ERAS[era]}", *found, required=True)


async def status_over_http(stage: Stage, era: str) -> list[Figure]:
    with over_http(stage.floor) as bare, over_http(stage.ours) as served:
        async with AsyncExitStack() as stack:
            floor, ours = [await stack.enter_async_context(Client(url, mode=era, cache=None)) for url in (bare, served)]
            found = await statuses(stage, floor, ours, ROUNDS_OVER_HTTP)
    return status_figures(f"HTTP, {ERAS[era]}", *found, required=False)


async def start_seconds(words: list[str], era: str) -> float:
    """From the spawn to the first listing of the tools."""
    begin = time.perf_counter()
    async with over_stdio(words, era) as client:
        await client.list_tools()
        return time.perf_counter() - begin


async def start_figures(stage: Stage, era: str) -> list[Figure]:
    rounds: list[tuple[float, float]] = []
    for number in range(WARM_STARTS + STARTS):
        measured = (await start_seconds(stage.floor, era), await start_seconds(stage.ours, era))
        if number >= WARM_STARTS:  # the first round compiles modules and fills the page cache
            rounds.append(measured)
    floors, ours = zip(*rounds, strict=True)
    by_medians = statistics.median(ours) / statistics.median(floors)
    return [
        Figure(what=f"start, {ERAS[era]}: the floor", value=statistics.median(floors) * 1e3, unit="ms"),
        Figure(what="  pursuit serve", value=by_medians, unit="x the floor", limit=1.25),
    ]


async def iterate_figures(stage: Stage) -> list[Figure]:
    """`mission_iterate` in process, less the smallest server's call, by the iteration alone, in interleaved rounds."""
    alone: list[float] = []
    over: list[float] = []
    called: list[float] = []
    async with open_runtime(stage.folder) as runtime, mission_server(runtime) as server, AsyncExitStack() as stack:
        row = smallest(str(stage.folder / "row.db"))
        ours, floor = [await stack.enter_async_context(Client(one, cache=None)) for one in (server, row)]
        await ours.list_tools()
        handed = mission(PLAIN).model_copy(update={"proposer": ClientProposer()})
        name = (await runtime.runner.start(handed)).session_id
        number = 0
        for _ in range(ROUNDS + 1):
            driven = (await runtime.runner.start(mission(PLAIN, VARIED))).session_id
            begin = time.perf_counter()
            await runtime.runner.driver.drive(RunOrder(driven, iterations=CALLS))
            alone.append((time.perf_counter() - begin) / CALLS)
            times: list[float] = []
            for _ in range(CALLS):
                number += 1
                proposal = {"tool_calls": [{"tool_name": PLAIN, "args": {"x": number}}]}
                begin = time.perf_counter()
                answer = await ours.call_tool("mission_iterate", {"session_id": name, "proposal": proposal})
                times.append(time.perf_counter() - begin)
                assert not answer.is_error, answer
            over.append(statistics.median(times))
            called.append(await p50(floor, NAME, {"id": "a"}))
    own = [total - one for total, one in zip(over[1:], called[1:], strict=True)]
    return [
        Figure(what="an iteration alone", value=statistics.median(alone[1:]) * 1e6, unit="us"),
        Figure(
            what="  mission_iterate less the smallest server's call",
            value=ratio_of_rounds(own, alone[1:]),
            unit="x the iteration",
            limit=1.5,
        ),
    ]


async def measure(folder: Path) -> list[Figure]:
    stage = await set_up(folder)
    figures: list[Figure] = [] if SMOKE else await iterate_figures(stage)
    for era in () if SMOKE else ERAS:
        figures += await status_over_stdio(stage, era)
    for era in ERAS:
        figures += await status_over_http(stage, era)
    for era in ERAS:
        figures += await start_figures(stage, era)
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        figures = anyio.run(measure, Path(name))
    finish(f"The front door ({ROUNDS} interleaved rounds of {CALLS} calls; {STARTS} starts)", figures)


if __name__ == "__main__":
    main()
