"""Approvals of missions and gateways: which are open, and how one is answered.

Invariant: the first answer in the ledger counts; any other raises `Conflict`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from pursuit.core.approvals import Approval, pending
from pursuit.core.events import ApprovalAnswered, ApprovalExpired, Permission, decode
from pursuit.errors import Fault, InvalidArgument, SessionNotFound, ValidationFailed
from pursuit.ledger.contract import every_stream
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import GatewayQuestions, already_answered
from pursuit.service.queries import approval_row
from pursuit.service.service import Service, storable_reason

APPROVAL_ID = re.compile(r"approval-[0-9a-f]{16}")


class ApprovalNotFound(SessionNotFound):
    """No open question has that id."""

    code = "approval_not_found"


class Approvals:
    """The questions of all missions, and of all gateways, in a ledger."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gateways = GatewayQuestions(service.ledger, service.clock)
        self.ledger = service.ledger

    async def open(self, mission_id: str | None = None) -> list[dict[str, Any]]:
        """The questions that wait for an answer, the oldest mission first, then gateways; of one mission if named."""
        names = await self._waiting() if mission_id is None else [mission_id]
        rows: list[dict[str, Any]] = []
        for name in names:
            state, now = await self._service.state(name), self._service.clock.now()
            rows += [approval_row(name, asked) for asked in pending(state.approvals) if now < asked.until]
        return rows if mission_id is not None else [*rows, *await self._gateways.open()]

    async def answer(
        self,
        approval_id: str,
        answer: Permission,
        *,
        reason: str | None = None,
        caller: Caller | None = None,
        mission_id: str | None = None,
    ) -> dict[str, Any]:
        """Records a person's answer; the mission goes on when a process drives it.

        With a `mission_id` only a question of that mission can be meant.
        """
        if APPROVAL_ID.fullmatch(approval_id) is None:
            raise InvalidArgument(
                f"{approval_id[:80]!r} is no id of a question; one is `approval-` and 16 hex digits",
                approval_id=approval_id[:80],
            )
        if answer not in get_args(Permission):
            known = ", ".join(get_args(Permission))
            raise ValidationFailed([Fault(field="answer", reason=f"{str(answer)[:40]!r} is not one of {known}")])
        by, reason = caller or self._service.caller, storable_reason(reason)
        if mission_id is None:
            at_a_gateway = await self._gateways.answer(approval_id, answer, by=str(by), reason=reason)
            if at_a_gateway is not None:
                return at_a_gateway
        mission_id, asked, head = await self._find(approval_id, mission_id)
        if asked.answer is not None:
            raise already_answered(approval_id, asked.answer, asked.by)
        if self._service.clock.now() >= asked.until:
            raise already_answered(approval_id, "expired", None)
        service = self._service
        given = {"approval_id": approval_id, "tool": asked.tool, "answer": answer, "reason": reason}
        async with service.control(by, "deny" if answer == "denied" else "approve", mission_id, given):
            word = ApprovalAnswered(
                at=service.clock.now(),
                by=str(by),
                reason=reason,
                approval_id=approval_id,
                answer=answer,
            )
            status = (await service.say(mission_id, word)).status
            await self._require_first(mission_id, head, word)
        return {**approval_row(mission_id, asked), "answer": answer, "by": str(by), "status": status}

    async def _require_first(self, mission_id: str, head: int, word: ApprovalAnswered) -> None:
        """Refuses an answer that came after another one; it is in the ledger and changes nothing."""
        for stored in await self._service.ledger.read(mission_id, head):
            match decode(stored.type, stored.body):
                case ApprovalAnswered(approval_id=word.approval_id) as first:
                    if first != word:
                        raise already_answered(word.approval_id, first.answer, first.by)
                    return
                case ApprovalExpired(approval_id=word.approval_id):
                    raise already_answered(word.approval_id, "expired", None)
                case _:
                    pass

    async def _find(self, approval_id: str, mission_id: str | None) -> tuple[str, Approval, int]:
        """The mission of a question, the question, and the last event of the mission that was looked at."""
        for name in await self._waiting() if mission_id is None else [mission_id]:
            state, head = await self._service.states.look(name)
            if approval_id in state.approvals:
                return name, state.approvals[approval_id], head
        raise ApprovalNotFound(
            f"no mission waits for {approval_id}; `pursuit approvals` shows what is open", approval_id=approval_id
        )

    async def _waiting(self) -> Sequence[str]:
        """The missions that may have a question; one that was just answered, or paused, still knows it."""
        rows = every_stream(self.ledger, kind="mission", status=("waiting", "paused", "running", "failed"))
        found = [
            row.name async for row in rows if row.status != "waiting" or row.summary.get("waiting_for") == "approval"
        ]
        return found[::-1]
