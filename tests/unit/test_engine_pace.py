"""Pacing: the least time between iterations, whoever drives, and which runs somebody should go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from engine_stage import events_of, mission, repeat, stage
from hands import LONG, Hands

from pursuit import Budget, Pace, Runtime
from pursuit.core.events import IterationEnded, IterationProposed, WaitBegan
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState


async def _started(runtime: Runtime, wanted: Mission) -> str:
    return (await runtime.runner.start(wanted)).session_id


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


async def test_pace_waits_between_iterations_and_backs_off_while_nothing_changes(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=0.02, backoff=2, max_seconds=0.05), budget=Budget(max_iterations=5))
    async with stage(tmp_path, look) as runtime:
        report = await runtime.pursue(paced.mission)
        assert report.data["iteration_count"] == 5
        waits = await events_of(runtime, report.session_id, WaitBegan)
        begun = await events_of(runtime, report.session_id, IterationProposed)
        ended = await events_of(runtime, report.session_id, IterationEnded)
        assert [wait.waiting_for for wait in waits] == ["pace"] * 4
        for place, seconds in enumerate([0.02, 0.04, 0.05, 0.05]):
            until = waits[place].until or 0
            assert until == pytest.approx(max(ended[place].at, begun[place].at + seconds), abs=1e-6), place
            assert begun[place + 1].at >= until - 0.005


@pytest.mark.parametrize("word", ["pause", "abort"])
async def test_a_word_wakes_a_mission_that_waits_for_its_pace(tmp_path: Path, word: str) -> None:
    paced = Paced(Pace(seconds=3_600))
    async with stage(tmp_path, look) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, paced.mission)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: service.run(mission_id, observer=paced.observe))
            await paced.waits.wait()
            status = (await service.status(mission_id)).as_json()
            assert (status["status"], status["waiting_for"]) == ("waiting", "pace")
            assert status["waiting_until"] > status["created_at"]
            await getattr(service, word)(mission_id)
        state = await service.state(mission_id)
        assert state.status == ("paused" if word == "pause" else "terminated")
        assert state.iteration_count == 1


async def test_the_pace_holds_when_the_mission_is_driven_again(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=3_600))
    async with stage(tmp_path, look) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, paced.mission)
        await service.iterate(mission_id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: service.iterate(mission_id, observer=paced.observe))
            await paced.waits.wait()
            tasks.cancel_scope.cancel()
        assert paced.phases[0] == "waiting"
        assert (await service.state(mission_id)).iteration_count == 1


async def test_a_wall_clock_that_runs_out_while_it_waits_ends_the_mission_without_another_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    paced = Paced(Pace(seconds=3_600), budget=Budget(max_wall_clock_seconds=LONG))
    async with stage(tmp_path, look) as runtime:
        mission_id = await _started(runtime, paced.mission)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: runtime.runner.run(mission_id, observer=paced.observe))
            await paced.waits.wait()
            hands.forward()
        report = await runtime.report(mission_id)
        assert (report.status, report.verdict_reason) == ("terminated", "max_wall_clock")
        assert report.data["iteration_count"] == 1
        assert report.data["calls"]["by_outcome"] == {"ok": 1}


async def test_interrupted_lists_only_runs_that_stopped_short_of_their_goal(tmp_path: Path) -> None:
    async with stage(tmp_path, look) as runtime:
        service = runtime.runner
        many = Budget(max_iterations=99)
        await _started(runtime, mission())
        await service.run(await _started(runtime, mission()))
        await service.iterate(await _started(runtime, mission(budget=many, proposer=repeat("look"))), iterations=3)
        await service.run(await _started(runtime, mission(proposer=repeat("look"))))
        await service.pause(await _started(runtime, mission(proposer=repeat("look"))))
        assert await service.interrupted() == []


async def test_a_run_that_died_while_it_waited_for_its_pace_is_interrupted(tmp_path: Path) -> None:
    paced = Paced(Pace(seconds=3_600))
    async with stage(tmp_path, look) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, paced.mission)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: service.run(mission_id, observer=paced.observe))
            await paced.waits.wait()
            tasks.cancel_scope.cancel()
        assert await service.interrupted() == [mission_id]


async def test_a_clock_that_is_put_back_does_not_make_a_wait_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    paced = Paced(
        Pace(seconds=0.05), budget=Budget(max_iterations=3), checkpoint_cadence={"kind": "every_t_seconds", "t": 1}
    )
    async with stage(tmp_path, look) as runtime:
        mission_id = await _started(runtime, paced.mission)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: runtime.runner.run(mission_id, observer=paced.observe))
            await paced.waits.wait()
            hands.put_back(86_400)
        assert (await runtime.runner.state(mission_id)).verdict_reason == "max_iterations"
        ended = await events_of(runtime, mission_id, IterationEnded)
        assert [one.facts.checkpoint for one in ended] == [True, True, True]
