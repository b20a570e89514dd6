"""The audit of control calls: one stream for each process, chained and verified like every other.

Invariant: every change is in the audit before it is made.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from pursuit.core.audit import (
    AUDIT,
    AnyAuditEvent,
    ControlCalled,
    ControlRefused,
    decode_audit,
    encode_audit,
    redacted,
)
from pursuit.core.events import Identity
from pursuit.core.history import iso
from pursuit.core.mission import Mission, Proposal
from pursuit.errors import PursuitError
from pursuit.ledger.contract import ANY, Draft, Ledger, StoredEvent, StreamRow, every_stream
from pursuit.ledger.tombstones import own_audit

if TYPE_CHECKING:
    from pursuit.engine.context import Clock

# The caller of an operation, and the surface that it came through.

LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`who` is a person or a credential, `client` the program that speaks for them.

    `credential` is the name of the caller's token, if it has one. Its missions and tasks belong to its `subject`: a
    token's fingerprint, or the user over stdio. None is the operator, who sees everything; `holder` is then the subject
    of the operator's token, if there is one.
    """

    who: str = "operator"
    transport: str = "python"
    client: str | None = None
    credential: str | None = None
    subject: str | None = None
    holder: str | None = None

    @property
    def person(self) -> str:
        """The person who answers an approval: the subject of a token, or the user of this machine."""
        return self.subject or self.holder or local_subject()

    @property
    def scope(self) -> str:
        """The subject that a grant is bound to; a later token of the same name does not inherit it."""
        return self.subject or self.who

    @property
    def identity(self) -> Identity | None:
        """The client, for policy; None is the operator."""
        if self.credential is None and self.subject is None:
            return None
        return Identity(subject=self.subject, credential=self.credential)

    def __str__(self) -> str:
        if self.transport == "python":
            return self.who
        ways = ", ".join(part for part in (self.transport, self.client) if part)
        return f"{self.who} ({ways})"[:LONGEST]


OPERATOR = Caller()


def local_subject(uid: int | None = None) -> str:
    return f"local:{os.getuid() if uid is None else uid}"


@cache
def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many containers
        return OPERATOR.who


MAX_MESSAGE = 500


class Audit:
    def __init__(self, ledger: Ledger, clock: Clock, *, reads: bool = False) -> None:
        self._ledger = ledger
        self._clock = clock
        self._stream = own_audit()
        self.reads = reads
        """True if clients' reads are recorded, too."""

    @asynccontextmanager
    async def control(
        self,
        caller: Caller,
        verb: str,
        mission_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        later: bool = False,
    ) -> AsyncGenerator[Callable[[], Awaitable[object]]]:
        """Records who asks for what, runs the block, and records the reason if the request is refused.

        With `later`, the record is written when the yielded function is called, at the latest at the end of the block.
        """
        call = secrets.token_hex(8)
        given = {name: value for name, value in (arguments or {}).items() if value is not None}
        called = ControlCalled(
            at=self._clock.now(),
            call=call,
            verb=verb,
            who=caller.who,
            transport=caller.transport,
            client=caller.client,
            session_id=mission_id,
            arguments=redacted(given),
        )
        line: asyncio.Future[object] | None = None

        def write() -> asyncio.Future[object]:
            nonlocal line
            line = line or asyncio.ensure_future(self._append(called))
            return line

        if not later:
            await write()
        try:
            try:
                yield write
            finally:
                with anyio.CancelScope(shield=True):
                    await write()
        except PursuitError as error:
            message = redacted(error.message)[:MAX_MESSAGE]
            await self._append(ControlRefused(at=self._clock.now(), call=call, code=error.code, message=message))
            raise

    async def read(
        self, caller: Caller, verb: str, mission_id: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Records a read before it happens, if the configuration says so."""
        if self.reads:
            async with self.control(caller, verb, mission_id, arguments):
                pass

    async def stored(self, *, follow: bool, limit: int) -> AsyncGenerator[dict[str, Any]]:
        """The newest events of the audit and of all gateways, as stored; with `follow`, also new ones as they come."""
        seen: dict[str, int] = {}
        first = True
        with self._ledger.wakeup() as wakeup:
            while True:
                rows = [row for kind in (AUDIT, "gateway") async for row in every_stream(self._ledger, kind=kind)]
                found = await self._newest(rows, limit) if first else []
                for row in () if first else rows:
                    if row.head.seq > seen.get(row.name, 0):
                        found += await self._ledger.read(row.name, seen.get(row.name, 0))
                found.sort(key=_order)
                seen.update({row.name: row.head.seq for row in rows if first})
                for event in found[-limit:] if first else found:
                    body = msgspec.json.decode(event.body)
                    row = {"at": iso(event.at), "stream": event.stream, "seq": event.seq, "hash": event.hash.hex()}
                    yield {**row, "event": body}
                for event in found:
                    seen[event.stream] = max(event.seq, seen.get(event.stream, 0))
                if not follow:
                    return
                first = False
                await wakeup.wait()

    async def lines(self, *, mission_id: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        rows = [row async for row in every_stream(self._ledger, kind=AUDIT)]
        stored = sum(row.head.seq for row in rows)
        window = stored if mission_id is not None else 2 * limit
        while True:
            found = await self._newest(rows, window)
            lines = _lines([decode_audit(event.body) for event in found], mission_id)
            if len(lines) >= limit or window >= stored:
                return lines[-limit:]
            window *= 4  # events of forgotten tasks take the place of calls

    async def _newest(self, rows: Sequence[StreamRow], count: int) -> list[StoredEvent]:
        """The newest events of these streams, ordered by time, stream and number."""
        found: list[StoredEvent] = []
        for row in sorted(rows, key=lambda row: row.updated_at, reverse=True):
            if len(found) >= count and row.updated_at < found[0].at:
                break
            found += await self._ledger.read(row.name, max(0, row.head.seq - count))
            found = sorted(found, key=_order)[-count:]
        return found

    def _append(self, event: AnyAuditEvent) -> Awaitable[object]:
        return self._ledger.append(self._stream, ANY, [Draft(*encode_audit(event))], kind=AUDIT, status="open")


def gist_of_mission(mission: Mission) -> dict[str, Any]:
    """The audit's summary of a mission; its text stays in its own stream, and is removed with it."""
    return {
        "criteria": len(mission.criteria),
        "budget": mission.budget.model_dump(mode="json", exclude_unset=True),
        "tool_allowlist": mission.tool_allowlist,
        "allow_all_tools": mission.allow_all_tools or None,
        "proposer": mission.proposer.kind,
        "allow_scripted_strategies": mission.allow_scripted_strategies or None,
    }


def gist_of_proposal(proposal: Proposal | None) -> dict[str, Any] | None:
    if proposal is None:
        return None
    tools = [call.tool_name for call in proposal.tool_calls or ()]
    return {"tools": tools} if proposal.script is None else {"script": len(proposal.script)}


def _order(event: StoredEvent) -> tuple[float, str, int]:
    return event.at, event.stream, event.seq


def _lines(events: Sequence[AnyAuditEvent], mission_id: str | None) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for event in events:
        match event:
            case ControlCalled() if mission_id in (None, event.session_id):
                lines[event.call] = _line(event)
            case ControlRefused() if event.call in lines:
                lines[event.call]["refused"] = {"code": event.code, "message": event.message}
            case _:
                pass
    return list(lines.values())


def _line(event: ControlCalled) -> dict[str, Any]:
    line: dict[str, Any] = {"at": iso(event.at), "who": event.who, "transport": event.transport, "verb": event.verb}
    optional = {"client": event.client, "session_id": event.session_id, "arguments": event.arguments}
    return {**line, **{key: value for key, value in optional.items() if value}}
