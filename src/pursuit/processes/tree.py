"""Finds and signals every process of a command: those below its subreaper (Linux), its group, its tag, their children.

Invariant: a process is verified before it is signalled, so a reused pid is never signalled; a process that was found
once stays a member until it has ended, even after the parent that led to it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Container, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import anyio
import anyio.to_thread

from pursuit.processes.subreaper import TAG, boot_id, start_time, stat_fields

LOOK_EVERY = 0.05
KILLING = 5.0
AGENT_TAG = "agent-"  # prefix of the mission's id
_TAG = TAG.encode() + b"="
_LINUX = Path("/proc/self/stat").exists()

this_boot = cache(boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process: its pid and its start time in one boot of the machine; a reused pid is another identity."""

    pid: int
    start: str | None
    boot: str = ""

    @property
    def lives(self) -> bool:
        """True if exactly this process still runs; a zombie, which may never be reaped, does not."""
        return self.here and start_time(self.pid, zombie=False) == self.start is not None

    @property
    def here(self) -> bool:
        """True if it is of this boot of the machine; pids of another boot mean nothing."""
        return not self.boot or self.boot == this_boot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Identifies the processes of a command: its tag, its group, and on Linux the `subreaper` above them all."""

    tag: str
    leader: ProcessIdentity = ProcessIdentity(pid=-1, start=None)
    subreaper: ProcessIdentity | None = None


Key = tuple[int, str]
"""A pid, and when it began."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A living process; `tag` is the task in its environment."""

    pid: int
    parent: int
    group: int
    session: int
    start: str
    tag: str = ""

    @property
    def key(self) -> Key:
        return self.pid, self.start

    def signal(self, number: int) -> None:
        try:
            if _LINUX:
                descriptor = os.pidfd_open(self.pid)
                try:
                    if start_time(self.pid) == self.start:
                        signal.pidfd_send_signal(descriptor, number)
                finally:
                    os.close(descriptor)
            else:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class ProcessTable:
    """Lists all processes, once for all concurrent callers."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._seen: list[ProcessInfo] = []
        self._looked = 0.0

    async def members(self, root: Root, known: Container[Key] = frozenset()) -> list[ProcessInfo]:
        """The living processes of one command, including those already `known`."""
        asked = time.monotonic()
        async with self._lock:
            if self._looked < asked:
                began = time.monotonic()
                self._seen = await anyio.to_thread.run_sync(lambda: list(_from_proc() if _LINUX else _from_ps()))
                self._looked = began
            return members_of(self._seen, root, known)

    async def end(self, root: Root, grace: float) -> None:
        """Ends all processes of a command: SIGTERM, the grace, then SIGKILL until none is left."""
        ends = time.monotonic() + grace
        number = signal.SIGTERM
        told: set[Key] = set()
        while members := await self.members(root, told):
            now = time.monotonic()
            if now >= ends:
                if number == signal.SIGKILL and now >= ends + KILLING:
                    return  # the rest is in uninterruptible sleep and cannot be ended
                number = signal.SIGKILL
            for one in members:
                if number == signal.SIGKILL or one.key not in told:
                    one.signal(number)
                    told.add(one.key)
            await anyio.sleep(LOOK_EVERY if number == signal.SIGTERM else LOOK_EVERY / 5)

    @asynccontextmanager
    async def stopped(self, root: Root) -> AsyncGenerator[None]:
        """Suspends all processes of a command during the block, including those that they start during it."""
        found: dict[Key, ProcessInfo] = {}
        try:
            while fresh := [one for one in await self.members(root, found) if one.key not in found]:
                for one in fresh:
                    found[one.key] = one
                    one.signal(signal.SIGSTOP)
            yield
        finally:
            for one in found.values():
                one.signal(signal.SIGCONT)


def members_of(processes: Iterable[ProcessInfo], root: Root, known: Container[Key] = frozenset()) -> list[ProcessInfo]:
    processes, leader, subreaper = list(processes), root.leader, root.subreaper
    # A group id stays in use as long as the group has a member; if another process leads it, it is another group.
    taken = not leader.here or any(one.pid == leader.pid and one.start != leader.start for one in processes)
    key = (subreaper.pid, subreaper.start) if subreaper is not None and subreaper.here else None
    above = next((one for one in processes if one.key == key), None)
    found = {
        one.pid: one
        for one in processes
        if one.tag == root.tag
        or (not taken and leader.pid in (one.pid, one.group, one.session))
        or (above is not None and one.parent == above.pid)
        or one.key in known
    }
    children: dict[int, list[ProcessInfo]] = {}
    for one in processes:
        children.setdefault(one.parent, []).append(one)
    fresh = list(found.values())
    while fresh:
        fresh = [child for one in fresh for child in children.get(one.pid, ()) if child.pid not in found]
        found.update({one.pid: one for one in fresh})
    return [one for one in found.values() if one is not above and one.pid != os.getpid()]


def agents_above() -> list[str]:
    """The missions whose agents started this process: by the tags of this process and its ancestors."""
    tags, pid = {os.environ.get(TAG, "")}, os.getpid()
    while _LINUX and (one := next(iter(_from_proc([str(pid)])), None)) is not None:
        tags.add(one.tag)
        pid = one.parent
    return sorted(tag.removeprefix(AGENT_TAG) for tag in tags if tag.startswith(AGENT_TAG))


def _from_proc(names: Iterable[str] = ()) -> Iterable[ProcessInfo]:
    for name in names or os.listdir("/proc"):  # noqa: PTH208 - thousands of names, most of which are only compared
        if not name.isdigit():
            continue
        try:
            stat = stat_fields(name)
        except OSError:
            continue
        if stat[0] in b"ZX":
            continue
        try:
            variables = Path("/proc", name, "environ").read_bytes().split(b"\0")
        except OSError:
            variables = []  # another user's
        tag = next((one.removeprefix(_TAG).decode("utf-8", "replace") for one in variables if one.startswith(_TAG)), "")
        yield ProcessInfo(int(name), int(stat[1]), int(stat[2]), int(stat[3]), stat[19].decode(), tag)


def _from_ps() -> Iterable[ProcessInfo]:
    words = ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]
    told = subprocess.run(words, capture_output=True, check=False, env={"PATH": os.defpath, "LC_ALL": "C"})  # noqa: S603
    for line in told.stdout.decode("utf-8", "replace").splitlines():
        pid, parent, group, state, *start = line.split()
        if not state.startswith("Z"):
            yield ProcessInfo(int(pid), int(parent), int(group), 0, " ".join(start))
