"""The events of a gateway: calls that may write, refusals, and questions to a person; and their state. Pure.

Invariant: an event that was written once can be read for ever; no secret and no large value gets into one. The
arguments of a question that its event does not hold whole are in a blob.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pursuit.core.approvals import GRANTS, Yes, agreed, client_scope, granted_scope, tool_scope
from pursuit.core.events import Channel, Permission, encode

GatewayOutcome = Literal["ok", "failed", "asked", "cancelled", "unknown"]


class GatewayEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact; `at` is the wall clock of the process that wrote it."""

    at: float = 0.0


class GatewayOpened(GatewayEvent, frozen=True, kw_only=True):
    """A gateway began to serve; written with its first event."""

    servers: list[str]
    by: str


class GatewayCallIntended(GatewayEvent, frozen=True, kw_only=True):
    """A call that may write is about to be sent."""

    call_id: str
    tool: str
    args: dict[str, Any]
    scope: str
    by: str


class GatewayCallSettled(GatewayEvent, frozen=True, kw_only=True):
    """The outcome of a call; without this event it is unknown."""

    call_id: str
    outcome: GatewayOutcome
    why: str | None = None


class GatewayCallRefused(GatewayEvent, frozen=True, kw_only=True):
    """A call that was not sent."""

    tool: str
    args: dict[str, Any]
    why: str
    by: str


class GatewayApprovalAsked(GatewayEvent, frozen=True, kw_only=True):
    """A person is asked whether a call of `who` may be made; `until` is when silence counts as no.

    `whole` is the digest of the arguments as they are, where `args` lack a part. `cut`: so does the description.
    """

    approval_id: str
    tool: str
    args: dict[str, Any]
    scope: str
    description: str
    reason: str
    until: float
    who: str
    by: str
    require: int = 1
    whole: str | None = None
    cut: bool = False
    digest: str | None = None
    accepts: dict[str, Any] | None = None
    """What a yes accepts (`Changes.what`), if the question is about the changes of a server and not about a call."""


class GatewayApprovalAnswered(GatewayEvent, frozen=True, kw_only=True):
    """A person's answer. A no counts, or a yes from as many people (`person`) as are required."""

    approval_id: str
    answer: Permission
    by: str
    reason: str | None = None
    channel: Channel | None = None
    person: str | None = None


class GatewayApprovalShown(GatewayEvent, frozen=True, kw_only=True):
    """A person has seen the arguments of a question whole."""

    approval_id: str
    by: str
    person: str


class GatewayApprovalUsed(GatewayEvent, frozen=True, kw_only=True):
    """A call used the answer; an answer for one call holds for no other."""

    approval_id: str


class GatewayClosed(GatewayEvent, frozen=True, kw_only=True):
    """The gateway stopped in an orderly way."""


AnyGatewayEvent = (
    GatewayOpened
    | GatewayCallIntended
    | GatewayCallSettled
    | GatewayCallRefused
    | GatewayApprovalAsked
    | GatewayApprovalAnswered
    | GatewayApprovalShown
    | GatewayApprovalUsed
    | GatewayClosed
)

encode_gateway: Callable[[AnyGatewayEvent], tuple[str, bytes]] = encode
decode_gateway: Callable[[bytes], AnyGatewayEvent] = msgspec.json.Decoder(AnyGatewayEvent).decode


def fingerprint(tool: str, args: Mapping[str, Any]) -> str:
    """The key of a tool with exactly these arguments, also where they hold text that cannot be encoded."""
    body = json.dumps([tool, args], sort_keys=True, separators=(",", ":"))
    return f"call {hashlib.sha256(body.encode()).hexdigest()}"


def bound_tool(tool: str, digest: str | None) -> str:
    """A tool with this definition: an approval is for no other one."""
    return f"{tool} as {digest}" if digest else tool


def narrow_scope(who: str, tool: str, args: Mapping[str, Any]) -> str:
    """The calls of a tool with exactly these arguments, by one caller."""
    return client_scope(fingerprint(tool, args), who)


def wide_scope(who: str, tool: str) -> str:
    """Every call of a tool, by one caller."""
    return client_scope(tool_scope(tool), who)


@dataclass(slots=True, kw_only=True)
class GatewayState:
    """The state: every question, its answer, and what was allowed for longer than one call."""

    asked: dict[str, GatewayApprovalAsked] = field(default_factory=dict[str, GatewayApprovalAsked])
    answers: dict[str, GatewayApprovalAnswered] = field(default_factory=dict[str, GatewayApprovalAnswered])
    said: dict[str, dict[str, Yes]] = field(default_factory=dict[str, dict[str, Yes]])
    """Who has said yes to each question, by the subject."""
    shown: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Questions, and people who have seen their arguments whole."""
    granted: set[str] = field(default_factory=set[str])
    used: set[str] = field(default_factory=set[str])

    def apply(self, events: Iterable[AnyGatewayEvent]) -> None:
        """Applies further events."""
        for event in events:
            match event:
                case GatewayApprovalAsked():
                    self.asked[event.approval_id] = event
                case GatewayApprovalAnswered():
                    self._answered(event)
                case GatewayApprovalShown():
                    self.shown.add((event.approval_id, event.person))
                case GatewayApprovalUsed():
                    self.used.add(event.approval_id)
                case _:
                    pass

    def pending(self, now: float) -> list[GatewayApprovalAsked]:
        """The questions that still wait for an answer."""
        return [one for key, one in self.asked.items() if key not in self.answers and now < one.until]

    def unused(self, scope: str, now: float, require: int = 1) -> GatewayApprovalAnswered | None:
        """An answer about these calls, of at least so many people, that no call has taken yet."""
        keys = [one.approval_id for one in self.of_scope(scope) if now < one.until and one.require >= require]
        return next((self.answers[key] for key in keys if key in self.answers and key not in self.used), None)

    def waits(self, now: float) -> bool:
        """Whether a question waits for its answer, or an answer for its call."""
        return any(now < one.until for key, one in self.asked.items() if key not in self.used)

    def of_scope(self, scope: str) -> list[GatewayApprovalAsked]:
        """Every question about these calls, the oldest first."""
        return [one for one in self.asked.values() if one.scope == scope]

    def _answered(self, event: GatewayApprovalAnswered) -> None:
        asked = self.asked.get(event.approval_id)
        if asked is None or event.approval_id in self.answers:
            return
        if event.answer in GRANTS:
            said = self.said.setdefault(event.approval_id, {})
            said.setdefault(event.person or event.by, Yes(event.answer, event.by))
            together = agreed(said, asked.require)
            if together is None:
                return
            event = msgspec.structs.replace(event, answer=together.answer, by=together.by)
        self.answers[event.approval_id] = event
        if event.answer in GRANTS and (event.answer != "once" or asked.accepts is not None):
            wide = event.answer == "mission" and asked.accepts is None
            scope = wide_scope(asked.who, bound_tool(asked.tool, asked.digest)) if wide else asked.scope
            self.granted.add(granted_scope(scope, asked.require))
