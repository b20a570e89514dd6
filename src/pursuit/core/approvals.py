"""A question to a person about one call, and what the answer covers: this call, these arguments, or this tool. Pure.

Invariant: a yes is remembered by tool and arguments together, or for a whole tool because the person said so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pursuit.core.events import Permission

Answer = Permission | Literal["expired"]
GRANTS = frozenset({"once", "arguments", "mission"})


@dataclass(slots=True, kw_only=True)
class Approval:
    """One question; no answer yet means that it is open."""

    approval_id: str
    call_id: str
    tool: str
    args: dict[str, Any]
    description: str
    reason: str
    asked_at: float
    until: float
    subject: str | None = None
    answer: Answer | None = None
    by: str | None = None
    why: str | None = None
    kept: bool = False
    """Whether the answer counts in the next iteration: the turn of the agent that asked ended without it."""

    def scope(self, answer: Permission) -> str:
        """What a yes of this width covers."""
        scope = tool_scope(self.tool) if answer == "mission" else call_scope(self.tool, self.args)
        return scope if self.subject is None else f"{scope} by {self.subject}"


def approval_id(call_id: str) -> str:
    """The id of the question about a call; the same call always has the same question."""
    return f"approval-{hashlib.sha256(call_id.encode()).hexdigest()[:16]}"


def tool_scope(tool: str) -> str:
    """Every call of a tool."""
    return f"tool {tool}"


def call_scope(tool: str, args: Mapping[str, Any]) -> str:
    """The calls of a tool with exactly these arguments."""
    body = msgspec.json.encode([tool, args], order="deterministic")
    return f"call {hashlib.sha256(body).hexdigest()}"


def is_granted(
    granted: set[str], approval: Approval | None, tool: str, args: Mapping[str, Any], subject: str | None
) -> bool:
    """Whether a person has said yes to this call of a client, or to something that covers it."""
    if approval is not None and approval.answer is not None:
        same = call_scope(approval.tool, approval.args) == call_scope(tool, args)
        return same and approval.answer in GRANTS
    by = "" if subject is None else f" by {subject}"
    return f"{tool_scope(tool)}{by}" in granted or f"{call_scope(tool, args)}{by}" in granted


def pending(approvals: Mapping[str, Approval]) -> list[Approval]:
    """The questions without an answer."""
    return [approval for approval in approvals.values() if approval.answer is None]
