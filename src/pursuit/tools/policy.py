"""Whether a call may be sent.

Owns: the port `Policy`, its `Ruling`, and the first rule, the mission's allowlist. Does not know: approvals, or who
asks. Invariant: a policy is a pure function of the tool and its arguments, and whatever it does not know is denied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pursuit.errors import Fault, ValidationFailed
from pursuit.model.spelling import nearest
from pursuit.tools.contract import Tool

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["auto"]

_LATER = ("ask", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision, and the reason that a person reads."""

    decision: Decision
    reason: str = ""


class Policy(Protocol):
    """Decides one call; the same question always has the same answer."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """Whether this tool may be called with these arguments."""
        ...


@dataclass(frozen=True, slots=True)
class AllowlistPolicy:
    """Allows the tools, by qualified name, that the mission was started with, and denies every other."""

    allowed: frozenset[str]

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Ruling:
        """Allows what is on the list, whatever the arguments."""
        if tool.qualified in self.allowed:
            return Ruling(decision="allow", reason="on the mission's list of tools")
        return Ruling(decision="deny", reason=f"{tool.qualified} is not on the mission's list of tools")


def parse_mode(mode: str) -> Mode:
    """The policy mode by its name; raises `ValidationFailed` for one that does not exist (yet)."""
    if mode == "auto":
        return "auto"
    if mode in _LATER:
        reason = f"the mode {mode!r} is not there yet in this release; use 'auto'"
    else:
        reason = f"{mode!r} is no mode{nearest(mode, ('auto', *_LATER)) or '; use auto'}"
    raise ValidationFailed([Fault(field="mode", reason=reason)])
