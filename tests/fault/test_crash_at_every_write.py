"""Crashes before and after every ledger write of a mission, restarts, and looks at what really happened."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from crashing import CrashingRuntime, World, calls_of, first_run
from postgres_server import NewDatabase

from pursuit import Budget, Mission, View
from pursuit import call as propose_call
from pursuit.core.criteria import check, event, metric, predicate
from pursuit.engine.driver import RunOrder
from pursuit.errors import LedgerUnavailable
from pursuit.ledger.opening import file_of

REPEATABLE = {"world.read", "world.put"}
SCRIPT = """
import asyncio
first = await asyncio.gather(world.read("s-r1"), world.read("s-r2"), world.send("s-s1"))
world.write("w-s1")
state.memory["runs"] = state.memory.get("runs", 0) + 1
try:
    world.put(key="s-p1")
except RuntimeError:
    state.memory["lost"] = True
mission.observe("script_runs", state.memory["runs"])
await world.write(key="w-s2")
"""


def mission() -> Mission:
    def calls(*pairs: tuple[str, str]) -> dict[str, Any]:
        return {"tool_calls": [{"tool_name": tool, "args": {"key": key}} for tool, key in pairs]}

    return Mission(
        directive="Leave marks in the world",
        criteria=[
            metric("reads") >= 10_000,
            event("wrote", source="world.write").optional(),
            predicate("obs['iteration'] >= 0").optional(),
            check("put", {"key": "c-check"}, when="checkpoint").optional(),
        ],
        budget=Budget(max_iterations=5),
        allow_all_tools=True,
        stagnation_threshold="off",
        allow_scripted_strategies=True,
        proposer={
            "kind": "replay",
            "proposals": [
                calls(("read", "r1"), ("read", "r2"), ("send", "s1"), ("send", "s2")),
                calls(("write", "w1"), ("read", "r3"), ("put", "p1"), ("write", "w2")),
                {"script": SCRIPT},
                {"tool_calls": []},
                calls(("write", "w3")),
            ],
        },
    )


async def _crash_and_restart(state: Path, at: int, when: Literal["before", "after"]) -> None:
    world = World()
    mission_id, _ = await first_run(mission(), world, state, at, when)
    before = dict(world.executed)
    async with CrashingRuntime(world, state) as runtime:
        if mission_id is None:
            found = (await runtime.runner.list()).as_json()["sessions"]
            assert len(found) == (1 if (at, when) == (2, "after") else 0), "the first write is the audit's"
            assert not before, "nothing may run before the mission is stored"
            return
        pending = await calls_of(runtime.ledger, mission_id)
        state_before = await runtime.runner.state(mission_id)
        if not state_before.terminal:
            await runtime.runner.run(mission_id)
        after = await runtime.runner.state(mission_id)
        assert after.status == "terminated"
        assert after.verdict_reason == "max_iterations"
        assert after.iteration_count == 5
        assert (await runtime.runner.verify()).ok
        _check(world, pending, await calls_of(runtime.ledger, mission_id), before)


def _check(world: World, pending: dict[str, Any], calls: dict[str, Any], before: dict[str, int]) -> None:
    for call_id, call in calls.items():
        where = f"{call_id} {call}"
        assert len(call["settled"]) == 1, f"an intended call was lost or settled twice: {where}"
        times = world.executed[call["key"]]
        left_open = call_id in pending and not pending[call_id]["settled"]
        settled_before = call_id in pending and bool(pending[call_id]["settled"])
        if settled_before and call["key"] != "c-check":
            assert times == before.get(call["key"], 0), f"a settled call ran again: {where}"
        if left_open and call["tool"] not in REPEATABLE:
            assert call["settled"] == ["unknown"], where
            assert times == before.get(call["key"], 0), f"an unknown call was repeated: {where}"
        if left_open and call["tool"] in REPEATABLE:
            assert call["settled"] == ["ok"], where
            assert call["intents"] == 2, where
    checks = [call for call in calls.values() if call["key"] == "c-check"]
    assert len(checks) <= world.executed["c-check"] <= sum(call["intents"] for call in checks)
    assert set(world.executed) <= {call["key"] for call in calls.values()} | {"c-check"}, "an effect without an intent"


@pytest.mark.guarantee("crash-at-every-write")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path, when: Literal["before", "after"]) -> None:
    _, writes = await first_run(mission(), World(), tmp_path / "whole" / "ledger.db", None, when)
    for at in range(1, writes + 1):
        await _crash_and_restart(tmp_path / f"{at}-{when}" / "ledger.db", at, when)
    assert writes > 25, "the mission is too short to be a test"


@pytest.mark.guarantee("crash-at-every-write")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_nothing_is_lost_and_nothing_runs_twice_on_postgres(
    tmp_path: Path, new_database: NewDatabase, when: Literal["before", "after"]
) -> None:
    """Every sixth write, since the engine is the same; the soak run takes all."""
    _, writes = await first_run(mission(), World(), file_of(new_database(), tmp_path), None, when)
    for at in range(1, writes + 1, 1 if os.environ.get("PURSUIT_SOAK") else 6):
        await _crash_and_restart(file_of(new_database(), tmp_path), at, when)
    assert writes > 25, "the mission is too short to be a test"


@pytest.mark.guarantee("crash-at-every-write")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_function_is_asked_again_for_what_is_not_durable(
    tmp_path: Path, when: Literal["before", "after"]
) -> None:
    asked: list[int] = []

    def propose(view: View) -> Any:
        asked.append(view.iteration)
        assert view.memory.get("asked", 0) == view.iteration, "its memory is that of the proposals that are stored"
        view.memory["asked"] = view.iteration + 1
        return propose_call("world.write", key=f"w{view.iteration}")

    wanted = Mission(
        directive="d",
        criteria=[metric("reads") >= 10_000],
        budget=Budget(max_iterations=3),
        allow_all_tools=True,
        stagnation_threshold="off",
        proposer=propose,
    )
    _, writes = await first_run(wanted, World(), tmp_path / "whole" / "ledger.db", None, when)
    for at in range(1, writes + 1):
        world, state = World(), tmp_path / f"{at}-{when}" / "ledger.db"
        asked.clear()
        mission_id, _ = await first_run(wanted, world, state, at, when)
        if mission_id is None:
            continue
        async with CrashingRuntime(world, state) as runtime:
            runtime.runner.driver.place.handed[mission_id] = propose
            if not (found := await runtime.runner.state(mission_id)).terminal:
                await runtime.runner.run(mission_id)
            found = await runtime.runner.state(mission_id)
            assert (found.iteration_count, found.remembered) == (3, {"asked": 3})
            assert (sorted(set(asked)), len(asked) <= 4) == ([0, 1, 2], True)
    assert writes > 8, "the mission is too short to be a test"


class _FullDisk:
    """A ledger on a disk that is full from a chosen write on; everything else is the real one."""

    def __init__(self, ledger: Any, world: World, at: int) -> None:
        self._ledger = ledger
        self._world = world
        self._at = at
        self._writes = 1
        self.marks: dict[str, int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, *args: Any, **named: Any) -> Any:
        self._writes += 1
        if self._writes >= self._at:
            self.marks = self.marks if self.marks is not None else dict(self._world.executed)
            raise LedgerUnavailable("database or disk is full")
        return await self._ledger.append(*args, **named)


async def _full_disk(folder: Path, at: int) -> None:
    world = World()
    state = folder / str(at) / "ledger.db"
    async with CrashingRuntime(world, state) as runtime:
        mission_id = (await runtime.runner.start(mission())).session_id
        full = _FullDisk(runtime.ledger, world, at)
        driver = replace(runtime.runner.driver, ledger=full)
        with pytest.raises(LedgerUnavailable):
            await driver.drive(RunOrder(mission_id))
        assert full.marks is not None
        began = {key for key in world.executed if key not in full.marks}
        intended = {call["key"] for call in (await calls_of(runtime.ledger, mission_id)).values()}
        assert began <= intended, f"effects without a durable intent: {began - intended}"
        marks = dict(world.executed)
    async with CrashingRuntime(world, state) as runtime:
        await runtime.runner.run(mission_id)
        calls = await calls_of(runtime.ledger, mission_id)
        assert all(len(call["settled"]) == 1 for call in calls.values())
        for call in calls.values():
            if call["settled"] == ["unknown"]:
                assert world.executed[call["key"]] == marks.get(call["key"], 0), "an unknown call was repeated"


@pytest.mark.guarantee("no-effect-without-intent")
async def test_a_full_disk_stops_before_the_next_effect(tmp_path: Path) -> None:
    """The writer refuses from a chosen write on: no tool runs after it, and a later run loses nothing."""
    for at in range(2, 14):
        await _full_disk(tmp_path, at)
