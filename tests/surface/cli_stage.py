"""What the tests of the command line share: a folder of its own for each, and the command as people run it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from quick_start import pursuit

from pursuit.cli.main import answer

COMMAND = [sys.executable, "-c", "from pursuit.cli.main import main; main()"]
SERVERS = Path(__file__).parent.parent / "servers"

BEAM = """
[servers.beam]
command = "__python_executable__"
args = ["-m", "pursuit.demo.welded_beam"]
[servers.beam.tools.evaluate]
read_only = true
"""

MISSION = """
directive = "Poll the beam"
tool_allowlist = ["beam.evaluate"]
[[criteria]]
criterion_id = "cheap"
kind = "metric_threshold"
metric = "cost"
op = "<="
target = {target}
[budget]
max_iterations = {iterations}
[proposer]
{proposer}
"""

DESIGN = "{ h = 0.5, l = 3.0, t = 5.0, b = 0.6 }"
REPEAT = f'kind = "repeat"\ntool_name = "evaluate"\nargs = {DESIGN}'


def mission(*, target: float = 0.1, iterations: int = 2, proposer: str = REPEAT) -> str:
    return MISSION.format(target=target, iterations=iterations, proposer=proposer) + BEAM


def recorded(record: Path, *, steps: int, needed: int, ms: int) -> str:
    """A mission whose calls must never be repeated; each leaves its key in a file."""
    calls = ",\n".join(
        f'{{ tool_calls = [{{ tool_name = "step", args = {{ key = "k{place}", ms = {ms} }} }}] }}'
        for place in range(steps)
    )
    return f"""
directive = "Change the world step by step"
tool_allowlist = ["world.step"]
stagnation_threshold = "off"
[[criteria]]
criterion_id = "done"
kind = "tool_call_succeeded"
tool_name = "world.step"
min_count = {needed}
[budget]
max_iterations = {steps}
[proposer]
kind = "replay"
proposals = [{calls}]
[servers.world]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "recorder.py"))}]
env = {{ RECORD = {json.dumps(str(record))} }}
"""


_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Terminal(io.StringIO):
    """What says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


HTTP = ("--http", "--port", "0", "--no-token")
"""The options of a server over HTTP for clients that have an address and no token."""


class Place:
    """A folder with its own ledger, in which commands are run as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PURSUIT", "XDG"))}
        self.environment = {**kept, "HOME": str(folder), "NO_COLOR": "1", "COLUMNS": "100", "PURSUIT_TRUST": "1"}

    @property
    def ledger(self) -> Path:
        return self.folder / ".pursuit" / "ledger.db"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def configured(self) -> Place:
        """With a configuration, the ledger lies beside it; nobody is asked, unless the test says so."""
        self.write("pursuit.toml", '[policy]\nmode = "auto"\n')
        return self

    def run(
        self, *words: object, code: int = 0, text: str | None = None, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command, with its modules loaded before, unless it must be a `fresh` process as people start it."""
        done = subprocess.run(
            [*(COMMAND if fresh else pursuit()), *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            input=text or "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def ask(self, *words: object, code: int | None = 0) -> tuple[str, str]:
        """The same in this process, which is much cheaper: its answer and its notes. None: any exit code."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            got = answer([str(word) for word in words])
        assert "Traceback" not in out.getvalue() + err.getvalue(), err.getvalue()
        assert code in (got, None), (words, got, out.getvalue(), err.getvalue())
        return out.getvalue(), err.getvalue()

    def seen(self, columns: int, *words: object, code: int = 0) -> list[str]:
        """The lines of the answer on a terminal so wide; in this process, too."""
        out = _Terminal()
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            for name, value in {"COLUMNS": columns, "LINES": 40, "TERM": "xterm", "NO_COLOR": 1}.items():
                patch.setenv(name, str(value))
            got = answer([str(word) for word in words])
        assert got == code, (words, got, out.getvalue())
        return [line.rstrip() for line in _STEERING.sub("", out.getvalue()).splitlines()]

    def json(self, *words: object, code: int | None = 0) -> Any:
        """The one JSON document that a command answers with."""
        return json.loads(self.ask(*words, "--json", code=code)[0])

    def at_terminal(
        self, *words: object, typed: str = "", once: str = "", then: Callable[[], object] | None = None
    ) -> tuple[int, str]:
        """Runs a command that has a terminal, on which this is typed: its exit code, and all that it was sent.

        `then` is done as soon as the terminal shows `once`.
        """
        ours, theirs = pty.openpty()
        environment = {**self.environment, "TERM": "xterm", "COLUMNS": "110", "LINES": "40"}
        process = subprocess.Popen(
            [*pursuit(), *map(str, words)],
            cwd=self.folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        seen = bytearray()
        # A terminal whose last writer has gone ends in an error on Linux and in nothing elsewhere.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65_536):
                seen += chunk
                if then is not None and once in seen.decode(errors="replace"):
                    then()
                    then = None
        os.close(ours)
        return process.wait(timeout=60), seen.decode()

    def begin(self, *words: object, fresh: bool = True, program: Sequence[str] | None = None) -> Running:
        """Starts a command that goes on while the test does; not `fresh`: with its modules loaded before.

        `program` stands in the place of `pursuit`.
        """
        return Running(
            subprocess.Popen(
                [*(program or (COMMAND if fresh else pursuit())), *map(str, words)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=_as_from_a_terminal,
            )
        )


def _as_from_a_terminal() -> None:
    """Ctrl-C and a closed terminal count, also where the tests themselves were started so that they ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Running:
    """A command that is still under way; both its streams are read all the time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.answer: queue.Queue[str] = queue.Queue()
        self.notes: queue.Queue[str] = queue.Queue()
        streams = ((process.stdout, self.answer), (process.stderr, self.notes))
        self._readers = [threading.Thread(target=_read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def until(self, word: str) -> str:
        """Waits for the first note that holds this word."""
        while True:
            line = self.notes.get(timeout=60)
            if word in line:
                return line

    def end(self, signal: int | None = None) -> tuple[int, str, str]:
        """Its exit code and the rest of its answer and its notes, after a signal if one is given."""
        if signal is not None:
            self.process.send_signal(signal)
        code = self.process.wait(timeout=60)
        for reader in self._readers:
            reader.join(timeout=60)
        out, notes = ("".join(rest.queue) for rest in (self.answer, self.notes))
        assert "Traceback" not in out + notes, notes
        return code, out, notes


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            lines.put(line)


def marks(record: Path) -> list[str]:
    """The keys of all executions, in order."""
    rows = [line.split() for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
    return [key for kind, key, _pid in rows if kind == "step"]


def until_marked(record: Path, key: str, seconds: float = 60) -> None:
    """Waits until the call with this key is being executed."""
    until(lambda: key in marks(record), seconds)


def until(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for what another process does."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(0.01)
