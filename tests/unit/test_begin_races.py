"""What is said, or done by somebody else, between the look at a mission and the claim of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, events_of, mission, outcomes, proposal, repeat, stage

from pursuit import Budget, Proposal, Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.events import CallIntended, RunClaimed
from pursuit.engine.driver import RunOrder
from pursuit.errors import SessionPaused
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals


def step(by: int = 1) -> dict[str, Any]:
    return {"metrics": {"mass": by}}


class SlowSource:
    """Gives the tools only after somebody has had time to speak."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked = anyio.Event()
        self.go = anyio.Event()

    async def tools_for(self, *words: Any) -> Any:
        self.asked.set()
        await self.go.wait()
        return await self._inner.tools_for(*words)


def slowly(runtime: Runtime) -> SlowSource:
    source = SlowSource(runtime.runner.driver.source)
    object.__setattr__(runtime.runner.driver, "source", source)
    return source


@pytest.mark.parametrize("before", ["pending", "failed"])
async def test_a_pause_while_the_servers_are_connected_is_obeyed(tmp_path: Path, before: str) -> None:
    async with stage(tmp_path, step) as runtime:
        name = (await runtime.runner.start(mission(proposer=repeat("step")))).session_id
        if before == "failed":
            await _fail(runtime, name)
        source = slowly(runtime)
        async with anyio.create_task_group() as tasks:

            async def drive() -> None:
                with pytest.raises(SessionPaused):
                    await runtime.runner.iterate(name)

            tasks.start_soon(drive)
            await source.asked.wait()
            assert (await runtime.runner.pause(name)).status == "paused"
            source.go.set()
        assert (await runtime.runner.state(name)).status == "paused"
        assert await events_of(runtime, name, CallIntended) == []


async def _fail(runtime: Runtime, name: str) -> None:
    from pursuit.core.events import MissionFailed, encode
    from pursuit.ledger.contract import ANY, Draft

    failed = MissionFailed(at=1.0, error="x", trace="")
    await runtime.runner.ledger.append(name, ANY, [Draft(*encode(failed))], status="failed")


async def test_a_run_that_somebody_else_finished_meanwhile_is_not_driven_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def count(by: int) -> None:
        ran.append(by)

    async with stage(tmp_path, count) as one, stage(tmp_path, count) as other:
        name = (await one.runner.start(mission(budget=Budget(max_iterations=9)))).session_id
        said = Proposal(**proposal(("count", {"by": 1})))
        with pytest.raises(ZeroDivisionError):
            await one.runner.driver.drive(
                RunOrder(name, iterations=1, proposal=said, background=True, claimed=lambda _: print(1 // 0))
            )
        before = await one.runner.state(name)
        goal = before.run_goal
        await other.runner.continue_run(name)  # between the look of `one` and its claim
        stale = await one.runner.continue_run(name)
        assert (ran, stale.iteration_count, goal) == ([1], 1, 1)
        assert len(await events_of(one, name, RunClaimed)) == 2


def asking(folder: Path, *tools: Any, **settings: float) -> Runtime:
    policy = OperatorPolicy(rules=(Rule(decision="ask"),))
    config = Configuration(policy=policy, settings=settings)
    return Runtime(state=folder / "ledger.db", config=config, servers={"world": list(tools)})


async def test_a_wide_yes_answers_the_other_questions_that_it_covers(tmp_path: Path) -> None:
    async with asking(tmp_path, step) as runtime:
        calls = proposal(("step", {"by": 1}), ("step", {"by": 2}))
        proposer = {"kind": "replay", "proposals": [calls]}
        name = (await runtime.runner.start(mission(proposer=proposer))).session_id
        await runtime.runner.run(name)
        desk = Approvals(runtime.runner)
        first, _second = await desk.open(name)
        assert (await desk.answer(first.approval_id, "mission")).status == "running"
        assert await desk.open(name) == []
        await runtime.runner.run(name)
        assert await outcomes(runtime, name) == [("world.step", "ok"), ("world.step", "ok")]


async def test_a_word_beside_a_driver_leaves_a_true_listing(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        made = mission(proposer=repeat("hold"), budget=Budget(max_iterations=3))
        name = (await runtime.runner.start(made)).session_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.runner.run, name)
            await gate.entered.wait()
            await runtime.runner.extend(name, {"max_iterations": 5})
            gate.release.set()
        (row,) = (await runtime.runner.list()).as_json()["sessions"]
        assert (row["iteration_count"], row["status"]) == (5, "terminated")
