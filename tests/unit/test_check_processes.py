"""The processes of checks: whoever stops a command, nobody of its group is left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from engine_stage import driving, mission, outcomes, repeat, stage
from hands import LONG, Hands
from process_ends import wait_gone

from pursuit import check, event
from pursuit.engine.commands import run_command


def certify() -> dict[str, Any]:
    """Meets the criterion that stands beside the check."""
    return {"events": [{"event_name": "certified"}]}


SPAWNS = ["sh", "-c", "sleep 600 & echo $! > child.tmp && mv child.tmp child; wait"]


async def test_a_command_past_its_timeout_is_killed_with_its_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(monkeypatch)
    criteria = [event("certified"), check(SPAWNS, cwd=str(tmp_path), timeout=LONG)]
    async with stage(tmp_path, certify) as runtime:
        started = await runtime.runner.start(mission(criteria=criteria, proposer=repeat("certify")))
        async with driving(runtime, started.session_id):
            while not (tmp_path / "child").exists():
                await anyio.sleep(0.01)
            hands.forward()
        report = await runtime.report(started.session_id)
    row = report.data["criteria"][1]
    assert (report.verdict_reason, row["status"]) == ("max_iterations", "inconclusive")
    assert row["evidence"]["error"].startswith("timed_out")
    wait_gone(int((tmp_path / "child").read_text()))


async def test_a_word_of_the_operator_kills_a_command_with_its_whole_group(tmp_path: Path) -> None:
    criteria = [event("certified"), check(SPAWNS, cwd=str(tmp_path))]
    async with stage(tmp_path, certify) as runtime:
        started = await runtime.runner.start(mission(criteria=criteria, proposer=repeat("certify")))
        async with driving(runtime, started.session_id):
            while not (tmp_path / "child").exists():
                await anyio.sleep(0.01)
            await runtime.runner.abort(started.session_id)
        assert (await outcomes(runtime, started.session_id))[-1][1] == "cancelled"
        assert (await runtime.report(started.session_id)).verdict_reason == "user_abort"
    wait_gone(int((tmp_path / "child").read_text()))


async def test_a_command_that_is_stopped_while_it_is_being_started_leaves_nobody(tmp_path: Path) -> None:
    child = tmp_path / "child"
    with anyio.CancelScope() as scope:

        def stop() -> None:
            if before == set(psutil.Process().children()):
                loop.call_soon(stop)
                return
            ends = time.monotonic() + 60
            while not child.exists() and time.monotonic() < ends:  # whoever starts it cannot go on meanwhile
                time.sleep(0.001)
            scope.cancel()

        loop, before = asyncio.get_running_loop(), set(psutil.Process().children())
        loop.call_soon(stop)
        await run_command(SPAWNS, str(tmp_path))
    assert scope.cancelled_caught
    wait_gone(int(child.read_text()))
