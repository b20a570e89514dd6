"""The proposers that need no model: client, repeat, replay and the operator's script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import (
    Gate,
    Stubborn,
    events_of,
    history,
    mission,
    outcomes,
    proposal,
    proposing,
    repeat,
    replay,
    script,
    stage,
)

from pursuit import Budget, Proposal, PursuitError, Runtime, ValidationFailed, event, metric, predicate
from pursuit.core.events import IterationProposed, ScriptEnded
from pursuit.core.mission import Mission
from pursuit.errors import InvalidArgument


async def _started(runtime: Runtime, wanted: Mission) -> str:
    return (await runtime.runner.start(wanted)).session_id


def _calls(*pairs: tuple[str, dict[str, Any]]) -> Proposal:
    return Proposal.model_validate(proposal(*pairs))


def step(key: str = "a") -> dict[str, Any]:
    return {"key": key, "metrics": {"steps": 1}}


async def test_a_client_mission_waits_for_each_proposal(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        wanted = mission(criteria=[metric("steps") == 1, event("never").optional()], budget=Budget(max_iterations=9))
        mission_id = await _started(runtime, wanted)
        state = await service.run(mission_id)
        assert (state.status, state.waiting_for, state.iteration_count) == ("waiting", "proposal", 0)
        answer = await service.iterate(mission_id, iterations=5, proposal=Proposal(tool_calls=[], rationale="hm"))
        row = {"iteration_index": 0, "verdict": "continue", "verdict_reason": "in_progress"}
        row |= {"calls": [], "metrics": {}}
        assert answer == {"session_id": mission_id, "status": "waiting", "iterations": [row]}
        assert (await service.iterate(mission_id))["iterations"] == [], "it is the client's turn"
        answer = await service.iterate(mission_id, proposal=_calls(("step", {"key": "b"})))
        assert (answer["status"], answer["iterations"][0]["verdict_reason"]) == ("completed", "criteria_met")
        (made,) = answer["iterations"][0]["calls"]
        assert (made["args"], made["outcome"], made["result"]["metrics"]) == ({"key": "b"}, "ok", {"steps": 1})


@pytest.mark.guarantee("bad-proposal-counts-nothing")
async def test_a_bad_proposal_of_a_client_is_its_error_and_stores_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, mission())
        before = (await service.state(mission_id)).seq
        bad = _calls(("step", {"key": 3}), ("stop", {}), ("step", {"kex": "a"}))
        with pytest.raises(ValidationFailed) as caught:
            await service.iterate(mission_id, proposal=bad)
        assert [fault.field for fault in caught.value.faults] == [
            "proposal.tool_calls[0].args",
            "proposal.tool_calls[1].tool_name",
            "proposal.tool_calls[2].args",
        ]
        with pytest.raises(ValidationFailed) as caught:
            await service.iterate(mission_id, proposal=Proposal(script="world.step()"))
        assert caught.value.faults[0].field == "proposal.script"
        state = await service.state(mission_id)
        assert (state.seq, state.status, state.proposer_failures) == (before, "pending", 0)


async def test_a_proposal_to_a_mission_with_another_proposer_is_an_invalid_argument(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        mission_id = await _started(runtime, mission(proposer=repeat("step")))
        with pytest.raises(InvalidArgument, match="repeat"):
            await runtime.runner.iterate(mission_id, proposal=_calls(("step", {})))
        with pytest.raises(InvalidArgument):
            await runtime.runner.iterate(mission_id, iterations=0)
        assert (await runtime.runner.state(mission_id)).status == "pending"


async def test_a_proposal_is_never_dropped_for_an_iteration_that_is_still_open(tmp_path: Path) -> None:
    """Whoever hands one in either has it run or is told that it did not."""
    gate = Gate()
    ran: list[str] = []

    def note(key: str) -> None:
        ran.append(key)

    async with stage(tmp_path, gate.hold, note) as runtime:
        service = runtime.runner
        mission_id = await _started(runtime, mission(budget=Budget(max_iterations=9)))
        async with anyio.create_task_group() as tasks:
            first = _calls(("hold", {}), ("note", {"key": "old"}))
            tasks.start_soon(lambda: service.iterate(mission_id, proposal=first))
            await gate.entered.wait()
            await service.pause(mission_id)
        await service.resume(mission_id)
        refused = False
        try:
            await service.iterate(mission_id, proposal=_calls(("note", {"key": "new"})))
        except PursuitError:
            refused = True
        assert refused or "new" in ran


async def test_a_clients_script_runs_where_it_is_allowed_and_its_claims_meet_nothing(tmp_path: Path) -> None:
    source = "mission.observe('mass', 1)\nmission.event('certified')\nworld.step()\nstate.memory['n'] = 1"
    criteria = [
        metric("mass") <= 2,
        event("certified").optional(),
        predicate("'mass' in obs['metrics'] or 'certified' in obs['events']").optional(),
        (metric("steps") == 1).optional(),
    ]
    async with stage(tmp_path, step) as runtime:
        wanted = mission(criteria=criteria, allow_scripted_strategies=True)
        mission_id = await _started(runtime, wanted)
        answer = await runtime.runner.iterate(mission_id, proposal=Proposal(script=source))
        assert answer["iterations"][0]["verdict_reason"] == "max_iterations"
        rows = (await runtime.runner.status(mission_id)).as_json()["criteria"]
        assert [row["status"] for row in rows] == ["inconclusive", "unmet", "unmet", "met"]
        (ended,) = await events_of(runtime, mission_id, ScriptEnded)
        assert ended.claimed and ended.observed == {"mass": 1}, "what it claimed is on record all the same"
        assert (await runtime.report(mission_id)).metric("mass") is None


async def test_a_replay_that_is_used_up_fails_three_times_and_ends_the_mission(tmp_path: Path) -> None:
    proposer = replay(proposal(("step", {})), proposal(("step", {"key": "b"})))
    async with stage(tmp_path, step) as runtime:
        report = await runtime.pursue(mission(budget=Budget(max_iterations=99), proposer=proposer))
        assert (report.status, report.verdict_reason) == ("terminated", "proposer_failed")
        assert report.data["iteration_count"] == 5
        assert report.data["calls"]["by_outcome"] == {"ok": 2}
        proposed = await events_of(runtime, report.session_id, IterationProposed)
        assert [bool(one.failed) for one in proposed] == [False, False, True, True, True]
        assert "used up" in proposed[-1].failed[0]


async def test_a_bad_proposal_goes_back_twice_with_the_reasons_then_counts_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def place(number: int) -> None:
        ran.append(number)

    async with stage(tmp_path, place) as runtime:
        bad = _calls(("place", {"number": 1}), ("place", {"number": "x"}))
        good = _calls(("place", {"number": 2}))
        proposer = Stubborn(bad)
        wanted = mission(budget=Budget(max_iterations=9), proposer=repeat("place", number=1))
        proposing(monkeypatch, proposer)
        state = await runtime.runner.run(await _started(runtime, wanted))
        assert (state.verdict_reason, state.iteration_count) == ("proposer_failed", 3)
        assert [bool(reasons) for reasons in proposer.reasons] == [False, True, True] * 3
        assert "tool_calls[1].args" in proposer.reasons[1][0]
        mended = Stubborn(bad, good, bad, bad, bad, good)
        proposing(monkeypatch, mended)
        state = await runtime.runner.run(await _started(runtime, wanted))
        assert state.verdict_reason == "max_iterations", "a good proposal starts the count anew"
    assert ran == [2] * 8, "nothing of a bad proposal runs"


async def test_a_script_keeps_its_memory_and_sees_what_happened_before(tmp_path: Path) -> None:
    masses = iter([5.0, 3.0, 4.0])

    def weigh() -> dict[str, Any]:
        return {"metrics": {"mass": next(masses)}}

    source = """
seen = state.memory.setdefault("seen", [])
seen.append({
    "iteration": state.iteration, "mass": state.metrics.get("mass"), "best": state.best.get("mass"),
    "last": [row["outcome"] + " " + row["tool"] for row in state.results],
})
world.weigh()
"""
    async with stage(tmp_path, weigh) as runtime:
        criteria = [metric("mass") <= 1]
        wanted = mission(criteria=criteria, budget=Budget(max_iterations=3), proposer=script(source))
        report = await runtime.pursue(wanted)
        seen = (await runtime.runner.state(report.session_id)).memory["seen"]
        last = ["ok world.weigh"]
        assert seen == [
            {"iteration": 0, "mass": None, "best": None, "last": []},
            {"iteration": 1, "mass": 5, "best": 5, "last": last},
            {"iteration": 2, "mass": 3, "best": 3, "last": last},
        ]
        assert (await runtime.runner.status(report.session_id)).best == {"mass <= 1": 3}


async def test_the_error_of_a_script_is_an_observation_that_the_next_iteration_sees(tmp_path: Path) -> None:
    source = """
if state.iteration == 0:
    state.memory["kept"] = "before the error"
    world.step("b")
    raise ValueError("lost the thread")
state.memory["errors"] = state.errors
mission.event("recovered")
"""
    async with stage(tmp_path, step) as runtime:
        wanted = mission(criteria=[event("recovered")], budget=Budget(max_iterations=9), proposer=script(source))
        report = await runtime.pursue(wanted)
        assert (report.status, report.data["iteration_count"]) == ("completed", 2)
        memory = (await runtime.runner.state(report.session_id)).memory
        assert memory["kept"] == "before the error"
        assert len(memory["errors"]) == 1 and "ValueError: lost the thread" in memory["errors"][0]
        assert "lost the thread" in (await history(runtime, report.session_id))[0]["observation"]["errors"][0]
        assert await outcomes(runtime, report.session_id) == [("world.step", "ok")]


@pytest.mark.parametrize(("source", "met"), [("script", True), ("world.step", False), (None, True)])
async def test_what_the_operators_script_observes_is_the_word_of_the_script(
    tmp_path: Path, source: str | None, met: bool
) -> None:
    text = "mission.observe('mass', 2.25)\nmission.event('certified', by='hand')"
    criteria = [metric("mass", source=source) <= 2.4, event("certified", source=source)]
    async with stage(tmp_path, step) as runtime:
        report = await runtime.pursue(mission(criteria=criteria, proposer=script(text)))
        assert report.completed is met
        for row in report.data["criteria"]:
            assert (row["source"] or {}).get("tool") == ("script" if met else None)
