"""Real `kill -9`s of a process that drives a parent and its children."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import driving
import pytest

from pursuit import Budget, Mission
from pursuit.core.budgets import used_of
from pursuit.core.criteria import event
from pursuit.core.mission import SPAWN

STEPS = 6
LONGEST = 120.0
AN_HOUR = 3_600_000


def spawn(name: str) -> dict[str, Any]:
    """A child whose second step is the one that the kill cuts off: it would take an hour."""
    proposals = [
        {"tool_calls": [{"tool_name": "world.step", "args": {"key": f"{name}{place}", "ms": AN_HOUR * (place == 1)}}]}
        for place in range(STEPS)
    ]
    args = {
        "directive": f"Take the steps of {name}",
        "criteria": [{"criterion_id": "never", "kind": "event", "event_name": "never"}],
        "budget": {"max_iterations": STEPS},
        "proposer": {"kind": "replay", "proposals": proposals},
        "stagnation_threshold": "off",
    }
    return {"tool_name": SPAWN, "args": args}


def mission() -> Mission:
    return Mission(
        directive="Let two take steps",
        criteria=[event("never")],
        budget=Budget(max_iterations=2 * STEPS + 1),
        allow_all_tools=True,
        fleet={"share_tools": True},
        proposer={"kind": "replay", "proposals": [{"tool_calls": [spawn("a"), spawn("b")]}]},
    )


async def killed(folder: Path) -> str:
    """A mission whose driver was killed while both children were at work."""
    state, record = folder / "ledger.db", folder / "record"
    async with driving.runtime(state, record) as here:
        mission_id = (await here.runner.start(mission())).session_id
    words = [sys.executable, driving.__file__, str(state), str(record), mission_id]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + LONGEST
        while not {"a1", "b1"} <= set(lines(record)):
            assert process.poll() is None and time.monotonic() < ends, lines(record)
            await anyio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return mission_id


def lines(record: Path) -> list[str]:
    return record.read_text(encoding="utf-8").split() if record.exists() else []


@pytest.mark.slow
@pytest.mark.guarantee("fleet-survives-crashes")
async def test_killed_with_children_at_work_the_parents_resume_goes_on_with_them(tmp_path: Path) -> None:
    mission_id = await killed(tmp_path)
    async with driving.runtime(tmp_path / "ledger.db", tmp_path / "record") as here:
        state = await here.runner.run(mission_id)
        assert state.verdict_reason == "max_iterations"
        assert len(state.children) == 2
        for name in state.children:
            child = await here.runner.state(name)
            assert (child.closed, child.verdict_reason, child.iteration_count) == (True, "max_iterations", STEPS)
        assert used_of(state)["max_iterations"] == 2 * STEPS + 1
    every = {f"{name}{place}": 1 for name in "ab" for place in range(STEPS)}
    assert Counter(lines(tmp_path / "record")) == every, "a step whose outcome is unknown is not repeated"


@pytest.mark.slow
@pytest.mark.guarantee("a-parents-end-is-its-childrens")
async def test_killed_with_children_at_work_an_abort_ends_them_all(tmp_path: Path) -> None:
    mission_id = await killed(tmp_path)
    async with driving.runtime(tmp_path / "ledger.db", tmp_path / "record") as here:
        state = await here.runner.abort(mission_id)
        assert (state.closed, len(state.children)) == (True, 2)
        done = 0
        for name in state.children:
            child = await here.runner.state(name)
            assert (child.closed, child.verdict_reason) == (True, "user_abort")
            done += child.iteration_count
        assert state.lent["max_iterations"] == done <= 2 * STEPS
        before = lines(tmp_path / "record")
        assert sorted(before) == ["a0", "a1", "b0", "b1"]
    async with driving.runtime(tmp_path / "ledger.db", tmp_path / "record") as here:
        assert await here.runner.interrupted() == []
    assert lines(tmp_path / "record") == before
