"""What things cost by counts, which do not depend on the machine: a commit that raises one says why.

Times stand in `benchmarks/`; these counts replace none of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import BEAM, Place, mission
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client

from pursuit import Budget, Mission, Proposal, ReplayProposer, Runtime, ToolCall, metric
from pursuit.config.configuration import Configuration
from pursuit.engine.driver import RunOrder
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.server.missions.server import mission_server

MISSIONS, FEW, MANY = 50, 2, 12


def step(x: int) -> dict[str, Any]:
    return {"metrics": {"loss": 1.0 + x * 7_919 % 10_007 / 10_007}}


def varied() -> Mission:
    """A mission with other arguments and another result in each step."""
    calls = [ToolCall(tool_name="bench.step", args={"x": number}) for number in range(MANY)]
    return Mission(
        directive="Bring the loss to zero",
        criteria=[metric("loss") <= 0],
        tool_allowlist=["bench.step"],
        budget=Budget(max_iterations=1_000_000),
        stagnation_threshold="off",
        proposer=ReplayProposer(proposals=[Proposal(tool_calls=[call]) for call in calls]),
    )


@contextmanager
def profiled(counted: list[int]) -> Iterator[None]:
    """Counts calls of Python and of C."""
    number = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        counted.append(number)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="another Python makes other events")
async def test_an_iteration_makes_at_most_330_profile_events(tmp_path: Path) -> None:
    counted: list[int] = []
    async with Runtime(state=tmp_path / "a.db", config=Configuration(), servers={"bench": [step]}) as runtime:
        for iterations in (FEW, FEW, MANY):
            names = [(await runtime.runner.start(varied())).session_id for _ in range(MISSIONS)]
            with profiled(counted):
                async with anyio.create_task_group() as tasks:
                    for name in names:
                        tasks.start_soon(runtime.runner.driver.drive, RunOrder(name, iterations=iterations))
    _warm, few, many = counted
    assert (many - few) / (MISSIONS * (MANY - FEW)) <= 330


STARTED = {
    "directive": "Say it",
    "criteria": [{"kind": "event", "criterion_id": "never", "event_name": "never", "required": True}],
    "budget": {"max_iterations": 100},
    "tool_allowlist": ["bench.step"],
    "stagnation_threshold": "off",
}
COSTS = {
    "mission_start": (2, 1),
    "mission_iterate": (2, 4),
    "mission_status": (0, 2),
    "mission_list": (0, 2),
    "mission_tools": (0, 4),
    "mission_history": (0, 3),
    "mission_abort": (4, 7),
}
"""The commits and queries of each tool; one query may be that of a subscription, which notices a change."""
LOOKS = ("PRAGMA data_version", "SELECT coalesce(max(position)", "SELECT DISTINCT streams.name")
"""How the waiters look for commits of other processes: that depends on the time."""


@asynccontextmanager
async def client_of(folder: Path) -> AsyncIterator[tuple[Client, SqliteLedger]]:
    async with Runtime(state=folder / "a.db", config=Configuration(), servers={"bench": [step]}) as runtime:
        ledger = runtime.runner.ledger
        assert isinstance(ledger, SqliteLedger)
        async with mission_server(runtime) as server, Client(server, cache=None) as client:
            await client.list_tools()
            yield client, ledger


async def test_each_tool_of_the_mission_server_makes_no_more_commits_and_queries_than_recorded(tmp_path: Path) -> None:
    commits: list[str] = []
    queries: list[str] = []
    found: dict[str, tuple[int, int]] = {}
    async with client_of(tmp_path) as (client, ledger):
        handles = ledger._handles
        handles.writer.set_trace_callback(lambda said: commits.append(said) if said == "COMMIT" else None)
        handles.reader.set_trace_callback(lambda said: None if said.startswith(LOOKS) else queries.append(said))

        async def cost(tool: str, **arguments: Any) -> dict[str, Any]:
            commits.clear()
            queries.clear()
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer
            before = found.get(tool, (len(commits), len(queries)))
            found[tool] = (max(before[0], len(commits)), min(before[1], len(queries)))
            return answer.structured_content or {}

        for _ in range(
            3
        ):  # commits are exact; of three counts of queries the least, since a sweep may fall into a call
            mission_id = (await cost("mission_start", **STARTED))["session_id"]
            for number in range(2):
                asked = {"tool_calls": [{"tool_name": "bench.step", "args": {"x": number}}]}
                await cost("mission_iterate", session_id=mission_id, proposal=asked)
            await cost("mission_status", session_id=mission_id)
            await cost("mission_list")
            await cost("mission_tools", session_id=mission_id)
            await cost("mission_history", session_id=mission_id)
            await cost("mission_abort", session_id=mission_id, reason="enough")
    assert {tool: commits for tool, (commits, _queries) in found.items()} == {
        tool: row[0] for tool, row in COSTS.items()
    }
    assert {tool: row for tool, row in found.items() if row[1] > COSTS[tool][1]} == {}


MODULES = {"--help": 8, "run": 154, "serve": 70}
"""The modules of ours that a command has imported in the end; `serve` after its first `tools/list`."""
COUNTED = """
import atexit, json, os, sys
from pathlib import Path

def tell():
    ours = [name for name in sys.modules if name.partition(".")[0] == "pursuit"]
    Path(os.environ["MODULES"]).write_text(json.dumps(ours))

atexit.register(tell)
from pursuit.cli.main import main
main()
"""


async def test_commands_import_no_more_modules_than_recorded(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{BEAM}')
    place.write("m.toml", mission(target=100, iterations=1))
    told = tmp_path / "modules.json"
    environment = {**get_default_environment(), "MODULES": str(told), "PURSUIT_TRUST": "1", "HOME": str(tmp_path)}
    found: dict[str, int] = {}
    for words in (["--help"], ["run", "m.toml"]):
        command = [sys.executable, "-c", COUNTED, *words]
        await anyio.run_process(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        found[words[0]] = len(json.loads(told.read_text()))
    server = StdioServerParameters(
        command=sys.executable, args=["-c", COUNTED, "serve", "--log-level", "error"], env=environment, cwd=tmp_path
    )
    async with Client(stdio_client(server), cache=None) as client:
        await client.list_tools()
    found["serve"] = len(json.loads(told.read_text()))
    assert {name: count for name, count in found.items() if count > MODULES[name]} == {}
