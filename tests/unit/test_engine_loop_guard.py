"""The loop guard: the third identical call in a row is refused while nothing changed, for those whom it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, history, mission, outcomes, proposal, repeat, replay, script, stage

from pursuit import Budget, Proposal, ToolCall, check, event, tool
from pursuit.core.events import CallIntended


def _same(key: str = "a") -> Proposal:
    return Proposal(tool_calls=[ToolCall(tool_name="look", args={"key": key})])


@pytest.mark.guarantee("loop-guard")
async def test_the_third_identical_call_in_a_row_is_refused_until_something_changes(tmp_path: Path) -> None:
    world = {"value": 1}

    def look(key: str) -> dict[str, int]:
        return dict(world)

    async with stage(tmp_path, look) as runtime:
        mission_id = (await runtime.runner.start(mission(budget=Budget(max_iterations=20)))).session_id

        async def ask(key: str = "a") -> str | None:
            await runtime.runner.iterate(mission_id, proposal=_same(key))
            return (await outcomes(runtime, mission_id))[-1][1]

        assert [await ask() for _ in range(4)] == ["ok", "ok", "denied", "denied"]
        reason = (await history(runtime, mission_id))[-1]["observation"]["errors"][0]
        assert "2 times in a row and nothing changed" in reason
        assert [await ask("b"), await ask(), await ask(), await ask()] == ["ok", "ok", "ok", "denied"]
        assert len(await events_of(runtime, mission_id, CallIntended)) == 5


@pytest.mark.guarantee("loop-guard")
async def test_a_call_whose_result_changes_is_never_refused(tmp_path: Path) -> None:
    count = iter(range(100))

    def look(key: str) -> dict[str, int]:
        return {"value": next(count)}

    async with stage(tmp_path, look) as runtime:
        mission_id = (await runtime.runner.start(mission(budget=Budget(max_iterations=5)))).session_id
        for _ in range(5):
            await runtime.runner.iterate(mission_id, proposal=_same())
        assert [outcome for _, outcome in await outcomes(runtime, mission_id)] == ["ok"] * 5


@pytest.mark.guarantee("loop-guard")
async def test_the_runtimes_own_checks_do_not_hide_a_loop(tmp_path: Path) -> None:
    """A check between two proposals is no call of the proposer's: its calls are still identical and in a row."""

    @tool(read_only=True)
    def look(key: str) -> str:
        return "the same"

    @tool(read_only=True)
    def audit() -> str:
        return "nothing new"

    criteria = [event("never"), check("audit", when="checkpoint").optional()]
    async with stage(tmp_path, look, audit) as runtime:
        wanted = mission(criteria=criteria, budget=Budget(max_iterations=9))
        mission_id = (await runtime.runner.start(wanted)).session_id
        for _ in range(3):
            await runtime.runner.iterate(mission_id, proposal=_same())
        looks = [outcome for name, outcome in await outcomes(runtime, mission_id) if name == "world.look"]
        assert looks == ["ok", "ok", "denied"]


@pytest.mark.guarantee("loop-guard")
@pytest.mark.parametrize(
    "proposer",
    [repeat("look", key="a"), script("world.look('a')"), replay(*[proposal(("look", {"key": "a"}))] * 5)],
)
async def test_the_loop_guard_leaves_the_operators_own_proposers_and_replays_alone(
    tmp_path: Path, proposer: dict[str, Any]
) -> None:
    def look(key: str) -> str:
        return "the same"

    async with stage(tmp_path, look) as runtime:
        report = await runtime.pursue(mission(budget=Budget(max_iterations=5), proposer=proposer))
        assert report.data["calls"]["by_outcome"] == {"ok": 5}


@pytest.mark.guarantee("loop-guard")
async def test_the_loop_guard_watches_scripts_that_others_propose(tmp_path: Path) -> None:
    def look(key: str) -> str:
        return "the same"

    source = "for _ in range(3):\n  try:\n    world.look('a')\n  except RuntimeError:\n    pass"
    async with stage(tmp_path, look) as runtime:
        mission_id = (await runtime.runner.start(mission(allow_scripted_strategies=True))).session_id
        await runtime.runner.iterate(mission_id, proposal=Proposal(script=source))
        assert [outcome for _, outcome in await outcomes(runtime, mission_id)] == ["ok", "ok", "denied"]


@pytest.mark.guarantee("loop-guard")
async def test_the_loop_guard_watches_scripts_in_a_replay_and_does_not_count_its_calls(tmp_path: Path) -> None:
    """One rule says which calls are refused and which are counted: a replay is guarded in its scripts only."""

    def look(key: str) -> str:
        return "the same"

    source = "for _ in range(3):\n  try:\n    world.look('a')\n  except RuntimeError:\n    pass"
    same = proposal(("look", {"key": "a"}))
    async with stage(tmp_path, look) as runtime:
        wanted = mission(
            budget=Budget(max_iterations=3),
            proposer=replay(same, same, {"script": source}),
            allow_scripted_strategies=True,
        )
        mission_id = (await runtime.runner.start(wanted)).session_id
        await runtime.runner.run(mission_id)
        found = [outcome for _, outcome in await outcomes(runtime, mission_id)]
        assert found == ["ok", "ok", "ok", "ok", "denied"]
