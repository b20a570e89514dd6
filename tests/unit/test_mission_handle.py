"""The handle of a mission: what drives, what waits, and what only says something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import mission, proposal, repeat, replay, stage

import pursuit
from pursuit import Budget, Proposal, Report, Runtime, ToolCall, metric, tool
from pursuit.config.configuration import Configuration
from pursuit.errors import NotPaused, SessionNotFound
from pursuit.policy.rules import OperatorPolicy, Rule


@tool(read_only=True)
def count(x: float = 1) -> dict[str, Any]:
    return {"metrics": {"x": x}}


@tool(destructive=True)
def erase() -> dict[str, Any]:
    return {"metrics": {"erased": 1}}


async def test_start_runs_nothing_and_run_drives_to_the_end(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        handle = await runtime.start(mission(proposer=repeat("count"), criteria=[metric("x") >= 1]))
        status = await handle.status()
        assert (status.status, status.mission_id) == ("pending", handle.mission_id)
        report = await handle.run()
        assert isinstance(report, Report) and report.completed
        assert await handle.report() == report == await handle.result()
        assert (await handle.checkpoint()).verdict_reason == "criteria_met"
        assert runtime.mission(handle.mission_id) == handle


async def test_a_program_drives_step_by_step(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        wanted = mission(criteria=[metric("x") >= 3], budget=Budget(max_iterations=5))
        handle = await runtime.start(wanted)
        for x in (1, 3):
            step = await handle.iterate(proposal=Proposal(tool_calls=[ToolCall(tool_name="count", args={"x": x})]))
        assert step["status"] == "completed"
        assert len((await handle.history()).iterations) == 2
        other = await runtime.start(mission(proposer=repeat("count"), budget=Budget(max_iterations=5)))
        assert len((await other.iterate(3))["iterations"]) == 3


async def test_result_waits_for_another_runtime_and_never_drives(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as here, stage(tmp_path, count) as there, anyio.create_task_group() as tasks:
        handle = await here.start(mission(proposer=repeat("count")))
        reports: list[Report] = []

        async def wait() -> None:
            reports.append(await handle.result())

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not reports and (await handle.status()).iteration_count == 0
        await there.mission(handle.mission_id).run()
    assert [report.status for report in reports] == ["terminated"]


async def test_events_are_all_events_until_the_end_also_of_a_mission_that_was_extended(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        handle = await runtime.start(mission(proposer=repeat("count")))
        await handle.run()
        first = [type(update.event).__name__ async for update in handle.events()]
        assert first[0] == "MissionCreated" and "MissionEnded" in first
        await handle.extend(max_iterations=2)
        assert (await handle.run()).data["iteration_count"] == 2
        names = [(type(event).__name__, state.status) async for event, state in handle.events()]
        assert [name for name, _ in names][: len(first)] == first
        assert [name for name, _ in names].count("MissionEnded") == 2 and names[-1][1] == "terminated"


async def test_resume_lifts_a_pause_and_drives_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        handle = await runtime.start(mission(proposer=repeat("count"), budget=Budget(max_iterations=4)))
        await handle.iterate()
        await handle.pause(reason="lunch")
        status = await handle.status()
        assert (status.status, status.paused_reason) == ("paused", "lunch")
        await handle.resume()
        assert (await handle.status()).iteration_count == 1
        with pytest.raises(NotPaused):
            await handle.resume()
        await handle.abort(reason="enough")
        assert (await handle.result()).verdict_reason == "user_abort"
        other = await runtime.start(mission())
        await other.complete()
        assert (await other.result()).completed


async def test_a_question_is_answered_by_the_handle(tmp_path: Path) -> None:
    asks = Configuration(policy=OperatorPolicy(rules=(Rule(decision="ask", tool="erase"),)))
    async with Runtime(state=tmp_path / "a.db", config=asks, servers={"world": [erase]}) as runtime:
        wanted = mission(
            proposer=replay(proposal(("erase", {})), proposal(("erase", {}))), budget=Budget(max_iterations=2)
        )
        handle = await runtime.start(wanted)
        assert (await handle.run()).status == "waiting"
        (asked,) = await handle.approvals().list()
        await handle.approvals().approve(asked.approval_id)
        assert (await handle.run()).metric("erased") == 1
        (asked,) = await handle.approvals().list()
        await handle.approvals().deny(asked.approval_id, reason="once is enough")
        assert (await handle.run()).data["calls"]["by_outcome"]["denied"] == 1


async def test_the_ledger_is_listed_searched_and_verified(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        handle = await runtime.start(mission(proposer=repeat("count")))
        await handle.run()
        assert [row.mission_id for row in (await runtime.missions(status="terminated")).missions] == [handle.mission_id]
        assert await runtime.interrupted() == []
        assert (await runtime.verify()).ok
        assert "missions" in await runtime.lessons("happens")
        await handle.export(tmp_path / "mission.jsonl")
        assert (tmp_path / "mission.jsonl").stat().st_size
        await handle.forget()
        assert (await runtime.missions()).missions == []
        with pytest.raises(SessionNotFound):
            await handle.status()


async def test_a_mission_file_is_started_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURSUIT_TRUST", "1")
    file = tmp_path / "mission.toml"
    file.write_text(
        'directive = "See"\ntool_allowlist = ["world.count"]\nbudget = { max_iterations = 1 }\n'
        'criteria = [{ kind = "event", criterion_id = "never", event_name = "never" }]\n'
        '[proposer]\nkind = "repeat"\ntool_name = "world.count"\n'
    )
    async with stage(tmp_path, count) as runtime:
        assert (await (await runtime.start(file)).run()).verdict_reason == "max_iterations"


async def test_code_of_a_stored_mission_is_handed_in_again(tmp_path: Path) -> None:
    def thinner(view: pursuit.View) -> Any:
        return pursuit.call("python.count", x=view.iteration)

    config = Configuration()
    async with Runtime(state=tmp_path / "a.db", config=config, tools=[count]) as runtime:
        wanted = mission(proposer=thinner, criteria=[metric("x") >= 1], tool_allowlist=["python.*"])
        handle = await runtime.start(wanted.model_copy(update={"budget": Budget(max_iterations=3)}))
        await handle.iterate()
    async with Runtime(state=tmp_path / "a.db", config=config, tools=[count]) as runtime:
        assert (await runtime.mission(handle.mission_id, proposer=thinner).run()).completed


async def test_the_old_name_of_the_operations_warns(tmp_path: Path) -> None:
    async with stage(tmp_path, count) as runtime:
        with pytest.warns(DeprecationWarning, match="runtime.start"):
            assert runtime.service is runtime.runner
