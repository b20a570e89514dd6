"""Every process that belongs to a command: all below its subreaper on Linux, its group, its tag, and their children.

Owns: finding and signalling them. Knows no task's meaning. Invariant: what is signalled was verified to be what was
found, so a pid that was given away meanwhile is left alone; who was found once is not lost sight of until it is gone,
whatever became of the parent by which it was found.
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

# Which process is meant: its pid and when it began, in this boot of the machine.
# Invariant: a pid that another process has got since is another identity.

UNREADABLE = (
    "what its supervisor wrote down about it cannot be read, as after a loss of power; how it ended is not known"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, for as long as it lives."""

    pid: int
    start: str | None
    boot: str = ""

    @property
    def lives(self) -> bool:
        """Whether exactly this process still runs; a zombie does not, and where nobody reaps it stays for ever."""
        return self.here and start_time(self.pid, zombie=False) == self.start is not None

    @property
    def here(self) -> bool:
        """Whether it is of this boot of the machine; numbers of another one mean nothing."""
        return not self.boot or self.boot == this_boot()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What the keeper wrote when it had started a command: who runs, who keeps it, since when, below what."""

    leader: Identity
    keeper: Identity
    at: float
    subreaper: Identity | None = None


@cache
def this_boot() -> str:
    """Which boot of the machine this is."""
    return boot_id()


def identity_of(body: Mapping[str, Any]) -> Identity:
    """The identity that the keeper wrote."""
    return Identity(pid=int(body["pid"]), start=body.get("start"), boot=str(body.get("boot", "")))


def read_meta(folder: Path) -> Meta | str | None:
    """Who runs in that folder: a command, the reason why there is none, or None if nobody wrote anything yet."""
    body = read_json(folder / "meta")
    if body is None:
        return None
    if "refused" in body:
        return str(body["refused"])
    try:
        leader, keeper, at = identity_of(body), identity_of(body["keeper"]), float(body["at"])
        subreaper = identity_of(body["subreaper"]) if "subreaper" in body else None
        return Meta(leader=leader, keeper=keeper, at=at, subreaper=subreaper)
    except (KeyError, TypeError, ValueError):
        return UNREADABLE


def read_identity(path: Path) -> Identity | None:
    """Who wrote a file about itself; None if nobody did, or it cannot be read."""
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
class Seen:
    """A living process as it was found; `tag` is the task that it carries in its environment."""

    pid: int
    parent: int
    group: int
    session: int
    start: str
    tag: str = ""

    @property
    def key(self) -> Key:
        """Who it is, whoever its parent has become."""
        return self.pid, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """By what the processes of a command are known: its tag, its group, and on Linux the `subreaper` above them all."""

    task_id: str
    leader: Identity
    subreaper: Identity | None = None


class ProcessTable:
    """Looks at all processes, once for all who ask at the same time."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._seen: list[Seen] = []
        self._looked = 0.0

    async def members(self, root: Root, known: Container[Key] = frozenset()) -> list[Seen]:
        """The living processes of one command, as they are now, with those that are `known` to be."""
        asked = time.monotonic()
        async with self._lock:
            if self._looked < asked:
                began = time.monotonic()
                self._seen = await anyio.to_thread.run_sync(_everybody)
                self._looked = began
            return members_of(self._seen, root, known)


def members_of(everybody: Iterable[Seen], root: Root, known: Container[Key] = frozenset()) -> list[Seen]:
    """Those of them that belong to a command."""
    everybody, leader = list(everybody), root.leader
    # The number of a group stays taken as long as it has a member; once somebody else leads it, it is another group.
    taken = not leader.here or any(one.pid == leader.pid and one.start != leader.start for one in everybody)
    above = next((one for one in everybody if _is(one, root.subreaper)), None)
    found = {
        one.pid: one
        for one in everybody
        if one.tag == root.task_id
        or (not taken and leader.pid in (one.pid, one.group, one.session))
        or (above is not None and one.parent == above.pid)
        or one.key in known
    }
    children: dict[int, list[Seen]] = {}
    for one in everybody:
        children.setdefault(one.parent, []).append(one)
    fresh = list(found.values())
    while fresh:
        fresh = [child for one in fresh for child in children.get(one.pid, ()) if child.pid not in found]
        found.update({one.pid: one for one in fresh})
    return [one for one in found.values() if one is not above and one.pid != os.getpid()]


def _is(one: Seen, identity: Identity | None) -> bool:
    return identity is not None and identity.here and (one.pid, one.start) == (identity.pid, identity.start)


async def end_tree(census: ProcessTable, root: Root, grace: float) -> None:
    """Ends all of them: SIGTERM, time to leave, SIGKILL until nobody is left."""
    ends = time.monotonic() + grace
    number = signal.SIGTERM
    told: set[Key] = set()
    while members := await census.members(root, told):
        now = time.monotonic()
        if now >= ends:
            if number == signal.SIGKILL and now >= ends + KILLING:
                return  # what the kernel holds cannot be ended by anybody
            number = signal.SIGKILL
        for one in members:
            if number == signal.SIGKILL or one.key not in told:
                send(one, number)
                told.add(one.key)
        await anyio.sleep(LOOK_EVERY if number == signal.SIGTERM else LOOK_EVERY / 5)


def send(one: Seen, number: int) -> None:
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


def _everybody() -> list[Seen]:
    return list(_from_proc() if _LINUX else _from_ps())


def _from_proc() -> Iterable[Seen]:
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
            tag = ""  # somebody else's
        yield Seen(int(name), int(stat[1]), int(stat[2]), int(stat[3]), stat[19].decode(), tag)


def _tagged(environment: bytes) -> str:
    place = 0 if environment.startswith(_TAG) else environment.find(b"\0" + _TAG) + 1
    if place == 0 and not environment.startswith(_TAG):
        return ""
    return environment[place + len(_TAG) :].split(b"\0", 1)[0].decode("utf-8", "replace")


def _from_ps() -> Iterable[Seen]:
    words = ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]
    told = subprocess.run(words, capture_output=True, check=False, env={"PATH": os.defpath, "LC_ALL": "C"})  # noqa: S603
    for line in told.stdout.decode("utf-8", "replace").splitlines():
        pid, parent, group, state, *start = line.split()
        if not state.startswith("Z"):
            yield Seen(int(pid), int(parent), int(group), 0, " ".join(start))
