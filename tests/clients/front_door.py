"""What the end-to-end tests of `pursuit serve` share: a folder with a workshop, and real processes that serve it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from cli_stage import COMMAND, HTTP, SERVERS, Place, Running
from mission_files import threshold
from quick_start import pursuit, quick

from pursuit.core.events import AnyEvent, decode
from pursuit.ledger.sqlite import SqliteLedger

ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).parent
MCP1 = ROOT / ".venv-mcp1" / "bin" / "python"
TRANSPORTS = ("stdio", "http")

CONFIG = """
[servers.workshop]
command = "__python_executable__"
args = [{server}]
env = {{ LOGS = {logs} }}
[commands.count]
argv = ["sh", "-c", 'for i in $(seq "$0"); do echo "unit $i"; done; echo done >&2; exit "$1"', "{{units}}", "{{code}}"]
unit_pattern = 'unit (\\d+)'
total = "{{units}}"
[commands.count.parameters]
units = {{ type = "integer", minimum = 1 }}
code = {{ type = "integer", default = 0 }}
[commands.linger]
argv = ["sh", "-c", 'echo here >> "$0"; sleep 3600', "{{mark}}"]
cwd = {logs}
parameters = {{ mark = {{ type = "string" }} }}
[policy]
mode = "{mode}"
"""
TWO_STEPS: dict[str, Any] = {
    "directive": "Take two steps",
    "criteria": [{**threshold("steps", ">=", 2), "criterion_id": "far", "required": True}],
    "budget": {"max_iterations": 5},
    "tool_allowlist": ["workshop.*"],
    "proposer": {"kind": "client"},
}
"""A mission that its client drives."""


class Served(Running):
    """A `pursuit serve` over HTTP."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.url: str = json.loads(self.until('"listening"'))["url"]

    def kill(self) -> None:
        """Kills it without a warning, and waits until what it had started is gone, too."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=120)
        gone(children)


class House(Place):
    """A folder with a ledger of its own and the workshop, whose logs tell what was really done.

    Its servers and clients are `fresh` processes where they are killed, or are what a test is about.
    """

    def __init__(self, folder: Path, *, mode: str = "auto", fresh: bool = False) -> None:
        super().__init__(folder)
        self.fresh = fresh
        self.command = COMMAND if fresh else pursuit()
        self.logs = folder / "logs"
        self.logs.mkdir()
        places = {"server": json.dumps(str(SERVERS / "workshop.py")), "logs": json.dumps(str(self.logs))}
        self.write("pursuit.toml", CONFIG.format(**places, mode=mode))

    @property
    def stdio(self) -> str:
        """The target of a client that starts its server itself."""
        command, *words = [*self.command, "serve"]
        return json.dumps({"command": command, "args": words, "cwd": str(self.folder), "env": self.environment})

    @contextmanager
    def target(self, transport: str) -> Iterator[str]:
        """Where a client goes: a server over HTTP while the block runs, or how to start one over stdio."""
        if transport == "stdio":
            yield self.stdio
        else:
            with self.serving() as served:
                yield served.url

    @contextmanager
    def serving(self, *more: str) -> Iterator[Served]:
        """Serves over HTTP at a free port of this machine; what is still there at the end is asked to leave."""
        process = self._started([*self.command, "serve", *HTTP, *more], start_new_session=True)
        with leaving_none(process):
            served = Served(process)
            yield served
            if process.poll() is None:
                code, out, notes = served.end(signal.SIGTERM)
                assert (code, out) == (0, ""), notes

    @contextmanager
    def client(self, era: str, target: str, tool: str, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
        """A client in a process of its own, in the middle of one call."""
        script = str(CLIENTS / "sdk_client.py")
        words = [script if self.fresh else quick(script), era, target, tool, json.dumps(arguments)]
        process = self._started([sys.executable, *words])
        with leaving_none(process):
            yield process

    def _started(self, words: list[str], **more: Any) -> subprocess.Popen[str]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, cwd=self.folder, env=self.environment, text=True, **streams, **more)

    def json_of(self, *words: object) -> Any:
        """What a command answers as JSON, as a process of its own: this one may be in an event loop."""
        return json.loads(self.run(*words, "--json").stdout)

    def lines(self, log: str) -> list[str]:
        """What the workshop wrote."""
        path = self.logs / log
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def until_logged(self, log: str, line: str, times: int = 1) -> None:
        """Returns when the workshop has written a line, so many times."""
        wait_until(lambda: self.lines(log).count(line) >= times, f"{line!r} in the log {log}", lambda: self.lines(log))

    async def events(self, mission_id: str) -> list[AnyEvent]:
        """All that the ledger has of a mission."""
        ledger = SqliteLedger.open(self.ledger)
        try:
            assert (await ledger.verify()).ok
            return [decode(stored.type, stored.body) for stored in await ledger.read(mission_id)]
        finally:
            await ledger.close()


@contextmanager
def leaving_none(process: subprocess.Popen[str]) -> Iterator[None]:
    """However a test ends, its process does not outlive it."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=120)
        for stream in (process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


def wait_until(
    holds: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: "", seconds: float = 120
) -> None:
    """Looks again and again until something holds."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"{what} did not come: {seen()}"
        time.sleep(0.01)


def gone(processes: list[psutil.Process], seconds: float = 60) -> None:
    """Returns when none of them is left."""

    def living() -> list[psutil.Process]:
        return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    wait_until(lambda: not living(), "the end of every process", living, seconds)


def mcp1_python() -> Path:
    """The Python of an environment in which `mcp` is 1.30."""
    assert MCP1.exists(), f"{MCP1} is missing; `make test` sets it up"
    return MCP1


def talked(house: House, python: Path, script: str, *words: str) -> Any:
    """Runs a client of another environment and returns what it saw."""
    done = subprocess.run(
        [python, CLIENTS / script, *words],
        cwd=house.folder,
        env=house.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
