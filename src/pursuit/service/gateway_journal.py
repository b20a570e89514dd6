"""The audit trail of a gateway, with its approvals: one stream of the ledger for each serving process.

Invariant: a question is durable before a person sees it; an approval of one call is used once, by whichever gateway; a
process that only reads leaves no stream behind.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from pursuit.core.approvals import GRANTS, approval_id, is_covered, people_row
from pursuit.core.audit import masked, redacted
from pursuit.core.events import Channel, Permission
from pursuit.core.gateway_events import (
    AnyGatewayEvent,
    GatewayApprovalAnswered,
    GatewayApprovalAsked,
    GatewayApprovalShown,
    GatewayApprovalUsed,
    GatewayCallIntended,
    GatewayCallRefused,
    GatewayCallSettled,
    GatewayClosed,
    GatewayOpened,
    GatewayOutcome,
    GatewayState,
    bound_tool,
    decode_gateway,
    encode_gateway,
    fingerprint,
    narrow_scope,
    wide_scope,
)
from pursuit.core.pins import Changes
from pursuit.core.report import iso
from pursuit.core.tools import Tool
from pursuit.engine.context import Clock
from pursuit.errors import ApprovalNeeded, Conflict, PolicyDenied
from pursuit.ledger.contract import ANY, Draft, Ledger, every_stream
from pursuit.reports.wording import moment
from pursuit.service.audit import Audit, Caller
from pursuit.service.limits import ClientLimits
from pursuit.upstream.pins import accept

KIND = "gateway"
ASKING = "asking"
"""The status of a gateway, also of one that has ended, with a question that waits, or an answer that no call took."""

LONGEST_WHY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a question stands: `granted` is None while it has no answer."""

    approval_id: str
    granted: bool | None = None
    by: str | None = None
    yes: int = 0
    """How many people have said yes, of those that are `required`."""
    required: int = 1


class GatewayJournal:
    """The stream of one serving process."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        servers: Sequence[str],
        by: str,
        patience: float,
        limits: ClientLimits | None = None,
    ) -> None:
        self.stream = f"gateway-{secrets.token_hex(8)}"
        self._ledger = ledger
        self._clock = clock
        self._servers = list(servers)
        self._by = by
        self.patience = patience
        self._limits = limits
        self._state = GatewayState()
        self._head = 0
        self._exhausted = {self.stream}
        """The gateways that have no answer left for a call of ours."""
        self._opened = False
        self._waits = False
        self._asking = anyio.Lock()

    async def intended(self, tool: str, args: Mapping[str, Any], *, by: str) -> str:
        """Writes that a call is about to be sent; returns its id."""
        call_id = f"call-{secrets.token_hex(8)}"
        await self._write(
            GatewayCallIntended(
                at=self._clock.now(),
                call_id=call_id,
                tool=tool,
                args=redacted(args),
                scope=fingerprint(tool, args),
                by=by,
            )
        )
        return call_id

    async def settled(self, call_id: str, outcome: GatewayOutcome, why: str | None = None) -> None:
        """Writes what became of a call."""
        await self._write(
            GatewayCallSettled(at=self._clock.now(), call_id=call_id, outcome=outcome, why=why and why[:LONGEST_WHY])
        )

    async def refused(self, tool: str, args: Mapping[str, Any], why: str, *, by: str) -> None:
        """Writes that a call was not sent."""
        await self._write(
            GatewayCallRefused(at=self._clock.now(), tool=tool, args=redacted(args), why=why[:LONGEST_WHY], by=by)
        )

    async def ask(
        self,
        tool: Tool,
        args: Mapping[str, Any],
        *,
        description: str,
        reason: str,
        caller: Caller,
        changes: Changes | None = None,
        require: int = 1,
        cut: bool = False,
    ) -> Asked:
        """The question about a call, asked if it was not, and how it stands; a yes for one call is used up by this.

        With `changes` the question is whether these are accepted, whichever caller is the first to need them. A
        question that fewer people had to agree to does not count. Raises `LimitReached` if the client would store more
        than it may.
        """
        bound = bound_tool(tool.qualified, tool.digest)
        scope = narrow_scope(caller.scope, bound, args) if changes is None else changes.key
        wide = wide_scope(caller.scope, bound) if changes is None else scope
        async with self._asking:
            await self._refresh()
            if any(is_covered(self._state.granted, one, require) for one in (scope, wide)):
                return Asked(approval_id="", granted=True)
            asked = self._state.of_scope(scope)
            before = [one for one in asked if one.require >= require]
            for one in before:
                answer = self._state.answers.get(one.approval_id)
                if answer is not None and await self._take(one.approval_id):
                    return Asked(approval_id=one.approval_id, granted=answer.answer in GRANTS, by=answer.by)
                if answer is None and self._clock.now() < one.until:
                    said = self._state.said.get(one.approval_id, {})
                    return Asked(approval_id=one.approval_id, yes=len(said), required=one.require)
            earlier = await self._earlier_answer(scope, require)
            if earlier is not None:
                return Asked(approval_id=earlier.approval_id, granted=earlier.answer in GRANTS, by=earlier.by)
            now, body = self._clock.now(), json.dumps(args).encode()
            digest, whole = hashlib.sha256(body).hexdigest(), redacted(args) != args
            fresh = GatewayApprovalAsked(
                at=now,
                approval_id=approval_id(f"{self.stream} {scope} {len(asked)}"),
                tool=tool.qualified,
                args=redacted(args),
                scope=scope,
                description=description,
                reason=reason,
                until=now + self.patience,
                who=caller.scope,
                by=str(caller),
                require=require,
                cut=cut,
                whole=digest if whole else None,
                digest=tool.digest or None,
                accepts=None if changes is None else changes.what,
            )
            blobs = {digest: body} if whole else {}
            if self._limits is not None:
                size = len(encode_gateway(fresh)[1]) + sum(map(len, blobs.values()))
                await self._limits.store(caller, size)
            self._waits = True
            await self._write(fresh, blobs)
            return Asked(approval_id=fresh.approval_id, required=require)

    async def _take(self, question: str) -> bool:
        """Uses an answer up for this call; False if another call, of any process, has used it."""
        while question not in self._state.used:
            if await self._use(self.stream, self._head, question):
                return True
            await self._refresh()
        return False

    async def _earlier_answer(self, scope: str, require: int) -> GatewayApprovalAnswered | None:
        """An unused answer to a question of another gateway, most of which have ended; it is used up by this."""
        async for row in every_stream(self._ledger, kind=KIND, status=ASKING):
            while row.name not in self._exhausted:
                state, head = await _read_state(self._ledger, row.name)
                answer = state.unused(scope, self._clock.now(), require)
                if answer is None:
                    if not state.waits(self._clock.now()):
                        self._exhausted.add(row.name)
                    break
                if await self._use(row.name, head, answer.approval_id):
                    return answer
        return None

    async def _use(self, stream: str, head: int, question: str) -> bool:
        """Writes that a call used the answer; False if the stream has grown, perhaps by the same event."""
        used = Draft(*encode_gateway(GatewayApprovalUsed(at=self._clock.now(), approval_id=question)))
        try:
            await self._ledger.append(stream, head, [used], kind=KIND)
        except Conflict:
            return False
        return True

    async def answer(
        self, question: str, answer: Permission, *, caller: Caller, channel: Channel, reason: str | None = None
    ) -> None:
        """Stores the answer of the person behind a client; one that was given before stays."""
        why = None if reason is None else reason.encode(errors="replace").decode()[:LONGEST_WHY]
        word = GatewayApprovalAnswered(
            at=self._clock.now(),
            approval_id=question,
            answer=answer,
            by=str(caller),
            reason=why,
            channel=channel,
            person=caller.person,
        )
        await self._write(word)
        await self._refresh()
        if self._state.answers.get(question) == word:
            await _accept_changes(self._ledger, self._state.asked[question], word)

    async def close(self) -> None:
        """Ends the stream, if there is one."""
        if self._opened:
            await self._refresh()
            await self._append([GatewayClosed(at=self._clock.now())], status=ASKING if self._waits else "closed")

    async def _write(self, event: AnyGatewayEvent, blobs: Mapping[str, bytes] | None = None) -> None:
        events = [event]
        if not self._opened:
            events.insert(0, GatewayOpened(at=self._clock.now(), servers=self._servers, by=self._by))
        await self._append(events, status=ASKING if self._waits else "open", blobs=blobs)
        self._opened = True

    async def _append(
        self, events: Sequence[AnyGatewayEvent], *, status: str, blobs: Mapping[str, bytes] | None = None
    ) -> None:
        drafts = [Draft(*encode_gateway(one)) for one in events]
        await self._ledger.append(self.stream, ANY, drafts, kind=KIND, status=status, blobs=blobs)

    async def _refresh(self) -> None:
        """Reads what was written since: answers come from other processes, too."""
        if not self._opened:
            return
        for stored in await self._ledger.read(self.stream, self._head):
            self._head = stored.seq
            self._state.apply([decode_gateway(stored.body)])
        self._waits = self._state.waits(self._clock.now())


class GatewayQuestions:
    """The open questions of all gateways in a ledger, and their answers."""

    def __init__(self, ledger: Ledger, clock: Clock, audit: Audit) -> None:
        self._ledger = ledger
        self._clock = clock
        self._audit = audit

    async def open(self) -> list[dict[str, Any]]:
        """The questions that wait, the oldest gateway first."""
        rows: list[dict[str, Any]] = []
        for stream, state in await self._states():
            rows += [_row(stream, state, one) for one in state.pending(self._clock.now())]
        return rows

    async def show(self, question: str, *, caller: Caller, reveal: bool) -> dict[str, Any] | None:
        """The question with its arguments whole, recorded; None if no gateway asked this."""
        for stream, state in await self._states():
            asked = state.asked.get(question)
            if asked is None:
                continue
            async with self._audit.control(caller, "show", stream, {"approval_id": question, "reveal": reveal or None}):
                body = None if asked.whole is None else await self._ledger.blob(asked.whole)
            args: dict[str, Any] = asked.args if body is None else json.loads(body)
            if asked.cut:
                seen = GatewayApprovalShown(
                    at=self._clock.now(), approval_id=question, by=str(caller), person=caller.person
                )
                await self._ledger.append(stream, ANY, [Draft(*encode_gateway(seen))], kind=KIND)
            return {**_row(stream, state, asked), "args": args if reveal else masked(args)}
        return None

    async def answer(
        self,
        question: str,
        answer: Permission,
        *,
        caller: Caller,
        channel: Channel | None = None,
        reason: str | None = None,
        unseen: bool = False,
    ) -> dict[str, Any] | None:
        """Records a person's answer; None if no gateway asked this. The first answer of a person counts."""
        for stream, state in await self._states():
            asked = state.asked.get(question)
            if asked is None:
                continue
            before, now = state.answers.get(question), self._clock.now()
            if before is not None:
                raise already_answered(question, before.answer, before.by)
            if now >= asked.until:
                # Recorded, so that it stays expired when the clock is set back.
                late = GatewayApprovalAnswered(at=now, approval_id=question, answer="denied", by="its expiry")
                await self._ledger.append(stream, ANY, [Draft(*encode_gateway(late))], kind=KIND)
                raise expired(question, asked.until)
            if answer in GRANTS:
                await require_other_client(self._audit, question, stream, by=caller, channel=channel, client=asked.who)
                require_seen(question, cut=asked.cut and not unseen and (question, caller.person) not in state.shown)
                require_other(question, caller.person in state.said.get(question, {}), asked.require)
            word = GatewayApprovalAnswered(
                at=now,
                approval_id=question,
                answer=answer,
                by=str(caller),
                reason=reason,
                channel=channel,
                person=caller.person,
            )
            await self._ledger.append(stream, ANY, [Draft(*encode_gateway(word))], kind=KIND)
            after = (await _read_state(self._ledger, stream))[0]
            final = after.answers.get(question)
            alone = asked.require == 1 or answer == "denied"
            if final is not None and final != word and (alone or final.answer == "denied"):
                raise already_answered(question, final.answer, final.by)
            await _accept_changes(self._ledger, asked, word)
            return {**_row(stream, after, asked), "answer": answer, "by": str(caller), "status": "open"}
        return None

    async def _states(self) -> list[tuple[str, GatewayState]]:
        rows = every_stream(self._ledger, kind=KIND, status=ASKING)
        return [(row.name, (await _read_state(self._ledger, row.name))[0]) async for row in rows][::-1]


async def _read_state(ledger: Ledger, stream: str) -> tuple[GatewayState, int]:
    """The state of a gateway, and the number of its last event."""
    stored, state = await ledger.read(stream), GatewayState()
    state.apply(decode_gateway(one.body) for one in stored)
    return state, stored[-1].seq if stored else 0


async def _accept_changes(ledger: Ledger, asked: GatewayApprovalAsked, word: GatewayApprovalAnswered) -> None:
    """Pins what a yes accepts."""
    if asked.accepts is not None and word.answer in GRANTS:
        await accept(ledger, asked.accepts, at=word.at, by=word.by)


async def gateway_lines(ledger: Ledger, *, limit: int = 100) -> list[dict[str, Any]]:
    """The newest lines of all gateways, oldest first, as the audit has them; a call without an end is `unknown`."""
    lines: list[tuple[float, dict[str, Any]]] = []
    page = await ledger.streams(kind=KIND, limit=limit)
    for row in page.rows:
        under_way: dict[str, dict[str, Any]] = {}
        for stored in await ledger.read(row.name, max(0, row.head.seq - 3 * limit)):
            event = decode_gateway(stored.body)
            match event:
                case GatewayCallIntended():
                    line = under_way[event.call_id] = _called(row.name, event) | {"outcome": "unknown"}
                    lines.append((event.at, line))
                case GatewayCallSettled():
                    why = {} if event.why is None else {"why": event.why}
                    under_way.get(event.call_id, {}).update({"outcome": event.outcome, **why})
                case GatewayCallRefused():
                    lines.append((event.at, _called(row.name, event) | {"outcome": "refused", "why": event.why}))
                case GatewayApprovalAnswered():
                    verb = "deny" if event.answer == "denied" else "approve"
                    given = {"approval_id": event.approval_id, "answer": event.answer}
                    given |= {} if event.channel is None else {"channel": event.channel}
                    lines.append((event.at, {**_line(row.name, event.at, event.by, verb), "arguments": given}))
                case _:
                    pass
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])][-limit:]


def _called(stream: str, event: GatewayCallIntended | GatewayCallRefused) -> dict[str, Any]:
    line = _line(stream, event.at, event.by, f"call {event.tool}")
    return {**line, "tool": event.tool, "arguments": event.args}


def _line(stream: str, at: float, who: str, verb: str) -> dict[str, Any]:
    return {"at": iso(at), "who": who, "transport": "gateway", "verb": verb, "session_id": stream}


def _row(stream: str, state: GatewayState, asked: GatewayApprovalAsked) -> dict[str, Any]:
    return {
        "approval_id": asked.approval_id,
        "session_id": stream,
        "tool": asked.tool,
        "args": asked.args,
        "description": asked.description,
        "reason": asked.reason,
        "asked_at": iso(asked.at),
        "expires_at": iso(asked.until),
        **people_row(asked.require, state.said.get(asked.approval_id, {})),
        **({"cut": True} if asked.cut else {}),
    }


def require_seen(question: str, *, cut: bool) -> None:
    """Refuses a yes to a question whose arguments the person cannot have seen whole."""
    if cut:
        raise ApprovalNeeded(
            f"the arguments of {question} are longer than the question shows; look at them first with "
            f"`pursuit approvals show {question}` (over HTTP `GET /approvals/{question}`), or say that you approve "
            'them unseen: `--unseen` (`"unseen": true`)',
            approval_id=question,
        )


def may_answer(by: Caller, channel: Channel | None, client: str | None, *, accepts: bool = False) -> bool:
    """Whether a yes of this caller counts for a call of that client.

    A client approves calls of others alone, but in the dialog of its user its own alone, also in a mission that is
    shared with it. What `accepts` changed tools concerns all clients. The operator, and the user over stdio, approve
    everything.
    """
    if by.subject is None or channel == "stdio-elicitation":
        return True
    own = by.subject == client
    return own and not accepts if channel == "http-elicitation" else not own


async def require_other_client(
    audit: Audit,
    question: str,
    stream: str,
    *,
    by: Caller,
    channel: Channel | None,
    client: str | None,
    accepts: bool = False,
) -> None:
    """Refuses, and records, a yes that `may_answer` does not allow."""
    if may_answer(by, channel, client, accepts=accepts):
        return
    whose = by.who if by.subject == client else "another client"
    async with audit.control(by, "approve", stream, {"approval_id": question, "channel": channel}):
        raise PolicyDenied(
            f"{question} is about a call of {whose}, and {by.who} cannot approve it; the operator or another "
            "approver answers it; nothing was changed",
            approval_id=question,
        )


def require_other(question: str, again: bool, required: int) -> None:
    """Refuses a second yes of one person."""
    if again:
        raise Conflict(
            f"you have said yes to {question} already; it needs {required} people, so another one must say yes",
            approval_id=question,
            required=required,
        )


def expired(question: str, until: float) -> Conflict:
    """The error for an answer that comes too late."""
    text = f"{question} has expired: no answer came before {moment(iso(until))}, which counts as no"
    return Conflict(text, approval_id=question, answer="expired", expired_at=iso(until))


def already_answered(question: str, answer: str, by: str | None) -> Conflict:
    """The error for a second answer to a question."""
    who = f" by {by}" if by else ""
    return Conflict(f"{question} was answered already: {answer}{who}", approval_id=question, answer=answer)
