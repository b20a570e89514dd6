"""The life of a mission: the operator's word in the middle of a call, one driver, failures of our own, pacing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from engine_stage import Gate, driving, events_of, mission, outcomes, play, proposal, repeat, replay, script, stage
from pursuit import Budget, Pace, Runtime, event, metric, tool
from pursuit.errors import Conflict, NotPaused, SessionPaused, SessionTerminal
from pursuit.model.events import CallSettled, IterationEnded, MissionEnded, MissionFailed, ReportWritten, WaitBegan
from pursuit.model.mission import Mission, Proposal
from pursuit.model.state import MissionState
from pursuit.proposers.contract import Failed, Proposer, Waiting
from pursuit.service import Service
from pursuit.tools.contract import Tool, ToolResult

ENDS = {
    "abort": ("terminated", "user_abort"),
    "complete": ("completed", "forced_complete"),
}


async def _started(runtime: Runtime, wanted: Mission) -> str:
    return (await runtime.service.start(wanted)).session_id


@pytest.mark.parametrize("word", ENDS)
@pytest.mark.parametrize("safe", [True, False])
def test_abort_and_complete_cancel_the_call_and_end_the_mission(tmp_path: Path, word: str, safe: bool) -> None:
    gate = Gate()

    @tool(parallel_safe=safe)
    async def hold() -> None:
        await gate.hold()

    async def scene() -> None:
        calls = proposal(("hold", {}), ("hold", {}))
        async with stage(tmp_path, hold) as runtime:
            service = runtime.service
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

    play(scene)


@pytest.mark.parametrize("word", ENDS)
@pytest.mark.parametrize("ran", [True, False])
def test_a_word_with_nobody_driving_writes_the_end_and_the_report(tmp_path: Path, word: str, ran: bool) -> None:
    def step() -> dict[str, Any]:
        return {"metrics": {"x": 1}}

    async def scene() -> None:
        async with stage(tmp_path, step) as runtime:
            mission_id = await _started(runtime, mission(budget=Budget(max_iterations=9), proposer=repeat("step")))
            if ran:
                await runtime.service.iterate(mission_id)
            await getattr(runtime.service, word)(mission_id, reason="enough")
            status = await runtime.service.status(mission_id)
            assert (status["status"], status["verdict_reason"]) == ENDS[word]
            assert status["report"] == f"mission://{mission_id}/report"
            assert len(await events_of(runtime, mission_id, ReportWritten)) == 1
            assert (await runtime.report(mission_id)).data["reason_text"] == "enough"

    play(scene)


@pytest.mark.guarantee("pause-resumes-at-the-same-call")
def test_resume_goes_on_with_the_same_iteration_at_the_next_call(tmp_path: Path) -> None:
    gate = Gate()
    ran: list[str] = []

    def step(key: str) -> None:
        ran.append(key)

    async def scene() -> None:
        calls = proposal(("step", {"key": "a"}), ("hold", {}), ("step", {"key": "b"}))
        async with stage(tmp_path, gate.hold, step) as runtime:
            service = runtime.service
            mission_id = await _started(runtime, mission(proposer=replay(calls)))
            async with driving(runtime, mission_id):
                await gate.entered.wait()
                await service.pause(mission_id, reason="lunch")
            assert (await service.status(mission_id))["status"] == "paused"
            assert await outcomes(runtime, mission_id) == [("world.step", "ok"), ("world.hold", "cancelled")]
            assert await events_of(runtime, mission_id, IterationEnded) == []
            with pytest.raises(SessionPaused):
                await service.iterate(mission_id)
            assert (await service.resume(mission_id)).status == "running"
            with pytest.raises(NotPaused):
                await service.resume(mission_id)
            state = await service.run(mission_id)
            assert (state.iteration_count, state.verdict_reason) == (1, "max_iterations")
            expected = [("world.step", "ok"), ("world.hold", "cancelled"), ("world.step", "ok")]
            assert await outcomes(runtime, mission_id) == expected
        assert ran == ["a", "b"]

    play(scene)


@pytest.mark.guarantee("pause-resumes-at-the-same-call")
def test_a_paused_script_goes_on_in_mid_script_with_the_same_chance(tmp_path: Path) -> None:
    gate = Gate()
    drawn: list[float] = []

    def draw(number: float) -> None:
        drawn.append(number)

    async def scene() -> None:
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
                await runtime.service.pause(mission_id)
            assert len(drawn) == 1
            gate.release.set()
            await runtime.service.run(mission_id)
            memory = (await runtime.service.state(mission_id)).memory
            assert "cancelled" in memory["stopped"]
            made = [name for name, _ in await outcomes(runtime, mission_id)]
            assert made == ["world.draw", "world.hold", "world.draw"] * 2
        assert len(drawn) == len(set(drawn)) == 4, "chance differs between iterations, and a settled call is not repeated"

    play(scene)


def test_paused_before_it_ever_ran_it_is_pending_again_and_its_wall_clock_applies(tmp_path: Path) -> None:
    gate = Gate()

    async def scene() -> None:
        async with stage(tmp_path, gate.hold) as runtime:
            service = runtime.service
            wanted = mission(budget=Budget(max_wall_clock_seconds=0.1), proposer=repeat("hold"))
            mission_id = await _started(runtime, wanted)
            assert (await service.pause(mission_id)).status == "paused"
            assert (await service.resume(mission_id)).status == "pending"
            assert (await service.run(mission_id)).verdict_reason == "max_wall_clock"

    play(scene)


@pytest.mark.guarantee("one-driver")
def test_a_second_driver_gets_conflict_at_once_and_changes_nothing(tmp_path: Path) -> None:
    gate = Gate()

    async def scene() -> None:
        async with stage(tmp_path, gate.hold) as runtime, stage(tmp_path, gate.hold) as other:
            wanted = mission(criteria=[event("held")], proposer=repeat("hold"))
            mission_id = await _started(runtime, wanted)
            async with driving(runtime, mission_id):
                await gate.entered.wait()
                for service in (runtime.service, other.service):
                    before = (await service.state(mission_id)).seq
                    with pytest.raises(Conflict):
                        await service.run(mission_id)
                    with pytest.raises(Conflict):
                        await service.iterate(mission_id)
                    assert (await service.state(mission_id)).seq == before
                gate.release.set()
            assert (await other.service.state(mission_id)).status == "completed"
        assert gate.passed == 1

    play(scene)


def test_an_ended_mission_refuses_every_word(tmp_path: Path) -> None:
    async def step() -> dict[str, Any]:
        return {"events": [{"event_name": "done"}]}

    async def scene() -> None:
        async with stage(tmp_path, step) as runtime:
            service = runtime.service
            report = await runtime.pursue(mission(criteria=[event("done")], proposer=repeat("step")))
            before = (await service.state(report.session_id)).seq
            for word in (service.pause, service.resume, service.abort, service.complete, service.iterate, service.run):
                with pytest.raises(SessionTerminal) as caught:
                    await word(report.session_id)
                assert caught.value.code == "session_terminal"
            with pytest.raises(SessionTerminal):
                await service.extend(report.session_id, {"max_iterations": 9})
            assert (await service.state(report.session_id)).seq == before

    play(scene)


class Brittle:
    """An upstream whose own code breaks, not its tool."""

    name = "brittle"

    def __init__(self) -> None:
        self.broken = True
        self.called = 0

    async def tools(self) -> Sequence[Tool]:
        return [Tool(server=self.name, name="work", input_schema={"type": "object"}, definition={})]

    async def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: Any = None) -> ToolResult:
        self.called += 1
        if self.broken:
            raise RuntimeError("a bug of ours")
        return ToolResult(structured={"metrics": {"x": 1}})

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.mark.guarantee("failed-is-resumable")
def test_an_exception_in_our_own_code_fails_the_mission_and_resume_goes_on(tmp_path: Path) -> None:
    upstream = Brittle()

    async def scene() -> None:
        async with stage(tmp_path, servers={"brittle": upstream}) as runtime:
            service = runtime.service
            wanted = mission(criteria=[metric("x") == 1], budget=Budget(max_iterations=3), proposer=repeat("work"))
            mission_id = await _started(runtime, wanted)
            assert (await service.run(mission_id)).status == "failed"
            (failure,) = await events_of(runtime, mission_id, MissionFailed)
            assert "RuntimeError: a bug of ours" in failure.trace and "perform" in failure.trace
            assert (await service.list(status="failed"))["sessions"][0]["session_id"] == mission_id
            assert await service.interrupted() == []
            upstream.broken = False
            assert (await service.run(mission_id)).status == "completed"
            work = "brittle.work"
            assert await outcomes(runtime, mission_id) == [(work, "unknown"), (work, "ok")], "it is not sent again"
            assert upstream.called == 2
            assert "failure" not in await service.status(mission_id)

    play(scene)


@pytest.mark.guarantee("failed-is-resumable")
def test_a_failure_says_what_broke_and_not_what_it_was_wrapped_in(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stage(tmp_path, servers={"brittle": Brittle()}) as runtime:
            mission_id = await _started(runtime, mission(proposer=repeat("work")))
            await runtime.service.run(mission_id)
            assert (await runtime.service.status(mission_id))["failure"] == "RuntimeError: a bug of ours"
            assert (await runtime.report(mission_id)).data["reason_text"] == "RuntimeError: a bug of ours"

    play(scene)


class Stubborn:
    """A proposer of a test's own making."""

    operators_own = True

    def __init__(self, *answers: Proposal | Exception) -> None:
        self.answers = list(answers)
        self.reasons: list[list[str]] = []

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        self.reasons.append(list(reasons))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _with(service: Service, proposer: Proposer) -> Service:
    return replace(service, driver=replace(service.driver, proposer_for=lambda _mission, _proposal: proposer))


@pytest.mark.guarantee("failed-is-resumable")
def test_a_proposer_that_breaks_fails_the_mission_before_anything_runs(tmp_path: Path) -> None:
    def step() -> None: ...

    async def scene() -> None:
        async with stage(tmp_path, step) as runtime:
            service = _with(runtime.service, Stubborn(KeyError("lost"), Proposal(tool_calls=[])))
            mission_id = await _started(runtime, mission(proposer=repeat("step")))
            assert (await service.run(mission_id)).status == "failed"
            assert await outcomes(runtime, mission_id) == []
            assert (await service.run(mission_id)).verdict_reason == "max_iterations"

    play(scene)


def test_a_bad_proposal_goes_back_twice_with_the_reasons_then_counts_as_a_failure(tmp_path: Path) -> None:
    ran: list[int] = []

    def step(place: int) -> None:
        ran.append(place)

    async def scene() -> None:
        async with stage(tmp_path, step) as runtime:
            bad = Proposal.model_validate(proposal(("step", {"place": 1}), ("step", {"place": "x"})))
            proposer = Stubborn(bad)
            service = _with(runtime.service, proposer)
            wanted = mission(budget=Budget(max_iterations=9), proposer=repeat("step", place=1))
            state = await service.run(await _started(runtime, wanted))
            assert (state.verdict_reason, state.iteration_count) == ("proposer_failed", 3)
            assert [bool(reasons) for reasons in proposer.reasons] == [False, True, True] * 3
            assert "tool_calls[1].args" in proposer.reasons[1][0]
            good = Proposal.model_validate(proposal(("step", {"place": 2})))
            mended = Stubborn(bad, good, bad, bad, bad, good)
            state = await _with(runtime.service, mended).run(await _started(runtime, wanted))
            assert state.verdict_reason == "max_iterations", "a good proposal starts the count anew"
        assert ran == [2] * 8, "nothing of a bad proposal runs"

    play(scene)


def test_cancelling_the_driver_records_the_call_and_leaves_the_mission_runnable(tmp_path: Path) -> None:
    gate = Gate()

    async def scene() -> None:
        async with stage(tmp_path, gate.hold) as runtime:
            service = runtime.service
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

    play(scene)


class Paced:
    """A paced mission with an observer that knows when it waits."""

    def __init__(self, pace: Pace, **given: Any) -> None:
        self.mission = mission(pace=pace, proposer=repeat("look"), **{"budget": Budget(max_iterations=99), **given})
        self.waits = anyio.Event()
        self.phases: list[str] = []

    def observe(self, _mission_id: str, phase: str, _state: MissionState) -> None:
        self.phases.append(phase)
        if phase == "waiting":
            self.waits.set()


def look() -> str:
    return "the same"


def test_pace_waits_between_iterations_and_backs_off_while_nothing_changes(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=0.02, backoff=2, max_seconds=0.05), budget=Budget(max_iterations=5))

    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            report = await runtime.pursue(paced.mission)
            assert report.data["iteration_count"] == 5
            waits = await events_of(runtime, report.session_id, WaitBegan)
            starts = [row["started_at"] for row in report.data["timeline"]]
            assert len(starts) == 5 and [wait.waiting_for for wait in waits] == ["pace"] * 4
            ended = await events_of(runtime, report.session_id, IterationEnded)
            planned = [round(wait.until - end.at, 2) for wait, end in zip(waits, ended, strict=False) if wait.until]
            assert planned == sorted(planned) and planned[0] <= 0.02 and 0.03 <= planned[-1] <= 0.05

    play(scene)


@pytest.mark.parametrize("word", ["pause", "abort"])
def test_a_word_wakes_a_mission_that_waits_for_its_pace(tmp_path: Path, word: str) -> None:
    paced = Paced(Pace(seconds=3_600))

    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            service = runtime.service
            mission_id = await _started(runtime, paced.mission)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: service.run(mission_id, observer=paced.observe))
                await paced.waits.wait()
                status = await service.status(mission_id)
                assert (status["status"], status["waiting_for"]) == ("waiting", "pace")
                assert status["waiting_until"] > status["created_at"]
                await getattr(service, word)(mission_id)
            state = await service.state(mission_id)
            assert state.status == ("paused" if word == "pause" else "terminated")
            assert state.iteration_count == 1

    play(scene)


def test_the_pace_holds_when_the_mission_is_driven_again(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=3_600))

    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            service = runtime.service
            mission_id = await _started(runtime, paced.mission)
            await service.iterate(mission_id)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: service.iterate(mission_id, observer=paced.observe))
                await paced.waits.wait()
                tasks.cancel_scope.cancel()
            assert paced.phases[0] == "waiting"
            assert (await service.state(mission_id)).iteration_count == 1

    play(scene)


def test_interrupted_lists_only_runs_that_stopped_short_of_their_goal(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            service = runtime.service
            many = Budget(max_iterations=99)
            await _started(runtime, mission())
            await service.run(await _started(runtime, mission()))
            await service.iterate(await _started(runtime, mission(budget=many, proposer=repeat("look"))), iterations=3)
            await service.run(await _started(runtime, mission(proposer=repeat("look"))))
            await service.pause(await _started(runtime, mission(proposer=repeat("look"))))
            assert await service.interrupted() == []

    play(scene)


def test_a_paced_run_that_reached_its_goal_is_not_interrupted(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=0.001))

    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            service = runtime.service
            mission_id = await _started(runtime, paced.mission)
            await service.iterate(mission_id)
            until = (await service.state(mission_id)).wait_until
            assert until is not None
            while service.clock.now() <= until:
                await anyio.lowlevel.checkpoint()
            assert await service.interrupted() == []

    play(scene)


def test_a_run_that_died_while_it_waited_for_its_pace_is_interrupted(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=3_600))

    async def scene() -> None:
        async with stage(tmp_path, look) as runtime:
            service = runtime.service
            mission_id = await _started(runtime, paced.mission)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: service.run(mission_id, observer=paced.observe))
                await paced.waits.wait()
                tasks.cancel_scope.cancel()
            assert await service.interrupted() == [mission_id]

    play(scene)
