"""Runs an agent below itself and ends everything that it started: when the agent ends, or when Pursuit does.

It runs as a script with nothing but the standard library: `python subreaper.py FD WORD…`. The agent inherits its
standard streams. `FD` is the reading end of a pipe that Pursuit holds open: its end, or another parent process, is the
order to end all. On Linux this process is a child subreaper (prctl(2)), so what the agent starts stays below it, in any
session and after `kill -9` of the agent. Other systems have none: there the agent's process group is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

LOOK_EVERY = 0.25
"""Seconds between looks at the parent: a copy of the pipe in another process may hold it open."""
LONGEST = 5.0
"""Seconds of killing; a process in uninterruptible sleep cannot be ended."""
NOT_STARTED = 127
_PR_SET_CHILD_SUBREAPER = 36


def main(control: int, words: list[str]) -> int:
    """Runs the agent to its end or to ours; its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = os.getppid()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    try:
        agent = subprocess.Popen(words, start_new_session=True)  # noqa: S603 - to run what the operator says is its job
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return NOT_STARTED
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the pipes are the agent's alone: their end is its end
        os.dup2(null, stream)
    while agent.poll() is None and os.getppid() == parent:
        ready, _, _ = select.select([control, reading], [], [], LOOK_EVERY)
        if control in ready:
            break
        if reading in ready and any(one != signal.SIGCHLD for one in os.read(reading, 4096)):
            break
    end_all(agent.pid)
    code = agent.returncode if agent.poll() is not None else -signal.SIGKILL
    return code if code >= 0 else 128 - code


def end_all(group: int) -> None:
    """Kills what is below this process until nothing is."""
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        below = descendants(os.getpid()) if sys.platform == "linux" else []
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap():
            return
        time.sleep(0.005)


def reap() -> bool:
    """Takes the exits that are there; whether a child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants(top: int) -> list[int]:
    """Every process below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not worth its start-up time here
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - see above
                    told = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(told[1]), []).append(int(name))
    found = [top]
    for one in found:
        found += children.get(one, [])
    return found[1:]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
