"""Real `kill -9`s of the real command at random moments, with a real MCP server that records each execution."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from crashing import calls_of
from mission_files import NEVER, mission_file, recorder
from process_ends import lives
from quick_start import pursuit

from pursuit.core.events import CallSettled, IterationEnded, RunClaimed, decode
from pursuit.ledger.sqlite import SqliteLedger

KILLS = 200 if os.environ.get("PURSUIT_SOAK") else 3
# However slow the machine is, so many iterations are left undisturbed.
CALM = 5 * KILLS
CALLS = 5  # of each script
PURSUIT = Path(sys.executable).with_name("pursuit")

SCRIPT = """
import asyncio
n = state.iteration
rec.step(key=f"{n}-a", ms=4)
await asyncio.gather(rec.look(key=f"{n}-b"), rec.look(key=f"{n}-c"))
try:
    await rec.step(key=f"{n}-d", ms=4)
except RuntimeError as error:
    mission.event("lost", text=str(error))
rec.step(key=f"{n}-e", ms=4)
mission.observe("n", n)
"""
ENDLESS = {"stagnation_threshold": "off", "proposer": {"kind": "script", "script": SCRIPT}}
MISSION = mission_file("rec.*", NEVER, iterations=1_000_000, **ENDLESS)


def _pursuit(folder: Path, *words: str, by: Sequence[str] = (str(PURSUIT),)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*by, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def _children(pid: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _gone(pids: set[int], seconds: float = 60) -> set[int]:
    """The processes of these that are still there when the time is up."""
    ends = time.monotonic() + seconds
    while (pids := {pid for pid in pids if lives(pid)}) and time.monotonic() < ends:
        time.sleep(0.02)
    return pids


async def _kill(folder: Path, state: Path, mission_id: str, chance: random.Random, *, in_script: bool) -> None:
    """Resumes the mission in a process and kills it somewhere in its run, which has no end of its own.

    With `in_script` some of the calls of a script are settled and others are not: the process is stopped to see that.
    """
    ledger = SqliteLedger.open(state)
    try:
        row = await ledger.row(mission_id)
        process = _pursuit(folder, "resume", mission_id)
        try:
            with anyio.fail_after(120):
                left = chance.randrange(30)  # calls, which a slow machine and a fast one count alike
                async for stored in ledger.watch(mission_id, row.head.seq):
                    left -= isinstance(decode(stored.type, stored.body), CallSettled)
                    if left > 0:
                        continue
                    await anyio.sleep(chance.uniform(0, 0.02))
                    process.send_signal(signal.SIGSTOP)
                    if not in_script or 0 < (await _settled_by_iteration(ledger, mission_id))[-1] < CALLS:
                        break
                    process.send_signal(signal.SIGCONT)
            assert process.poll() is None
        finally:
            children = _children(process.pid)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert not _gone(children), "a process of the killed one is left: a server or a sandbox worker"
    finally:
        await ledger.close()


async def _settled_by_iteration(ledger: SqliteLedger, mission_id: str) -> list[int]:
    events = [decode(one.type, one.body) for one in await ledger.read(mission_id)]
    counts = Counter(one.iteration for one in events if isinstance(one, CallSettled))
    return [counts[iteration] for iteration in range(max(counts, default=0) + 1)]


@pytest.mark.slow
@pytest.mark.guarantee("survives-kill-nine")
async def test_killed_at_random_moments_it_goes_on_at_the_same_call(tmp_path: Path) -> None:
    record = tmp_path / "record"
    (tmp_path / "pursuit.toml").write_text(recorder(record, look={"read_only": True}))
    (tmp_path / "mission.toml").write_text(MISSION)
    state = tmp_path / ".pursuit" / "ledger.db"
    started = _pursuit(tmp_path, "start", "mission.toml", "--json", by=pursuit())
    out, _ = started.communicate(timeout=120)
    mission_id = json.loads(out)["session_id"]
    chance = random.Random(20261115)
    for number in range(KILLS):
        await _kill(tmp_path, state, mission_id, chance, in_script=number == 0)
    last = _pursuit(tmp_path, "iterate", mission_id, "--iterations", str(CALM), "--json", by=pursuit())
    out, _ = last.communicate(timeout=300)
    assert (last.returncode, json.loads(out)["status"]) == (0, "running")

    marks = [line.split() for line in record.read_text().splitlines()]
    assert not _gone({int(pid) for kind, _, pid in marks if kind == "born"}), "an orphan is left"
    executed = Counter((kind, key) for kind, key, _ in marks if kind != "born")
    await _judge(state, mission_id, executed)


async def _judge(state: Path, mission_id: str, executed: Counter[tuple[str, str]]) -> None:
    ledger = SqliteLedger.open(state)
    try:
        assert (await ledger.verify()).ok
        calls = await calls_of(ledger, mission_id)
        outcomes: Counter[str] = Counter()
        for call in calls.values():
            assert len(call["settled"]) == 1, call
            outcome = call["settled"][0]
            outcomes[outcome] += call["tool"] == "rec.step"
            times = executed[(call["tool"].removeprefix("rec."), call["key"])]
            if call["tool"] == "rec.step":
                assert times <= 1, f"a step ran twice: {call}"
                if outcome == "ok":
                    assert times == 1, f"a completed step left no mark: {call}"
        assert outcomes["unknown"] <= KILLS
        assert outcomes["ok"] > outcomes["unknown"] * 5
        _judge_iterations([decode(e.type, e.body) for e in await ledger.read(mission_id)])
    finally:
        await ledger.close()


def _judge_iterations(events: list[Any]) -> None:
    ended = [event.iteration for event in events if isinstance(event, IterationEnded)]
    assert ended == list(range(len(ended))), "iterations are numbered without gaps or repetitions"
    assert len(ended) >= CALM
    settled_in: dict[int, int] = {}
    straddled = 0
    current: int | None = None
    for event in events:
        if isinstance(event, CallSettled):
            settled_in[event.iteration] = settled_in.get(event.iteration, 0) + 1
            current = event.iteration
        elif isinstance(event, RunClaimed) and current is not None and 0 < settled_in[current] < CALLS:
            straddled += 1
    assert straddled > 0, "no kill fell into the middle of a script, so nothing was shown"
