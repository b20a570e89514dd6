"""The audit of control calls: one stream of the ledger, chained and verified like every other.

Owns: when a line is written. Knows no surface. Invariant: what changed anything was in the audit before.
"""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pursuit.core.audit import AnyAuditEvent, ControlCalled, ControlRefused, decode_audit, encode_audit, redacted
from pursuit.core.events import Identity
from pursuit.core.mission import Mission, Proposal
from pursuit.core.report import iso
from pursuit.engine.context import Clock
from pursuit.errors import PursuitError
from pursuit.ledger.contract import ANY, Draft, Ledger

# Who asks for something, and over which way.

LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`who` is a person or a credential, `client` the program that speaks for them.

    `credential` is the name of the token that was shown, where one was. What it begins belongs to its `subject`: a
    token's fingerprint, or the user over stdio. None is the operator, who sees everything.
    """

    who: str = "operator"
    transport: str = "python"
    client: str | None = None
    credential: str | None = None
    subject: str | None = None

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


STREAM = "audit"
LONGEST_MESSAGE = 500


class Audit:
    """Writes and reads the audit."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

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

    async def lines(self, *, mission_id: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest lines, oldest first; of one mission if it is named."""
        row = await self._ledger.row(STREAM)
        if row is None:
            return []
        after = 0 if mission_id is not None else max(0, row.head.seq - 2 * limit)  # a call has two events at most
        lines: dict[str, dict[str, Any]] = {}
        for stored in await self._ledger.read(STREAM, after):
            event = decode_audit(stored.body)
            if isinstance(event, ControlCalled):
                if mission_id in (None, event.session_id):
                    lines[event.call] = _line(event)
            elif event.call in lines:
                lines[event.call]["refused"] = {"code": event.code, "message": event.message}
        return list(lines.values())[-limit:]

    async def _append(self, event: AnyAuditEvent) -> None:
        await self._ledger.append(STREAM, ANY, [Draft(*encode_audit(event))], kind="audit", status="open")


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


def _line(event: ControlCalled) -> dict[str, Any]:
    line: dict[str, Any] = {"at": iso(event.at), "who": event.who, "transport": event.transport, "verb": event.verb}
    optional = {"client": event.client, "session_id": event.session_id, "arguments": event.arguments}
    return {**line, **{key: value for key, value in optional.items() if value}}
