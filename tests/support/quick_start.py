"""Programs that start in a blink, for tests in which the process itself is not the subject.

A program that loads the MCP SDK takes a second of a core before its first line, and the tests start many hundreds.
`quick` names a small script that stands for such a program: run by Python like any other, it asks a process that has
the same modules loaded to fork, hands over its streams, folder, environment and words, passes signals on and ends with
the program's exit code or signal. If it is killed, the program is killed. What runs is the real program, from its first
line; what is left out is the loading of modules.

So a test must start the program itself, with `fresh` and the like, where it is about what is left out or differs:
imports and the time of a start, `kill -9` and what becomes of a process tree (a forked one has another parent, group
and session), terminals, and the way in (`pursuit`, `python -m pursuit`).

Each worker of pytest has one such process, from the first time that one is needed until the worker ends, however it
ends. A script that cannot reach it, or has an environment that counts before the first line, starts the program anew.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fork_launcher import early

HERE = Path(__file__).parent
REAL = sys.executable  # also where a test has put `python()` in its place
SCRIPT = """\
import sys

sys.path[0] = {here!r}
from fork_launcher import launch

launch({address!r}, {program!r}, sys.argv[1:], {known!r})
"""
PYTHON = """\
#!{python}
import sys

sys.path[0] = {here!r}
from fork_launcher import launch_as_python

launch_as_python({address!r}, {known!r})
"""


@cache
def quick(*program: str) -> str:
    """The script that stands for `python PROGRAM...`, which is a file, or `-m` and a module."""
    folder = _forking() / str(len(list(_forking().iterdir())))
    folder.mkdir()
    # The same name, since some tests look for it where it must not be.
    script = folder / (program[1] + ".py" if program[0] == "-m" else Path(program[0]).name)
    known = early(dict(os.environ))
    text = SCRIPT.format(here=str(HERE), address=str(_forking() / "socket"), program=list(program), known=known)
    script.write_text(text, encoding="utf-8")
    return str(script)


@cache
def python() -> str:
    """A Python that starts the modules of `pursuit` and the programs of the tests quickly, all else as it is.

    Put in the place of `sys.executable`, it is for the processes that `pursuit` starts by itself.
    """
    path = _forking() / "python"
    text = PYTHON.format(python=REAL, here=str(HERE), address=str(_forking() / "socket"), known=early(dict(os.environ)))
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return str(path)


def pursuit() -> list[str]:
    """The words that run `python -m pursuit`, quickly, and what it starts of itself, too."""
    return [python(), "-m", "pursuit"]


def fresh() -> list[str]:
    """The words that run it as people do: a process of its own that loads what it needs."""
    return [REAL, "-m", "pursuit"]


@cache
def _forking() -> Path:
    """The folder of this worker's process that forks."""
    folder = Path(tempfile.mkdtemp(prefix="quick-"))
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listening, theirs:
        listening.bind(str(folder / "socket"))
        listening.listen(64)
        passed = (listening.fileno(), theirs.fileno())
        process = subprocess.Popen(
            [REAL, str(HERE / "fork_server.py"), *map(str, passed)],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(_ending(process, ours, folder))
    return folder


def _ending(process: subprocess.Popen[bytes], lifeline: socket.socket, folder: Path) -> Callable[[], None]:
    def end() -> None:
        lifeline.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    return end
