"""Real `kill -9`s of the real command in the middle of a search: its trials are those of a search that lived.

The command kills itself: whoever watched it from outside might be held up until the search is over.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from mission_files import mission_file, threshold
from quick_start import REAL

from pursuit import Runtime
from pursuit.config.mission_file import load_mission_file
from pursuit.core.events import IterationEnded, IterationProposed, decode
from pursuit.ledger.sqlite import SqliteLedger

KILLS = 40 if os.environ.get("PURSUIT_SOAK") else 2
DEADLY = """
import os, signal, sys, threading
from pursuit.ledger.sqlite import SqliteLedger

left, later, mission = int(sys.argv.pop(1)), float(sys.argv.pop(1)), sys.argv[-1]
append = SqliteLedger.append

async def deadly(self, stream, expected, drafts, **named):
    global left
    head = await append(self, stream, expected, drafts, **named)
    left -= len(drafts) if stream == mission else 0
    if left <= 0:
        left = sys.maxsize
        threading.Timer(later, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return head

SqliteLedger.append = deadly
from pursuit.cli.main import main
main()
"""
CONFIG = """
[servers.beam]
command = "__python_executable__"
args = ["-m", "pursuit.demo.welded_beam"]
[servers.beam.tools.evaluate]
read_only = true
parallel_safe = true
"""
LIMITS = threshold("cost", "<=", 0.1), threshold("max_violation", "<=", 0)


def _stage(folder: Path, sampler: str, batch: int, iterations: int) -> str:
    folder.mkdir()
    (folder / "pursuit.toml").write_text(CONFIG)
    proposer = {"kind": "search", "tool": "beam.evaluate", "seed": 3, "batch": batch, "sampler": sampler}
    text = mission_file("beam.evaluate", *LIMITS, iterations=iterations, proposer=proposer)
    (folder / "mission.toml").write_text(text)

    async def start() -> str:
        async with _runtime(folder) as runtime:
            return (await runtime.start_file(load_mission_file(folder / "mission.toml"))).session_id

    return anyio.run(start)


def _runtime(folder: Path) -> Runtime:
    return Runtime(config=folder / "pursuit.toml", state=folder / ".pursuit" / "ledger.db")


async def _resume(folder: Path, mission_id: str) -> str | None:
    async with _runtime(folder) as runtime:
        return (await runtime.resume(mission_id)).verdict_reason


async def _events(folder: Path, mission_id: str) -> list[Any]:
    ledger = SqliteLedger.open(folder / ".pursuit" / "ledger.db")
    try:
        return [decode(one.type, one.body) for one in await ledger.read(mission_id)]
    finally:
        await ledger.close()


def _kill_after(folder: Path, mission_id: str, events: int, later: float) -> None:
    """Resumes the mission in a process that is killed so much later than so many more events."""
    words = [REAL, "-c", DEADLY, str(events), str(later), "resume", mission_id]
    done = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done


def _trials(events: list[Any]) -> list[dict[str, Any]]:
    ended = {one.iteration for one in events if isinstance(one, IterationEnded)}
    proposed = [one for one in events if isinstance(one, IterationProposed)]
    assert {one.iteration for one in proposed} == ended and len(proposed) == len(ended)
    return [call.args for one in proposed for call in one.calls]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_python")
@pytest.mark.guarantee("search-goes-on-where-it-was")
@pytest.mark.parametrize(
    ("sampler", "batch"),
    [("auto", 3), pytest.param("auto", 1, marks=pytest.mark.soak), pytest.param("cmaes", 1, marks=pytest.mark.soak)],
)
def test_killed_at_random_points_it_makes_the_same_trials(tmp_path: Path, sampler: str, batch: int) -> None:
    iterations = 12 * KILLS
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    wanted = _stage(calm, sampler, batch, iterations)
    assert anyio.run(_resume, calm, wanted) == "max_iterations"
    unbroken = _trials(anyio.run(_events, calm, wanted))
    assert len(unbroken) == iterations * batch

    mission_id = _stage(killed, sampler, batch, iterations)
    chance = random.Random(20261115)
    for _ in range(KILLS):
        _kill_after(killed, mission_id, chance.randint(2, 30), chance.uniform(0, 0.02))
    assert anyio.run(_resume, killed, mission_id) == "max_iterations"
    assert _trials(anyio.run(_events, killed, mission_id)) == unbroken
