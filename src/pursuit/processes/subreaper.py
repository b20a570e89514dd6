"""Runs a command below a child subreaper (prctl(2)), and identifies processes by pid and start time.

It needs only the standard library: the supervisor of tasks imports it, and both processes stay small. As a script it
gets `FD WORD…`, runs that command line below itself, and ends all its descendants when it ends, or when Pursuit does.
The command inherits the standard streams. `FD` is the reading end of a pipe that Pursuit holds open: when it closes, or
the parent process changes, all are ended. On Linux the descendants of a command stay below its subreaper, in any
session and after `kill -9` of the command. Other systems lack subreapers: there its process group is ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY = 0.25
"""Seconds between checks of the parent: a copy of the pipe in another process may hold it open."""
LONGEST = 5.0
"""Maximum seconds of killing; a process in uninterruptible sleep cannot be ended."""
NOT_STARTED = 127
TAG = "PURSUIT_TASK_ID"
"""The environment variable that names the task or agent of a process."""
_PR_SET_CHILD_SUBREAPER = 36


def stat_fields(pid: int | str) -> list[bytes]:
    """The fields of proc_pid_stat(5) after the name: state, parent, group, session …; raises `OSError`."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not worth its memory here
        return file.read().rpartition(b")")[2].split()


def start_time(pid: int, *, zombie: bool = True) -> str | None:
    """When a process began, in its system's format; None if it does not exist, or is a zombie and `zombie` is false."""
    if sys.platform == "linux":
        try:
            told = stat_fields(pid)
        except OSError:
            return None
        return told[19].decode() if zombie or told[0] not in (b"Z", b"X") else None
    words = ["ps", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(words, capture_output=True, check=False, env={"PATH": os.defpath, "LC_ALL": "C"})  # noqa: S603
    return " ".join(shown.stdout.decode().split()) or None


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - see above
            return file.read().strip()
    except OSError:
        return ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "start": start_time(os.getpid()), "boot": boot_id()}


def subreaping() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes  # noqa: PLC0415 - this module is also imported where no process is started

        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):  # a Python without ctypes
        return None

    def become_subreaper() -> None:
        if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    return become_subreaper


def start_below(become_subreaper: Callable[[], None]) -> dict[str, Any]:
    """Forks: returns in the child, which becomes the command; the parent stays as its subreaper until it ends."""
    become_subreaper()
    subreaper = this_process()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        return subreaper
    status = 0
    try:
        signal.set_wakeup_fd(-1)
        # Also the pipe that tells `Popen` that the command runs, and the command's output.
        os.closerange(0, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        os.chdir("/")
        ended = 0
        while ended != pid:
            ended, status = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:  # exit by the same signal, for the supervisor to see
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(OSError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
    finally:
        os._exit(255)


def main() -> None:
    """The script: runs a command until it or Pursuit ends, and exits with the command's code."""
    control, words = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(control, False)
    if (become_subreaper := subreaping()) is not None:
        with contextlib.suppress(OSError):  # then the group is ended
            become_subreaper()
    parent = os.getppid()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    try:
        # What else this process was given is for the command.
        command = subprocess.Popen(words, start_new_session=True, close_fds=False)  # noqa: S603 - its job is to run the operator's command
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_STARTED)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # only the command holds the pipes: they close when it ends
        os.dup2(null, stream)
    while command.poll() is None and os.getppid() == parent:
        ready, _, _ = select.select([control, reading], [], [], LOOK_EVERY)
        if control in ready:
            break
        if reading in ready and any(one != signal.SIGCHLD for one in os.read(reading, 4096)):
            break
    end_all(command.pid)
    code = command.returncode if command.poll() is not None else -signal.SIGKILL
    sys.exit(code if code >= 0 else 128 - code)


def end_all(group: int) -> None:
    ends = time.monotonic() + LONGEST
    while time.monotonic() < ends:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        for pid in _descendants(os.getpid()) if sys.platform == "linux" else []:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(0.005)


def _reap() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants(top: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not worth its start-up time here
        if name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(stat_fields(name)[1]), []).append(int(name))
    found = [top]
    for one in found:
        found += children.get(one, [])
    return found[1:]
