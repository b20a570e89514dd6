"""The audit of control calls: one stream of the ledger, chained and verified like every other.

Owns: when a line is written. Knows no surface. Invariant: what changed anything was in the audit before.
"""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

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
from pursuit.core.mission import Mission, Proposal
from pursuit.core.report import iso
from pursuit.engine.context import Clock
from pursuit.errors import PursuitError
from pursuit.ledger.contract import ANY, Draft, Ledger, StoredEvent, every_stream

# Who asks for something, and over which way.

LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`who` is a person or a credential, `client` the program that speaks for them.

    `credential` is the name of the token that was shown, where one was. What it begins belongs to its `subject`: a
    token's fingerprint, or the user over stdio. None is the operator, who sees everything; `holder` is then the subject
    of the operator's token, if one was shown.
    """

    who: str = "operator"
    transport: str = "python"
    client: str | None = None
    credential: str | None = None
    subject: str | None = None
    holder: str | None = None

    @property
    def person(self) -> str:
        """Who answers an approval: the subject of a token, or the user of this machine."""
        return self.subject or self.holder or local_subject()

    @property
    def scope(self) -> str:
        """What a grant is bound to: the subject, so that a later token of the same name has none."""
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
    """The subject of all clients of one user of this machine."""
    return f"local:{os.getuid() if uid is None else uid}"


@cache
def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many containers
        return OPERATOR.who


LONGEST_MESSAGE = 500


class Audit:
    """Writes and reads the audit."""

    def __init__(self, ledger: Ledger, clock: Clock, *, reads: bool = False) -> None:
        self._ledger = ledger
        self._clock = clock
        self.reads = reads
        """Whether what clients read is recorded, too."""

    @asynccontextmanager
    async def control(
        self, caller: Caller, verb: str, mission_id: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[None]:
        """Writes who asks for what, lets it be done, and writes why if it is refused."""
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
        await self._append(called)
        try:
            yield
        except PursuitError as error:
            message = redacted(error.message)[:LONGEST_MESSAGE]
            await self._append(ControlRefused(at=self._clock.now(), call=call, code=error.code, message=message))
            raise

    async def read(
        self, caller: Caller, verb: str, mission_id: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Writes who reads what, before it is read, if the configuration says so."""
        if self.reads:
            async with self.control(caller, verb, mission_id, arguments):
                pass

    async def stored(self, *, follow: bool, limit: int) -> AsyncGenerator[dict[str, Any]]:
        """The newest events of the audit and of all gateways, as they are stored; with `follow` also those to come."""
        seen: dict[str, int] = {}
        first = True
        with self._ledger.bell() as bell:
            while True:
                found: list[StoredEvent] = []
                audit = await self._ledger.row(AUDIT)
                rows = [row async for row in every_stream(self._ledger, kind="gateway")]
                for row in rows if audit is None else [audit, *rows]:
                    after = seen.get(row.name, max(0, row.head.seq - limit) if first else 0)
                    found += await self._ledger.read(row.name, after)
                found.sort(key=lambda event: event.position)
                for event in found[-limit:] if first else found:
                    yield _stored(event)
                seen.update({event.stream: event.seq for event in found})
                if not follow:
                    return
                first = False
                await bell.wait()

    async def lines(self, *, mission_id: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest lines, oldest first; of one mission if it is named."""
        row = await self._ledger.row(AUDIT)
        if row is None:
            return []
        window = row.head.seq if mission_id is not None else 2 * limit
        while True:
            after = max(0, row.head.seq - window)
            lines = _lines([decode_audit(stored.body) for stored in await self._ledger.read(AUDIT, after)], mission_id)
            if len(lines) >= limit or after == 0:
                return lines[-limit:]
            window *= 4  # events of forgotten tasks take the place of calls

    async def _append(self, event: AnyAuditEvent) -> None:
        await self._ledger.append(AUDIT, ANY, [Draft(*encode_audit(event))], kind=AUDIT, status="open")


def gist_of_mission(mission: Mission) -> dict[str, Any]:
    """What the audit keeps of a mission: its words lie in its own stream, and go with it when it is forgotten."""
    return {
        "criteria": len(mission.criteria),
        "budget": mission.budget.model_dump(mode="json", exclude_unset=True),
        "tool_allowlist": mission.tool_allowlist,
        "allow_all_tools": mission.allow_all_tools or None,
        "proposer": mission.proposer.kind,
        "allow_scripted_strategies": mission.allow_scripted_strategies or None,
    }


def gist_of_proposal(proposal: Proposal | None) -> dict[str, Any] | None:
    """What the audit keeps of a proposal: which tools, never their arguments."""
    if proposal is None:
        return None
    tools = [call.tool_name for call in proposal.tool_calls or ()]
    return {"tools": tools} if proposal.script is None else {"script": len(proposal.script)}


def _stored(event: StoredEvent) -> dict[str, Any]:
    return {
        "at": iso(event.at),
        "stream": event.stream,
        "seq": event.seq,
        "position": event.position,
        "hash": event.hash.hex(),
        "event": msgspec.json.decode(event.body),
    }


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
