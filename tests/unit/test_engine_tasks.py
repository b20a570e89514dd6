"""Missions and tools whose answers come later: the mission waits in the ledger and goes on when the task has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import (
    driving,
    events_of,
    history,
    mission,
    outcomes,
    proposal,
    repeat,
    replay,
    script,
    stage,
    until,
)
from hands import LONG, Hands

from pursuit import Budget, Runtime, metric, tool
from pursuit.core.events import CallIntended, WaitBegan
from pursuit.engine.driver import RunOrder
from pursuit.service.run_loop import background_runs


class Job:
    """A long tool that ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.cut = 0
        self.go = anyio.Event()

    def tool(self) -> Any:
        @tool(name="train", long=True)
        async def train(fail: bool = False) -> dict[str, Any]:
            """Takes its time."""
            self.begun += 1
            try:
                await self.go.wait()
            except anyio.get_cancelled_exc_class():
                self.cut += 1
                raise
            if fail:
                raise ValueError("no luck")
            return {"metrics": {"score": 7}}

        return train


def score() -> Any:
    return metric("score") >= 7


async def test_a_mission_waits_for_its_task_and_goes_on(tmp_path: Path) -> None:
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        wanted = mission(criteria=[score()], proposer=repeat("world.train"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            status = (await runtime.runner.status(mission_id)).as_json()
            assert status["waiting_detail"].startswith("task-")
            claim = await runtime.runner.ledger.claim(mission_id)
            assert claim is not None, "a mission that waits for a task is driven by nobody"
            await claim.release()
            job.go.set()
        status = (await runtime.runner.status(mission_id)).as_json()
        assert (status["status"], job.begun) == ("completed", 1)
        (intent,) = await events_of(runtime, mission_id, CallIntended)
        assert intent.task == (await events_of(runtime, mission_id, WaitBegan))[0].detail
        assert (await runtime.tasks.store.get(intent.task or "")).status == "completed"


async def test_an_iterating_client_is_told_that_the_mission_waits(tmp_path: Path) -> None:
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("world.train")))).session_id
        for _ in range(2):
            answer = await runtime.runner.iterate(mission_id)
            assert (answer["status"], answer["iterations"], job.begun) == ("waiting", [], 1)
        job.go.set()
        task_id = (await runtime.runner.state(mission_id)).wait_detail
        await runtime.tasks.store.wait(task_id or "")
        answer = await runtime.runner.iterate(mission_id)
        assert [row["iteration_index"] for row in answer["iterations"]] == [0]


async def test_a_background_run_is_woken_by_its_task(tmp_path: Path) -> None:
    job = Job()

    async def prepared(_mission_id: str) -> None:
        return None

    async with stage(tmp_path, job.tool()) as runtime, background_runs(runtime.runner, prepared) as runs:
        wanted = mission(criteria=[score()], proposer=repeat("world.train"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runs.begin(RunOrder(mission_id, iterations=1))
        await until(runtime, mission_id, lambda state: state.waiting_for == "task")
        job.go.set()
        await until(runtime, mission_id, lambda state: state.status == "completed")
        assert job.begun == 1


async def test_parallel_tasks_run_side_by_side(tmp_path: Path) -> None:
    both = anyio.Event()
    begun: list[int] = []

    @tool(name="train", long=True, parallel_safe=True)
    async def train(n: int) -> int:
        begun.append(n)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return n

    async with stage(tmp_path, train) as runtime:
        calls = replay(proposal(("world.train", {"n": 1}), ("world.train", {"n": 2})))
        mission_id = (await runtime.runner.start(mission(proposer=calls))).session_id
        await runtime.runner.run(mission_id)
        assert [outcome for _tool, outcome in await outcomes(runtime, mission_id)] == ["ok", "ok"]


async def test_a_script_waits_for_a_task_too(tmp_path: Path) -> None:
    job = Job()
    source = "result = await world.train()\nmission.observe('score', result['metrics']['score'])"
    async with stage(tmp_path, job.tool()) as runtime:
        mission_id = (await runtime.runner.start(mission(criteria=[score()], proposer=script(source)))).session_id
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            job.go.set()
        assert ((await runtime.runner.status(mission_id)).status, job.begun) == ("completed", 1)


async def test_an_abort_cancels_the_task(tmp_path: Path) -> None:
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("world.train")))).session_id
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            task_id = (await runtime.runner.state(mission_id)).wait_detail or ""
            await runtime.runner.abort(mission_id)
        assert (await runtime.tasks.store.get(task_id)).status == "cancelled"
        assert await outcomes(runtime, mission_id) == [("world.train", "cancelled")]
        while not job.cut:
            await anyio.lowlevel.checkpoint()


async def test_a_pause_leaves_the_task_and_resume_finds_its_answer(tmp_path: Path) -> None:
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        wanted = mission(criteria=[score()], proposer=repeat("world.train"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            task_id = (await runtime.runner.state(mission_id)).wait_detail or ""
            await runtime.runner.pause(mission_id)
        assert (await runtime.runner.status(mission_id)).status == "paused"
        job.go.set()
        await runtime.tasks.store.wait(task_id)
        await runtime.runner.run(mission_id)
        assert ((await runtime.runner.status(mission_id)).status, job.begun) == ("completed", 1)


async def test_a_lost_task_is_an_unknown_call_and_never_made_again(tmp_path: Path) -> None:
    """The process that ran the function is gone, so nobody knows what it did."""
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        mission_id = (await runtime.runner.start(mission(proposer=repeat("world.train")))).session_id
        await runtime.runner.iterate(mission_id)
    again: Runtime = stage(tmp_path, job.tool())
    async with again as runtime:
        await runtime.runner.run(mission_id)
        assert await outcomes(runtime, mission_id) == [("world.train", "unknown")]
        (row,) = await history(runtime, mission_id)
        assert "the process that ran it ended" in row["calls"][0]["error"]
    assert job.begun == 1


async def test_a_result_that_a_mission_waits_for_is_not_pruned(tmp_path: Path) -> None:
    job = Job()
    async with stage(tmp_path, job.tool()) as runtime:
        wanted = mission(criteria=[score()], proposer=repeat("world.train"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.iterate(mission_id)
        task_id = (await runtime.runner.state(mission_id)).wait_detail or ""
        job.go.set()
        await runtime.tasks.store.wait(task_id)
        assert await runtime.tasks.prune(keep=0) == []
        await runtime.runner.run(mission_id)
        assert (await runtime.runner.status(mission_id)).status == "completed"
        assert await runtime.tasks.prune(keep=0) == [task_id]


@pytest.mark.parametrize("how", ["it runs", "it ended", "paused", "aborted"])
async def test_the_wall_clock_counts_a_task_that_nobody_drives(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to its end, up to the operator's word, and not after that."""
    job, hands = Job(), Hands(monkeypatch)
    async with stage(tmp_path, job.tool()) as runtime:
        service = runtime.runner
        wanted = mission(proposer=repeat("world.train"), budget=Budget(max_iterations=3))
        mission_id = (await service.start(wanted)).session_id
        await service.iterate(mission_id)
        hands.forward()

        async def used() -> float:
            return (await service.status(mission_id)).as_json()["budget"]["used"]["wall_clock_seconds"]

        assert LONG <= await used() < 2 * LONG, "while it waits, too"
        if how == "it ended":
            job.go.set()
            await runtime.tasks.store.wait((await service.state(mission_id)).wait_detail or "")
        elif how in ("paused", "aborted"):
            await getattr(service, {"paused": "pause", "aborted": "abort"}[how])(mission_id)
        if how != "it runs":
            hands.forward(3 * LONG)
            assert LONG <= await used() < 2 * LONG
        if how in ("it runs", "it ended"):
            await service.iterate(mission_id)
        assert LONG <= await used() < 2 * LONG
        job.go.set()


async def test_a_task_of_a_client_that_has_gone_is_cancelled_at_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, hands = Job(), Hands(monkeypatch)

    async def prepared(_mission_id: str) -> None:
        return None

    async with stage(tmp_path, job.tool()) as runtime, background_runs(runtime.runner, prepared):
        wanted = mission(proposer=repeat("world.train"), budget=Budget(max_wall_clock_seconds=LONG))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.iterate(mission_id)
        hands.forward(2 * LONG)
        await until(runtime, mission_id, lambda state: state.closed)
        status = (await runtime.runner.status(mission_id)).as_json()
        assert (status["verdict_reason"], job.cut) == ("max_wall_clock", 1)
        assert LONG <= status["budget"]["used"]["wall_clock_seconds"] < 2 * LONG
