"""Crashes before and after ledger writes of a mission with children, restarts, and looks at what was really spent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from crashing import CrashingRuntime, World, first_run

from pursuit import Budget, Mission
from pursuit.core.budgets import used_of
from pursuit.core.caps import POOLED
from pursuit.core.criteria import event
from pursuit.core.mission import SPAWN

SOAK = "PURSUIT_SOAK" in os.environ
CAPS = {"max_iterations": 9, "max_tool_calls": 10}


def calls(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"tool_calls": [{"tool_name": tool, "args": {"key": key}} for tool, key in pairs]}


def child(tool: str, name: str) -> dict[str, Any]:
    proposals = [calls((tool, f"{name}1")), calls((tool, f"{name}2"), (tool, f"{name}3"))]
    return {
        "directive": f"Leave the marks of {name}",
        "criteria": [{"criterion_id": "never", "kind": "event", "event_name": "never"}],
        "budget": {"max_iterations": 2, "max_tool_calls": 3},
        "tool_allowlist": [f"world.{tool}"],
        "proposer": {"kind": "replay", "proposals": proposals},
        "stagnation_threshold": "off",
    }


def mission() -> Mission:
    spawns = [{"tool_name": SPAWN, "args": child("write", "w-a")}, {"tool_name": SPAWN, "args": child("put", "p-b")}]
    late = {"tool_name": SPAWN, "args": {**child("write", "w-c"), "budget": {"max_iterations": 3, "max_tool_calls": 1}}}
    return Mission(
        directive="Let others leave marks",
        criteria=[event("never")],
        budget=Budget(**CAPS),
        allow_all_tools=True,
        stagnation_threshold="off",
        fleet={},
        proposer={"kind": "replay", "proposals": [{"tool_calls": spawns}, {"tool_calls": [late]}]},
    )


async def check(runtime: CrashingRuntime, world: World, mission_id: str) -> None:
    state = await runtime.runner.state(mission_id)
    assert state.closed
    listed = {row["session_id"] for row in (await runtime.runner.list()).as_json()["sessions"]} - {mission_id}
    assert listed <= set(state.children), "a spawn has one child, however often it is begun"
    assert all(child.used == {} for name, child in state.children.items() if name not in listed)
    spent = dict.fromkeys(POOLED, 0.0)
    for name in listed:
        kept = await runtime.runner.state(name)
        assert kept.closed, f"{name} was left {kept.status}"
        assert kept.parent == mission_id
        for cap, amount in used_of(kept).items():
            spent[cap] += amount
    for cap, amount in CAPS.items():
        assert used_of(state)[cap] <= amount
        assert state.lent.get(cap, 0) == spent[cap], f"{cap}: what came back is what was not used"
    assert len(world.executed) <= CAPS["max_tool_calls"] - state.tool_calls
    assert all(times == 1 for key, times in world.executed.items() if key.startswith("w"))
    assert (await runtime.runner.verify()).ok


async def crash_and_restart(folder: Path, at: int, when: Literal["before", "after"], *, abort: bool) -> None:
    world = World()
    path = folder / f"{at}-{when}-{abort}" / "ledger.db"
    mission_id, _ = await first_run(mission(), world, path, at, when)
    if mission_id is None:
        return
    async with CrashingRuntime(world, path) as runtime:
        state = await runtime.runner.state(mission_id)
        if state.terminal:
            await runtime.runner.report(mission_id)
        elif abort:
            await runtime.runner.abort(mission_id)
        else:
            after = await runtime.runner.run(mission_id)
            assert (after.verdict_reason, after.iteration_count) == ("max_tool_calls", 2)
        await check(runtime, world, mission_id)


async def undisturbed(folder: Path) -> int:
    world = World()
    path = folder / "calm" / "ledger.db"
    mission_id, writes = await first_run(mission(), world, path, None, "before")
    assert mission_id is not None
    async with CrashingRuntime(world, path) as runtime:
        await check(runtime, world, mission_id)
        assert world.executed.total() == 7
    return writes


@pytest.mark.guarantee("fleet-never-over-spends")
@pytest.mark.guarantee("fleet-survives-crashes")
@pytest.mark.parametrize(
    ("when", "abort"), [("after", False), ("after", True), pytest.param("before", False, marks=pytest.mark.soak)]
)
def test_the_budget_holds_and_every_child_ends_whenever_the_process_dies(
    tmp_path: Path, when: Literal["before", "after"], abort: bool
) -> None:
    async def scene() -> None:
        writes = await undisturbed(tmp_path)
        assert writes > 30
        for at in range(1 + abort, writes + 1, 1 if SOAK else 3):
            with anyio.fail_after(120):
                await crash_and_restart(tmp_path, at, when, abort=abort)

    anyio.run(scene)
