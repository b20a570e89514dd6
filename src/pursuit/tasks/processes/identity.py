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
from typing import Any

from pursuit.tasks.processes.keeper import boot_id, start_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, for as long as it lives."""

    pid: int
    start: str | None
    boot: str = ""

    @property
    def lives(self) -> bool:
        """Whether exactly this process still runs; a zombie does not, and where nobody reaps it stays for ever."""
        here = not self.boot or self.boot == this_boot()
        return here and start_time(self.pid, zombie=False) == self.start is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What the keeper wrote when it had started a command: who runs, who keeps it, and since when."""

    leader: Identity
    keeper: Identity
    at: float


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
    return Meta(leader=identity_of(body), keeper=identity_of(body["keeper"]), at=float(body["at"]))


def read_json(path: Path) -> dict[str, Any] | None:
    """The table in a file; None if there is no such file."""
    try:
        # Python's own, which takes the lone surrogates that stand for bytes in arguments.
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
