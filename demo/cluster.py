"""`make demo-cluster`: missions on three workers and a PostgreSQL from a wheel; one worker is killed on the way.

It uses the commands that a person would type, and reads the ledger to see who drives what.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import IO

import anyio

from local_postgres import LocalPostgres
from pursuit.core.events import CallIntended, CallSettled, IterationEnded, RunClaimed, decoded
from pursuit.errors import LedgerUnavailable, PursuitError
from pursuit.ledger.contract import Ledger, every_stream
from pursuit.ledger.opening import file_of, open_ledger

WORKERS = 3
MISSIONS = 6
DELAY_MS = "250"
"""How long the beam's server takes for a design."""
TIRED_AFTER = 8
"""The worker is killed when it has finished so many iterations."""
SECONDS = 300
ENDED = ("completed", "terminated", "failed")

CONFIGURATION = """\
[servers.beam]
command = "__python_executable__"
args = ["-m", "pursuit.demo.welded_beam"]
env = { PURSUIT_DEMO_DELAY_MS = "%s" }
[servers.beam.tools.evaluate]
read_only = true
[policy]
mode = "auto"
[settings]
lease_seconds = 3      # short, so that the demo is short: the defaults are 10 and 8
worker_heartbeat = 2
"""
MISSION = """\
directive = "Find a cheap welded beam that holds, from another starting point than the others"
tool_allowlist = ["beam.evaluate"]
stagnation_threshold = "off"
budget = { max_iterations = 80 }
criteria = [
    { criterion_id = "cheap", kind = "metric_threshold", metric = "cost", op = "<=", target = 1.8 },
    { criterion_id = "weld holds", kind = "metric_threshold", metric = "shear_stress", op = "<=", target = 13600 },
    { criterion_id = "bar holds", kind = "metric_threshold", metric = "bending_stress", op = "<=", target = 30000 },
    { criterion_id = "stiff", kind = "metric_threshold", metric = "deflection", op = "<=", target = 0.25 },
    { criterion_id = "straight", kind = "metric_threshold", metric = "buckling_load", op = ">=", target = 6000 },
]
[proposer]
kind = "search"
tool = "beam.evaluate"
seed = %d
parameters = { h = {}, l = {}, t = {}, b = {} }
"""


@dataclass
class Driven:
    """What the ledger says of a mission: who drove it, one after the other, and what became of its calls."""

    status: str = "pending"
    drivers: list[int] = field(default_factory=list[int])
    calls: int = 0
    unknown: int = 0
    by: Counter[int] = field(default_factory=Counter[int])
    """Iterations of each process."""


async def look(ledger: Ledger) -> dict[str, Driven]:
    """All missions, oldest first."""
    found: dict[str, Driven] = {}
    async for row in every_stream(ledger, kind="mission"):
        one = found[row.name] = Driven(row.status)
        for event in decoded(await ledger.read(row.name)):
            match event:
                case RunClaimed(pid=pid):
                    one.drivers.append(pid)
                case CallIntended():
                    one.calls += 1
                case CallSettled(outcome="unknown"):
                    one.unknown += 1
                case IterationEnded():
                    one.by[one.drivers[-1]] += 1
                case _:
                    pass
    return dict(reversed(found.items()))


class Show:
    """The demo in a folder of its own."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        own = {"PURSUIT_TRUST": "1", "PURSUIT_STATE": address, "XDG_DATA_HOME": str(folder / "data")}
        self.environment = {**os.environ, **own}
        self.workers: dict[int, str] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._began = time.monotonic()

    def say(self, text: str = "") -> None:
        """Writes a line with the time."""
        at = f"{time.monotonic() - self._began:5.1f} s  " if text else ""
        sys.stdout.write(f"{at}{text}\n")
        sys.stdout.flush()

    def command(self, *words: str) -> list[str]:
        """The words of a command; the state is in the environment."""
        self.say(f"$ pursuit {' '.join(words)}")
        return [sys.executable, "-m", "pursuit", *words]

    def start_workers(self) -> None:
        """Starts them; what they say goes to files."""
        for number in range(1, WORKERS + 1):
            name = f"worker-{number}"
            words = self.command("worker", "--name", name, "--concurrency", "4")
            with (self.folder / f"{name}.log").open("wb") as log:
                process = self._begin(words, log)
            self.workers[process.pid] = name
            self.processes.append(process)

    def start_missions(self) -> None:
        """Starts the fleet: each is a job for the next worker that has room."""
        started: list[subprocess.Popen[bytes]] = []
        for number in range(1, MISSIONS + 1):
            name = f"beam-{number}.toml"
            (self.folder / name).write_text(MISSION % number, encoding="utf-8")
            started.append(self._begin(self.command("start", name), DEVNULL))
        if [process for process in started if process.wait()]:
            raise LedgerUnavailable("a mission was not started")

    def _begin(self, words: list[str], out: IO[bytes] | int) -> subprocess.Popen[bytes]:
        where, environment = self.folder, self.environment
        return subprocess.Popen(words, cwd=where, env=environment, stdin=DEVNULL, stdout=out, stderr=out)

    async def watch(self, ledger: Ledger) -> None:
        """Tells who takes which mission, and kills a worker when it is well under way."""
        known: dict[str, Driven] = {}
        killed: int | None = None
        with anyio.fail_after(SECONDS), ledger.wakeup() as wakeup:
            while True:
                found = await look(ledger)
                self._tell(known, found)
                known = found
                if len(found) == MISSIONS and all(one.status in ENDED for one in found.values()):
                    return
                if killed is None and (killed := self._tired(found)) is not None:
                    os.kill(killed, signal.SIGKILL)
                    mine = [one for one in found.values() if one.drivers[-1:] == [killed] and one.status not in ENDED]
                    self.say(
                        f"*** kill -9 {self.workers[killed]} (process {killed}), which drives {len(mine)} missions"
                    )
                await wakeup.wait()

    def _tell(self, before: dict[str, Driven], found: dict[str, Driven]) -> None:
        for name, one in found.items():
            old = before.get(name, Driven())
            for count, pid in enumerate(one.drivers[len(old.drivers) :], len(old.drivers)):
                taken = f", after {self._name(one.drivers[count - 1])}" if count else ""
                self.say(f"{self._name(pid)} drives {name}{taken}")
            if one.status in ENDED and old.status not in ENDED:
                self.say(f"{self._name(one.drivers[-1])} ends {name}: {one.status}, {one.by.total()} iterations")

    def _tired(self, found: dict[str, Driven]) -> int | None:
        """The first worker that has finished a few iterations."""
        done = sum((one.by for one in found.values()), Counter[int]())
        return next((pid for pid in self.workers if done[pid] >= TIRED_AFTER), None)

    def _name(self, pid: int) -> str:
        return self.workers.get(pid, f"process {pid}")

    def table(self, found: dict[str, Driven]) -> list[str]:
        """Who drove what."""
        rows = [("mission", "status", "iterations", "calls", "unknown", "driven by (iterations)")]
        for name, one in found.items():
            drivers = ", then ".join(f"{self._name(pid)} ({one.by[pid]})" for pid in dict.fromkeys(one.drivers))
            rows.append((name, one.status, str(one.by.total()), str(one.calls), str(one.unknown), drivers))
        return ["{:<26}{:<12}{:<12}{:<7}{:<9}{}".format(*row) for row in rows]

    def end(self) -> None:
        """Ends the workers that are left."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(timeout=60)


async def play(show: Show) -> dict[str, Driven]:
    """The demo; returns the missions as they ended."""
    ledger = open_ledger(file_of(show.address, show.folder / "own"))
    try:
        await anyio.to_thread.run_sync(show.start_missions)
        show.start_workers()
        await show.watch(ledger)
        return await look(ledger)
    finally:
        show.end()
        await ledger.close()


def main() -> int:
    """Starts everything, kills a worker, prints the table; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C: the server is stopped, too
    folder = Path(tempfile.mkdtemp(prefix="pursuit-cluster-"))
    folder.chmod(0o755)  # as root, the server runs as another user
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            (folder / "server").mkdir()
            server = LocalPostgres(folder / "server")
            sys.stdout.write("PostgreSQL from a wheel starts; it is removed with the demo.\n")
            server.create()
            server.start()
            stack.callback(server.stop)
            (folder / "pursuit.toml").write_text(CONFIGURATION % DELAY_MS, encoding="utf-8")
            show = Show(folder, server.create_database("pursuit"))
            found = anyio.run(play, show)
        except PursuitError as error:
            sys.stderr.write(f"{error.message}\n")
            return 1
        except KeyboardInterrupt:
            return 130
        sys.stdout.write("\n" + "\n".join(show.table(found)) + "\n\n")
        proved = subprocess.run(show.command("verify"), cwd=folder, env=show.environment, check=False)
    return proved.returncode


if __name__ == "__main__":
    sys.exit(main())
