"""Kills a mission with SIGKILL in the middle of a call, resumes it, and shows that no step ran twice.

The tool is neither read-only nor idempotent, so the call that the kill cut off is recorded as `unknown` and is not
sent again: the script sees a RuntimeError for it and goes on with the next step.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Runtime, event

SCRIPT = """
for number in range(20):
    try:
        plant.step(number=number)
    except RuntimeError as lost:
        print(lost)
mission.event("all steps tried")
"""


def runtime(folder: Path) -> Runtime:
    async def step(number: int) -> dict:
        """Leaves a mark in a file, then takes a while."""
        with (folder / "marks").open("a") as marks:
            marks.write(f"{number}\n")
        await anyio.sleep(0.05)
        return {"done": number}

    return Runtime(state=folder / "ledger.db", servers={"plant": [step]})


async def begin(folder: Path) -> None:
    mission = Mission(
        directive="Do twenty steps, each at most once.",
        criteria=[event("all steps tried", source="script")],
        budget=Budget(max_iterations=3),
        tool_allowlist=["plant.step"],
        proposer={"kind": "script", "script": SCRIPT},
    )
    async with runtime(folder) as here:
        await here.pursue(mission)


async def go_on(folder: Path) -> None:
    async with runtime(folder) as here:
        (mission_id,) = await here.service.interrupted()
        report = await here.resume(mission_id)
    counts = Counter((folder / "marks").read_text().split())
    print(f"{report.status}: {len(counts)} steps ran, {sum(n > 1 for n in counts.values())} of them twice")
    print(f"calls by outcome: {report.data['calls']['by_outcome']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        child = subprocess.Popen([sys.executable, __file__, name])
        marks = Path(name) / "marks"
        while child.poll() is None and (not marks.exists() or len(marks.read_text().split()) < 5):
            time.sleep(0.01)
        child.kill()  # SIGKILL: no handler, no clean-up
        child.wait()
        print("killed in the middle of step", marks.read_text().split()[-1])
        anyio.run(go_on, Path(name))


if __name__ == "__main__":
    anyio.run(begin, Path(sys.argv[1])) if len(sys.argv) > 1 else main()
