"""Runs every benchmark, one after the other, each in a process of its own.

Run: python benchmarks/run_all.py [--check]    (--check: exit code 1 if a required figure was missed, too)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    "ledger_floor.py",
    "startup.py",
    "engine.py",
    "growth.py",
    "waiting.py",
    "front_door.py",
    "gateway.py",
    "tasks.py",
    "search.py",
    "memory.py",
    "floods.py",
    "models.py",
    "agents.py",
    "scale.py",
    "page.py",
)


def main() -> None:
    missed: list[str] = []
    for name in BENCHMARKS:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, str(HERE / name), *sys.argv[1:]], check=False).returncode:
            missed.append(name)
    if missed:
        sys.exit(f"\nmissed or failed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
