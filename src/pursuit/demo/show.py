"""`make demo`: sets the example up in a folder of its own and pursues it, in front of your eyes.

Owns: the words around the command line's own output. Runs the same commands that a person would type.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pursuit.demo.scaffold import write_example

FOLDER = Path(".pursuit") / "demo"
DELAY_MS = "5"


def main() -> int:
    """Writes the example, runs it, and says how to see it again; the exit code is the mission's."""
    write_example(FOLDER, force=True)
    command = Path(sys.executable).with_name("pursuit")
    say = sys.stdout.write
    say("A welded beam is to be sized for least cost under stress, buckling and deflection limits.\n")
    say("An MCP server (a process of its own) evaluates designs; a script proposes them; Pursuit keeps the score.\n\n")
    say(f"$ cd {FOLDER} && pursuit run mission.toml\n")
    sys.stdout.flush()
    environment = {**os.environ, "PURSUIT_DEMO_DELAY_MS": os.environ.get("PURSUIT_DEMO_DELAY_MS", DELAY_MS)}
    environment.pop("PURSUIT_STATE", None)
    done = subprocess.run([command, "run", "mission.toml"], cwd=FOLDER, env=environment, check=False)  # noqa: S603
    if done.returncode == 0:
        say(f"\nSee it again:  cd {FOLDER} && ../../{_relative(command)} list\n")
    return done.returncode


def _relative(command: Path) -> str:
    try:
        return str(command.relative_to(Path.cwd()))
    except ValueError:
        return command.name


if __name__ == "__main__":
    raise SystemExit(main())
