"""Approvals: a question to a person about one call, its status, and the scope of its answer. Pure.

Events of missions and of gateways are read into one record, `Approval`; each question is written to the stream that
asks it. Only this module creates the events that answer or expire a question.
Invariant: an approval is stored for a tool with these arguments, or for the whole tool if the person chose so. If
several people must approve, each person counts once and the narrowest approval applies. Silence means no.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from pursuit.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    ApprovalShown,
    Channel,
    Event,
    Permission,
)
from pursuit.core.gateway_events import (
    GatewayApprovalAnswered,
    GatewayApprovalAsked,
    GatewayApprovalShown,
    GatewayApprovalUsed,
    GatewayEvent,
)

Answer = Permission | Literal["expired"]
WIDTHS: tuple[Permission, ...] = ("once", "arguments", "mission")
"""The scopes of an approval, narrowest first."""
GRANTS = frozenset(WIDTHS)
MAX_PEOPLE = 5
"""The most people who can be required to approve one call."""
APPROVAL_ID = re.compile(r"approval-[0-9a-f]{16}")
EXPIRY = "its expiry"
"""The `by` of a denial that records the expiry of a gateway's question."""


class Yes(NamedTuple):
    """The answer of a person who agreed, and the person's name."""

    answer: Permission
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question to a person about one call of a mission, of its agent or of a gateway's client, and its status.

    Times are seconds since 1970. Without an `answer` the question is open until `until`; then silence counts as no.
    """

    approval_id: str
    stream: str = ""
    """The id of the mission or of the gateway that asks."""
    asker: Literal["mission", "gateway"] = "mission"
    call_id: str | None = None
    iteration: int | None = None
    tool: str
    args: Mapping[str, Any] = field(repr=False)
    """The arguments; redacted and shortened if the blob `whole` has the full ones."""
    whole: str | None = None
    masked: bool | None = None
    """True if arguments named like secrets are masked; None if the arguments are not shown in full."""
    description: str
    cut: bool = False
    """True if the description does not show the arguments in full."""
    reason: str
    asked_at: float
    until: float
    scope: str
    """The scope of an approval of exactly this call."""
    client: str | None = None
    """The client that makes the call; None is the operator."""
    owner: str | None = None
    """The client that owns the mission."""
    require: int = 1
    digest: str | None = None
    """The definition of the tool that the approval is about."""
    accepts: Mapping[str, Any] | None = None
    """The changes (`Changes.what`) that an approval accepts, if the question is about a server's changes; else None."""
    answer: Answer | None = None
    by: str | None = None
    why: str | None = None
    channel: Channel | None = None
    answered_at: float | None = None
    said: Mapping[str, Yes] = field(default_factory=dict[str, Yes])
    """The people who approved, by subject."""
    shown: frozenset[str] = frozenset()
    """The subjects who have seen the arguments in full."""
    kept: bool = False
    """True if the answer counts in the next iteration, because the agent's turn ended before the answer came."""
    used: bool = False
    """True if a call at a gateway has used the answer."""

    @property
    def granted(self) -> bool:
        """True if enough people have approved."""
        return self.answer in GRANTS

    def is_open(self, now: float) -> bool:
        """True if it still waits for an answer at this time."""
        return self.answer is None and now < self.until

    @property
    def approved_by(self) -> list[str]:
        return [one.by for one in self.said.values()]

    @property
    def answered(self) -> bool:
        return self.answer is not None and self.answer != "expired"

    def is_about(self, tool: str, args: Mapping[str, Any]) -> bool:
        """True if it asks about a call of this tool with exactly these arguments."""
        return self.scope == call_scope(tool, args, digest=self.digest, client=self.client)

    def granted_scope(self) -> str:
        """The scope of an approval that covers more than this call."""
        wide = self.answer == "mission" and self.accepts is None
        scope = tool_scope(self.tool, digest=self.digest, client=self.client) if wide else self.scope
        return _of_people(scope, self.require)


def approval_id(call_id: str) -> str:
    """The id of the question about a call; the same call always has the same question."""
    return f"approval-{hashlib.sha256(call_id.encode()).hexdigest()[:16]}"


def tool_scope(tool: str, *, digest: str | None, client: str | None) -> str:
    """Every call that one client makes of a tool with this definition."""
    return _of_client(f"tool {_bound(tool, digest)}", client)


def call_scope(tool: str, args: Mapping[str, Any], *, digest: str | None = None, client: str | None = None) -> str:
    """The calls with exactly these arguments, even if they contain text that cannot be encoded."""
    body = json.dumps([_bound(tool, digest), args], sort_keys=True, separators=(",", ":"))
    return _of_client(f"call {hashlib.sha256(body.encode()).hexdigest()}", client)


def _bound(tool: str, digest: str | None) -> str:
    return f"{tool} as {digest}" if digest else tool


def _of_client(scope: str, client: str | None) -> str:
    """A scope for one client. The client is encoded as one word, so different pairs never give the same text."""
    if client is None:
        return scope
    one_word = json.dumps(client).replace(" ", "\\u0020") if " " in client else client
    return f"{scope} by {one_word}"


def _of_people(scope: str, people: int) -> str:
    return scope if people == 1 else f"{people} people for {scope}"


def answer_event(
    asked: Approval,
    answer: Permission,
    *,
    at: float,
    by: str,
    person: str | None,
    channel: Channel | None,
    reason: str | None,
) -> ApprovalAnswered | GatewayApprovalAnswered:
    """The event with a person's answer, for the stream that asks."""
    make = ApprovalAnswered if asked.asker == "mission" else partial(GatewayApprovalAnswered, audited=True)
    return make(
        at=at, by=by, reason=reason, approval_id=asked.approval_id, answer=answer, channel=channel, person=person
    )


def unattended_answer(asked: ApprovalAsked) -> ApprovalAnswered:
    """The approval by the operator who wrote `unattended = true`."""
    return ApprovalAnswered(at=asked.at, approval_id=asked.approval_id, answer="once", by="unattended = true")


def shown_event(asked: Approval, *, at: float, by: str, person: str) -> ApprovalShown | GatewayApprovalShown:
    kind = ApprovalShown if asked.asker == "mission" else GatewayApprovalShown
    return kind(at=at, by=by, approval_id=asked.approval_id, person=person)


def expiry_event(asked: Approval, at: float) -> ApprovalExpired | GatewayApprovalAnswered:
    """The event of an expiry, for the stream that asks. Once stored, it holds even if the clock is set back."""
    if asked.asker == "mission":
        return ApprovalExpired(at=at, approval_id=asked.approval_id)
    return GatewayApprovalAnswered(at=at, approval_id=asked.approval_id, answer="denied", by=EXPIRY)


@dataclass(slots=True)
class Questions:
    """The questions of one stream by their ids, and the approvals there that cover more than one call."""

    asked: dict[str, Approval] = field(default_factory=dict[str, Approval])
    granted: set[str] = field(default_factory=set[str])

    def get(self, question: str) -> Approval | None:
        return self.asked.get(question)

    def open(self, now: float | None = None) -> list[Approval]:
        """The questions without an answer; with `now`, only those that have not expired."""
        return [one for one in self.asked.values() if one.answer is None and (now is None or one.is_open(now))]

    def expiries(self, now: float) -> list[ApprovalExpired]:
        """An event for each open question of a mission that has expired."""
        late = [one for one in self.open() if not one.is_open(now)]
        return [ApprovalExpired(at=now, approval_id=one.approval_id) for one in late]

    def is_granted(
        self,
        question: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        client: str | None,
        digest: str | None,
        require: int = 1,
    ) -> bool:
        """True if enough people have approved this call of a client, in this question or a wider one.

        An approval is for the tool's definition at that time. Old ledgers lack definitions: there it is for any.
        """
        known = self.asked.get(question)
        if known is not None and known.answer is not None:
            same = known.accepts is not None or (known.is_about(tool, args) and known.digest in (None, digest))
            return same and known.granted and known.require >= require
        # Without its definition a tool named "x as D" has the scope of a tool x with the definition D.
        digests = {digest} if " as " in tool else {digest, None}
        wide = [tool_scope(tool, digest=one, client=client) for one in digests]
        narrow = [call_scope(tool, args, digest=one, client=client) for one in digests]
        return self.covers([*wide, *narrow], require)

    def covers(self, scopes: Iterable[str], require: int) -> bool:
        numbers = range(require, MAX_PEOPLE + 1)
        return any(_of_people(scope, people) in self.granted for scope in scopes for people in numbers)

    def of_scope(self, scope: str, require: int) -> list[Approval]:
        """The questions about these calls that require at least this many people, oldest first."""
        return [one for one in self.asked.values() if one.scope == scope and one.require >= require]

    def unused(self, scope: str, require: int, now: float) -> Approval | None:
        """A question about these calls with an answer that no call has used yet."""
        asked = [one for one in self.of_scope(scope, require) if one.answered]
        return next((one for one in asked if not one.used and now < one.until), None)

    def waits(self, now: float) -> bool:
        """True if a question waits for its answer, or an answer for its call."""
        return any(now < one.until and not one.used for one in self.asked.values())

    def apply(self, event: Event | GatewayEvent) -> None:
        """Applies an event of the stream; ignores events that are not about approvals."""
        match event:
            case ApprovalAsked() | GatewayApprovalAsked():
                self.asked[event.approval_id] = read_question(event)
            case ApprovalAnswered() | GatewayApprovalAnswered():
                self._answered(event)
            case ApprovalExpired():
                self._expired(event.approval_id, event.at)
            case ApprovalShown() | GatewayApprovalShown() if (asked := self.asked.get(event.approval_id)) is not None:
                self.asked[asked.approval_id] = replace(asked, shown=asked.shown | {event.person})
            case GatewayApprovalUsed() if (asked := self.asked.get(event.approval_id)) is not None:
                self.asked[asked.approval_id] = replace(asked, used=True)
            case _:
                pass

    def keep(self) -> None:
        """Keeps the open questions of an agent for the next iteration."""
        self.asked |= {one.approval_id: replace(one, kept=True) for one in self.open()}

    def end_iteration(self) -> None:
        """Forgets the questions of an iteration, except kept ones and those about changes of a server."""
        self.asked = {
            key: one if one.accepts is not None else replace(one, kept=False)
            for key, one in self.asked.items()
            if one.answer and (one.accepts is not None or one.kept)
        }

    def _expired(self, question: str, at: float) -> None:
        asked = self.asked.get(question)
        if asked is not None and asked.answer is None:
            self.asked[question] = replace(asked, answer="expired", answered_at=at)

    def _answered(self, event: ApprovalAnswered | GatewayApprovalAnswered) -> None:
        """A denial in time decides, or approval by enough people; a wide approval also answers other questions."""
        asked = self.asked.get(event.approval_id)
        if isinstance(event, GatewayApprovalAnswered) and event.by == EXPIRY and event.person is None:
            self._expired(event.approval_id, event.at)
            return
        if asked is None or asked.answer is not None or event.at >= asked.until:
            return
        answer, by = event.answer, event.by
        if answer in GRANTS:
            said = {**asked.said}
            said.setdefault(event.person or by, Yes(answer, by))
            asked, together = replace(asked, said=said), agreed(said, asked.require)
            if together is None:
                self.asked[asked.approval_id] = asked
                return
            answer, by = together
        closed = partial(replace, answer=answer, by=by, why=event.reason, channel=event.channel, answered_at=event.at)
        asked = self.asked[asked.approval_id] = closed(asked)
        if answer == "denied" or (answer == "once" and asked.accepts is None):
            return
        self.granted.add(asked.granted_scope())
        # At a gateway only its own answer closes a question: a later gateway may use it, and does not know this one.
        for other in self.open() if asked.asker == "mission" else ():
            wide = tool_scope(other.tool, digest=other.digest, client=other.client)
            if other.accepts is None and self.covers([other.scope, wide], other.require):
                self.asked[other.approval_id] = closed(other)


def agreed(said: Mapping[str, Yes], require: int) -> Yes | None:
    """The answer that these people agree on; None while there are too few."""
    if len(said) < require:
        return None
    first = min(said.values(), key=lambda one: WIDTHS.index(one.answer))
    return Yes(first.answer, " and ".join(one.by for one in said.values()))


_SHARED = ("approval_id", "tool", "args", "description", "cut", "reason", "until", "require", "digest", "accepts")


def read_question(event: ApprovalAsked | GatewayApprovalAsked) -> Approval:
    shared: dict[str, Any] = {name: getattr(event, name) for name in _SHARED}
    shared["asked_at"] = event.at
    if isinstance(event, GatewayApprovalAsked):
        return Approval(asker="gateway", scope=event.scope, client=event.who, whole=event.whole, **shared)
    scope = call_scope(event.tool, event.args, digest=event.digest, client=event.subject)
    return Approval(scope=scope, client=event.subject, call_id=event.call_id, iteration=event.iteration, **shared)
