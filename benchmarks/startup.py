"""What `pursuit --help` costs next to a typer app that has one command and does nothing.

Both run as fresh processes of the same interpreter, in interleaved rounds; the ratio is of their medians.
Run: python benchmarks/startup.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIMIT = 1.5
BARE = """
import typer
app = typer.Typer()
@app.command()
def main(name: str) -> None:
    "Does nothing."
app(["--help"])
"""
OURS = "import sys; sys.argv = ['pursuit', '--help']; from pursuit.surfaces.cli.main import main; main()"


def seconds(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for program in (BARE, OURS):
        seconds(program)
    times: dict[str, list[float]] = {BARE: [], OURS: []}
    for _ in range(rounds):
        for program, found in times.items():
            found.append(seconds(program))
    bare, ours = (statistics.median(times[program]) for program in (BARE, OURS))
    print(f"a bare typer app   {bare * 1000:6.0f} ms")
    print(f"pursuit --help     {ours * 1000:6.0f} ms")
    print(f"ratio              {ours / bare:6.2f}    (at most {LIMIT})")
    return 0 if ours / bare <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
