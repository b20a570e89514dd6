"""The values that pass between a script and whoever drives it.

Owns: what a run is given, the calls it stops at, their answers, its end, and the identity of a call. Runs nothing.
Invariant: everything here is JSON inside, so that it can be recorded and compared in a replay.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pursuit.model.expressions import SyntaxProblem, checked_script
from pursuit.sandbox.values import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """One run: the source, the tools it may name (server, tool, parameters in order), what it sees, chance and time."""

    source: str
    tools: Mapping[str, Mapping[str, Sequence[str]]]
    state: Mapping[str, Any]
    seed: int
    now: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """A call that the script waits for. `index` counts the calls of the run from 0."""

    index: int
    tool: str
    arguments: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFailure:
    """The answer to a call that failed: a `RuntimeError` with this message in the script."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The script waits for all of these: one call, or those of a `gather`."""

    calls: tuple[ScriptCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The script has ended. `memory` is the old one when the new one cannot be kept; then `error` says why."""

    memory: dict[str, Any]
    observed: tuple[tuple[str, Any], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    printed: str = ""


Step = Calls | Finished


def check_script(source: str) -> SyntaxProblem | None:
    """Why a script can never run (reason, line, column), or nothing. Runs no part of it."""
    try:
        checked_script(source)
    except SyntaxProblem as problem:
        return problem
    return None


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """The identity of a call: equal for equal tools and arguments, whatever the order of the keys."""
    return hashlib.sha256(canonical([tool, arguments]).encode()).hexdigest()
