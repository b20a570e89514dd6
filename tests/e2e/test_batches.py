"""Calls proposed together, to servers that are processes: side by side where nobody minds, and else in order.

Which call began and ended when is the servers' own record (`servers/workshop.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from engine_stage import mission, outcomes, proposal, replay
from promptly import promptly

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.config.servers import ServerConfig
from pursuit.core.tools import ToolOverride
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals

WORKSHOP = Path(__file__).parent.parent / "servers" / "workshop.py"
ASKS = Rule(decision="ask", server="safe", arguments={"key": "k4"})
TEN = [f"k{place}" for place in range(10)]
MS = 200
LONGEST = 120.0


class Shop:
    """Two servers with one record; the operator says that calls to the first may run side by side."""

    def __init__(self, folder: Path, *rules: Rule) -> None:
        self._folder = folder
        (folder / "logs").mkdir()
        servers = {name: self._server(name, parallel_safe=safe) for name, safe in (("safe", True), ("unsafe", None))}
        policy = OperatorPolicy(mode="ask" if rules else "auto", rules=(*rules, Rule(decision="allow", tool="*")))
        self.runtime = Runtime(
            state=folder / "ledger.db", config=Configuration(servers=servers, policy=policy), mode=policy.mode
        )

    def _server(self, name: str, *, parallel_safe: bool | None) -> ServerConfig:
        return ServerConfig(
            name=name,
            command="__python_executable__",
            args=("-S", str(WORKSHOP)),
            env={"LOGS": str(self._folder / "logs")},
            tools={"step": ToolOverride(parallel_safe=parallel_safe)},
        )

    def record(self, log: str) -> list[tuple[str, str]]:
        """What the servers wrote: begun or done, and which call."""
        file = self._folder / "logs" / log
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [(word, key) for word, key in (line.split() for line in lines)]

    async def propose(self, log: str, calls: Sequence[tuple[str, str]], ms: int = MS, **more: Any) -> tuple[str, float]:
        """Proposes these calls together: the mission, and the seconds that it took."""
        steps = [(f"{server}.step", {"log": log, "key": key, "ms": ms, **more}) for server, key in calls]
        started = await self.runtime.runner.start(mission(proposer=replay(proposal(*steps))))
        begin = time.perf_counter()
        await self.runtime.runner.run(started.session_id)
        return started.session_id, time.perf_counter() - begin

    async def results(self, name: str) -> list[str]:
        """The key of each call of a mission, in the order in which the results came back."""
        (iteration,) = (await self.runtime.runner.history(name, full=True)).as_json()["iterations"]
        return [call["args"]["key"] for call in iteration["calls"]]


def in_order(keys: Sequence[str]) -> list[tuple[str, str]]:
    return [(word, key) for key in keys for word in ("begun", "done")]


async def test_ten_safe_calls_run_side_by_side_and_take_less_than_two_and_a_half_times_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with anyio.fail_after(LONGEST):
        async with shop.runtime:
            await shop.propose("warm", [("safe", "k0")])
            # One that waits until all have begun would wait for ever if they ran in order.
            name, _ = await shop.propose("together", [("safe", key) for key in TEN], ms=0, others=len(TEN))
            record = shop.record("together")
            assert sorted(record[:10]) == [("begun", key) for key in TEN], "all began before the first was done"
            assert sorted(record[10:]) == [("done", key) for key in TEN]
            assert await shop.results(name) == TEN, "in the order proposed"
            for attempt, watch in enumerate(promptly(2.5)):
                _, one = await shop.propose(f"one-{attempt}", [("safe", "k0")])
                name, ten = await shop.propose(f"ten-{attempt}", [("safe", key) for key in TEN])
                assert sorted(shop.record(f"ten-{attempt}")) == sorted(in_order(TEN))
                assert await shop.results(name) == TEN, "in the order proposed"
                watch.took = ten / one


async def test_with_one_unsafe_call_among_them_they_run_in_order(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.runtime:
        calls = [("unsafe" if key == "k6" else "safe", key) for key in TEN]
        name, _ = await shop.propose("mixed", calls, ms=20)
        assert shop.record("mixed") == in_order(TEN)
        assert await outcomes(shop.runtime, name) == [(f"{server}.step", "ok") for server, _ in calls]
        assert await shop.results(name) == TEN


async def test_with_one_among_them_that_needed_a_persons_yes_they_run_in_order(tmp_path: Path) -> None:
    shop = Shop(tmp_path, ASKS)
    async with shop.runtime as runtime:
        name, _ = await shop.propose("asked", [("safe", key) for key in TEN], ms=20)
        (row,) = (await runtime.runner.status(name)).as_json()["pending_approvals"]
        assert (row["args"]["key"], shop.record("asked")) == ("k4", []), "nothing is sent before the answer"
        await Approvals(runtime.runner).answer(row["approval_id"], "once")
        await runtime.runner.run(name)
        assert shop.record("asked") == in_order(TEN)
        assert await shop.results(name) == TEN


async def test_calls_to_one_server_come_back_while_another_takes_its_time(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.runtime as runtime:
        pool = runtime.toolbox.host.pool

        async def call(server: str, **arguments: Any) -> None:
            await pool.upstream(server).call("step", arguments, call_id=str(arguments))

        await call("safe", log="warm")
        async with anyio.create_task_group() as calling:
            calling.start_soon(lambda: call("unsafe", log="slow", key="slow", ms=600_000))
            while not shop.record("slow"):
                await anyio.sleep(0.005)
            for key in TEN:
                await call("safe", log="quick", key=key)
            assert shop.record("quick") == in_order(TEN)
            assert shop.record("slow") == [("begun", "slow")], "it is still under way"
            calling.cancel_scope.cancel()
