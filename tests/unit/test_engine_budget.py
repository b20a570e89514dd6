"""The budget: caps are kept to the call, reserve before it, and can be raised, also after the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, driving, events_of, history, mission, outcomes, proposal, repeat, replay, stage
from hands import LONG, Hands

from pursuit import Budget, ValidationFailed, event, metric, tool
from pursuit.core.events import BudgetExtended, CallIntended, CallSettled, IterationEnded, MissionEnded
from pursuit.engine.context import Deadline
from pursuit.errors import SessionTerminal


class Counter:
    """A tool that reports how often it ran."""

    def __init__(self) -> None:
        self.ran = 0

    async def step(self) -> dict[str, Any]:
        """Counts."""
        self.ran += 1
        return {"metrics": {"steps": self.ran}}


async def test_an_iteration_that_reaches_a_cap_is_a_checkpoint_and_one_off_the_cadence_is_none(tmp_path: Path) -> None:
    counter = Counter()
    async with stage(tmp_path, counter.step) as runtime:
        wanted = mission(
            criteria=[metric("steps") >= 2],
            budget=Budget(max_iterations=4),
            checkpoint_cadence={"kind": "every_n_iterations", "n": 100},
            proposer=repeat("step"),
        )
        report = await runtime.pursue(wanted)
        assert report.completed
        rows = await history(runtime, report.session_id)
        assert [row["verdict_reason"] for row in rows] == ["cadence_skip"] * 3 + ["criteria_met"]
        assert [bool(row["criteria"]) for row in rows] == [False, False, False, True]


@pytest.mark.guarantee("budget-reserves")
@pytest.mark.parametrize("safe", [True, False])
async def test_the_rest_of_a_batch_that_does_not_fit_is_skipped(tmp_path: Path, safe: bool) -> None:
    ran: list[int] = []

    @tool(parallel_safe=safe)
    async def step(place: int) -> None:
        ran.append(place)

    calls = proposal(*(("step", {"place": place}) for place in range(4)))
    async with stage(tmp_path, step) as runtime:
        wanted = mission(budget=Budget(max_iterations=9, max_tool_calls=6), proposer=replay(calls, calls, calls))
        report = await runtime.pursue(wanted)
        assert report.verdict_reason == "max_tool_calls"
        assert [outcome for _, outcome in await outcomes(runtime, report.session_id)] == ["ok"] * 6 + ["skipped"] * 2
        assert len(await events_of(runtime, report.session_id, CallIntended)) == 6
        assert report.data["budget"]["used"]["tool_calls"] == 6
    assert ran == [0, 1, 2, 3, 0, 1]


async def test_the_wall_clock_cuts_a_call_that_is_still_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hands = Gate(), Hands(monkeypatch)
    async with stage(tmp_path, gate.hold) as runtime:
        wanted = mission(budget=Budget(max_wall_clock_seconds=LONG), proposer=repeat("hold"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await anyio.wait_all_tasks_blocked()
            assert gate.cancelled == 0
            hands.forward()
        report = await runtime.report(mission_id)
        assert (report.status, report.verdict_reason) == ("terminated", "max_wall_clock")
        (settled,) = await events_of(runtime, report.session_id, CallSettled)
        assert settled.outcome == "timed_out"
        assert settled.error == "cut off by max_wall_clock_seconds"
        assert LONG <= report.data["budget"]["used"]["wall_clock_seconds"] < 2 * LONG
    assert gate.cancelled == 1


async def test_the_wall_clock_adds_up_over_runs_and_not_over_waiting_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hands = Gate(), Hands(monkeypatch)
    async with stage(tmp_path, gate.hold) as runtime:
        wanted = mission(budget=Budget(max_wall_clock_seconds=2 * LONG), proposer=repeat("hold"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            hands.forward()
            await runtime.runner.pause(mission_id)
        used = (await runtime.runner.state(mission_id)).wall_clock
        assert LONG <= used < 2 * LONG
        hands.forward(2 * LONG)
        gate.entered = anyio.Event()
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            assert (await runtime.runner.state(mission_id)).elapsed_before == pytest.approx(used)
            hands.forward()
        report = await runtime.report(mission_id)
        assert report.verdict_reason == "max_wall_clock"
        state = await runtime.runner.state(mission_id)
        assert state.elapsed_before == pytest.approx(used) and LONG <= state.elapsed < 2 * LONG


@pytest.mark.guarantee("extend-after-budget")
async def test_a_mission_that_waits_for_budget_goes_on_when_it_is_extended(tmp_path: Path) -> None:
    counter = Counter()
    async with stage(tmp_path, counter.step) as runtime:
        service = runtime.runner
        wanted = mission(
            criteria=[metric("steps") >= 4],
            budget=Budget(max_iterations=2, on_exhausted="wait"),
            proposer=repeat("step"),
        )
        mission_id = (await service.start(wanted)).session_id
        state = await service.run(mission_id)
        assert (state.status, state.waiting_for, state.wait_detail) == ("waiting", "budget", "max_iterations")
        assert (await service.list(status="waiting")).as_json()["sessions"][0]["waiting_for"] == "budget"
        assert await service.interrupted() == []
        assert (await service.run(mission_id)).waiting_for == "budget", "driving it again changes nothing"
        assert counter.ran == 2
        assert (await service.extend(mission_id, {"max_iterations": 3})).status == "running"
        assert await service.interrupted() == [mission_id], "its answer arrived"
        assert (await service.run(mission_id)).waiting_for == "budget"
        await service.extend(mission_id, {"max_iterations": 9})
        assert (await service.run(mission_id)).verdict_reason == "criteria_met"
        assert counter.ran == 4


@pytest.mark.guarantee("extend-after-budget")
async def test_a_mission_that_ended_by_budget_is_extended_and_resumed_to_its_goal(tmp_path: Path) -> None:
    counter = Counter()
    async with stage(tmp_path, counter.step) as runtime:
        service = runtime.runner
        wanted = mission(criteria=[metric("steps") >= 3], budget=Budget(max_iterations=2), proposer=repeat("step"))
        first = await runtime.pursue(wanted)
        assert first.verdict_reason == "max_iterations"
        with pytest.raises(SessionTerminal):
            await service.run(first.session_id)
        state = await service.extend(first.session_id, {"max_iterations": 10})
        assert (state.status, state.verdict, state.ended_at, state.report) == ("paused", None, None, None)
        report = await runtime.resume(first.session_id)
        assert (report.status, report.verdict_reason, counter.ran) == ("completed", "criteria_met", 3)
        assert report.data["iteration_count"] == 3, "the second report replaced the first"
        assert len(await events_of(runtime, report.session_id, MissionEnded)) == 2
        with pytest.raises(SessionTerminal):
            await service.extend(report.session_id, {"max_iterations": 20})


@pytest.mark.guarantee("extend-after-budget")
async def test_a_mission_that_the_wall_clock_ended_can_be_extended(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.hold) as runtime:
        wanted = mission(criteria=[event("held")], budget=Budget(max_wall_clock_seconds=0.1), proposer=repeat("hold"))
        report = await runtime.pursue(wanted)
        assert report.verdict_reason == "max_wall_clock"
        gate.release.set()
        await runtime.runner.extend(report.session_id, {"max_wall_clock_seconds": 60})
        assert (await runtime.resume(report.session_id)).completed


async def test_an_extension_takes_effect_during_the_iteration(tmp_path: Path) -> None:
    gate, counter = Gate(), Counter()
    async with stage(tmp_path, gate.hold, counter.step) as runtime:
        calls = proposal(("hold", {}), ("step", {}))
        wanted = mission(budget=Budget(max_iterations=1, max_tool_calls=1), proposer=replay(calls, calls))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await runtime.runner.extend(mission_id, {"max_iterations": 2, "max_tool_calls": 4})
            gate.release.set()
        assert [outcome for _, outcome in await outcomes(runtime, mission_id)] == ["ok"] * 4
        assert len(await events_of(runtime, mission_id, IterationEnded)) == 2


async def test_more_wall_clock_reaches_a_call_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hands, heard = Gate(), Hands(monkeypatch), anyio.Event()
    allow = Deadline.allow

    def spied(deadline: Deadline, seconds_left: float | None) -> None:
        allow(deadline, seconds_left)
        heard.set()

    monkeypatch.setattr(Deadline, "allow", spied)
    async with stage(tmp_path, gate.hold) as runtime:
        wanted = mission(criteria=[event("held")], budget=Budget(max_wall_clock_seconds=LONG), proposer=repeat("hold"))
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await gate.entered.wait()
            await runtime.runner.extend(mission_id, {"max_wall_clock_seconds": 1_000})
            await heard.wait()
            hands.forward()
            await anyio.sleep(0.01)  # what was due before this is cut by now
            assert gate.cancelled == 0
            gate.release.set()
        assert await outcomes(runtime, mission_id) == [("world.hold", "ok")]


async def test_a_wrong_extension_is_refused_with_all_its_faults_and_changes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, Counter().step) as runtime:
        wanted = mission(budget=Budget(max_iterations=5, max_wall_clock_seconds=60))
        mission_id = (await runtime.runner.start(wanted)).session_id
        wrong = {"max_iterations": 4, "max_iteration": 9, "max_wall_clock_seconds": 0, "max_tokens": 5}
        with pytest.raises(ValidationFailed) as caught:
            await runtime.runner.extend(mission_id, wrong)
        assert [fault.field for fault in caught.value.faults] == list(wrong)
        assert "can only be raised" in caught.value.faults[0].reason
        with pytest.raises(ValidationFailed):
            await runtime.runner.extend(mission_id, {})
        assert await events_of(runtime, mission_id, BudgetExtended) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, 6.5])
async def test_a_cap_that_is_no_number_is_refused_and_the_mission_stays_readable(tmp_path: Path, value: float) -> None:
    async with stage(tmp_path, Counter().step) as runtime:
        mission_id = (await runtime.runner.start(mission(budget=Budget(max_iterations=5)))).session_id
        with pytest.raises(ValidationFailed):
            await runtime.runner.extend(mission_id, {"max_iterations": value})
        assert (await runtime.runner.state(mission_id)).budget["max_iterations"] == 5


async def test_unbounded_runs_until_it_is_met(tmp_path: Path) -> None:
    counter = Counter()
    async with stage(tmp_path, counter.step) as runtime:
        wanted = mission(criteria=[metric("steps") >= 7], budget=Budget(unbounded=True), proposer=repeat("step"))
        report = await runtime.pursue(wanted)
        assert report.completed and counter.ran == 7
