"""Finds and signals every process of a command: those below its subreaper (Linux), its group, its tag, their children.

Invariant: a process is verified before it is signalled, so a pid that was reused is left alone; a process that was
found once stays a member until it is gone, also when the parent by which it was found has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from pursuit.tasks.supervisor import TAG, boot_id, start_time

UNREADABLE = (
    "what its supervisor wrote down about it cannot be read, as after a loss of power; how it ended is not known"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process: its pid and its start time in one boot of the machine, so a reused pid is another identity."""

    pid: int
    start: str | None
    boot: str = ""

    @property
    def lives(self) -> bool:
        """Whether exactly this process still runs; a zombie, which may never be reaped, does not."""
        return self.here and start_time(self.pid, zombie=False) == self.start is not None

    @property
    def here(self) -> bool:
        """Whether it is of this boot of the machine; numbers of another one mean nothing."""
        return not self.boot or self.boot == this_boot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """By what the processes of a command are known: its tag, its group, and on Linux the `subreaper` above them all."""

    task_id: str
    leader: Identity
    subreaper: Identity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta(Root):
    """What the supervisor recorded of a started command."""

    supervisor: Identity
    at: float


this_boot = cache(boot_id)


def identity_of(body: Mapping[str, Any]) -> Identity:
    """The identity that the supervisor wrote."""
    return Identity(pid=int(body["pid"]), start=body.get("start"), boot=str(body.get("boot", "")))


def read_meta(folder: Path) -> Meta | str | None:
    """The command of that folder, the reason why none was started, or None if nothing is recorded yet."""
    body = read_json(folder / "meta")
    if body is None:
        return None
    if "refused" in body:
        return str(body["refused"])
    try:
        return Meta(
            task_id=folder.name,
            leader=identity_of(body),
            subreaper=identity_of(body["subreaper"]) if "subreaper" in body else None,
            # An earlier build wrote `keeper`; a command that it started may still run.
            supervisor=identity_of(body["supervisor"] if "supervisor" in body else body["keeper"]),
            at=float(body["at"]),
        )
    except (KeyError, TypeError, ValueError):
        return UNREADABLE


def read_identity(path: Path) -> Identity | None:
    """The process that a file names; None if there is no such file, or it cannot be read."""
    try:
        return identity_of(read_json(path) or {})
    except (KeyError, TypeError, ValueError):
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The table in a file; None if there is no such file, and an empty one if it cannot be read."""
    try:
        # Python's own, which takes the lone surrogates that stand for bytes in arguments.
        body: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}  # a machine that lost its power leaves files that are empty, or hold what was there before
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


LOOK_EVERY = 0.05
KILLING = 5.0
_TAG = TAG.encode() + b"="
_LINUX = Path("/proc/self/stat").exists()

Key = tuple[int, str]
"""A pid, and when it began."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A living process as it was found; `tag` is the task that it carries in its environment."""

    pid: int
    parent: int
    group: int
    session: int
    start: str
    tag: str = ""

    @property
    def key(self) -> Key:
        """Its identity, which does not change with its parent."""
        return self.pid, self.start


class ProcessTable:
    """Lists all processes, once for all callers that ask at the same time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._seen: list[ProcessInfo] = []
        self._looked = 0.0

    async def members(self, root: Root, known: Container[Key] = frozenset()) -> list[ProcessInfo]:
        """The living processes of one command, as they are now, with those that are `known` to be."""
        asked = time.monotonic()
        async with self._lock:
            if self._looked < asked:
                began = time.monotonic()
                self._seen = await anyio.to_thread.run_sync(lambda: list(_from_proc() if _LINUX else _from_ps()))
                self._looked = began
            return members_of(self._seen, root, known)


def members_of(processes: Iterable[ProcessInfo], root: Root, known: Container[Key] = frozenset()) -> list[ProcessInfo]:
    """Those of them that belong to a command."""
    processes, leader = list(processes), root.leader
    # The number of a group stays taken as long as it has a member; once another process leads it, it is another group.
    taken = not leader.here or any(one.pid == leader.pid and one.start != leader.start for one in processes)
    above = next((one for one in processes if _is_identity(one, root.subreaper)), None)
    found = {
        one.pid: one
        for one in processes
        if one.tag == root.task_id
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


def _is_identity(one: ProcessInfo, identity: Identity | None) -> bool:
    return identity is not None and identity.here and (one.pid, one.start) == (identity.pid, identity.start)


async def end_tree(process_table: ProcessTable, root: Root, grace: float) -> None:
    """Ends all of them: SIGTERM, the grace, then SIGKILL until none is left."""
    ends = time.monotonic() + grace
    number = signal.SIGTERM
    told: set[Key] = set()
    while members := await process_table.members(root, told):
        now = time.monotonic()
        if now >= ends:
            if number == signal.SIGKILL and now >= ends + KILLING:
                return  # a process in uninterruptible sleep cannot be ended
            number = signal.SIGKILL
        for one in members:
            if number == signal.SIGKILL or one.key not in told:
                send(one, number)
                told.add(one.key)
        await anyio.sleep(LOOK_EVERY if number == signal.SIGTERM else LOOK_EVERY / 5)


def send(one: ProcessInfo, number: int) -> None:
    """Signals a process if it is still the same."""
    try:
        if _LINUX:
            descriptor = os.pidfd_open(one.pid)
            try:
                if start_time(one.pid) == one.start:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        else:
            os.kill(one.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _from_proc() -> Iterable[ProcessInfo]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, of which most are only compared
        if not name.isdigit():
            continue
        place = Path("/proc", name)
        try:
            stat = place.joinpath("stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if stat[0] in b"ZX":
            continue
        try:
            tag = _tagged(place.joinpath("environ").read_bytes())
        except OSError:
            tag = ""  # another user's
        yield ProcessInfo(int(name), int(stat[1]), int(stat[2]), int(stat[3]), stat[19].decode(), tag)


def _tagged(environment: bytes) -> str:
    place = 0 if environment.startswith(_TAG) else environment.find(b"\0" + _TAG) + 1
    if place == 0 and not environment.startswith(_TAG):
        return ""
    return environment[place + len(_TAG) :].split(b"\0", 1)[0].decode("utf-8", "replace")


def _from_ps() -> Iterable[ProcessInfo]:
    words = ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]
    told = subprocess.run(words, capture_output=True, check=False, env={"PATH": os.defpath, "LC_ALL": "C"})  # noqa: S603
    for line in told.stdout.decode("utf-8", "replace").splitlines():
        pid, parent, group, state, *start = line.split()
        if not state.startswith("Z"):
            yield ProcessInfo(int(pid), int(parent), int(group), 0, " ".join(start))
