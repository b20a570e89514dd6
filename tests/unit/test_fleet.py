"""Fleets: children out of the parent's budget, under its policy, side by side and in their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import (
    driving,
    events_of,
    mission,
    outcomes,
    play,
    repeat,
    script,
    stage,
    until,
)
from fleet_stage import SPAWN, Crowd, child, entering, measure, parent

from pursuit import Budget, Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.child_admission import wanted_child
from pursuit.core.events import CallIntended, CallRefused, CallSettled, MissionCreated
from pursuit.core.fold import advance
from pursuit.core.state import MissionState
from pursuit.errors import ValidationFailed
from pursuit.policy.rules import OperatorPolicy, Tightening
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller


@pytest.mark.guarantee("fleet-never-over-spends")
async def test_the_rest_of_a_batch_that_does_not_fit_the_budget_is_skipped(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        wanted = parent(
            child(budget={"max_iterations": 4, "max_tool_calls": 3}),
            child(budget={"max_iterations": 4, "max_tool_calls": 4}),
            child(budget={"max_iterations": 4, "max_tool_calls": 2}),
            child(budget={"max_iterations": 1}),
            budget=Budget(max_iterations=9, max_tool_calls=8),
        )
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        assert [outcome for _tool, outcome in await outcomes(runtime, mission_id)] == [
            "ok",
            "skipped",
            "ok",
            "denied",
        ]
        skipped, denied = await events_of(runtime, mission_id, CallRefused)
        assert "max_tool_calls = 4, but only 3 is left" in skipped.reason
        assert "budget.max_tool_calls: must be given" in denied.reason


@pytest.mark.guarantee("fleet-limits")
async def test_children_run_side_by_side_up_to_at_once(tmp_path: Path) -> None:
    crowd = Crowd(2)
    async with stage(tmp_path, crowd.enter) as runtime:
        wanted = parent(*[entering()] * 4, fleet={"at_once": 2, "share_tools": True})
        mission_id = (await runtime.runner.start(wanted)).session_id
        async with driving(runtime, mission_id):
            await crowd.full.wait()
            crowd.go.set()
        assert (await runtime.runner.state(mission_id)).status == "completed"
        assert [outcome for _tool, outcome in await outcomes(runtime, mission_id)] == ["ok"] * 4
        assert crowd.most == 2


@pytest.mark.guarantee("children-are-no-looser")
async def test_no_two_children_write_through_one_tool(tmp_path: Path) -> None:
    crowd = Crowd(1)
    crowd.go.set()
    async with stage(tmp_path, crowd.enter, measure) as runtime:
        wanted = parent(entering(), entering(), child(), child())
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        assert [outcome for _tool, outcome in await outcomes(runtime, mission_id)] == ["ok", "denied", "ok", "ok"]
        (refused,) = await events_of(runtime, mission_id, CallRefused)
        (first, *_) = await events_of(runtime, mission_id, CallIntended)
        assert "world.enter may write" in refused.reason
        assert f"mission-{(first.task or '')[5:21]} uses it" in refused.reason


@pytest.mark.guarantee("children-are-no-looser")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tool_allowlist": ["world.other"]}, "'world.other' is not a tool of the parent"),
        ({"fleet": {}}, "fleet.max_depth is 1"),
        ({"proposer": {"kind": "client"}}, "clients do not drive children"),
        ({"proposer": {"kind": "sampling"}}, "clients do not drive children"),
        ({"budget": {"max_iterations": 1, "on_exhausted": "wait"}}, "stops at its caps"),
        ({"budget": {"max_wall_clock_seconds": 5}}, "budget.max_iterations: must be given"),
        ({"budget": {"max_iterations": 1, "max_wall_clock_seconds": 61}}, "can be at most 60"),
        (
            {"criteria": [{"criterion_id": "c", "kind": "check", "command": ["true"]}]},
            "may run only its parent's commands",
        ),
        ({"directive": ""}, "directive: "),
    ],
)
def test_a_child_that_may_not_be_is_denied_with_the_reason(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    async def scene() -> None:
        async with stage(tmp_path, measure) as runtime:
            wanted = parent(child(**changes), budget=Budget(max_iterations=3, max_wall_clock_seconds=60))
            mission_id = (await runtime.runner.start(wanted)).session_id
            await runtime.runner.run(mission_id)
            (refused,) = await events_of(runtime, mission_id, CallRefused)
            assert refused.outcome == "denied"
            assert said in refused.reason
            assert (await runtime.runner.state(mission_id)).lent == {}

    play(scene)


async def test_a_child_that_names_what_is_not_there_costs_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        wrong = child(criteria=[{"criterion_id": "c", "kind": "tool_call_succeeded", "tool_name": "world.gone"}])
        mission_id = (await runtime.runner.start(parent(wrong))).session_id
        state = await runtime.runner.run(mission_id)
        (settled,) = await events_of(runtime, mission_id, CallSettled)
        assert settled.outcome == "failed"
        assert "criteria[0].tool_name" in (settled.error or "")
        assert set(state.lent.values()) == {0}


@pytest.mark.guarantee("fleet-limits")
async def test_there_are_no_more_children_than_max_children(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        poor = child(budget={"max_iterations": 1}, proposer=repeat("world.measure", value=1))
        wanted = parent(budget=Budget(max_iterations=20), fleet={"max_children": 2}, proposer=repeat(SPAWN, **poor))
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        found = [outcome for _tool, outcome in await outcomes(runtime, mission_id)]
        assert found[:3] == ["ok", "ok", "denied"]
        assert "ok" not in found[2:]


@pytest.mark.guarantee("fleet-limits")
async def test_a_grandchilds_use_is_its_grandparents_use_too(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        middle = child(
            tool_allowlist=["world.measure"],
            budget={"max_iterations": 6, "max_tool_calls": 5},
            fleet={"max_children": 1},
            proposer=repeat(SPAWN, **child(budget={"max_iterations": 3, "max_tool_calls": 2})),
        )
        wanted = parent(middle, budget=Budget(max_iterations=10, max_tool_calls=10), fleet={"max_depth": 2})
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id)
        assert state.status == "completed"
        used = (await runtime.runner.status(mission_id)).as_json()["budget"]["used"]
        assert (used["iterations"], used["tool_calls"]) == (3, 3)
        assert len((await runtime.runner.list()).as_json()["sessions"]) == 3


async def test_only_a_mission_with_a_fleet_is_offered_the_tool(tmp_path: Path) -> None:
    async with stage(tmp_path, measure) as runtime:
        plain = (await runtime.runner.start(mission(proposer=repeat("world.measure")))).session_id
        assert (await runtime.runner.state(plain)).tools == ("world.measure",)
        with pytest.raises(ValidationFailed) as refused:
            await runtime.runner.start(mission(tool_allowlist=[SPAWN, "world.measure"]))
        assert "no server offers a tool 'fleet.spawn'" in refused.value.faults[0].reason
        assert [row["name"] for row in (await runtime.toolbox.listing())["tools"]] == ["world.measure"]
        foreseen = await runtime.toolbox.foresee(parent(child()))
        assert {row["name"]: row["decision"] for row in foreseen["tools"]} == {
            "world.measure": "allow",
            SPAWN: "allow",
        }
        assert foreseen["failures"] == {}


@pytest.mark.guarantee("children-are-no-looser")
async def test_the_parents_policy_holds_for_its_children_and_their_questions_are_asked_as_usual(tmp_path: Path) -> None:
    crowd = Crowd(1)
    crowd.go.set()
    async with stage(tmp_path, crowd.enter) as runtime:
        wanted = parent(entering(), policy={"ask": ["enter"]})
        mission_id = (await runtime.runner.start(wanted)).session_id
        approvals = Approvals(runtime.runner)
        async with driving(runtime, mission_id):
            await until(runtime, mission_id, lambda state: state.waiting_for == "task")
            (row,) = (await runtime.runner.status(mission_id)).as_json()["children"]
            while await runtime.runner.ledger.row(row["session_id"]) is None:  # its id is recorded first
                await anyio.sleep(0.01)
            await until(runtime, row["session_id"], lambda state: state.waiting_for == "approval")
            (asked,) = await approvals.open()
            assert (asked.stream, asked.tool) == (row["session_id"], "world.enter")
            await approvals.answer(asked.approval_id, "once")
        assert (await runtime.runner.state(mission_id)).status == "completed"


def modelled(**given: Any) -> MissionState:
    """The state of a mission whose proposer is a language model."""
    wanted = parent(proposer="openai:gpt", **given)
    return advance(None, MissionCreated(mission=wanted.model_dump(mode="json"), tools=["world.measure", SPAWN]))


@pytest.mark.guarantee("children-are-no-looser")
def test_what_a_model_writes_of_a_child_is_never_the_operators_word() -> None:
    state = modelled()
    rule = {"tool": "world.measure", "metric": "score", "regex": "(7)"}
    with pytest.raises(ValidationFailed) as refused:
        wanted_child(state, child(proposer=script("pass"), observe=[rule]))
    assert {fault.field for fault in refused.value.faults} == {"proposer", "observe"}
    assert wanted_child(state, {k: v for k, v in child().items() if k != "proposer"}).proposer.kind == "model"
    child_state = advance(
        None,
        MissionCreated(
            mission=parent(child()).model_dump(mode="json"), tools=["world.measure", SPAWN], operators_own=False
        ),
    )
    with pytest.raises(ValidationFailed):
        wanted_child(child_state, child(proposer=script("pass")))
    looks = {"criterion_id": "c", "kind": "check", "tool_name": "world.measure", "expect": {"file": "secret"}}
    with pytest.raises(ValidationFailed) as refused:
        wanted_child(child_state, child(criteria=[looks]))
    assert "look for files" in refused.value.faults[0].reason


@pytest.mark.guarantee("children-are-no-looser")
def test_a_child_is_never_looser_than_its_parent() -> None:
    policy = {"ask": ["measure"], "mode": "never"}
    found = wanted_child(modelled(policy=policy), child(policy={"mode": "ask"})).policy
    assert (found.ask, found.mode) == (["world.measure"], "never")


async def test_a_child_is_under_the_policy_for_whoever_started_its_parent(tmp_path: Path) -> None:
    layer = Tightening(who="the caller guest", deny=("world.measure",))
    policy = OperatorPolicy(mode="auto", callers={"guest": layer})
    runtime = Runtime(state=tmp_path / "ledger.db", config=Configuration(policy=policy), servers={"world": [measure]})
    async with runtime:
        guest = Caller(who="guest", transport="http", credential="guest")
        mission_id = (await runtime.runner.start(parent(child()), caller=guest)).session_id
        await runtime.runner.run(mission_id)
        rows = (await runtime.runner.list()).as_json()["sessions"]
        (born,) = [row["session_id"] for row in rows if row["session_id"] != mission_id]
        page = (await runtime.runner.history(born, full=True)).as_json()
        assert [call["outcome"] for call in page["iterations"][0]["calls"]] == ["denied"]


async def test_a_parents_wall_clock_runs_while_its_children_work_and_ends_them(tmp_path: Path) -> None:
    crowd = Crowd(1)
    async with stage(tmp_path, crowd.enter, settings={"task_patience": 0.05}) as runtime:
        wanted = parent(entering(), budget=Budget(max_iterations=10, max_wall_clock_seconds=0.4))
        mission_id = (await runtime.runner.start(wanted)).session_id
        state = await runtime.runner.run(mission_id)
        assert (state.verdict_reason, state.waiting_for) == ("max_wall_clock", None)
        assert state.wall_clock >= 0.4
        # Slowly, the child's own clock, which is its parent's, may end it first.
        assert [outcome for _, outcome in await outcomes(runtime, mission_id)] in (["cancelled"], ["ok"])
        (row,) = (await runtime.runner.status(mission_id)).as_json()["children"]
        assert (row["status"], crowd.inside) == ("terminated", 0)  # on a slow machine it never gets inside
