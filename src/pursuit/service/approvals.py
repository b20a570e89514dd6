"""Approvals of missions and gateways: which are open, and how one is answered.

Invariant: the first answer of a person in the ledger counts, and one that comes too late raises `Conflict`; a yes
counts only by a channel that the operator listed, and a client's own yes only in the dialog of its user.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, get_args

import anyio

from pursuit.core.approvals import GRANTS, Approval, pending
from pursuit.core.audit import masked
from pursuit.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    ApprovalShown,
    Channel,
    Permission,
    decode,
)
from pursuit.core.pins import PINS, PinState, decode_pin
from pursuit.core.report import iso
from pursuit.core.state import MissionState
from pursuit.errors import (
    Conflict,
    Fault,
    InvalidArgument,
    PolicyDenied,
    PursuitError,
    SessionNotFound,
    ValidationFailed,
)
from pursuit.ledger.contract import every_stream
from pursuit.policy.traits import LONGEST_FORM, whole_question
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import (
    GatewayQuestions,
    already_answered,
    expired,
    may_answer,
    require_other,
    require_other_client,
    require_seen,
)
from pursuit.service.queries import approval_row
from pursuit.service.service import Service, storable_reason
from pursuit.upstream.pins import accept

LOOK_BACK = 20_000
"""Events of a mission in which the last approved call of a tool is looked for."""
_CHUNK = 2_000
APPROVAL_ID = re.compile(r"approval-[0-9a-f]{16}")


class ApprovalNotFound(SessionNotFound):
    """No open question has that id."""

    code = "approval_not_found"


def channel_of(caller: Caller) -> Channel:
    """How a caller who is no client answers: at the terminal, or by a program."""
    return "terminal" if caller.transport == "terminal" else "api"


def require_channel(channel: Channel, channels: Collection[str]) -> None:
    """Refuses a yes by a channel that the operator did not list."""
    if channel not in channels:
        listed = ", ".join(sorted(channels)) or "none"
        raise PolicyDenied(
            f'a yes by "{channel}" does not count: [approvals] channels of the configuration lists {listed}; '
            "nothing was changed",
            channel=channel,
        )


class Approvals:
    """The questions of all missions, and of all gateways, in a ledger."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gateways = GatewayQuestions(service.ledger, service.clock, service.audit)
        self.ledger = service.ledger

    async def open(self, mission_id: str | None = None) -> list[dict[str, Any]]:
        """The questions that wait for an answer, the oldest mission first, then gateways; of one mission if named."""
        names = await self._waiting() if mission_id is None else [mission_id]
        rows: list[dict[str, Any]] = []
        for name in names:
            state, now = await self._service.state(name), self._service.clock.now()
            rows += [approval_row(name, asked) for asked in pending(state.approvals) if now < asked.until]
        return rows if mission_id is not None else [*rows, *await self._gateways.open()]

    async def find(self, word: str) -> str:
        """The id of the open question that begins like this; a whole id, and what begins none, stays as it is."""
        if APPROVAL_ID.fullmatch(word):
            return word
        begins = word if word.startswith("approval-") else f"approval-{word}"
        found = [row["approval_id"] for row in await self.open() if row["approval_id"].startswith(begins)]
        if len(found) > 1:
            raise InvalidArgument(f"{word[:80]!r} begins {len(found)} ids: {', '.join(found)}; give more of it")
        return found[0] if found else word

    async def standing(self, mission_id: str, approval_id: str) -> str:
        """How a question that is not open any more was closed, in words."""
        state = await self._service.state(mission_id)
        asked = state.approvals.get(approval_id)
        if asked is None or asked.answer is None:
            return "expired" if asked is not None else f"the mission is {state.status}"
        return f"{asked.answer} by {asked.by}" if asked.by else asked.answer

    async def until_answered(self, mission_id: str, approval_id: str | None = None) -> MissionState:
        """Returns the state once this question is no longer open, or once the mission no longer waits for a person.

        A question is closed by an answer from any process, by its expiry, and by the end of its mission.
        """
        service = self._service
        with self.ledger.bell(mission_id) as bell:
            while True:
                state, now = await service.state(mission_id), service.clock.now()
                asked = [one for one in pending(state.approvals) if now < one.until]
                if approval_id is not None:
                    asked = [one for one in asked if one.approval_id == approval_id]
                if state.waiting_for not in ("approval", "budget") or (state.waiting_for == "approval" and not asked):
                    return state
                with anyio.move_on_after(min((one.until - now for one in asked), default=None)):
                    await bell.wait()

    async def answer(
        self,
        approval_id: str,
        answer: Permission,
        *,
        reason: str | None = None,
        caller: Caller | None = None,
        channel: Channel | None = None,
        mission_id: str | None = None,
        unseen: bool = False,
    ) -> dict[str, Any]:
        """Records a person's answer; the mission goes on when a process drives it and enough people have said yes.

        With a `mission_id` only a question of that mission can be meant. A yes to a question whose text was cut needs
        `show` first, by the same person, or `unseen`.
        """
        _require_id(approval_id)
        if answer not in get_args(Permission):
            known = ", ".join(get_args(Permission))
            raise ValidationFailed([Fault(field="answer", reason=f"{str(answer)[:40]!r} is not one of {known}")])
        by, reason = caller or self._service.caller, storable_reason(reason)
        channel = channel or channel_of(by)
        if answer in GRANTS:
            require_channel(channel, self._service.channels)
        if mission_id is None:
            at_a_gateway = await self._gateways.answer(
                approval_id, answer, caller=by, channel=channel, reason=reason, unseen=unseen
            )
            if at_a_gateway is not None:
                return at_a_gateway
        mission_id, asked, head = await self._find(approval_id, mission_id)
        if asked.answer is not None:
            raise self._refused(asked)
        service = self._service
        if (now := service.clock.now()) >= asked.until:
            # Recorded, so that it stays expired when the clock is set back.
            await service.say(mission_id, ApprovalExpired(at=now, approval_id=approval_id))
            raise expired(approval_id, asked.until)
        before = set(asked.said)
        if answer in GRANTS:
            client = _client_of(asked, await service.state(mission_id))
            await require_other_client(
                service.audit,
                approval_id,
                mission_id,
                by=by,
                channel=channel,
                client=client,
                accepts=asked.accepts is not None,
            )
            require_seen(approval_id, cut=asked.cut and not unseen and by.person not in asked.shown)
            require_other(approval_id, by.person in before, asked.require)
        given = {"approval_id": approval_id, "tool": asked.tool, "answer": answer, "reason": reason}
        given |= {"channel": channel, "unseen": (asked.cut and unseen) or None, "accepts": asked.accepts}
        async with service.control(by, "deny" if answer == "denied" else "approve", mission_id, given):
            word = ApprovalAnswered(
                at=service.clock.now(),
                by=str(by),
                reason=reason,
                approval_id=approval_id,
                answer=answer,
                channel=channel,
                person=by.person,
            )
            state = await service.say(mission_id, word)
            await self._require_first(mission_id, head, word, before, asked.require)
            if asked.accepts is not None and answer in GRANTS:
                await accept(self.ledger, asked.accepts, at=word.at, by=str(by))
        row = approval_row(mission_id, state.approvals.get(approval_id, asked))
        return {**row, "answer": answer, "by": str(by), "status": state.status}

    async def show(
        self, approval_id: str, *, reveal: bool = False, caller: Caller | None = None, mission_id: str | None = None
    ) -> dict[str, Any]:
        """A question with its arguments whole: secrets by their names are masked, unless `reveal`. It is audited."""
        _require_id(approval_id)
        service, by = self._service, caller or self._service.caller
        if mission_id is None:
            found = await self._gateways.show(approval_id, caller=by, reveal=reveal)
            if found is not None:
                return found
        mission_id, asked, _head = await self._find(approval_id, mission_id)
        given = {"approval_id": approval_id, "reveal": reveal or None}
        async with service.control(by, "show", mission_id, given):
            if asked.cut and asked.answer is None and by.person not in asked.shown:
                seen = ApprovalShown(at=service.clock.now(), by=str(by), approval_id=approval_id, person=by.person)
                await service.say(mission_id, seen)
        return {**approval_row(mission_id, asked), "args": asked.args if reveal else masked(asked.args)}

    async def detail(self, approval_id: str, *, caller: Caller | None = None) -> dict[str, Any]:
        """A question as `show` gives it, with the last approved call of the same tool and the tool's definition.

        `definition_before` is the definition at that call, where it was another one.
        """
        row = await self.show(approval_id, caller=caller)
        answer: dict[str, Any] = {**row, "last_approved": None, "definition": None, "definition_before": None}
        try:
            approvals = (await self._service.state(row["session_id"])).approvals
        except PursuitError:  # a gateway asked
            return answer
        asked = approvals[approval_id]
        last = await self._last_approved(row["session_id"], asked)
        definitions = await self._definitions() if asked.digest is not None else {}
        answer |= {"definition": definitions.get(asked.digest or ""), "accepts": asked.accepts, "answer": asked.answer}
        if last is not None:
            question, yes = last
            answer["last_approved"] = {"args": masked(question.args), "by": yes.by, "asked_at": iso(question.at)}
            if question.digest not in (None, asked.digest):
                answer["definition_before"] = definitions.get(question.digest)
        return answer

    async def _last_approved(self, mission_id: str, asked: Approval) -> tuple[ApprovalAsked, ApprovalAnswered] | None:
        """The last question about the same tool that got a yes, and the yes; the state keeps open ones alone."""
        row = await self.ledger.row(mission_id)
        until = 0 if row is None else row.head.seq
        answers: dict[str, ApprovalAnswered] = {}
        for _ in range(LOOK_BACK // _CHUNK):
            after = max(0, until - _CHUNK)
            for stored in reversed(await self.ledger.read(mission_id, after, until - after)):
                if stored.type not in ("ApprovalAsked", "ApprovalAnswered"):
                    continue
                event = decode(stored.type, stored.body)
                if isinstance(event, ApprovalAnswered) and event.answer in GRANTS:
                    answers[event.approval_id] = event
                elif isinstance(event, ApprovalAsked) and event.tool == asked.tool:
                    yes = answers.get(event.approval_id)
                    if yes is not None and event.approval_id != asked.approval_id:
                        return event, yes
            until = after
        return None

    async def _definitions(self) -> dict[str, Any]:
        """Each definition of a tool that was listed, by its digest."""
        pins = PinState()
        for stored in await self.ledger.read(PINS):
            pins.apply(decode_pin(stored.body))
        return pins.definitions

    async def forms(self, mission_id: str, caller: Caller, channel: Channel | None) -> dict[str, str]:
        """The whole text of each open question of a mission that this client's user may answer, by the ids.

        One that is too long for a form is for the operator alone.
        """
        state, now = await self._service.state(mission_id), self._service.clock.now()
        texts = {
            one.approval_id: one.description if one.accepts else whole_question(one.description, one.args)
            for one in pending(state.approvals)
            if now < one.until and may_answer(caller, channel, _client_of(one, state), accepts=one.accepts is not None)
        }
        return {approval_id: text for approval_id, text in texts.items() if len(text) <= LONGEST_FORM}

    async def _require_first(
        self, mission_id: str, head: int, word: ApprovalAnswered, said: set[str], require: int
    ) -> None:
        """Refuses an answer that came after the last one that was needed; it is in the ledger and changes nothing."""
        people = set(said)
        for stored in await self._service.ledger.read(mission_id, head):
            match decode(stored.type, stored.body):
                case ApprovalAnswered(approval_id=word.approval_id) as first:
                    if first == word:
                        return
                    people.add(first.person or first.by)
                    if first.answer == "denied" or len(people) >= require:
                        raise already_answered(word.approval_id, first.answer, first.by)
                case ApprovalExpired(approval_id=word.approval_id) as late:
                    raise expired(word.approval_id, late.at)
                case _:
                    pass

    @staticmethod
    def _refused(asked: Approval) -> Conflict:
        """The error for a question that has its answer, or has expired."""
        if asked.answer == "expired":
            return expired(asked.approval_id, asked.until)
        return already_answered(asked.approval_id, str(asked.answer), asked.by)

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


def _client_of(asked: Approval, state: MissionState) -> str | None:
    """The client that a call is made for: a child mission has no driver of its own, and its parent's owner."""
    return asked.subject or state.owner


def _require_id(approval_id: str) -> None:
    if APPROVAL_ID.fullmatch(approval_id) is None:
        raise InvalidArgument(
            f"{approval_id[:80]!r} is no id of an open question; `pursuit approvals` shows them",
            approval_id=approval_id[:80],
        )
