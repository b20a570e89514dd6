"""Fleets: children out of the parent's budget, with its tools and under its policy, side by side and in their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_stage import events_of, mission, play, proposal, replay, stage

from pursuit import Budget, metric, tool
from pursuit.model.events import CallIntended, CallSettled, MissionCreated

SPAWN = "fleet.spawn"


@tool(read_only=True, parallel_safe=True)
def measure(value: float = 7) -> dict[str, Any]:
    """Looks."""
    return {"metrics": {"score": value}}


def child(**given: Any) -> dict[str, Any]:
    """The arguments of a spawn whose child measures once and is done."""
    return {
        "directive": "Measure",
        "criteria": [{"criterion_id": "c", "kind": "metric_threshold", "metric": "score", "op": ">=", "target": 7}],
        "budget": {"max_iterations": 2},
        "tool_allowlist": ["world.measure"],
        "proposer": {"kind": "repeat", "tool_name": "world.measure", "args": {}},
        **given,
    }


def parent(*calls: dict[str, Any], **given: Any) -> Any:
    defaults: dict[str, Any] = {
        "budget": Budget(max_iterations=10),
        "fleet": {},
        "criteria": [metric("score", source=SPAWN) >= 7],
        "proposer": replay(proposal(*[(SPAWN, args) for args in calls])),
    }
    return mission(**{**defaults, **given})


def test_a_child_is_pursued_and_its_metrics_meet_the_parents_criteria(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stage(tmp_path, measure) as runtime:
            mission_id = (await runtime.service.start(parent(child()))).session_id
            state = await runtime.service.run(mission_id)
            assert (state.status, state.verdict_reason) == ("completed", "criteria_met")
            (intent,) = await events_of(runtime, mission_id, CallIntended)
            (settled,) = await events_of(runtime, mission_id, CallSettled)
            assert intent.reserved == {"max_iterations": 2}
            assert settled.used == {"max_iterations": 1, "max_tool_calls": 1, "max_tokens": 0, "max_cost_usd": 0}
            status = await runtime.service.status(mission_id)
            assert status["budget"]["used"]["iterations"] == 2
            assert status["budget"]["used"]["tool_calls"] == 2
            (row,) = status["children"]
            assert (row["status"], row["directive"]) == ("completed", "Measure")
            (made,) = await events_of(runtime, row["session_id"], MissionCreated)
            assert made.parent == mission_id
            listed = {one["session_id"]: one.get("parent") for one in (await runtime.service.list())["sessions"]}
            assert listed == {mission_id: None, row["session_id"]: mission_id}

    play(scene)
