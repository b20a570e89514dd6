"""Runs every benchmark, one after the other, each in a process of its own.

Run: python benchmarks/run_all.py [--check]    (--check: exit code 1 if a required figure was missed)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLAIN = ("ledger_floor.py", "startup.py")
CHECKED = (
    "engine.py",
    "growth.py",
    "waiting.py",
    "front_door.py",
    "gateway.py",
    "tasks.py",
    "search.py",
    "memory.py",
)


def main() -> None:
    flags = sys.argv[1:]
    missed: list[str] = []
    for name in (*PLAIN, *CHECKED):
        print(f"\n== {name}", flush=True)
        given = flags if name in CHECKED else []
        if subprocess.run([sys.executable, str(HERE / name), *given], check=False).returncode:
            missed.append(name)
    if missed:
        sys.exit(f"\nmissed or failed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
