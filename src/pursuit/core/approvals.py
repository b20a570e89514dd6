"""A question to a person about one call, and what the answer covers: this call, these arguments, or this tool. Pure.

Invariant: a yes is remembered by tool and arguments together, or for a whole tool because the person said so. Where
several people must say yes, one person counts once, and the narrowest yes is what they agree on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from pursuit.core.events import Permission

Answer = Permission | Literal["expired"]
WIDTHS: tuple[Permission, ...] = ("once", "arguments", "mission")
"""What a yes can cover, the narrowest first."""
GRANTS = frozenset(WIDTHS)
MOST_PEOPLE = 5
"""So many people can be required to say yes to one call."""


class Yes(NamedTuple):
    """What a person agreed to, and how the person is named."""

    answer: Permission
    by: str


def agreed(said: Mapping[str, Yes], require: int) -> Yes | None:
    """What these people, by their subjects, agree on; None while there are too few."""
    if len(said) < require:
        return None
    first = min(said.values(), key=lambda one: WIDTHS.index(one.answer))
    return Yes(first.answer, " and ".join(one.by for one in said.values()))


def people_row(require: int, said: Mapping[str, Yes]) -> dict[str, Any]:
    """How many people must say yes, and who has; nothing if it is one."""
    return {} if require == 1 else {"required": require, "approved_by": [one.by for one in said.values()]}


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
    require: int = 1
    cut: bool = False
    digest: str | None = None
    accepts: dict[str, Any] | None = None
    answer: Answer | None = None
    by: str | None = None
    why: str | None = None
    kept: bool = False
    """Whether the answer counts in the next iteration: the turn of the agent that asked ended without it."""
    said: dict[str, Yes] = field(default_factory=dict[str, Yes])
    """Who has said yes, by the subject."""
    shown: set[str] = field(default_factory=set[str])
    """Who has seen the arguments whole."""

    def scope(self, answer: Permission) -> str:
        """What a yes of this width covers."""
        scope = tool_scope(self.tool) if answer == "mission" else call_scope(self.tool, self.args)
        bound = _bound(scope, self.digest, self.subject)
        return granted_scope(bound, self.require)


def _bound(scope: str, digest: str | None, subject: str | None) -> str:
    """A scope for one definition of the tool and for one client."""
    scope = f"{scope} as {digest}" if digest else scope
    return scope if subject is None else client_scope(scope, subject)


def client_scope(scope: str, subject: str) -> str:
    """A scope for one client. The subject becomes one word, so two scopes and subjects are never the same text."""
    one_word = json.dumps(subject).replace(" ", "\\u0020") if " " in subject else subject
    return f"{scope} by {one_word}"


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


def granted_scope(scope: str, people: int) -> str:
    """The scope of a yes that so many people gave."""
    return scope if people == 1 else f"{people} people for {scope}"


def is_covered(granted: set[str], scope: str, require: int) -> bool:
    """Whether at least so many people have said yes to this scope."""
    return any(granted_scope(scope, people) in granted for people in range(require, MOST_PEOPLE + 1))


def is_granted(
    granted: set[str],
    approval: Approval | None,
    tool: str,
    args: Mapping[str, Any],
    subject: str | None,
    *,
    digest: str | None,
    require: int = 1,
) -> bool:
    """Whether enough people have said yes to this call of a client, or to something that covers it.

    A yes is for the definition that the tool had; one from before definitions were recorded is for any.
    """
    if approval is not None and approval.answer is not None:
        same = approval.accepts is not None or (
            call_scope(approval.tool, approval.args) == call_scope(tool, args) and approval.digest in (None, digest)
        )
        return same and approval.answer in GRANTS and approval.require >= require
    scopes = tool_scope(tool), call_scope(tool, args)
    return any(is_covered(granted, _bound(scope, one, subject), require) for scope in scopes for one in {digest, None})


def pending(approvals: Mapping[str, Approval]) -> list[Approval]:
    """The questions without an answer."""
    return [approval for approval in approvals.values() if approval.answer is None]
