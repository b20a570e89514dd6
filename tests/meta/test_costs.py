"""What things cost by counts, which do not depend on the machine: a commit that raises one says why.

Times stand in `benchmarks/`; these counts replace none of them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import psycopg
import pytest
from cli_stage import BEAM, Place, mission
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from postgres_server import NewDatabase

from pursuit import Budget, Mission, Proposal, ReplayProposer, Runtime, ToolCall, metric
from pursuit.config.configuration import Configuration
from pursuit.engine.driver import RunOrder
from pursuit.ledger.contract import Draft, Ledger
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.server.missions.server import mission_server

MISSIONS, FEW, MANY = 50, 2, 12


def step(x: int) -> dict[str, Any]:
    return {"metrics": {"loss": 1.0 + x * 7_919 % 10_007 / 10_007}}


def varied(steps: int = MANY) -> Mission:
    """A mission with other arguments and another result in each step."""
    calls = [ToolCall(tool_name="bench.step", args={"x": number}) for number in range(steps + 1)]
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
    collector = gc.isenabled(), gc.get_threshold()
    async with Runtime(state=tmp_path / "a.db", config=Configuration(), servers={"bench": [step]}) as runtime:
        for iterations in (FEW, FEW, MANY):
            names = [(await runtime.runner.start(varied())).session_id for _ in range(MISSIONS)]
            with profiled(counted):
                async with anyio.create_task_group() as tasks:
                    for name in names:
                        tasks.start_soon(runtime.runner.driver.drive, RunOrder(name, iterations=iterations))
    assert (gc.isenabled(), gc.get_threshold()) == collector, "the collector is the host's"
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
async def client_of(state: Path | str) -> AsyncIterator[tuple[Client, Ledger]]:
    here = Runtime(state=state, config=Configuration(), servers={"bench": [step]})
    async with here as runtime, mission_server(runtime) as server, Client(server, cache=None) as client:
        await client.list_tools()
        yield client, runtime.runner.ledger


async def asked(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    return answer.structured_content or {}


async def iterated(client: Client, mission_id: str, number: int) -> None:
    proposal = {"tool_calls": [{"tool_name": "bench.step", "args": {"x": number}}]}
    await asked(client, "mission_iterate", session_id=mission_id, proposal=proposal)


async def test_each_tool_of_the_mission_server_makes_no_more_commits_and_queries_than_recorded(tmp_path: Path) -> None:
    commits: list[str] = []
    queries: list[str] = []
    found: dict[str, tuple[int, int]] = {}
    async with client_of(tmp_path / "a.db") as (client, ledger):
        assert isinstance(ledger, SqliteLedger)
        handles = ledger._handles
        handles.writer.set_trace_callback(lambda said: commits.append(said) if said == "COMMIT" else None)
        handles.reader.set_trace_callback(lambda said: None if said.startswith(LOOKS) else queries.append(said))

        async def cost(tool: str, **arguments: Any) -> dict[str, Any]:
            commits.clear()
            queries.clear()
            answer = await asked(client, tool, **arguments)
            before = found.get(tool, (len(commits), len(queries)))
            found[tool] = (max(before[0], len(commits)), min(before[1], len(queries)))
            return answer

        for _ in range(
            3
        ):  # commits are exact; of three counts of queries the least, since a sweep may fall into a call
            mission_id = (await cost("mission_start", **STARTED))["session_id"]
            for number in range(2):
                proposal = {"tool_calls": [{"tool_name": "bench.step", "args": {"x": number}}]}
                await cost("mission_iterate", session_id=mission_id, proposal=proposal)
            await cost("mission_status", session_id=mission_id)
            await cost("mission_list")
            await cost("mission_tools", session_id=mission_id)
            await cost("mission_history", session_id=mission_id)
            await cost("mission_abort", session_id=mission_id, reason="enough")
    assert {tool: commits for tool, (commits, _queries) in found.items()} == {
        tool: row[0] for tool, row in COSTS.items()
    }
    assert {tool: row for tool, row in found.items() if row[1] > COSTS[tool][1]} == {}


BY_TIME = ("NOTIFY pursuit", "pg_current_snapshot", "pursuit.renew")
"""The statements of notifications, looks and leases: those depend on the time, not on the work."""


async def test_postgresql_runs_one_statement_for_each_commit_and_each_look(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    execute = psycopg.AsyncConnection[Any].execute

    async def counted(self: Any, query: Any, *values: Any, **named: Any) -> Any:
        said.append(str(query))
        return await execute(self, query, *values, **named)

    def of_work() -> list[str]:
        return [one for one in said if not any(word in one for word in BY_TIME)]

    ledger = PostgresLedger.open(new_database())
    await ledger.append("alone", 0, [Draft("Noted", b"{}")])
    await ledger._look(compare=False)
    monkeypatch.setattr(psycopg.AsyncConnection, "execute", counted)
    await ledger.append("alone", 1, [Draft("Noted", b"{}"), Draft("Noted", b"{}")])
    (commit,) = of_work()
    assert "pursuit.commit" in commit
    said.clear()
    await ledger._look(compare=False)
    assert len([one for one in said if "NOTIFY" not in one]) == 1
    await ledger.close()
    async with client_of(new_database()) as (client, _ledger):
        mission_id = (await asked(client, "mission_start", **STARTED))["session_id"]
        await iterated(client, mission_id, 0)
        statements: list[int] = []
        for number in range(1, 4):  # the least counts: a sweep for interrupted runs may fall into a call
            said.clear()
            await iterated(client, mission_id, number)
            assert len([one for one in said if "pursuit.commit" in one]) == 2, "the audit's line is in the first"
            statements.append(len(of_work()))
        assert min(statements) <= 7, "the row, the claim and its end, two commits, and two reads for the answer"


class Cost(NamedTuple):
    """What a read costs: steps of SQLite's virtual machine, and calls of Python and of C."""

    steps: int
    calls: int

    def like(self, other: Cost) -> bool:
        """True if both read the same rows; a number may be written in one way or another, which costs a few calls."""
        return self.steps == other.steps and abs(self.calls - other.calls) <= other.calls / 50


CLONES = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary)
SELECT printf('mission-%016x', n), kind, status, created_at - n, updated_at, head_seq, head_hash, summary
FROM streams, numbers WHERE name = ?
"""


async def test_a_read_costs_the_same_whatever_else_the_ledger_holds(tmp_path: Path) -> None:
    """Status and list for few and many iterations and missions; a report grows with its own iterations alone."""
    async with Runtime(state=tmp_path / "a.db", config=Configuration(), servers={"bench": [step]}) as runtime:
        runner = runtime.runner
        assert isinstance(runner.ledger, SqliteLedger)
        reader, writer = runner.ledger._handles.reader, runner.ledger._handles.writer

        async def cost(read: Callable[[], Awaitable[object]]) -> Cost:
            await read()
            counted: list[int] = []
            steps = 0

            def count() -> None:
                nonlocal steps
                steps += 1

            reader.set_progress_handler(count, 1)
            with profiled(counted):
                await read()
            reader.set_progress_handler(None, 1)
            return Cost(steps, counted[0])

        async def driven(iterations: int) -> str:
            mission_id = (await runner.start(varied(1_000))).session_id
            await runner.driver.drive(RunOrder(mission_id, iterations=iterations))
            return mission_id

        young, old = await driven(10), await driven(1_000)
        short, middle, long = [await driven(count) for count in (10, 20, 40)]
        listing = partial(runner.list, limit=3)
        status = await cost(lambda: runner.status(young))
        assert (await cost(lambda: runner.status(old))).like(status)
        listed = await cost(listing)
        reports = [await cost(partial(runner.report, one)) for one in (short, middle, long)]
        for first, second, third in zip(*reports, strict=True):
            assert third - second <= 1.1 * 2 * (second - first)
        writer.execute(CLONES, (100_000, young))
        try:
            assert (await cost(lambda: runner.status(young))).like(status)
            assert (await cost(listing)).like(listed)
            assert (await cost(partial(runner.report, short))).like(reports[0])
        finally:
            writer.execute("DELETE FROM streams WHERE name GLOB 'mission-00000000000*'")


MODULES = {"--help": 8, "run": 154, "serve": 58}
"""The modules of ours that a command has imported in the end; `serve` after its first `tools/list`."""
COUNTED = """
import atexit, gc, json, os, sys
from pathlib import Path

def tell():
    ours = [name for name in sys.modules if name.partition(".")[0] == "pursuit"]
    collector = [gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count() > 0]
    Path(os.environ["MODULES"]).write_text(json.dumps([ours, collector]))

atexit.register(tell)
from pursuit.cli.main import main
main()
"""


SELDOM = [True, 50_000, True]
"""A command collects garbage seldom, and never looks at what it had loaded."""


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
        modules, collector = json.loads(told.read_text())
        found[words[0]] = len(modules)
    assert collector == SELDOM
    server = StdioServerParameters(
        command=sys.executable, args=["-c", COUNTED, "serve", "--log-level", "error"], env=environment, cwd=tmp_path
    )
    async with Client(stdio_client(server), cache=None) as client:
        await client.list_tools()
    modules, collector = json.loads(told.read_text())
    found["serve"] = len(modules)
    assert collector == SELDOM
    assert {name: count for name, count in found.items() if count > MODULES[name]} == {}
