"""A decision about a call, a host or a tool, with the reason that a person reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["auto", "ask", "never"]

SEVERITY: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision, and why."""

    decision: Decision
    reason: str = ""


def stricter(one: Ruling, other: Ruling) -> Ruling:
    """The one that lets less through; the first, where both let the same through."""
    return other if SEVERITY[other.decision] > SEVERITY[one.decision] else one
