"""Runs that nobody waits for, and answers that were lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, events_of, mission, proposal, repeat, stage, until

from pursuit import Budget, Proposal, Runtime
from pursuit.core.events import IterationProposed, MissionPaused, MissionResumed, RunClaimed, encode
from pursuit.engine.driver import RunOrder
from pursuit.errors import Conflict, InvalidArgument, Overtaken
from pursuit.ledger.contract import ANY, Draft
from pursuit.service.run_loop import RunLoop, background_runs


def step(by: int = 1) -> dict[str, Any]:
    return {"metrics": {"mass": by}}


async def _started(runtime: Runtime, **given: Any) -> str:
    made = mission(**{"budget": Budget(max_iterations=50), **given})
    return (await runtime.runner.start(made)).session_id


async def _until(runtime: Runtime, mission_id: str, count: int) -> None:
    await until(runtime, mission_id, lambda state: state.iteration_count >= count)


async def _later(runtime: Runtime, runs: RunLoop, name: str, count: int, given: Any = None) -> dict[str, Any]:
    return await runtime.runner.iterate(name, iterations=count, proposal=given, begin=runs.begin)


async def test_a_background_run_is_in_the_ledger_when_the_answer_is_given_and_goes_as_far_as_it_was_told(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with (
        stage(tmp_path, gate.hold) as runtime,
        background_runs(runtime.runner, runtime.use_servers_of) as runs,
    ):
        name = await _started(runtime, proposer=repeat("hold"))
        answer = await _later(runtime, runs, name, 3)
        assert answer == {"session_id": name, "status": "running", "iterations": []}
        (claimed,) = await events_of(runtime, name, RunClaimed)
        assert (claimed.background, claimed.iterations) == (True, 3)
        with pytest.raises(Conflict):
            await runtime.runner.iterate(name)
        with pytest.raises(Conflict):
            await _later(runtime, runs, name, 1)
        gate.release.set()
        await _until(runtime, name, 3)
        assert await runtime.runner.interrupted(background=True) == []


async def test_a_run_that_was_cut_short_is_taken_up_by_the_next_server_and_one_that_somebody_awaited_is_not(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold, step) as runtime:
        awaited = await _started(runtime, proposer=repeat("step"))
        with anyio.CancelScope() as scope:
            await runtime.runner.iterate(
                awaited, iterations=40, observer=lambda _id, phase, _state: phase == "decided" and scope.cancel()
            )
        done = (await runtime.runner.state(awaited)).iteration_count
        async with background_runs(runtime.runner, runtime.use_servers_of) as runs:
            name = await _started(runtime, proposer=repeat("hold"))
            await _later(runtime, runs, name, 4)
            await gate.entered.wait()
        assert (await runtime.runner.state(name)).iteration_count == 0
    gate.release = anyio.Event()
    gate.release.set()
    async with stage(tmp_path, gate.hold, step) as runtime:
        assert set(await runtime.runner.interrupted()) == {awaited, name}
        async with background_runs(runtime.runner, runtime.use_servers_of):
            await _until(runtime, name, 4)
        assert (await runtime.runner.state(awaited)).iteration_count == done


async def test_a_clients_proposal_for_a_background_run_survives_the_end_of_the_process(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        name = await _started(runtime)
        said = Proposal(**proposal(("step", {"by": 7})))
        with pytest.raises(ZeroDivisionError):  # the process ends right after the answer was promised
            await runtime.runner.driver.drive(
                RunOrder(name, iterations=1, proposal=said, background=True, claimed=lambda _: print(1 // 0))
            )
        assert await events_of(runtime, name, IterationProposed) == []
        async with background_runs(runtime.runner, runtime.use_servers_of):
            await _until(runtime, name, 1)
        (begun,) = await events_of(runtime, name, IterationProposed)
        assert [(call.tool, call.args) for call in begun.calls] == [("world.step", {"by": 7})]


async def test_pausing_ends_a_background_run_so_that_resuming_drives_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        async with background_runs(runtime.runner, runtime.use_servers_of) as runs:
            name = await _started(runtime, proposer=repeat("hold"))
            await _later(runtime, runs, name, 5)
            await gate.entered.wait()
            await runtime.runner.pause(name)
            await until(runtime, name, lambda state: state.open and state.open.calls)
        gate.release.set()
        async with background_runs(runtime.runner, runtime.use_servers_of):
            await runtime.runner.resume(name)
            assert await runtime.runner.interrupted(background=True) == []
            answer = await runtime.runner.iterate(name, iterations=2)
            assert len(answer["iterations"]) == 2, "nobody else drives it"


async def test_more_budget_wakes_a_background_run_that_waited_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime, background_runs(runtime.runner, runtime.use_servers_of) as runs:
        budget = Budget(max_iterations=2, on_exhausted="wait")
        name = await _started(runtime, proposer=repeat("step"), budget=budget)
        await _later(runtime, runs, name, 4)
        await until(runtime, name, lambda state: state.waiting_for == "budget")
        await runtime.runner.extend(name, {"max_iterations": 10})
        await _until(runtime, name, 4)


@pytest.mark.guarantee("a-lost-answer-is-repeated")
async def test_a_lost_answer_is_repeated_and_nothing_runs_twice(tmp_path: Path) -> None:
    ran: list[int] = []

    def count(by: int) -> None:
        ran.append(by)

    async with stage(tmp_path, count) as runtime:
        name = await _started(runtime)
        said = Proposal(**proposal(("count", {"by": 1})))
        first = await runtime.runner.iterate(name, proposal=said, after=0)
        again = await runtime.runner.iterate(name, proposal=said, after=0)
        assert again == first and ran == [1]
        await runtime.runner.iterate(name, proposal=said, after=1)
        assert ran == [1, 1]
        both = await runtime.runner.iterate(name, iterations=5, after=0)
        assert [row["iteration_index"] for row in both["iterations"]] == [0, 1]
        with pytest.raises(InvalidArgument, match="after=7"):
            await runtime.runner.iterate(name, after=7)


async def test_the_same_proposal_told_again_goes_on_with_the_iteration_that_it_began(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold, step) as runtime:
        name = await _started(runtime)
        said = Proposal(**proposal(("hold", {}), ("world.step", {"by": 3})))
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.entered.wait)
                tasks.start_soon(_cancel_when, gate, scope)
                await runtime.runner.iterate(name, proposal=said, after=0)
        with pytest.raises(InvalidArgument, match="not finished"):
            await runtime.runner.iterate(name, proposal=Proposal(tool_calls=[]), after=0)
        answer = await runtime.runner.iterate(name, proposal=said, after=0)
        assert [row["iteration_index"] for row in answer["iterations"]] == [0]
        (begun,) = await events_of(runtime, name, IterationProposed)
        assert len(begun.calls) == 2


async def _cancel_when(gate: Gate, scope: anyio.CancelScope) -> None:
    await gate.entered.wait()
    scope.cancel()


async def test_who_comes_second_with_the_same_knowledge_begins_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        name = await _started(runtime, proposer=repeat("step"))
        done = await runtime.runner.iterate(name, after=0)
        with pytest.raises(Overtaken):  # between its look and its claim somebody else was faster
            await runtime.runner.driver.drive(RunOrder(name, iterations=1, after=0))
        assert await runtime.runner.iterate(name, after=0) == done
        assert (await runtime.runner.state(name)).iteration_count == 1


async def test_a_pause_and_a_resume_that_are_heard_together_end_the_run_all_the_same(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        name = await _started(runtime, proposer=repeat("hold"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.runner.run, name)
            await gate.entered.wait()
            words = [MissionPaused(at=1.0), MissionResumed(at=2.0)]
            await runtime.runner.ledger.append(name, ANY, [Draft(*encode(word)) for word in words])
        state = await runtime.runner.state(name)
        assert (state.status, state.iteration_count) == ("running", 0)
        gate.release.set()
        answer = await runtime.runner.iterate(name, iterations=2)
        assert len(answer["iterations"]) == 2
