"""The operations that change missions: start, drive, stop, extend, forget.

Invariant: an operation that is refused has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
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
    Identity,
    IterationProposed,
    MissionCreated,
    MissionPaused,
    MissionResumed,
    OperatorEvent,
    encode,
)
from pursuit.core.fold import EXTENDABLE, advance
from pursuit.core.listing import Listing, listing_of, summary_of
from pursuit.core.mission import Mission, Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.engine.context import Observer, Placed
from pursuit.engine.driver import ToolSource, has_ended
from pursuit.engine.execute import worked_until
from pursuit.engine.lessons import left_out
from pursuit.errors import (
    Conflict,
    Fault,
    InvalidArgument,
    ModelUnavailable,
    NotPaused,
    Overtaken,
    PolicyDenied,
    PursuitError,
    SessionNotFound,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.contract import ANY, Draft
from pursuit.proposers.contract import kind_of
from pursuit.proposers.language import LanguageModel, Models, NoAnswer
from pursuit.service.audit import OPERATOR, Caller, gist_of_mission, gist_of_proposal, local_subject
from pursuit.service.conversations import Conversations
from pursuit.service.limits import ClientLimits
from pursuit.service.mission_admission import admit, proposer_faults
from pursuit.service.queries import (
    Queries,
    history_page,
    is_placeable,
    new_mission_id,
    outcome_rows,
    require_id,
    requirements_of,
)
from pursuit.upstream.pool import Pool


def cap_faults(caps: Mapping[str, float], state: MissionState) -> list[Fault]:
    """Everything that is wrong with new caps for this mission."""
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
            faults.append(Fault(field=name, reason=f"can only be raised; it is {before:g} now (-1 is no cap)"))
    after = {**state.budget, **caps}
    endless = after["max_iterations"] == -1 and after["max_wall_clock_seconds"] == -1
    if endless and not state.mission.budget.unbounded:
        faults.append(Fault(field="budget", reason="max_iterations or max_wall_clock_seconds must stay a real cap"))
    return faults


async def check_proposal(state: MissionState, proposal: Proposal, source: ToolSource) -> None:
    """Raises with every fault of a client's proposal, which then costs the mission nothing."""
    kind, tools, scripts = state.mission.proposer.kind, state.tools, state.mission.allow_scripted_strategies
    if not state.facts.proposed_by_client:
        raise InvalidArgument(f"this mission's proposer is {kind!r}; it takes no proposal", proposer=kind)
    faults: list[Fault] = []
    if proposal.script is not None and not scripts:
        faults.append(Fault(field="proposal.script", reason="this mission has allow_scripted_strategies = false"))
    offered = await source.tools_for(tools)
    for place, call in enumerate(proposal.tool_calls or ()):
        at = f"proposal.tool_calls[{place}]"
        names = [tool for tool in tools if _means(call.tool_name, tool)]
        if len(names) != 1:
            known = ", ".join(tools[:20])
            faults.append(Fault(field=f"{at}.tool_name", reason=f"{call.tool_name!r} is not one of {known}"))
            continue
        faults += [Fault(field=f"{at}.args", reason=reason) for reason in offered.check(names[0], call.args)]
    if faults:
        raise ValidationFailed(faults)


def is_same_proposal(begun: IterationProposed, proposal: Proposal) -> bool:
    """Whether an iteration was begun by this proposal, which a client sends again after it got no answer."""
    calls = proposal.tool_calls or []
    return (
        begun.script == proposal.script
        and len(begun.calls) == len(calls)
        and all(
            _means(asked.tool_name, call.tool) and asked.args == call.args
            for asked, call in zip(calls, begun.calls, strict=True)
        )
    )


def _means(word: str, tool: str) -> bool:
    return word == tool or word == tool.partition(".")[2]


LONGEST_REASON = 8_192
PLACED_WITHIN = 30.0
"""Seconds after which a mission whose `start` died is a job: longer than an append in doubt takes."""


def _answer(mission_id: str, state: MissionState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What iterations came to, with the warnings that came up in them."""
    done = {row["iteration_index"] for row in rows}
    warnings = [one.message for one in state.raised if one.iteration in done]
    answer: dict[str, Any] = {"session_id": mission_id, "status": state.status, "iterations": rows}
    if state.status == "paused" and state.paused_why is not None:
        answer["paused_reason"] = state.paused_why
    return {**answer, "warnings": warnings} if warnings else answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A mission that was accepted."""

    session_id: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOf:
    """The parent of a mission, and the id of the child; it may always have these `models`.

    `callers` are the tokens whose policy holds for the parent.
    """

    session_id: str
    parent: str
    models: frozenset[str] = frozenset()
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Queries):
    """One process's view of the missions in a ledger; `caller` is the caller where an operation names none."""

    pool: Pool
    checks: Mapping[str, Mapping[str, Any]]
    models: Models | None = None
    client_models: frozenset[str] = frozenset()
    may_force_complete: bool = True
    caller: Caller = OPERATOR
    limits: ClientLimits | None = None
    channels: frozenset[Channel] = USUAL_CHANNELS
    """By which a person's yes to an approval counts."""

    @property
    def conversations(self) -> Conversations:
        """The conversations of the missions with their language models."""
        return Conversations(ledger=self.ledger, driver=self.driver)

    async def prompt(self, mission_id: str, iteration: int | None = None) -> dict[str, Any]:
        """The requests of an iteration as they were sent, or the one that is sent next."""
        await self.state(mission_id)
        return await self.conversations.shown(mission_id, iteration)

    async def replay(self, mission_id: str, model: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Replays a conversation from the ledger; with another model, up to the first answer that differs.

        Raises `ModelUnavailable` if that model cannot be asked.
        """
        await self.state(mission_id)
        asked = None
        if model is not None and self.models is not None:
            await self.models.check(model)
            asked = self.models.open(model)
        try:
            async for row in self.conversations.replayed(mission_id, asked):
                yield row
        except NoAnswer as error:
            raise ModelUnavailable(str(error), model=model) from error

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
        """Accepts a mission: its tools are resolved and stored; nothing runs yet.

        `session_id` is an id of `new_mission_id`; a child has its own. A mission that the operator did not write
        (`operators_own`) starts children under stricter rules, and may name only the `client_models`. `origin` is the
        file that it was read from, `mode` the policy mode that the operator chose for it. One `for_workers` becomes a
        job even if this process dies before it calls `place`; a queue that cannot be used refuses it.
        """
        clients = None if operators_own else self.driver.place.client_kinds
        among = None if operators_own else self.client_models | (child_of.models if child_of else frozenset[str]())
        admitted = await admit(mission, self.pool, self.checks, self.models, among=among, clients=clients)
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
        async with audited, self._starting(caller, mission, len(draft.body)):
            if for_workers:
                await self._enqueue(mission_id, state, at_least=PLACED_WITHIN)
            await self.ledger.append(mission_id, 0, [draft], status="pending", summary=summary_of(state))
        kind_of(mission.proposer).started(mission.proposer, mission_id, self.driver.place)
        return Started(session_id=mission_id, warnings=tuple(created.warnings))

    async def iterate(
        self,
        mission_id: str,
        *,
        iterations: int = 1,
        proposal: Proposal | None = None,
        after: int | None = None,
        observer: Observer | None = None,
        caller: Caller | None = None,
        sampler: LanguageModel | None = None,
        mode: str | None = None,
    ) -> dict[str, Any]:
        """Drives so many iterations; stops early at the end, at a wait, or when it is the client's turn.

        A caller who says how many iterations it knows of (`after`) gets an answer that was lost once more, and
        nothing new is begun. An error on the way carries the iterations that were done in its details. `sampler` is
        the caller's own language model, for missions whose proposer is `sampling`; `mode` is recorded as in `run`.
        """
        repeated, proposal, head = await self._before(mission_id, iterations, proposal, after)
        if repeated is not None:
            return repeated
        first: list[int] = []  # where this run began: what another driver does before is not this caller's
        asked = {"max_iterations_this_call": iterations, "after": after, "proposal": gist_of_proposal(proposal)}
        async with self.control(caller, "iterate", mission_id, asked), self.driving(caller, mission_id):
            try:
                state = await self.driver.drive(
                    mission_id,
                    iterations=iterations,
                    proposal=proposal,
                    observer=observer,
                    after=after,
                    claimed=lambda state: first.append(state.iteration_count),
                    sampler=sampler,
                    mode=mode,
                    driver=(caller or self.caller).identity,
                )
            except Overtaken:
                return await self.missed(mission_id, iterations, after or 0)
            except PursuitError as error:
                error.details["iterations"] = await self._outcomes(mission_id, first, iterations, head)
                raise
        return _answer(mission_id, state, await self._outcomes(mission_id, first, iterations, head))

    async def iterate_later(
        self,
        mission_id: str,
        *,
        iterations: int = 1,
        proposal: Proposal | None = None,
        after: int | None = None,
        drive: Callable[[int, Proposal | None], Awaitable[None]],
        caller: Caller | None = None,
    ) -> dict[str, Any]:
        """Hands a run to `drive`, which returns once the run is in the ledger, and answers at once."""
        repeated, proposal, _head = await self._before(mission_id, iterations, proposal, after)
        if repeated is not None:
            return repeated
        asked = {"max_iterations_this_call": iterations, "after": after, "proposal": gist_of_proposal(proposal)}
        audited = self.control(caller, "iterate", mission_id, {**asked, "background": True})
        async with audited, self.driving(caller, mission_id):
            try:
                await drive(iterations, proposal)
            except Overtaken:
                return await self.missed(mission_id, iterations, after or 0)
        return {"session_id": mission_id, "status": (await self.state(mission_id)).status, "iterations": []}

    def _starting(self, caller: Caller | None, mission: Mission, size: int) -> AbstractAsyncContextManager[None]:
        """Counts a mission that a client starts; raises `LimitReached` or `ValidationFailed`."""
        return nullcontext() if self.limits is None else self.limits.starting(caller or self.caller, mission, size)

    def driving(self, caller: Caller | None, mission_id: str) -> AbstractAsyncContextManager[None]:
        """Counts a mission that a client drives; raises `LimitReached`."""
        return nullcontext() if self.limits is None else self.limits.driving(caller or self.caller, mission_id)

    async def _before(
        self, mission_id: str, iterations: int, proposal: Proposal | None, after: int | None
    ) -> tuple[dict[str, Any] | None, Proposal | None, int]:
        """The answer that a caller missed, or None; the proposal, unless its iteration has begun already; the head."""
        if iterations < 1:
            raise InvalidArgument(f"max_iterations_this_call must be at least 1, not {iterations}")
        state, head = await self._require_parent(mission_id)
        head = head if state.open is None else 0  # the calls of an open iteration are before the head
        done = state.iteration_count
        if after is not None and after > done:
            raise InvalidArgument(
                f"after={after}, but {mission_id} has finished {done} iterations", iteration_count=done
            )
        if after is not None and after < done:
            return await self.missed(mission_id, iterations, after), None, head
        if proposal is None:
            return None, None, head
        if after is not None and state.open is not None and is_same_proposal(state.open.proposed, proposal):
            return None, None, head
        await check_proposal(state, proposal, self.driver.source)
        return None, proposal, head

    async def missed(self, mission_id: str, iterations: int, after: int) -> dict[str, Any]:
        """The answer of an earlier `iterate`, for a client that did not get it."""
        state = await self.state(mission_id)
        return _answer(mission_id, state, await self._outcomes(mission_id, [after], iterations, 0))

    async def _outcomes(self, mission_id: str, first: Sequence[int], limit: int, head: int) -> list[dict[str, Any]]:
        """The iterations from `first` on with what their calls returned; none if nothing was begun."""
        if not first:
            return []
        page = await history_page(self.ledger, mission_id, full=True, first=first[0], limit=limit, after=head)
        return outcome_rows(page.iterations)

    async def run(
        self,
        mission_id: str,
        *,
        observer: Observer | None = None,
        caller: Caller | None = None,
        mode: str | None = None,
    ) -> MissionState:
        """Drives any mission that has not ended until it ends or waits; a paused or failed one is resumed first.

        While it waits for a task no process drives it; it goes on here when the task has ended. `mode` is recorded as
        the policy mode that the operator chose.
        """
        await self._require_parent(mission_id)
        async with self.control(caller, "run", mission_id):
            driver = (caller or self.caller).identity
            return await self.drive(mission_id, observer=observer, resume=True, mode=mode, driver=driver)

    async def drive(
        self,
        mission_id: str,
        *,
        observer: Observer | None = None,
        resume: bool = False,
        mode: str | None = None,
        driver: Identity | None = None,
    ) -> MissionState:
        """Drives a mission until it ends or waits; tasks that it waits for are waited for here."""
        state = await self.driver.drive(mission_id, observer=observer, resume=resume, mode=mode, driver=driver)
        while await self._woken(mission_id, state):
            state = await self.driver.drive(mission_id, observer=observer, driver=driver)
        return await self.state(mission_id)

    async def continue_run(
        self,
        mission_id: str,
        *,
        observer: Observer | None = None,
        placed: Placed | None = None,
        driver: Identity | None = None,
    ) -> MissionState:
        """Drives an interrupted run to its goal; a mission that was paused meanwhile stays paused.

        A `placed` run is in the background; one that has not begun goes to the end, for that `driver`.
        """
        while True:
            state = await self.state(mission_id)
            left = None if state.run_goal is None else max(0, state.run_goal - state.iteration_count)
            if left == 0:
                return state
            kept = None if state.handed_in is None else parse_proposal(state.handed_in)
            background = state.background or placed is not None
            try:
                state = await self.driver.drive(
                    mission_id,
                    iterations=left,
                    proposal=kept,
                    observer=observer,
                    background=background,
                    after=state.iteration_count,
                    driver=state.driver or driver,
                    placed=placed,
                )
            except Overtaken:  # another process drove it before we had the lock
                continue
            if background or not await self._woken(mission_id, state):
                return await self.state(mission_id)

    async def _woken(self, mission_id: str, state: MissionState) -> bool:
        """Waits for the task that a mission waits for, or until its wall clock is used up.

        False if it waits for none, or another process drives it.
        """
        over = anyio.current_time() + state.wait_left(self.clock.now())
        with self.ledger.bell() as bell:
            while state.status == "waiting" and state.waiting_for == "task":
                if anyio.current_time() >= over or not await self._works(state.wait_detail):
                    return True
                with anyio.CancelScope(deadline=over):
                    await bell.wait()
                state = await self.state(mission_id)
        return False

    async def place(self, mission_id: str) -> bool:
        """Makes a mission a job for workers if it has something to do, now or at a time; whether it is one."""
        return await self._enqueue(mission_id, await self.state(mission_id))

    async def _enqueue(self, mission_id: str, state: MissionState, at_least: float = 0.0) -> bool:
        due = await self.due_in(state)
        if self.placement is None or due is None or not is_placeable(state):
            return False
        delay = max(due, at_least)
        await self.placement.enqueue(mission_id, requirements_of(state), caller=state.owner or "", delay=delay)
        return True

    async def wake(self, mission_id: str) -> bool:
        """Makes a mission that workers drive a job again, now that what it waited for is there.

        One that is driven now needs none: its worker looks at it again after it has let go of it.
        """
        if self.placement is None or not (state := await self.state(mission_id)).background:
            return False
        if await self.due_in(state) != 0 or await self.ledger.is_claimed(mission_id):
            return False
        return await self.place(mission_id)

    async def hand_over(
        self,
        mission_id: str,
        iterations: int | None = None,
        proposal: Proposal | None = None,
        after: int | None = None,
        *,
        driver: Identity | None = None,
        resume: bool = False,
        mode: str | None = None,
    ) -> None:
        """Records a run as `Driver.drive` does, with all that may refuse it, and leaves it to the workers."""
        leaving = anyio.Event()
        leaving.set()
        await self.driver.drive(
            mission_id,
            iterations=iterations,
            proposal=proposal,
            after=after,
            resume=resume,
            background=True,
            mode=mode,
            driver=driver,
            placed=Placed(leaving=leaving),
        )
        await self.place(mission_id)

    async def pause(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        """Stops it where it is; it stays resumable."""
        async with self.control(caller, "pause", mission_id, {"reason": reason}):
            word = MissionPaused(at=self.clock.now(), by=str(caller or self.caller), reason=storable_reason(reason))
            state = await self.say(mission_id, word)
        for child in under_way(state):
            with suppress(SessionTerminal, SessionNotFound):
                await self.pause(child, reason="its parent was paused", caller=Caller(who=mission_id))
        return await self.state(mission_id)

    async def resume(self, mission_id: str, *, caller: Caller | None = None, model: str | None = None) -> MissionState:
        """Lets a paused or failed mission go on, and for the operator one without progress; it does not drive it.

        Any mission with a model can get another one.
        """
        async with self.control(caller, "resume", mission_id, None if model is None else {"model": model}):
            state, who = await self.state(mission_id), caller or self.caller
            reopens = state.can_go_on and who.subject is None
            if state.terminal and not reopens:
                raise has_ended(mission_id, state)
            if model is not None and await self.ledger.is_claimed(mission_id):
                raise Conflict(f"a process drives {mission_id}; pause it before it gets another model")
            if model is not None and self.models is not None:
                if faults := await proposer_faults(state.mission.with_model(model), self.models):
                    raise ValidationFailed(faults)
            elif state.status not in ("paused", "failed") and not reopens:
                raise NotPaused(f"{mission_id} is {state.status}, neither paused nor failed", session_id=mission_id)
            word = MissionResumed(at=self.clock.now(), by=str(who), model=model, reopens=reopens)
            return await self.say(mission_id, word, reopen=reopens)

    async def abort(self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None) -> MissionState:
        """Ends it as terminated, also in the middle of a call."""
        async with self.control(caller, "abort", mission_id, {"reason": reason}):
            word = AbortOrdered(at=self.clock.now(), by=str(caller or self.caller), reason=storable_reason(reason))
            return await self._end(mission_id, word)

    async def complete(
        self, mission_id: str, *, reason: str | None = None, caller: Caller | None = None
    ) -> MissionState:
        """Ends it as completed, on the word of the operator, or of a client if the configuration allows that."""
        async with self.control(caller, "complete", mission_id, {"reason": reason}):
            who = caller or self.caller
            client = who.subject is not None
            if client and not self.may_force_complete:
                why = "clients may not end a mission as completed ([callers] may_force_complete = false)"
                raise PolicyDenied(f"{why}; its criteria decide, and mission_abort ends it", session_id=mission_id)
            owner = (await self.state(mission_id)).owner or local_subject(self.uid)
            if client and who.subject != owner and not self.scoped:
                why = "the mission is shared with you, and only the client that started it ends it as completed"
                raise PolicyDenied(f"{why}; mission_abort ends it", session_id=mission_id)
            word = CompletionOrdered(at=self.clock.now(), by=str(who), reason=storable_reason(reason), client=client)
            return await self._end(mission_id, word)

    async def _end(self, mission_id: str, word: AbortOrdered | CompletionOrdered) -> MissionState:
        """Orders the end of the mission and of its children, and writes the end if no driver does."""
        state = await self.say(mission_id, word)
        for child in under_way(state):
            with suppress(SessionTerminal, SessionNotFound):
                await self.abort(child, reason="its parent was ended", caller=Caller(who=mission_id))
        return await self.driver.close(mission_id) or await self.state(mission_id)

    async def extend(self, mission_id: str, caps: Mapping[str, float], *, caller: Caller | None = None) -> MissionState:
        """Raises caps. A mission that waits for budget goes on; one that ended by budget can be resumed."""
        state = await self.state(mission_id)
        if state.parent is not None:
            raise InvalidArgument(
                f"the budget of {mission_id} is a part of {state.parent}'s; extend that one, which can start another",
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
        """Removes an ended mission, blobs included; a tombstone stays, and the audit."""
        async with self.control(caller, "forget", mission_id):
            await self._forget(mission_id)

    async def _forget(self, mission_id: str) -> None:
        state = await self.state(mission_id)
        if not state.terminal:
            raise InvalidArgument(f"{mission_id} is {state.status}; abort it before forgetting it")
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            raise Conflict(f"{mission_id} is still being wound up by another process", session_id=mission_id)
        try:
            if not (await self.state(mission_id)).terminal:
                raise Conflict(f"{mission_id} was taken up again at this moment", session_id=mission_id)
            size = await self._size(mission_id) if state.owner is not None else 0
            await self.ledger.forget(mission_id)
            if self.limits is not None:
                await self.limits.forgotten(state.owner, state.credential, size)
        finally:
            await claim.release()

    async def _size(self, mission_id: str) -> int:
        """The bytes of a mission's events and blobs."""
        blobs = [await self.ledger.blob(digest) for digest in await self.ledger.digests(mission_id)]
        events = await self.ledger.read(mission_id)
        return sum(len(event.body) for event in events) + sum(len(blob or b"") for blob in blobs)

    def control(
        self, caller: Caller | None, verb: str, mission_id: str, arguments: Mapping[str, Any] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Records a control call in the audit. Raises `InvalidArgument` for what is no mission id."""
        require_id(mission_id)
        return self.audit.control(caller or self.caller, verb, mission_id, arguments)

    async def _require_parent(self, mission_id: str) -> tuple[MissionState, int]:
        """The state and the head of a mission to drive. Raises for a child whose parent has ended, and ends it."""
        state, head = await self._load(mission_id)
        parent = state.parent
        if parent is None or state.terminal:
            return state, head
        try:
            gone = (await self.state(parent)).terminal
        except SessionNotFound:
            gone = True
        if gone:
            state = await self.abort(mission_id, reason="its parent was ended", caller=Caller(who=parent))
            raise has_ended(mission_id, state)
        return await self._load(mission_id)

    async def say(
        self, mission_id: str, word: OperatorEvent | ApprovalExpired, *, reopen: bool = False
    ) -> MissionState:
        """Appends an operator's event at the head, whichever process drives."""
        await self._load(mission_id)
        state, head = await self.states.take(mission_id)
        if state.terminal and not reopen:
            raise has_ended(mission_id, state)
        if isinstance(word, MissionPaused | AbortOrdered | CompletionOrdered):
            until = await worked_until(self.ledger, state, word.at, self.driver.task_ended)
            word = structs.replace(word, waited=state.waited(until))
        advance(state, word)
        said = listing_of(state)
        told = await self.ledger.append(
            mission_id, ANY, [Draft(*encode(word))], status=said.status, summary=said.summary()
        )
        if told.seq == head + 1:
            self.states.give(mission_id, state, told.seq)
        now = await self._settled(mission_id, said, head)
        if await self.wake(mission_id):
            now = await self.state(mission_id)
        return now

    async def _settled(self, mission_id: str, said: Listing, head: int) -> MissionState:
        """The state with whatever a driver appended at the same moment; its listing is put right if that changed it."""
        now, seq = await self.states.look(mission_id)
        if listing_of(now) != said and seq > head + 1:
            with suppress(Conflict):  # the process that appended since has put it right
                await self.ledger.append(mission_id, seq, [], status=now.status, summary=summary_of(now))
        return now


def storable_reason(reason: str | None) -> str | None:
    """A reason as it can be stored."""
    return None if reason is None else reason.encode(errors="replace").decode()[:LONGEST_REASON]
