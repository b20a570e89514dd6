"""A check that comes after a tool: it looks once there is something to look at, whatever came of the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_stage import events_of, mission, proposal, replay, stage

from pursuit import Budget, ValidationFailed, check
from pursuit.core.events import CallIntended


def look() -> str:
    return "seen"


def hand_in(good: bool) -> str:
    if not good:
        raise ValueError("not this")
    return "taken"


async def checked(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[int]:
    """The iterations in which the check was made, one call in each."""
    async with stage(folder, look, hand_in) as runtime:
        report = await runtime.pursue(
            mission(
                criteria=[check(["false"], after="hand_in")],
                budget=Budget(max_iterations=len(calls)),
                proposer=replay(*(proposal(call) for call in calls)),
            )
        )
        made = await events_of(runtime, report.session_id, CallIntended)
        return [one.iteration for one in made if one.purpose == "check"]


async def test_it_is_made_where_the_tool_was_called_and_always_after_its_success(tmp_path: Path) -> None:
    good, bad, other = ("world.hand_in", {"good": True}), ("world.hand_in", {"good": False}), ("world.look", {})
    assert await checked(tmp_path / "refused", other, bad, other, bad, other) == [1, 3]
    assert await checked(tmp_path / "taken", other, good, other, other) == [1, 2, 3]


async def test_the_tool_must_be_one_of_the_mission(tmp_path: Path) -> None:
    async def scene() -> ValidationFailed | None:
        async with stage(tmp_path, look) as runtime:
            try:
                await runtime.runner.start(mission(criteria=[check(["true"], after="hand_in")]))
            except ValidationFailed as failed:
                return failed
        return None

    failed = await scene()
    assert failed is not None and [fault.field for fault in failed.faults] == ["criteria[0].after"]
