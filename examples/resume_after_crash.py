"""Kills a mission with SIGKILL in the middle of a call, resumes it, and shows that no step ran twice."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from pursuit import Budget, Mission, Report, Runtime, ScriptProposer, event

DEADLY = 5  # a step that hangs: it ends with the process
SCRIPT = """
for number in range(20):
    try:
        plant.step(number=number)
    except RuntimeError as lost:  # the call that the kill cut off: `unknown`, not sent again
        print(lost)
mission.event("all tried")
"""

MISSION = Mission(
    directive="Do twenty steps, each at most once.",
    criteria=[event("all tried", source="script")],
    budget=Budget(max_iterations=3),
    tool_allowlist=["plant.step"],
    proposer=ScriptProposer(script=SCRIPT),
)


async def drive(folder: Path) -> Report:
    async def step(number: int) -> dict:
        with (folder / "marks").open("a") as marks:
            marks.write(f"{number}\n")
        await anyio.sleep(3600 if number == DEADLY else 0)
        return {"done": number}

    async with Runtime(state=folder / "ledger.db", servers={"plant": [step]}) as runtime:
        interrupted = await runtime.interrupted()
        return await (runtime.resume(interrupted[0]) if interrupted else runtime.pursue(MISSION))


def main(folder: Path, marks: Path) -> None:
    child = subprocess.Popen([sys.executable, __file__, str(folder)])
    while child.poll() is None and (not marks.exists() or f"{DEADLY}\n" not in marks.read_text()):
        time.sleep(0.01)
    child.kill()  # SIGKILL: no handler, no clean-up
    print(f"exit code {child.wait()} after {marks.read_text().count(chr(10))} steps had begun")
    report, ran = anyio.run(drive, folder), marks.read_text().split()
    print(f"{report.status}: {len(set(ran))} steps ran, {len(ran) - len(set(ran))} ran twice")
    print(f"calls by outcome: {report.data['calls']['by_outcome']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as new:
        anyio.run(drive, Path(sys.argv[1])) if len(sys.argv) > 1 else main(Path(new), Path(new) / "marks")
