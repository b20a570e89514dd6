"""The calls and iterations that a mission's state remembers.

Owns: what one call and one iteration amount to, and what makes two of them alike. Pure data.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from pursuit.model.events import IterationProposed, Outcome, Purpose, ScriptEnded

REMEMBERED = 4_096
SCRIPT_SOURCE = "script"


class CallRecord(msgspec.Struct, kw_only=True, gc=False):
    """One call of the open iteration, or of a recent one; no outcome means that it is still under way."""

    call_id: str
    iteration: int
    tool: str
    args: dict[str, Any]
    purpose: Purpose = "proposal"
    order: int = 0
    attempt: int = 1
    criterion_id: str | None = None
    repeatable: bool = False
    task: str | None = None
    outcome: Outcome | None = None
    result: Any = None
    blob: str | None = None
    preview: str | None = None
    digest: str = ""
    error: str | None = None
    fingerprint: str = ""

    @property
    def key(self) -> str:
        """What makes two calls the same call."""
        if not self.fingerprint:
            self.fingerprint = fingerprint([self.tool, self.args])
        return self.fingerprint


class Child(msgspec.Struct, kw_only=True, gc=False):
    """A child as its parent knows it: what was set aside for it and, once it has ended, what it used of that."""

    session_id: str
    call_id: str
    reserved: dict[str, float]
    used: dict[str, float] | None = None
    outcome: Outcome | None = None
    unpriced: bool = False


class Iteration(msgspec.Struct, kw_only=True, gc=False):
    """An iteration that has been proposed: its calls in the order of their intents.

    `view` is what a script saw as `state` when the iteration began, so that a replay sees the same.
    """

    index: int
    started_at: float
    proposed: IterationProposed
    calls: dict[str, CallRecord] = {}
    script: ScriptEnded | None = None
    view: dict[str, Any] | None = None

    def errors(self) -> list[tuple[str, str]]:
        """What went wrong, with the tool that it went wrong in."""
        found = [(call.tool, call.error) for call in self.calls.values() if call.error is not None]
        if self.proposed.failed:
            found = [(self.proposed.proposer, reason) for reason in self.proposed.failed] + found
        if self.script is not None and self.script.error is not None:
            found.append((SCRIPT_SOURCE, self.script.error))
        return found

    def sequence(self) -> str:
        """The calls that were made, in order."""
        return " ".join([call.key for call in self.calls.values() if call.purpose != "check"])

    def outputs(self) -> str:
        """A fingerprint of what came back, whatever was asked."""
        script = self.script
        said = (script.observed, script.events, script.error) if script is not None else None
        return fingerprint([(c.tool, c.outcome, c.digest or c.error) for c in self.calls.values()] + [said])


def fingerprint(value: Any) -> str:
    """A short stable digest of a JSON value."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


class Remembered:
    """The newest few thousand keys that were added; a bounded memory of what was seen before."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remembers a key, forgetting the oldest when there are too many."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > REMEMBERED:
            del self._keys[next(iter(self._keys))]


def error_key(tool: str, error: str) -> str:
    """What makes two errors the same error."""
    return f"{tool}: {error[:500]}"
