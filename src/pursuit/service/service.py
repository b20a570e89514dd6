"""The operations that change missions: start, drive, stop, extend, forget.

Invariant: a refused operation has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from pursuit.config.configuration import USUAL_CHANNELS
from pursuit.core.budgets import under_way
from pursuit.core.caps import CAPS
from pursuit.core.events import (
    AbortOrdered,
    ApprovalExpired,
    BudgetExtended,
    Channel,
    CompletionOrdered,
    MissionCreated,
    MissionPaused,
    MissionResumed,
    OperatorEvent,
    encode,
)
from pursuit.core.fold import EXTENDABLE, Shown, advance, listing_of, shown_of
from pursuit.core.mission import Mission
from pursuit.core.state import MissionState
from pursuit.engine.driver import has_ended
from pursuit.engine.execute import worked_until
from pursuit.engine.journal import require_id
from pursuit.engine.lessons import left_out
from pursuit.errors import (
    Conflict,
    Fault,
    InvalidArgument,
    LedgerUnavailable,
    NotPaused,
    PolicyDenied,
    SessionNotFound,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.contract import ANY, Draft, QueuedJob
from pursuit.proposers.contract import kind_of
from pursuit.proposers.language import Models
from pursuit.service.audit import OPERATOR, Caller, gist_of_mission, local_subject
from pursuit.service.conversations import Conversations
from pursuit.service.limits import ClientLimits
from pursuit.service.mission_admission import admit, proposer_faults
from pursuit.service.queries import (
    Queries,
    is_placeable,
    new_mission_id,
    requirements_of,
)
from pursuit.upstream.pool import Pool


def cap_faults(caps: Mapping[str, float], state: MissionState) -> list[Fault]:
    if not caps:
        return [Fault(field="budget", reason=f"give at least one of {', '.join(CAPS)}")]
    faults: list[Fault] = []
    for name, value in caps.items():
        before = state.budget.get(name)
        if before is None:
            faults.append(Fault(field=name, reason=f"is not a cap; the caps are {', '.join(CAPS)}"))
        elif value != -1 and not 0 < value < math.inf:
            faults.append(Fault(field=name, reason="must be a positive number, or -1 for no cap"))
        elif CAPS[name].unit == "count" and value != int(value):
            faults.append(Fault(field=name, reason="must be a whole number"))
        elif before == -1 or (value != -1 and value < before):
            faults.append(Fault(field=name, reason=f"can only be raised; it is {before:g} now (-1 is unlimited)"))
    after = {**state.budget, **caps}
    endless = after["max_iterations"] == -1 and after["max_wall_clock_seconds"] == -1
    if endless and not state.mission.budget.unbounded:
        faults.append(Fault(field="budget", reason="max_iterations or max_wall_clock_seconds must stay a real cap"))
    return faults


MAX_REASON = 8_192
PLACED_WITHIN = 30.0
"""Seconds after which a mission whose `start` died is enqueued: longer than an append in doubt takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    session_id: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOf:
    """The parent of a mission, and the id of the child, which may always use these `models`.

    `callers` are the tokens whose policy applies to the parent.
    """

    session_id: str
    parent: str
    models: frozenset[str] = frozenset()
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Queries):
    """One process's view of the missions in a ledger; `caller` is the default caller of its operations."""

    pool: Pool
    checks: Mapping[str, Mapping[str, Any]]
    models: Models
    client_models: frozenset[str] = frozenset()
    may_force_complete: bool = True
    caller: Caller = OPERATOR
    limits: ClientLimits
    channels: frozenset[Channel] = USUAL_CHANNELS
    """Channels over which approvals are accepted."""

    @property
    def conversations(self) -> Conversations:
        return Conversations(ledger=self.ledger, driver=self.driver)

    async def start(
        self,
        mission: Mission,
        *,
        file: Path | None = None,
        caller: Caller | None = None,
        child_of: ChildOf | None = None,
        operators_own: bool = True,
        session_id: str | None = None,
        origin: Path | None = None,
        mode: str | None = None,
        for_workers: bool = False,
    ) -> Started:
        """Accepts a mission: resolves and stores its tools; nothing runs yet.

        `session_id` is an id of `new_mission_id`; a child has its own. A mission that the operator did not write
        (see `operators_own`) starts children under stricter rules, and may name only the `client_models`. `origin` is
        the file that it was read from, `mode` the policy mode that the operator chose for it. With `for_workers`, it is
        enqueued even if this process dies before it calls `place`; an unusable queue refuses it.
        """
        own = operators_own and child_of is None
        clients = None if own else self.driver.place.client_kinds
        among = None if operators_own else self.client_models | (child_of.models if child_of else frozenset[str]())
        admitted = await admit(
            mission, self.pool, self.checks, self.models, among=among, clients=clients, child=operators_own
        )
        mission_id = (session_id or new_mission_id()) if child_of is None else child_of.session_id
        created = MissionCreated(
            at=self.clock.now(),
            mission=admitted.mission.model_dump(mode="json"),
            tools=list(admitted.tools),
            parameters=admitted.parameters,
            warnings=list(admitted.warnings),
            file=str(file) if file is not None else None,
            by=str(caller or self.caller),
            credential=(caller or self.caller).credential,
            callers=[] if child_of is None else list(child_of.callers),
            owner=(caller or self.caller).subject,
            parent=None if child_of is None else child_of.parent,
            operators_own=operators_own,
            facts=admitted.mission.proposer.facts(),
            origin=str(origin) if origin is not None else None,
            mode=mode,
        )
        most = self.driver.settings.memory_lessons
        said = await left_out(self.ledger, mission_id, advance(None, created), most)
        created = structs.replace(created, warnings=[*created.warnings, *said])
        state = advance(None, created)
        draft = Draft(*encode(created))
        audited = self.control(caller, "start", mission_id, gist_of_mission(mission))
        async with audited, self.limits.starting(caller or self.caller, mission, len(draft.body)):
            job = self.job_of(state) if for_workers and await self.due_in(state) == 0 else None
            if for_workers and job is None:
                await self._enqueue(mission_id, state, at_least=PLACED_WITHIN)
            head = await self.ledger.append(
                mission_id, 0, [draft], status="pending", summary=listing_of(state), job=job
            )
        self.states.give(mission_id, state, head.seq)
        kind_of(mission.proposer.kind).started(mission.proposer, mission_id, self.driver.place)
        return Started(session_id=mission_id, warnings=tuple(created.warnings))

    async def place(self, mission_id: str) -> bool:
        """Enqueues the mission for workers if it is due now or at a known time; returns whether it was enqueued."""
        return await self._enqueue(mission_id, await self.state(mission_id))

    async def _enqueue(self, mission_id: str, state: MissionState, at_least: float = 0.0) -> bool:
        due = await self.due_in(state)
        if self.placement is None or due is None or not is_placeable(state):
            return False
        delay = max(due, at_least)
        await self.placement.enqueue(mission_id, requirements_of(state), caller=state.owner or "", delay=delay)
        return True

    def job_of(self, state: MissionState) -> QueuedJob | None:
        """The job to store in the commit that makes the mission due; None if its placement cannot store jobs there."""
        if self.placement is None or not self.jobs_in_commit or not is_placeable(state):
            return None
        return QueuedJob(str(requirements_of(state)), state.owner or "")

    async def wake(self, mission_id: str) -> bool:
        """Enqueues a mission that workers drive again, since its wait is over.

        A mission that is driven now is not enqueued: its worker checks it again after it stops driving.
        """
        if self.placement is None or not (state := await self.state(mission_id)).background:
            return False
        if await self.due_in(state) != 0 or await self.ledger.is_claimed(mission_id):
            return False
        with suppress(LedgerUnavailable):  # what happened is stored, and workers look for missions that are due
            return await self.place(mission_id)
        return False

    async def pause(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        """Stops the mission at its current step; it can be resumed."""
        async with self.control(caller, "pause", mission_id, {"reason": reason}):
            word = MissionPaused(at=self.clock.now(), by=str(caller or self.caller), reason=storable_reason(reason))
            state = await self.say(mission_id, word)
        for child in under_way(state):
            with suppress(SessionTerminal, SessionNotFound):
                await self.pause(child, reason="its parent was paused", caller=Caller(who=mission_id))
        return await self.state(mission_id)

    async def resume(self, mission_id: str, *, caller: Caller | None = None, model: str | None = None) -> MissionState:
        """Lets a paused or failed mission continue, for the operator also a stuck one; it does not drive the mission.

        With `model`, a mission with a language model continues with that model.
        """
        async with self.control(caller, "resume", mission_id, None if model is None else {"model": model}):
            state, who = await self.state(mission_id), caller or self.caller
            reopens = state.can_go_on and who.subject is None
            if state.terminal and not reopens:
                raise has_ended(mission_id, state)
            if model is not None and await self.ledger.is_claimed(mission_id):
                raise Conflict(f"a process drives {mission_id}; pause it before it gets another model")
            if model is not None:
                if faults := await proposer_faults(state.mission.with_model(model), self.models):
                    raise ValidationFailed(faults)
            elif state.status not in ("paused", "failed") and not reopens:
                why = f"{mission_id} is {state.status}, neither paused nor failed"
                raise NotPaused(why, session_id=mission_id, status=state.status)
            word = MissionResumed(at=self.clock.now(), by=str(who), model=model, reopens=reopens)
            return await self.say(mission_id, word, reopen=reopens)

    async def abort(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        async with self.control(caller, "abort", mission_id, {"reason": reason}):
            word = AbortOrdered(at=self.clock.now(), by=str(caller or self.caller), reason=storable_reason(reason))
            return await self._end(mission_id, word)

    async def complete(
        self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None
    ) -> MissionState:
        """Marks the mission completed for the operator, or for a client if the configuration allows it."""
        async with self.control(caller, "complete", mission_id, {"reason": reason}):
            who = caller or self.caller
            client = who.subject is not None
            if client and not self.may_force_complete:
                why = "clients may not mark a mission completed ([callers] may_force_complete = false)"
                raise PolicyDenied(f"{why}; its criteria decide, and mission_abort ends it", session_id=mission_id)
            owner = (await self.state(mission_id)).owner or local_subject(self.uid)
            if client and who.subject != owner and not self.scoped:
                why = "the mission is shared with you; only the client that started the mission can mark it completed"
                raise PolicyDenied(f"{why}; mission_abort ends it", session_id=mission_id)
            word = CompletionOrdered(at=self.clock.now(), by=str(who), reason=storable_reason(reason), client=client)
            return await self._end(mission_id, word)

    async def _end(self, mission_id: str, word: AbortOrdered | CompletionOrdered) -> MissionState:
        state = await self.say(mission_id, word)
        for child in under_way(state):
            with suppress(SessionTerminal, SessionNotFound):
                await self.abort(child, reason="its parent was ended", caller=Caller(who=mission_id))
        return await self.driver.close(mission_id) or await self.state(mission_id)

    async def extend(self, mission_id: str, caps: Mapping[str, float], *, caller: Caller | None = None) -> MissionState:
        """Raises caps. A mission that waits for budget continues; one that ended by budget can be resumed."""
        state = await self.state(mission_id)
        if state.parent is not None:
            raise InvalidArgument(
                f"the budget of {mission_id} is part of {state.parent}'s; extend the parent, to start another child",
                session_id=mission_id,
                parent=state.parent,
            )
        if state.terminal and state.verdict_reason not in EXTENDABLE:
            raise has_ended(mission_id, state)
        faults = cap_faults(caps, state)
        if faults:
            raise ValidationFailed(faults)
        async with self.control(caller, "extend", mission_id, caps):
            word = BudgetExtended(at=self.clock.now(), by=str(caller or self.caller), caps=dict(caps))
            return await self.say(mission_id, word, reopen=True)

    async def forget(self, mission_id: str, *, caller: Caller | None = None) -> None:
        """Removes an ended mission with its blobs; a tombstone and the audit stay."""
        async with self.control(caller, "forget", mission_id):
            await self._forget(mission_id)

    async def _forget(self, mission_id: str) -> None:
        state = await self.state(mission_id)
        if not state.terminal:
            raise InvalidArgument(f"{mission_id} is {state.status}; abort it before forgetting it")
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            raise Conflict(f"another process is still finishing {mission_id}", session_id=mission_id)
        try:
            if not (await self.state(mission_id)).terminal:
                raise Conflict(f"{mission_id} was resumed concurrently", session_id=mission_id)
            size = await self._size(mission_id) if state.owner is not None else 0
            await self.ledger.forget(mission_id)
            await self.limits.forgotten(state.owner, state.credential, size)
        finally:
            await claim.release()

    async def _size(self, mission_id: str) -> int:
        blobs = [await self.ledger.blob(digest) for digest in await self.ledger.digests(mission_id)]
        events = await self.ledger.read(mission_id)
        return sum(len(event.body) for event in events) + sum(len(blob or b"") for blob in blobs)

    def control(
        self, caller: Caller | None, verb: str, mission_id: str, arguments: Mapping[str, Any] | None = None
    ) -> AbstractAsyncContextManager[object]:
        require_id(mission_id)
        return self.audit.control(caller or self.caller, verb, mission_id, arguments)

    async def say(
        self, mission_id: str, word: OperatorEvent | ApprovalExpired, *, reopen: bool = False
    ) -> MissionState:
        """Appends an operator's event at the head, whichever process drives."""
        await self.states.look(mission_id)
        state, head = await self.states.take(mission_id)
        if state.terminal and not reopen:
            raise has_ended(mission_id, state)
        if isinstance(word, MissionPaused | AbortOrdered | CompletionOrdered):
            until = await worked_until(self.ledger, state, word.at, self.driver.task_ended)
            word = structs.replace(word, waited=state.waited(until))
        advance(state, word)
        said = shown_of(state)
        job = self.job_of(state) if state.background and await self.due_in(state) == 0 else None
        told = await self.ledger.append(
            mission_id, ANY, [Draft(*encode(word))], status=state.status, summary=listing_of(state), job=job
        )
        if told.seq == head + 1:
            self.states.give(mission_id, state, told.seq)
        now = await self._settled(mission_id, said, head)
        if job is None and await self.wake(mission_id):
            now = await self.state(mission_id)
        return now

    async def _settled(self, mission_id: str, said: Shown, head: int) -> MissionState:
        """The state with events that a driver appended concurrently; corrects the listing if they changed it."""
        now, seq = await self.states.look(mission_id)
        if shown_of(now) != said and seq > head + 1:
            with suppress(Conflict):  # the process that appended since has corrected it
                await self.ledger.append(mission_id, seq, [], status=now.status, summary=listing_of(now))
        return now


def storable_reason(reason: str | None) -> str | None:
    return None if reason is None else reason.encode(errors="replace").decode()[:MAX_REASON]
