"""The audit trail of a gateway, with its approvals: one stream of the ledger for each serving process.

Invariant: an approval is durable before a person sees it; an approval of one call is used once, by whichever gateway; a
process that only reads creates no stream.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from pursuit.core.approvals import Approval, Questions, approval_id, call_scope, read_question, tool_scope
from pursuit.core.audit import redacted
from pursuit.core.gateway_events import (
    AnyGatewayEvent,
    GatewayApprovalAnswered,
    GatewayApprovalAsked,
    GatewayApprovalUsed,
    GatewayCallIntended,
    GatewayCallRefused,
    GatewayCallSettled,
    GatewayClosed,
    GatewayOpened,
    GatewayOutcome,
    decode_gateway,
    encode_gateway,
)
from pursuit.core.pins import Changes
from pursuit.core.report import iso
from pursuit.core.tools import Tool
from pursuit.engine.context import Clock
from pursuit.errors import Conflict, SessionNotFound
from pursuit.ledger.contract import ANY, Draft, Ledger, every_stream
from pursuit.service.audit import Caller
from pursuit.service.limits import ClientLimits

KIND = "gateway"
GATEWAY_ID = re.compile(r"gateway-[0-9a-f]{16}")
ASKING = "asking"
"""The status of a gateway, even an ended one, with an open approval or an answer that no call has used."""

MAX_WHY = 500


class GatewayJournal:
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        servers: Sequence[str],
        by: str,
        patience: float,
        limits: ClientLimits,
    ) -> None:
        self.stream = f"gateway-{secrets.token_hex(8)}"
        self._ledger = ledger
        self._clock = clock
        self._servers = list(servers)
        self._by = by
        self.patience = patience
        self._limits = limits
        self._questions = Questions()
        self._head = 0
        self._exhausted = {self.stream}
        """The gateways without an unused answer for our calls."""
        self._opened = False
        self._quiet = "open"
        """The status of the stream while no approval is open; a call may settle after the gateway closed."""
        self._waits = False
        self._asking = anyio.Lock()

    async def intended(self, tool: str, args: Mapping[str, Any], *, by: str) -> str:
        call_id = f"call-{secrets.token_hex(8)}"
        await self._write(
            GatewayCallIntended(
                at=self._clock.now(),
                call_id=call_id,
                tool=tool,
                args=redacted(args),
                scope=call_scope(tool, args),
                by=by,
            )
        )
        return call_id

    async def settled(self, call_id: str, outcome: GatewayOutcome, why: str | None = None) -> None:
        await self._write(
            GatewayCallSettled(at=self._clock.now(), call_id=call_id, outcome=outcome, why=why and why[:MAX_WHY])
        )

    async def refused(self, tool: str, args: Mapping[str, Any], why: str, *, by: str) -> None:
        await self._write(
            GatewayCallRefused(at=self._clock.now(), tool=tool, args=redacted(args), why=why[:MAX_WHY], by=by)
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
    ) -> Approval | None:
        """The open approval for a call, created if needed; None if the call is approved, which uses up a single one.

        With `changes`, the approval is about these changed tools, whichever caller first needs them. An earlier one
        by fewer people than now required does not count. Raises `LimitReached` if the client would store too much.
        """
        client, own = caller.scope, tool.digest or None
        scope = wide = "" if changes is None else changes.key
        if changes is None:
            scope = call_scope(tool.qualified, args, digest=own, client=client)
            wide = tool_scope(tool.qualified, digest=own, client=client)
        async with self._asking:
            await self._refresh()
            if self._questions.covers([scope, wide], require):
                return None
            for one in self._questions.of_scope(scope, require):
                if one.is_open(self._clock.now()) or (one.answered and await self._take(one.approval_id)):
                    return one
            earlier = await self._earlier_answer(scope, require)
            if earlier is not None:
                return earlier
            now, body = self._clock.now(), json.dumps(args).encode()
            digest, whole = hashlib.sha256(body).hexdigest(), redacted(args) != args
            number = len(self._questions.of_scope(scope, 1))
            fresh = GatewayApprovalAsked(
                at=now,
                approval_id=approval_id(f"{self.stream} {scope} {number}"),
                tool=tool.qualified,
                args=redacted(args),
                scope=scope,
                description=description,
                reason=reason,
                until=now + self.patience,
                who=client,
                by=str(caller),
                require=require,
                cut=cut,
                whole=digest if whole else None,
                digest=own,
                accepts=None if changes is None else changes.what,
            )
            blobs = {digest: body} if whole else {}
            await self._limits.store(caller, len(encode_gateway(fresh)[1]) + sum(map(len, blobs.values())))
            self._waits = True
            await self._write(fresh, blobs)
            return read_question(fresh)

    async def _take(self, question: str) -> bool:
        while not self._questions.asked[question].used:
            if await self._use(self.stream, self._head, question):
                return True
            await self._refresh()
        return False

    async def _earlier_answer(self, scope: str, require: int) -> Approval | None:
        """Uses up and returns an unused answer of another gateway, usually an ended one."""
        async for row in every_stream(self._ledger, kind=KIND, status=ASKING):
            while row.name not in self._exhausted:
                questions, head = await read_questions(self._ledger, row.name)
                answered = questions.unused(scope, require, self._clock.now())
                if answered is None:
                    if not questions.waits(self._clock.now()):
                        self._exhausted.add(row.name)
                    break
                if await self._use(row.name, head, answered.approval_id):
                    return answered
        return None

    async def _use(self, stream: str, head: int, question: str) -> bool:
        """Records that a call used the answer; False if the stream has grown, perhaps by the same event."""
        used = Draft(*encode_gateway(GatewayApprovalUsed(at=self._clock.now(), approval_id=question)))
        try:
            await self._ledger.append(stream, head, [used], kind=KIND)
        except Conflict:
            return False
        return True

    async def close(self) -> None:
        if self._opened:
            await self._refresh()
            self._quiet = "closed"
            await self._append([GatewayClosed(at=self._clock.now())])

    async def _write(self, event: AnyGatewayEvent, blobs: Mapping[str, bytes] | None = None) -> None:
        events = [event]
        if not self._opened:
            events.insert(0, GatewayOpened(at=self._clock.now(), servers=self._servers, by=self._by))
        await self._append(events, blobs)
        self._opened = True

    async def _append(self, events: Sequence[AnyGatewayEvent], blobs: Mapping[str, bytes] | None = None) -> None:
        drafts = [Draft(*encode_gateway(one)) for one in events]
        status = ASKING if self._waits else self._quiet
        await self._ledger.append(self.stream, ANY, drafts, kind=KIND, status=status, blobs=blobs)

    async def _refresh(self) -> None:
        """Reads new events: answers come from other processes, too."""
        if not self._opened:
            return
        for stored in await self._ledger.read(self.stream, self._head):
            self._head = stored.seq
            self._questions.apply(decode_gateway(stored.body))
        self._waits = self._questions.waits(self._clock.now())


async def read_questions(ledger: Ledger, stream: str) -> tuple[Questions, int]:
    stored, questions = await ledger.read(stream), Questions()
    if not stored:
        raise SessionNotFound(f"no gateway {stream!r} in this ledger", session_id=stream)
    for one in stored:
        questions.apply(decode_gateway(one.body))
    return questions, stored[-1].seq


async def gateway_lines(ledger: Ledger, *, limit: int = 100) -> list[dict[str, Any]]:
    """The newest lines of all gateways, oldest first, as in the audit; a call that did not settle is `unknown`."""
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
                case GatewayApprovalAnswered() if not event.audited:
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
