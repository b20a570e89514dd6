"""What `pursuit --help` costs next to a typer app that has one command and does nothing.

Both run as fresh processes of the same interpreter, in interleaved rounds; the ratio is of their medians.

Run: python benchmarks/startup.py [--check | --smoke]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from figures import Figure, finish, sized

ROUNDS = sized(20, 1)
BARE = """
import typer
app = typer.Typer()
@app.command()
def main(name: str) -> None:
    "Does nothing."
app(["--help"])
"""
OURS = "import sys; sys.argv = ['pursuit', '--help']; from pursuit.cli.main import main; main()"


def seconds(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    for program in (BARE, OURS)[: sized(2, 0)]:  # fills the page cache
        seconds(program)
    times: dict[str, list[float]] = {BARE: [], OURS: []}
    for _ in range(ROUNDS):
        for program, found in times.items():
            found.append(seconds(program))
    bare, ours = (statistics.median(times[program]) for program in (BARE, OURS))
    figures = [
        Figure(what="a bare typer app", value=bare * 1e3, unit="ms"),
        Figure(what="pursuit --help", value=ours * 1e3, unit="ms"),
        Figure(what="pursuit --help by the bare app", value=ours / bare, unit="x", limit=1.3),
    ]
    finish(f"The start of the command ({ROUNDS} interleaved rounds)", figures)


if __name__ == "__main__":
    main()
