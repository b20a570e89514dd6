"""What becomes of children: their parent's end is theirs, its pause too, and a failed one is started again or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import driving, events_of, outcomes, proposal, proposing, repeat, replay, stage, until
from fleet_stage import SPAWN, Crowd, child, entering, measure, parent

from pursuit import Budget, Proposal, Runtime
from pursuit.core.budgets import child_id
from pursuit.core.events import CallSettled, MissionFailed, MissionPaused
from pursuit.core.state import MissionState
from pursuit.errors import InvalidArgument, SessionTerminal
from pursuit.proposers.contract import Proposer
from pursuit.service.audit import Audit, Caller


async def children(runtime: Runtime, mission_id: str) -> list[str]:
    return list((await runtime.runner.state(mission_id)).children)


@pytest.mark.guarantee("a-parents-end-is-its-childrens")
@pytest.mark.parametrize("verb", ["abort", "complete"])
async def test_the_end_of_a_parent_is_the_end_of_its_children(tmp_path: Path, verb: str) -> None:
    crowd = Crowd(2)
    async with stage(tmp_path, crowd.enter) as runtime:
        wanted = parent(entering(), entering(), entering(), fleet={"share_tools": True, "at_once": 2})
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            await getattr(runtime.runner, verb)(mission_id)
        state = await runtime.runner.state(mission_id)
        assert state.closed
        assert state.report is not None
        assert [outcome for _tool, outcome in await outcomes(runtime, mission_id)] == ["cancelled"] * 3
        for name in await children(runtime, mission_id):
            row = await runtime.runner.ledger.row(name)
            assert row is None or row.status == "terminated"
        assert (crowd.cut, crowd.inside) == (2, 0)
        assert state.lent["max_iterations"] == 2, "what was begun counts, what was not comes back"


@pytest.mark.guarantee("a-parents-end-is-its-childrens")
async def test_a_parent_aborted_after_its_process_died_takes_its_children_with_it(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime:
        mission_id = (await runtime.runner.start(parent(entering()))).session_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.runner.run, mission_id)
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            tasks.cancel_scope.cancel()
    async with stage(tmp_path, crowd.enter) as other:
        (name,) = await children(other, mission_id)
        assert (await other.runner.state(name)).status == "running"
        assert await other.runner.interrupted() == [mission_id], "children go on with their parents"
        state = await other.runner.abort(mission_id)
        assert (state.closed, state.status) == (True, "terminated")
        assert (await other.runner.state(name)).closed


class Late(Audit):
    """An audit that lets something happen right before a child is stored."""

    def __init__(self, runtime: Runtime, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(runtime.runner.ledger, runtime.runner.clock)
        self._meanwhile = meanwhile
        self.tried = anyio.Event()
        """Whether somebody tried to end the child."""

    @asynccontextmanager
    async def control(self, caller: Caller, verb: str, *given: Any, **named: Any) -> AsyncGenerator[None]:
        if verb == "start" and caller.who.startswith("mission-"):
            await self._meanwhile()
        if verb == "abort":
            self.tried.set()
        async with super().control(caller, verb, *given, **named):
            yield


@pytest.mark.guarantee("a-parents-end-is-its-childrens")
async def test_a_parent_aborted_while_a_child_is_being_made_ends_that_child(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime, anyio.create_task_group() as tasks:
        mission_id = (await runtime.runner.start(parent(entering()))).session_id
        plain = runtime.runner

        async def meanwhile() -> None:
            tasks.start_soon(plain.abort, mission_id)
            await late.tried.wait()  # and found no child to end

        late = Late(runtime, meanwhile)
        runtime.runner = replace(plain, audit=late)
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.closed)
        (name,) = await children(runtime, mission_id)
        assert (await runtime.runner.state(name)).closed
        assert crowd.most == 0
        assert (await runtime.runner.state(mission_id)).lent["max_iterations"] == 0


async def test_a_look_at_tasks_does_not_drive_the_children_that_a_dead_process_left(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime:
        mission_id = (await runtime.runner.start(parent(entering()))).session_id
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.runner.run, mission_id)
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            tasks.cancel_scope.cancel()
    crowd.go.set()
    async with stage(tmp_path, crowd.enter) as other:
        (name,) = await children(other, mission_id)
        before = (await other.runner.state(name)).seq
        await other.tasks.catch_up()
        assert (await other.runner.state(name)).seq == before
        assert (await other.runner.run(mission_id)).status == "completed"
        assert [outcome for _tool, outcome in await outcomes(other, name)] == ["cancelled", "ok"]


@pytest.mark.guarantee("a-parents-pause-is-its-childrens")
async def test_a_paused_parent_pauses_its_children_and_wakes_them_again(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime:
        mission_id = (await runtime.runner.start(parent(entering()))).session_id
        async with driving(runtime, mission_id):
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            await runtime.runner.pause(mission_id)
        (name,) = await children(runtime, mission_id)
        await until(runtime, name, lambda state: state.status == "paused" and not crowd.inside)
        (word,) = await events_of(runtime, name, MissionPaused)
        assert word.by == mission_id
        crowd.go.set()
        state = await runtime.runner.run(mission_id)
        assert state.status == "completed"
        assert (await runtime.runner.state(name)).status == "completed"


async def test_a_child_that_a_person_paused_waits_for_that_person(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime:
        mission_id = (await runtime.runner.start(parent(entering()))).session_id
        async with driving(runtime, mission_id):
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            (name,) = await children(runtime, mission_id)
            await runtime.runner.pause(name)
            await runtime.runner.pause(mission_id)
            await runtime.runner.resume(mission_id)
            assert (await runtime.runner.state(name)).paused_by == "operator"
            crowd.go.set()
            await runtime.runner.resume(name)
            await until(runtime, name, lambda state: state.terminal)
            await runtime.runner.run(mission_id)
        assert (await runtime.runner.state(mission_id)).status == "completed"


@pytest.mark.guarantee("fleet-never-over-spends")
async def test_a_childs_budget_is_never_extended_and_an_ended_parents_child_never_driven(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        poor = child(budget={"max_iterations": 1}, proposer=repeat("world.measure", value=1))
        mission_id = (await runtime.runner.start(parent(poor))).session_id
        await runtime.runner.run(mission_id)
        (name,) = await children(runtime, mission_id)
        with pytest.raises(InvalidArgument, match="extend the parent"):
            await runtime.runner.extend(name, {"max_iterations": 5})
        with pytest.raises(SessionTerminal):
            await runtime.runner.run(name)


class Faulty(Proposer):
    """A proposer of ours that breaks so many times before it proposes."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal:
        if self.left:
            self.left -= 1
            raise RuntimeError("a fault of our own")
        return Proposal(tool_calls=[{"tool_name": "world.measure"}])


@pytest.mark.parametrize(
    ("fleet", "outcome", "failures"),
    [
        ({}, "failed", 1),
        ({"restart": "on_failure", "max_restarts": 1}, "failed", 2),
        ({"restart": "on_failure"}, "ok", 2),
    ],
)
async def test_a_failed_child_is_started_again_as_its_fleet_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: dict[str, Any], outcome: str, failures: int
) -> None:
    async with stage(tmp_path, measure) as runtime:
        proposing(monkeypatch, Faulty(2))  # the children repeat
        mission_id = (await runtime.runner.start(parent(child(), fleet=fleet))).session_id
        await runtime.runner.run(mission_id)
        (settled,) = await events_of(runtime, mission_id, CallSettled)
        (name,) = await children(runtime, mission_id)
        assert settled.outcome == outcome, settled.error
        assert len(await events_of(runtime, name, MissionFailed)) == failures
        assert (await runtime.runner.state(name)).closed
        if outcome == "failed":
            assert "a fault of our own" in (settled.error or "")


async def test_a_task_that_is_cancelled_ends_its_child(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter) as runtime:
        wanted = parent(entering(), budget=Budget(max_iterations=3))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await crowd.full.wait()
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            task_id = (await runtime.runner.state(mission_id)).wait_detail or ""
            await runtime.tasks.cancel(task_id, reason="enough")
            await until(runtime, child_id(task_id), lambda state: state.closed)
        (settled,) = await events_of(runtime, mission_id, CallSettled)
        assert settled.outcome == "failed"
        assert settled.used["max_iterations"] == 1


async def test_the_events_about_its_end_are_the_runtimes_own(tmp_path: Path) -> None:
    def boast() -> dict[str, Any]:
        """Claims."""
        return {"metrics": {"score": 1}, "events": [{"event_name": "mission_completed"}, {"event_name": "boasted"}]}

    async with stage(tmp_path, boast) as runtime:
        args = child(budget={"max_iterations": 1}, tool_allowlist=["boast"], proposer=repeat("world.boast"))
        wanted = parent(args, proposer=replay(proposal((SPAWN, args))))
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id)
        assert set(state.events.counts()) == {"mission_terminated", "boasted"}
