"""The life of a mission: the operator's word in the middle of a call, one driver, failures of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import (
    Gate,
    Stubborn,
    driving,
    events_of,
    mission,
    outcomes,
    proposal,
    proposing,
    repeat,
    replay,
    script,
    stage,
)

from pursuit import Budget, Proposal, Runtime, event, metric, tool
from pursuit.core.events import CallSettled, IterationEnded, MissionEnded, MissionFailed, ReportWritten
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState
from pursuit.core.tools import Tool, ToolResult
from pursuit.errors import Conflict, NotPaused, SessionPaused

ENDS = {
    "abort": ("terminated", "user_abort"),
    "complete": ("completed", "forced_complete"),
}


async def _started(runtime: Runtime, wanted: Mission) -> str:
    return (await runtime.runner.start(wanted)).session_id


@pytest.mark.parametrize("word", ENDS)
@pytest.mark.parametrize("safe", [True, False])
async def test_abort_and_complete_cancel_the_call_and_end_the_mission(tmp_path: Path, word: str, safe: bool) -> None:
    gate = Gate()

    @tool(parallel_safe=safe)
    async def hold() -> None:
        await gate.hold()

    calls = proposal(("hold", {}), ("hold", {}))
    async with stage(tmp_path, hold) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, mission(budget=Budget(max_iterations=9), proposer=replay(calls)))
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            said = await getattr(service, word)(mission_id, reason="seen enough")
            assert said.status == ENDS[word][0], "the word holds at once"
        state = await service.state(mission_id)
        assert (state.status, state.verdict_reason) == ENDS[word]
        made = [outcome for _, outcome in await outcomes(runtime, mission_id)]
        assert made == (["cancelled", "cancelled"] if safe else ["cancelled"]), "no call began after the word"
        report = await runtime.report(mission_id)
        assert (report.status, report.verdict_reason) == ENDS[word]
        assert report.data["reason_text"] == "seen enough"
        assert len(await events_of(runtime, mission_id, MissionEnded)) == 1
        assert len(await events_of(runtime, mission_id, ReportWritten)) == 1
        (ended,) = await events_of(runtime, mission_id, IterationEnded)
        assert (ended.reason, ended.rationale) == (ENDS[word][1], "seen enough")
    assert gate.cancelled == len(made) and gate.passed == 0


@pytest.mark.parametrize("word", ENDS)
@pytest.mark.parametrize("ran", [True, False])
async def test_a_word_with_nobody_driving_writes_the_end_and_the_report(tmp_path: Path, word: str, ran: bool) -> None:
    def step() -> dict[str, Any]:
        return {"metrics": {"x": 1}}

    async with stage(tmp_path, step) as runtime:
        mission_id = await _started(runtime, mission(budget=Budget(max_iterations=9), proposer=repeat("step")))
        if ran:
            await runtime.runner.iterate(mission_id)
        await getattr(runtime.runner, word)(mission_id, reason="enough")
        status = (await runtime.runner.status(mission_id)).as_json()
        assert (status["status"], status["verdict_reason"]) == ENDS[word]
        assert status["report"] == f"mission://{mission_id}/report"
        assert len(await events_of(runtime, mission_id, ReportWritten)) == 1
        assert (await runtime.report(mission_id)).data["reason_text"] == "enough"


@pytest.mark.guarantee("pause-resumes-at-the-same-call")
async def test_resume_goes_on_with_the_same_iteration_at_the_next_call(tmp_path: Path) -> None:
    gate = Gate()
    ran: list[str] = []

    def step(key: str) -> None:
        ran.append(key)

    calls = proposal(("step", {"key": "a"}), ("hold", {}), ("step", {"key": "b"}))
    async with stage(tmp_path, gate.hold, step) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, mission(proposer=replay(calls)))
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await service.pause(mission_id, reason="lunch")
        assert (await service.status(mission_id)).status == "paused"
        assert await outcomes(runtime, mission_id) == [("world.step", "ok"), ("world.hold", "cancelled")]
        assert await events_of(runtime, mission_id, IterationEnded) == []
        with pytest.raises(SessionPaused):
            await service.iterate(mission_id)
        assert (await service.resume(mission_id)).status == "running"
        with pytest.raises(NotPaused) as refused:
            await service.resume(mission_id)
        assert refused.value.details["status"] == "running"
        state = await service.run(mission_id)
        assert (state.iteration_count, state.verdict_reason) == (1, "max_iterations")
        expected = [("world.step", "ok"), ("world.hold", "cancelled"), ("world.step", "ok")]
        assert await outcomes(runtime, mission_id) == expected
    assert ran == ["a", "b"]


@pytest.mark.guarantee("pause-resumes-at-the-same-call")
async def test_a_paused_script_goes_on_in_mid_script_with_the_same_chance(tmp_path: Path) -> None:
    gate = Gate()
    drawn: list[float] = []

    def draw(number: float) -> None:
        drawn.append(number)

    source = """
import random
world.draw(random.random())
try:
    world.hold()
except RuntimeError as error:
    state.memory["stopped"] = str(error)
world.draw(random.random())
"""
    async with stage(tmp_path, gate.hold, draw) as runtime:
        mission_id = await _started(runtime, mission(budget=Budget(max_iterations=2), proposer=script(source)))
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await runtime.runner.pause(mission_id)
        assert len(drawn) == 1
        gate.release.set()
        await runtime.runner.run(mission_id)
        memory = (await runtime.runner.state(mission_id)).memory
        assert "cancelled" in memory["stopped"]
        made = [name for name, _ in await outcomes(runtime, mission_id)]
        assert made == ["world.draw", "world.hold", "world.draw"] * 2
    assert len(drawn) == len(set(drawn)) == 4, "chance differs by iteration, and a settled call is not repeated"


async def test_paused_before_it_ever_ran_it_is_pending_again_and_its_wall_clock_applies(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        service = runtime.runner
        wanted = mission(budget=Budget(max_wall_clock_seconds=0.1), proposer=repeat("hold"))
        mission_id = await _started(runtime, wanted)
        assert (await service.pause(mission_id)).status == "paused"
        assert (await service.resume(mission_id)).status == "pending"
        assert (await service.run(mission_id)).verdict_reason == "max_wall_clock"


@pytest.mark.guarantee("one-driver")
async def test_a_second_driver_gets_conflict_at_once_and_changes_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime, stage(tmp_path, gate.hold) as other:
        wanted = mission(criteria=[event("held")], proposer=repeat("hold"))
        mission_id = await _started(runtime, wanted)
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            for service in (runtime.runner, other.runner):
                before = (await service.state(mission_id)).seq
                with pytest.raises(Conflict):
                    await service.run(mission_id)
                with pytest.raises(Conflict):
                    await service.iterate(mission_id)
                assert (await service.state(mission_id)).seq == before
            gate.release.set()
        assert (await other.runner.state(mission_id)).status == "completed"
    assert gate.passed == 1


class Brittle:
    """An upstream whose own code breaks, not its tool."""

    name = "brittle"

    def __init__(self) -> None:
        self.broken = True
        self.called = 0

    async def tools(self) -> Sequence[Tool]:
        return [Tool(server=self.name, name="work", input_schema={"type": "object"}, definition={})]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: Any = None
    ) -> ToolResult:
        self.called += 1
        if self.broken:
            raise RuntimeError("a bug of ours")
        return ToolResult(structured={"metrics": {"x": 1}})

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.mark.guarantee("failed-is-resumable")
async def test_an_exception_in_our_own_code_fails_the_mission_and_resume_goes_on(tmp_path: Path) -> None:
    upstream = Brittle()
    async with stage(tmp_path, servers={"brittle": upstream}) as runtime:
        service = runtime.runner
        wanted = mission(criteria=[metric("x") == 1], budget=Budget(max_iterations=3), proposer=repeat("work"))
        mission_id = await _started(runtime, wanted)
        assert (await service.run(mission_id)).status == "failed"
        (failure,) = await events_of(runtime, mission_id, MissionFailed)
        assert "RuntimeError: a bug of ours" in failure.trace and "perform" in failure.trace
        assert (await service.list(status="failed")).as_json()["sessions"][0]["session_id"] == mission_id
        assert await service.interrupted() == []
        upstream.broken = False
        assert (await service.run(mission_id)).status == "completed"
        work = "brittle.work"
        assert await outcomes(runtime, mission_id) == [(work, "unknown"), (work, "ok")], "it is not sent again"
        assert upstream.called == 2
        assert "failure" not in (await service.status(mission_id)).as_json()


@pytest.mark.guarantee("failed-is-resumable")
async def test_a_failure_says_what_broke_and_not_what_it_was_wrapped_in(tmp_path: Path) -> None:
    async with stage(tmp_path, servers={"brittle": Brittle()}) as runtime:
        mission_id = await _started(runtime, mission(proposer=repeat("work")))
        await runtime.runner.run(mission_id)
        assert (await runtime.runner.status(mission_id)).failure == "RuntimeError: a bug of ours"
        assert (await runtime.report(mission_id)).data["reason_text"] == "RuntimeError: a bug of ours"


@pytest.mark.guarantee("failed-is-resumable")
async def test_a_proposer_that_breaks_fails_the_mission_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None: ...

    async with stage(tmp_path, step) as runtime:
        proposing(monkeypatch, Stubborn(KeyError("lost"), Proposal(tool_calls=[])))
        service = runtime.runner
        mission_id = await _started(runtime, mission(proposer=repeat("step")))
        assert (await service.run(mission_id)).status == "failed"
        assert await outcomes(runtime, mission_id) == []
        assert (await service.run(mission_id)).verdict_reason == "max_iterations"


async def test_cancelling_the_driver_records_the_call_and_leaves_the_mission_runnable(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        service = runtime.runner
        wanted = mission(criteria=[event("held")], budget=Budget(max_iterations=5), proposer=repeat("hold"))
        mission_id = await _started(runtime, wanted)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run, mission_id)
            await gate.entered.wait()
            tasks.cancel_scope.cancel()
        (settled,) = await events_of(runtime, mission_id, CallSettled)
        assert (settled.outcome, settled.error) == ("cancelled", "the driver was stopped")
        assert (await service.state(mission_id)).status == "running"
        assert await service.interrupted() == [mission_id]
        gate.release.set()
        assert (await service.run(mission_id)).status == "completed"
        assert await service.interrupted() == []


@pytest.mark.parametrize("end", ["met", "budget"])
async def test_a_driver_that_died_between_the_end_and_the_report_leaves_one_to_be_written(
    tmp_path: Path, end: str
) -> None:
    """At the end a final report is written, whatever the end was; it stays the same from then on."""

    def step() -> dict[str, Any]:
        return {"events": [{"event_name": "done"}]}

    async with stage(tmp_path, step) as runtime:
        wanted = mission(criteria=[event("done" if end == "met" else "never")], proposer=repeat("step"))
        mission_id = await _started(runtime, wanted)
        with anyio.CancelScope() as life:

            def dies(_mission_id: str, phase: str, _state: MissionState) -> None:
                if phase == "ended":
                    life.cancel()

            await runtime.runner.run(mission_id, observer=dies)
        assert life.cancelled_caught
        assert await events_of(runtime, mission_id, ReportWritten) == []
        first = await runtime.report(mission_id)
        await runtime.pursue(mission(proposer=repeat("step")))
        assert await runtime.report(mission_id) == first
        assert len(await events_of(runtime, mission_id, ReportWritten)) == 1
