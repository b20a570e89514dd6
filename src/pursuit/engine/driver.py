"""Drives a mission: takes the lock, recovers from a dead driver, and runs turns until there is a reason to stop.

Invariant: only the holder of the lock writes a driver's events, and it always releases the lock.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import anyio
import msgspec

from pursuit.config.process_environment import USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.core.decision import Decision, reached_cap
from pursuit.core.events import (
    CompletionOrdered,
    ConversationCompacted,
    Event,
    Identity,
    MissionEnded,
    MissionFailed,
    MissionResumed,
    ReportWritten,
    RunClaimed,
    WaitBegan,
    decoded,
)
from pursuit.core.fold import drivers_with, fold
from pursuit.core.history import History
from pursuit.core.lessons import remembered
from pursuit.core.mission import MissionPolicy, Proposal
from pursuit.core.proposing import MissingKind
from pursuit.core.report import iso, way_on
from pursuit.core.state import TIMED, MissionState
from pursuit.engine.context import Ceiling, Clock, Observer, Phase, Run, Settings, WorkerRun
from pursuit.engine.execute import RunServices, cancel_tasks, leave_result, recover_own, settle_lost, warn, worked_until
from pursuit.engine.journal import Journal, OperatorFirst, States
from pursuit.engine.lessons import lessons_for
from pursuit.engine.models import LiveWords, RecordedModel, offered
from pursuit.engine.turn import closing, ending, faults_in, turn
from pursuit.errors import (
    Conflict,
    InvalidArgument,
    Overtaken,
    PursuitError,
    SessionPaused,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.contract import Claim, Ledger, QueuedJob, Wakeup
from pursuit.proposers.contract import DrivingPlace, ProposerContext, kind_of
from pursuit.proposers.language import LanguageModel
from pursuit.reports.report import MAX_CHECKS, build_report
from pursuit.reports.wording import moment
from pursuit.sandbox.sandbox import Sandbox
from pursuit.upstream.host import ToolHost, UpstreamTools


async def write_report(run: Run) -> None:
    """Builds and stores the final report, once; afterwards a search finds the mission by its lessons."""
    if run.state.report is not None:
        return
    await run.journal.flush()
    report = await assemble(run.ledger, run.mission_id, run.state, run.journal.newest)
    body = msgspec.json.encode(report)
    digest = hashlib.sha256(body).hexdigest()
    run.journal.stage(ReportWritten(at=run.clock.now(), digest=digest), {digest: body}, text=remembered(report))
    await run.journal.flush()


async def assemble(
    ledger: Ledger, mission_id: str, state: MissionState | None = None, newest: Sequence[Event] = ()
) -> dict[str, Any]:
    """The JSON of a mission's report for the current ledger, with the hashes that prove it.

    `state` is the fold of the same stream, if the caller has it, and `newest` its last events.
    """
    older = None if state is None or not newest else state.seq - len(newest)
    stored = await ledger.read(mission_id, limit=older)
    events: list[Event] = [*decoded(stored), *newest]
    state = state or fold(events)
    if state is None:
        raise ValueError("a mission without events has no report")
    head = await ledger.read(mission_id, after=state.seq - 1, limit=1) if newest else stored[-1:]
    history = History.of(events)
    made = history.made_calls if state.asks or state.facts.tools else ()
    # Large results of checks, and the diffs of an agent's turns.
    large = await _last_blobs(ledger, [end.blob for call, end in made if state.asks and call.purpose == "check"])
    results = {digest: msgspec.json.decode(body) for digest, body in large.items()}
    changes = await _last_blobs(ledger, [end.change.diff for _, end in made if state.facts.tools and end.change])
    diffs = {digest: body.decode(errors="replace") for digest, body in changes.items()}
    report = build_report(mission_id, history, state, results, diffs)
    data = report.as_json()
    if not isinstance(state.mission.proposer, MissingKind):
        try:
            data |= kind_of(state.mission.proposer.kind).report(state.mission, state.mission.proposer, report)
        except Exception as error:  # noqa: BLE001 - another package's code may raise anything
            data["warnings"] += [f"the rows of the proposer are missing: {type(error).__name__}: {error}"]
    data["ledger"] = {
        "head_seq": head[-1].seq if head else 0,
        "head_hash": head[-1].hash.hex() if head else "",
        "root": f"{mission_id}@{head[-1].seq}:{head[-1].hash.hex()}" if head else "",
    }
    return data


async def _last_blobs(ledger: Ledger, digests: Iterable[str | None]) -> dict[str, bytes]:
    """The last of these blobs that are still stored, by digest."""
    wanted = [digest for digest in digests if digest is not None][-MAX_CHECKS:]
    bodies = {digest: await ledger.blob(digest) for digest in wanted}
    return {digest: body for digest, body in bodies.items() if body is not None}


Recorded = Callable[[str, MissionState, Sequence[tuple[int, Event]]], None]
"""Receives the state of a mission and the events just stored, each with its number; must return immediately."""


class Prepared(NamedTuple):
    """The tools of a run, with the mission policy and the callers' policies that they were prepared for."""

    tools: UpstreamTools
    policy: MissionPolicy | None
    callers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A requested run: its mission, its length and its caller."""

    mission_id: str
    _: KW_ONLY
    iterations: int | None = None
    """None: until the mission ends or waits."""
    proposal: Proposal | None = None
    tools: Prepared | None = None
    """The tools with which the proposal was checked."""
    after: int | None = None
    """The number of iterations that the caller knows of; if there are more, nothing begins."""
    resume: bool = False
    """True if a paused or failed mission continues; for the operator, even a mission without progress."""
    background: bool = False
    """True if another process takes the run over if this one dies."""
    mode: str | None = None
    """The policy mode that the operator chose for this run; it is recorded."""
    driver: Identity | None = None
    """The client that requested the run; None is the operator."""
    sampler: LanguageModel | None = None
    """The language model of that client, if it lends one."""
    observer: Observer | None = None
    claimed: Callable[[MissionState], None] | None = None
    """Called as soon as the run is in the ledger: from then on it can be resumed."""
    placed: WorkerRun | None = None
    """The run ends early when its worker stops, and at a long wait."""
    told: Callable[[], Awaitable[object]] | None = None
    """Appends the audit's line about the run, in the transaction of the run's first commit."""
    job: QueuedJob | None = None
    """The job to store in the first commit, if workers get the run."""
    again: bool = False
    """True if the run begins for the second time, because something was appended before its first commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Drives missions in this process."""

    ledger: Ledger
    states: States
    source: ToolHost
    sandbox: Sandbox
    clock: Clock
    place: DrivingPlace
    task_ended: Callable[[str], float | None]
    """The time when the command of a task ended, even if it is not recorded yet; None while it runs."""
    settings: Settings = field(default_factory=Settings)
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    process_environment: ProcessEnvironment = USUAL_ENVIRONMENT
    live: Path | None = None
    """The folder for the live output of models."""
    recorded: Recorded | None = None
    tracking: Observer | None = None
    """Observes every mission that this process drives."""
    ceiling: Ceiling | None = None
    """Reports that a client has reached an operator limit."""

    async def drive(self, order: RunOrder) -> MissionState:
        """Advances a mission as far as the order requests, and returns its state.

        Raises `Conflict` immediately if another driver holds it, and `UpstreamUnavailable` or `ModelUnavailable`
        before anything is spent if one of its servers or its language model cannot be reached. Raises `Overtaken` if
        the mission has more iterations than the order knows of.
        """
        mission_id = order.mission_id
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            raise await self._driven(mission_id)
        try:
            try:
                state, journal = await self._driven_by(order, claim)
            except OperatorFirst:
                state, journal = await self._driven_by(replace(order, again=True), claim)
        finally:
            with anyio.CancelScope(shield=True):
                await claim.release()
        if await self.ledger.read(mission_id, journal.head, limit=1):  # an operator event came after the last look
            return await self.close(mission_id) or state
        self.states.give(mission_id, state, journal.head)
        return state

    async def _driven_by(self, order: RunOrder, claim: Claim) -> tuple[MissionState, Journal]:
        """One run of the holder of the lock, to its end."""
        mission_id = order.mission_id
        with self.ledger.wakeup(mission_id) as wakeup:
            run = await self._taken(order, claim, wakeup)
            state, journal, settings = run.state, run.journal, run.state.mission.proposer
            lessons: Sequence[str] = ()
            if settings.LEARNS:
                lessons = await lessons_for(self.ledger, mission_id, state, self.settings.memory_lessons)

            async def compact(event: ConversationCompacted) -> None:
                await journal.record(lambda _state: [event])

            context = ProposerContext(
                mission=state.mission,
                tools=lambda: offered(state, run.tools),
                record=lambda model: RecordedModel(run=run, model=model, words=LiveWords(self.live, mission_id)),
                past=journal.past,
                blob=journal.blob,
                compact=compact,
                mission_id=mission_id,
                now=self.clock.now,
                sampler=order.sampler,
                lessons=lessons,
                proposal=order.proposal,
                services=run.services,
                place=self.place,
            )
            async with kind_of(settings.kind).open(settings, context) as run.proposer:
                await recover_own(run)
                settle_lost(run)
                warn(run, run.notes)
                if not journal.opening:
                    await journal.flush()
                if order.claimed is not None:
                    order.claimed(state)
                await self._guarded(run)
        return state, journal

    async def _taken(self, order: RunOrder, claim: Claim, wakeup: Wakeup) -> Run:
        """The run for an order. It begins with the last state seen, or with a newer one."""
        mission_id = order.mission_id
        seen = Journal(self.ledger, mission_id, *await self.states.take(mission_id, seen=True), wakeup, claim=claim)
        try:
            return await self._begin(seen, order)
        except PursuitError:  # the state may be older than another process's
            state, head = await self.states.take(mission_id)
            if head == seen.head:
                self.states.give(mission_id, state, head)
                raise
            return await self._begin(Journal(self.ledger, mission_id, state, head, wakeup, claim=claim), order)

    async def _driven(self, mission_id: str) -> Conflict:
        """The error for a mission that another process drives; names the process."""
        holder = await self.ledger.holder(mission_id)
        if holder is None:
            return Conflict(f"another process drives {mission_id}; wait until it is done", session_id=mission_id)
        since = iso(holder.since)
        return Conflict(
            f"{mission_id} is driven by process {holder.pid} on {holder.host} since {moment(since)}; "
            "wait until it is done, or stop that process",
            session_id=mission_id,
            pid=holder.pid,
            host=holder.host,
            since=since,
        )

    async def close(self, mission_id: str) -> MissionState | None:
        """Records the end of a mission that the operator stopped, unless a driver does it."""
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            return None
        try:
            journal = Journal(self.ledger, mission_id, *await self.states.take(mission_id), claim=claim)
            run = self._new_run(journal, await self.source.tools_for(()), None)
            if journal.state.stop is not None and not journal.state.closed:
                await _end_as_ordered(run)
            if journal.state.closed and journal.state.report is None:
                await self._leave_result(run)
                await write_report(run)
            self.states.give(mission_id, journal.state, journal.head)
            return journal.state
        finally:
            await claim.release()

    async def _begin(self, journal: Journal, order: RunOrder) -> Run:
        """Records the driver and the length of the run; gives the state back if the order is refused."""
        try:
            return await self._claimed(journal, order)
        except PursuitError:
            self.states.give(journal.mission_id, journal.state, journal.head)
            raise

    async def _claimed(self, journal: Journal, order: RunOrder) -> Run:
        mission_id, state = journal.mission_id, journal.state
        if order.after is not None and state.iteration_count > order.after:
            raise Overtaken(f"{mission_id} is already past iteration {order.after}", session_id=mission_id)
        if not (order.resume and order.driver is None and state.can_go_on):
            _runnable(mission_id, state, order.proposal, resume=order.resume)
        kind, settings = kind_of(state.mission.proposer.kind), state.mission.proposer
        notes = await kind.ready(settings, mission_id, state.mission, self.place)
        prepared = await self._prepared(state, order)
        run = self._new_run(journal, prepared.tools, order.observer)
        run.placed, run.notes = order.placed, notes
        run.checked = order.proposal if prepared is order.tools else None
        now, before = self.clock.now(), journal.state.status
        over = await worked_until(self.ledger, journal.state, now, self.task_ended)
        claimed = RunClaimed(
            at=now,
            run=secrets.token_hex(8),
            pid=os.getpid(),
            host=platform.node(),
            iterations=order.iterations,
            background=order.background,
            proposal=order.proposal.model_dump(mode="json") if order.background and order.proposal else None,
            mode=order.mode,
            driver=order.driver,
        )

        def begin(state: MissionState) -> Sequence[Event]:
            if state.status == "paused" and before != "paused":  # paused while the servers were connecting
                return ()
            claim = msgspec.structs.replace(claimed, waited=state.waited(over))
            resumed = MissionResumed(at=now, reopens=state.can_go_on)
            return [resumed, claim] if resumed.reopens or before in ("paused", "failed") else [claim]

        journal.told, journal.job = order.told, order.job
        plain = before in ("pending", "running", "waiting") and not state.can_go_on
        reads_only = state.facts.proposed_by_client or settings.ASKS_MODEL
        if plain and reads_only and not (order.again or order.background or order.placed or order.resume):
            # Nothing is done before the first commit, so the claim rides in it. Whatever was appended before it makes
            # the run begin again: a pause then stops it.
            journal.stage(msgspec.structs.replace(claimed, waited=state.waited(over)))
            journal.opening = True
        # Not staged: a pause before the claim stops this run, one after it interrupts the run.
        elif not await journal.record(begin):
            _runnable(journal.mission_id, journal.state, None, resume=False)
        return run

    async def _prepared(self, state: MissionState, order: RunOrder) -> Prepared:
        """The tools of a run, under the policy of everyone who has driven the mission."""
        callers = tuple(dict.fromkeys([*state.callers, *drivers_with(state, order.driver)]))
        policy = state.mission.policy if order.placed is None else _tightened(state)
        if order.tools is not None and (order.tools.policy, order.tools.callers) == (policy, callers):
            return order.tools
        settings = state.mission.proposer
        own = kind_of(settings.kind).tools(settings)
        return Prepared(await self.source.tools_for(state.tools, policy, callers, own), policy, callers)

    async def checked(self, state: MissionState, order: RunOrder) -> RunOrder:
        """The client's order with its proposal checked. Raises with every fault, before anything is spent."""
        if order.proposal is None:
            return order
        kind = state.mission.proposer.kind
        if not state.facts.proposed_by_client:
            raise InvalidArgument(f"this mission's proposer is {kind!r}, and does not accept proposals", proposer=kind)
        prepared = await self._prepared(state, order)
        if faults := faults_in(state, prepared.tools, order.proposal):
            raise ValidationFailed([replace(fault, field=f"proposal.{fault.field}") for fault in faults])
        return replace(order, tools=prepared)

    async def _leave_result(self, run: Run) -> None:
        """Lets the proposer deliver the result of a mission that the operator completed."""
        settings = run.state.mission.proposer
        if run.state.status != "completed" or isinstance(settings, MissingKind):
            return
        context = ProposerContext(mission=run.state.mission, mission_id=run.mission_id, place=self.place)
        async with kind_of(settings.kind).open(settings, context) as run.proposer:
            await leave_result(run)

    async def _guarded(self, run: Run) -> MissionState:
        """Advances while watching for the operator; an error in our own code makes the mission `failed`."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.watch_operator)
                tasks.start_soon(run.watch_claim)
                await self._advance(run)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the boundary: our own fault becomes the mission's `failed`
            if (known := _typed(error)) is not None:
                raise known from None
            await _record_failure(run, error)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(PursuitError):
                await run.journal.flush()  # a call that has just returned is settled first
            raise
        return run.state

    def _new_run(self, journal: Journal, tools: UpstreamTools, observer: Observer | None) -> Run:
        if self.recorded is not None:
            journal.on_recorded = partial(self.recorded, journal.mission_id, journal.state)
        run = Run(
            mission_id=journal.mission_id,
            journal=journal,
            tools=tools,
            sandbox=self.sandbox,
            clock=self.clock,
            settings=self.settings,
            task_ended=self.task_ended,
            observer=_both(observer, self.tracking),
            checks=self.checks,
            process_environment=self.process_environment,
            started=self.clock.monotonic(),
            ceiling=self.ceiling,
        )
        run.services = RunServices(run)
        return run

    async def _advance(self, run: Run) -> None:
        """Runs turns until the mission has ended, waits or is paused, or the run has reached its goal."""
        done = False
        while not done:
            await run.fold_stop()
            if run.state.stop is not None and not run.state.closed:
                await _end_as_ordered(run)
            if run.state.terminal:
                if run.state.status == "completed":
                    await leave_result(run)
                await write_report(run)
                await run.count_spent()
                return
            if run.state.status == "paused" or run.state.run is None:
                break
            with run.effects():  # the operator's stop interrupts the turn, which continues later at the same call
                done = await _run_turns(run)
        await run.journal.flush()
        await run.count_spent()
        run.report_phase("waiting")


def _tightened(state: MissionState) -> MissionPolicy | None:
    """The mission's policy in the mode that its operator chose, or in the worker's mode if that is stricter."""
    policy = state.mission.policy
    if state.mode not in ("ask", "never") or (policy is not None and policy.mode == "never"):
        return policy
    return (policy or MissionPolicy()).model_copy(update={"mode": state.mode})


def _both(one: Observer | None, other: Observer | None) -> Observer | None:
    if one is None or other is None:
        return one or other

    def see(mission_id: str, phase: Phase, state: MissionState) -> None:
        other(mission_id, phase, state)
        one(mission_id, phase, state)

    return see


def has_ended(mission_id: str, state: MissionState) -> SessionTerminal:
    """The error for an ended mission: includes the next step; omits the operator's path because clients see it."""
    way = way_on(mission_id, reason=state.verdict_reason, parent=state.parent)
    text = f"{mission_id} has ended: {state.status} ({state.verdict_reason}); {way}"
    return SessionTerminal(text, session_id=mission_id, status=state.status)


def _runnable(mission_id: str, state: MissionState, proposal: Proposal | None, *, resume: bool) -> None:
    if proposal is not None and state.open is not None:
        raise InvalidArgument(
            f"iteration {state.iteration_number} of {mission_id} is not finished; iterate once without a proposal",
            session_id=mission_id,
        )
    if state.terminal and (state.stop is None or state.closed):
        raise has_ended(mission_id, state)
    if state.status == "paused" and not resume:
        raise SessionPaused(f"{mission_id} is paused; resume it first", session_id=mission_id)


async def _run_turns(run: Run) -> bool:
    """Runs turns; True once this run has nothing more to do, False if the mission ended or was stopped."""
    state = run.state
    while not (state.terminal or state.stopped or state.run is None or run.stop_ordered):
        if state.run_goal is not None and state.iteration_count >= state.run_goal:
            return True
        if run.ceiling is not None and await run.held():
            continue
        if run.placed is not None and run.lets_go():
            return True
        if state.open is None and _used_up(run, state) is not None and await _out_of_budget(run):
            continue
        if state.waiting_for == "budget":
            return True
        if state.waiting_for == "pace" and not await _pace(run):
            continue
        if state.waiting_for == "model" and not await _until(run) and not (state.open and _used_up(run, state)):
            continue
        if state.waiting_for == "limit" and not await _until(run):
            continue
        if not await turn(run) and (state.status == "failed" or _waits(state)):
            return True
    return False


def _waits(state: MissionState) -> bool:
    """True if the mission waits for something that this process cannot wait for."""
    timed = state.waiting_for in TIMED and (state.waiting_for != "limit" or state.wait_until is not None)
    return state.status == "waiting" and not timed


def _used_up(run: Run, state: MissionState) -> str | None:
    """The cap that prevents another iteration, or None."""
    return reached_cap(state, elapsed=run.elapsed(), iterations=state.iteration_count)


async def _out_of_budget(run: Run) -> bool:
    """Ends the mission, or makes it wait, because a cap was used up before this iteration could begin."""

    def build(state: MissionState) -> list[Event]:
        cap = _used_up(run, state)
        if state.stopped or cap is None:
            return []
        now, elapsed = run.clock.now(), run.elapsed()
        if state.mission.budget.on_exhausted == "wait":
            if state.waiting_for == "budget":
                return []
            return [WaitBegan(at=now, waiting_for="budget", detail=cap, elapsed=elapsed)]
        return [ending(Decision("terminate", cap), now=now, elapsed=elapsed)]

    await run.journal.record(build)
    return run.state.waiting_for != "budget"


async def _end_as_ordered(run: Run) -> None:
    """Closes the open iteration and the mission as the operator ordered."""
    await cancel_tasks(run, reason="the mission was ended by the operator")
    settle_lost(run, repeatable_too=True)

    def build(state: MissionState) -> list[Event]:
        now, elapsed = run.clock.now(), run.elapsed()
        if state.open is not None:
            return closing(state, {}, now=now, elapsed=elapsed)
        verdict = (
            Decision("complete", "forced_complete")
            if isinstance(state.stop, CompletionOrdered)
            else Decision("terminate", "user_abort")
        )
        return [ending(verdict, now=now, elapsed=elapsed)]

    events = await run.journal.record(build)
    if any(isinstance(event, MissionEnded) for event in events):
        run.report_phase("ended")


async def _pace(run: Run) -> bool:
    """Waits until the next iteration may begin; False if an event of the operator came first."""
    return run.state.open is not None or await _until(run)


async def _until(run: Run) -> bool:
    """Waits until the mission's wait is over; False if the operator or the wall clock came first."""
    if run.state.wait_until is None:
        return True
    run.report_phase("waiting")
    limit = run.state.waiting_for == "limit"  # the provider of an agent refuses work: the wall clock stands still
    left, seconds = None if limit else run.wall_clock_left(), run.state.wait_left(run.clock.now())
    sooner = seconds if left is None else max(0.0, min(seconds, left))
    began = run.clock.monotonic()
    try:
        with anyio.move_on_after(sooner):
            await run.interrupted.wait()
            run.interrupted = anyio.Event()
            await run.journal.catch_up()
            return False
        return sooner == seconds
    finally:
        if limit:
            run.started += run.clock.monotonic() - began


def _typed(error: Exception) -> PursuitError | OperatorFirst | None:
    """The `PursuitError`, or the request to begin again, in an exception group of parallel calls; or None."""
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        return next((found for each in group.exceptions if (found := _typed(each)) is not None), None)
    return error if isinstance(error, PursuitError | OperatorFirst) else None


async def _record_failure(run: Run, error: Exception) -> None:
    cause = error
    while isinstance(cause, ExceptionGroup):  # parallel calls wrap the original error
        cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
    text = f"{type(cause).__name__}: {cause}"
    trace = "".join(traceback.format_exception(error))[-20_000:]
    with anyio.CancelScope(shield=True):
        await run.journal.record(
            lambda _state: [MissionFailed(at=run.clock.now(), error=text, trace=trace, elapsed=run.elapsed())]
        )
