"""Lists and answers the approvals of missions, of their agents and of gateways.

Invariant: a person's first answer in the ledger counts, and a later one raises `Conflict`; an approval counts only over
a channel that the operator listed, and a client's own approval only in the dialog of its user. Each answer has one line
in the audit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import anyio
import msgspec

from pursuit.core.approvals import (
    APPROVAL_ID,
    GRANTS,
    Approval,
    Questions,
    answer_event,
    expiry_event,
    shown_event,
)
from pursuit.core.audit import masked
from pursuit.core.events import (
    ApprovalExpired,
    Channel,
    OperatorEvent,
    Permission,
    decoded,
)
from pursuit.core.gateway_events import (
    GatewayApprovalAnswered,
    GatewayApprovalShown,
    GatewayEvent,
    decode_gateway,
    encode_gateway,
)
from pursuit.core.report import ApprovalRow, iso
from pursuit.core.state import MissionState
from pursuit.errors import (
    ApprovalNeeded,
    ApprovalNotFound,
    Conflict,
    Fault,
    InvalidArgument,
    PolicyDenied,
    ValidationFailed,
    advice,
)
from pursuit.ledger.contract import ANY, Draft, every_stream
from pursuit.policy.traits import MAX_FORM, whole_question
from pursuit.reports.wording import moment
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import ASKING, GATEWAY_ID, KIND, read_questions
from pursuit.service.service import Service, storable_reason
from pursuit.upstream.pins import accept

Word = OperatorEvent | ApprovalExpired | GatewayApprovalAnswered | GatewayApprovalShown


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    approval: Approval
    answer: Permission
    by: str
    status: str

    @property
    def needs_more(self) -> bool:
        return self.answer in GRANTS and self.approval.answer is None

    def row(self) -> dict[str, Any]:
        row = msgspec.structs.replace(ApprovalRow.of(self.approval), answer=self.answer, by=self.by)
        return {**row.as_json(), "status": self.status}


def require_channel(channel: Channel, channels: Collection[str]) -> None:
    """Refuses an approval over a channel that the operator did not list."""
    if channel not in channels:
        listed = ", ".join(sorted(channels)) or "none"
        raise PolicyDenied(
            f'approvals over "{channel}" are not accepted: [approvals] channels of the configuration lists {listed}; '
            "nothing was changed",
            channel=channel,
        )


def may_answer(by: Caller, channel: Channel | None, asked: Approval) -> bool:
    """True if this caller's approval counts.

    A client approves only calls of others, but in the dialog of its user only its own, also in a mission that is
    shared with it. Accepting changed tools (`accepts`) concerns all clients. The operator, and the user over stdio,
    approve everything.
    """
    if by.subject is None or channel == "stdio-elicitation":
        return True
    if channel == "http-elicitation":
        # A child mission is driven by its parent and belongs to the parent's owner.
        return by.subject == (asked.client or asked.owner) and asked.accepts is None
    return by.subject not in (asked.client, asked.owner)


class Approvals:
    """The approvals of all missions and gateways in a ledger. A stream is one mission or one gateway."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.ledger = service.ledger

    async def open(self, stream: str | None = None) -> list[Approval]:
        """The open approvals, the oldest mission first, then gateways; with `stream`, only those of that stream."""
        streams = await self._asking() if stream is None else [stream]
        found = [one for name in streams for one in (await self._look(name))[0].values()]
        now = self._service.clock.now()
        return [one for one in found if one.is_open(now)]

    async def find(self, word: str) -> str:
        """The id of the open approval that begins with `word`; without a match, `word` itself."""
        if APPROVAL_ID.fullmatch(word):
            return word
        begins = word if word.startswith("approval-") else f"approval-{word}"
        found = [one.approval_id for one in await self.open() if one.approval_id.startswith(begins)]
        if len(found) > 1:
            raise InvalidArgument(f"{word[:80]!r} matches {len(found)} ids: {', '.join(found)}; give more characters")
        return found[0] if found else word

    async def standing(self, mission_id: str, approval_id: str) -> str:
        """Describes how an approval that is no longer open was closed."""
        state = await self._service.state(mission_id)
        asked = state.approvals.get(approval_id)
        if asked is None or asked.answer is None:
            return "expired" if asked is not None else f"the mission is {state.status}"
        return f"{asked.answer} by {asked.by}" if asked.by else asked.answer

    async def until_answered(self, mission_id: str, approval_id: str | None = None) -> MissionState:
        """Returns the state once this approval is closed, or once the mission no longer waits for a person.

        An answer from any process, expiry, and the end of the mission close an approval.
        """
        service = self._service
        with self.ledger.wakeup(mission_id) as wakeup:
            while True:
                state, now = await service.state(mission_id), service.clock.now()
                asked = [one for one in state.approvals.open(now) if approval_id in (None, one.approval_id)]
                if state.waiting_for not in ("approval", "budget") or (state.waiting_for == "approval" and not asked):
                    return state
                with anyio.move_on_after(min((one.until - now for one in asked), default=None)):
                    await wakeup.wait()

    async def answer(
        self,
        approval_id: str,
        answer: Permission,
        *,
        reason: str | None = None,
        caller: Caller | None = None,
        channel: Channel | None = None,
        stream: str | None = None,
        unseen: bool = False,
        revealed: bool = True,
    ) -> Answered:
        """Records a person's answer; the call runs when it is made again and enough people have approved it.

        With `stream`, only approvals of that mission or gateway are considered. If the text was cut, the same person
        must `show` it before approving, or pass `unseen`; masked arguments must be `revealed` first.
        """
        if answer not in get_args(Permission):
            known = ", ".join(get_args(Permission))
            raise ValidationFailed([Fault(field="answer", reason=f"{str(answer)[:40]!r} is not one of {known}")])
        service, by, reason = self._service, caller or self._service.caller, storable_reason(reason)
        channel = channel or ("terminal" if by.transport == "terminal" else "api")
        if answer in GRANTS:
            require_channel(channel, service.channels)
        asked, head = await self._find(approval_id, stream)
        if asked.answer is not None:
            raise _is_closed(asked)
        if not asked.is_open(now := service.clock.now()):
            await self._append(asked, expiry_event(asked, now))
            raise _is_closed(replace(asked, answer="expired"))
        if answer in GRANTS:
            await self._require_may_answer(asked, by, channel)
            _require_seen(asked, by, unseen=unseen)
            _require_revealed(await self._shown(asked, reveal=revealed))
            _require_other_person(asked, by)
        given = {"approval_id": approval_id, "tool": asked.tool, "answer": answer, "reason": reason}
        given |= {"channel": channel, "unseen": (asked.cut and unseen) or None, "accepts": asked.accepts}
        async with service.audit.control(by, "deny" if answer == "denied" else "approve", asked.stream, given):
            at = service.clock.now()
            word = answer_event(asked, answer, at=at, by=str(by), person=by.person, channel=channel, reason=reason)
            status = await self._append(asked, word)
            after = await self._after(asked, head, word)
            if after.accepts is not None and after.granted:
                await accept(self.ledger, after.accepts, at=at, by=str(after.by))
        return Answered(approval=after, answer=answer, by=str(by), status=status)

    async def show(
        self, approval_id: str, *, reveal: bool = False, caller: Caller | None = None, stream: str | None = None
    ) -> Approval:
        """An approval with its full arguments; secrets are masked by name unless `reveal`. The access is audited."""
        service, by = self._service, caller or self._service.caller
        asked, _head = await self._find(approval_id, stream)
        given = {"approval_id": approval_id, "reveal": reveal or None}
        async with service.audit.control(by, "show", asked.stream, given):
            if asked.cut and asked.answer is None and by.person not in asked.shown:
                seen = shown_event(asked, at=service.clock.now(), by=str(by), person=by.person)
                await self._append(asked, seen)
        return await self._shown(asked, reveal=reveal)

    async def forms(self, mission_id: str, caller: Caller, channel: Channel | None) -> dict[str, str]:
        """The full text of each open approval of a mission that this client's user may answer, by id.

        Only the operator can answer one that is too long for a form.
        """
        texts = {
            one.approval_id: one.description if one.accepts else whole_question(one.description, one.args)
            for one in await self.open(mission_id)
            if may_answer(caller, channel, one)
        }
        return {approval_id: text for approval_id, text in texts.items() if len(text) <= MAX_FORM}

    async def _find(self, approval_id: str, stream: str | None) -> tuple[Approval, int]:
        if APPROVAL_ID.fullmatch(approval_id) is None:
            raise InvalidArgument(
                f"no open approval has the id {approval_id[:80]!r}; `{advice('pursuit approvals')}` lists them",
                approval_id=approval_id[:80],
            )
        for name in await self._asking() if stream is None else [stream]:
            questions, head = await self._look(name)
            if approval_id in questions:
                return questions[approval_id], head
        raise ApprovalNotFound(
            f"no mission waits for {approval_id}; see `{advice('pursuit approvals')}`", approval_id=approval_id
        )

    async def _asking(self) -> Sequence[str]:
        """The missions and gateways that may have an open approval, including ones just answered or paused."""
        rows = every_stream(self.ledger, kind="mission", status=("waiting", "paused", "running", "failed"))
        missions = [
            row.name async for row in rows if row.status != "waiting" or row.summary.get("waiting_for") == "approval"
        ]
        gateways = [row.name async for row in every_stream(self.ledger, kind=KIND, status=ASKING)]
        return [*missions[::-1], *gateways[::-1]]

    async def _look(self, stream: str) -> tuple[dict[str, Approval], int]:
        owner = None
        if GATEWAY_ID.fullmatch(stream) is not None:
            questions, head = await read_questions(self.ledger, stream)
        else:
            state, head = await self._service.states.look(stream)
            questions, owner = state.approvals, state.owner
        return {key: replace(one, stream=stream, owner=owner) for key, one in questions.asked.items()}, head

    async def _shown(self, asked: Approval, *, reveal: bool) -> Approval:
        body = None if asked.whole is None else await self.ledger.blob(asked.whole)
        whole: dict[str, Any] = dict(asked.args) if body is None else json.loads(body)
        args = whole if reveal else masked(whole)
        return replace(asked, args=args, masked=args != whole)

    async def _append(self, asked: Approval, word: Word) -> str:
        """Appends to the approval's stream, whichever process drives; returns the status."""
        if isinstance(word, GatewayEvent):
            await self.ledger.append(asked.stream, ANY, [Draft(*encode_gateway(word))], kind=KIND)
            return "open"
        return (await self._service.say(asked.stream, word)).status

    async def _after(self, asked: Approval, head: int, word: Word) -> Approval:
        """The approval after an answer. Raises `Conflict` if enough people had answered before.

        The late answer stays in the ledger and changes nothing.
        """
        questions = Questions({asked.approval_id: asked})
        stored = await self.ledger.read(asked.stream, head)
        events = [decode_gateway(one.body) for one in stored] if isinstance(word, GatewayEvent) else decoded(stored)
        for event in events:
            if event == word:
                break
            questions.apply(event)
        before = questions.asked[asked.approval_id]
        if before.answer is not None:
            raise _is_closed(before)
        questions.apply(word)
        return questions.asked[asked.approval_id]

    async def _require_may_answer(self, asked: Approval, by: Caller, channel: Channel) -> None:
        if may_answer(by, channel, asked):
            return
        whose = by.who if by.subject in (asked.client, asked.owner) else "another client"
        given = {"approval_id": asked.approval_id, "channel": channel}
        async with self._service.audit.control(by, "approve", asked.stream, given):
            raise PolicyDenied(
                f"{asked.approval_id} is about a call of {whose}, which {by.who} cannot approve; ask the operator or "
                "another approver; nothing was changed",
                approval_id=asked.approval_id,
            )


def _require_seen(asked: Approval, by: Caller, *, unseen: bool) -> None:
    if asked.cut and not unseen and by.person not in asked.shown:
        question = asked.approval_id
        raise ApprovalNeeded(
            f"the approval shows the arguments of {question} only in part; read them with "
            f"`{advice('pursuit approvals show {}', question)}` (over HTTP `GET /approvals/{question}`), or approve "
            'them unseen: `--unseen` (`"unseen": true`)',
            approval_id=question,
        )


def _require_revealed(shown: Approval) -> None:
    if shown.masked:
        question = shown.approval_id
        why = f"the arguments of {question} are masked; press Reveal, then approve"
        raise ApprovalNeeded(why, approval_id=question)


def _require_other_person(asked: Approval, by: Caller) -> None:
    if by.person in asked.said:
        raise Conflict(
            f"you have already approved {asked.approval_id}; it needs {asked.require} people, so another person must "
            "approve it",
            approval_id=asked.approval_id,
            required=asked.require,
        )


def _is_closed(asked: Approval) -> Conflict:
    question = asked.approval_id
    if asked.answer == "expired":
        text = f"{question} expired: it was not answered before {moment(iso(asked.until))}, which counts as a denial"
        return Conflict(text, approval_id=question, answer="expired", expired_at=iso(asked.until))
    who = f" by {asked.by}" if asked.by else ""
    return Conflict(f"{question} was already answered: {asked.answer}{who}", approval_id=question, answer=asked.answer)
