"""Which process is meant: its pid and when it began, in this boot of the machine.

Owns: the identity and the question whether it lives. Knows no task.
Invariant: a pid that another process has got since is another identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from pursuit.tasks.processes.keeper import boot_id, start_time

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
