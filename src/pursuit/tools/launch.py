"""How a server's command is found, started and, with its whole process group, signalled.

Owns: the command line and the group. Does not know: pipes or messages. Invariant: whoever starts `command_line` in a
session of its own can reach every process of it, until it leaves the group on purpose, through its first pid.

If *we* die by `kill -9`, the server sees the end of its stdin; on Linux it also gets SIGTERM from the kernel. That is
arranged, where it works, by util-linux's `setpriv`, which sets it and becomes the server. A `preexec_fn` could do the
same and is not used: it runs Python between fork and exec, which may deadlock when other threads hold locks, and Python
3.12 warns. The kernel means the *thread* that started the server: it must live as long as the pool, and the loop's
thread does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import DEVNULL

import anyio

_POLL = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start: everything resolved."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None


def command_line(launch: Launch) -> Sequence[str]:
    """What to run: the program found in the PATH that the server itself will see; `OSError` says what is missing."""
    if launch.cwd is not None and not Path(launch.cwd).is_dir():
        raise FileNotFoundError(f"the working directory {launch.cwd} does not exist")
    program = shutil.which(launch.argv[0], path=launch.env.get("PATH", os.defpath))
    if program is None:
        there = Path(launch.argv[0]).exists()
        why = "is not executable" if "/" in launch.argv[0] and there else "was not found"
        raise FileNotFoundError(f"the command {launch.argv[0]!r} {why}")
    return (*_ends_with_us(shutil.which("setpriv")), program, *launch.argv[1:])


@cache
def _ends_with_us(launcher: str | None) -> Sequence[str]:
    """The words before a command that let it end with us; none where they do not work, which is tried once."""
    if sys.platform != "linux" or launcher is None:
        return ()
    words = (launcher, "--pdeathsig", "TERM", "--")
    try:
        # Other builds of setpriv know no such option, and a container may forbid what it does.
        tried = subprocess.run([*words, "true"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if tried.returncode == 0 else ()


def signal_group(group: int, number: int) -> bool:
    """Signals every process of the group; whether there was one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Some member belongs to somebody else by now, or macOS says so of a zombie: it proves no end.
        return True
    return True


async def gone(group: int) -> None:
    """Waits until the group has no process left; the end of a foreign process can only be polled for."""
    while True:
        if not signal_group(group, 0):
            return
        await anyio.sleep(_POLL)
