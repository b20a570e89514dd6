"""Drives a mission: takes the lock, recovers what a dead driver left, runs turns until there is a reason to stop.

Invariant: only the holder of the lock writes the events of a driver, and it always releases the lock.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import msgspec

from pursuit.agents.turns import AgentTurns
from pursuit.agents.workspace import Workspace, WorkspaceFailed
from pursuit.config.surroundings import USUAL_SURROUNDINGS, Surroundings
from pursuit.core.decision import Decision, reached_cap
from pursuit.core.events import (
    CallIntended,
    CallSettled,
    CompletionOrdered,
    ConversationCompacted,
    Event,
    Identity,
    MissionEnded,
    MissionFailed,
    MissionResumed,
    MissionWarned,
    ReportWritten,
    RunClaimed,
    WaitBegan,
    decode,
)
from pursuit.core.fold import drivers_with, fold
from pursuit.core.lessons import remembered
from pursuit.core.mission import BEST_OF, AgentProposer, Mission, MissionPolicy, Proposal
from pursuit.core.report import MOST_CHECKS, build_report, iso, way_on
from pursuit.core.state import MissionState
from pursuit.engine.agent_tools import tools_for_agent
from pursuit.engine.context import Ceiling, Clock, Observer, Phase, Placed, Run, Settings, Tools
from pursuit.engine.execute import cancel_tasks, recover_turn, settle_lost
from pursuit.engine.journal import Journal
from pursuit.engine.lessons import lessons_for
from pursuit.engine.models import LiveWords, RecordedModel, offered
from pursuit.engine.state_cache import States
from pursuit.engine.turn import closing, ending, leave_branch, turn
from pursuit.errors import Conflict, InvalidArgument, Overtaken, PursuitError, SessionPaused, SessionTerminal
from pursuit.ledger.contract import Ledger
from pursuit.proposers.contract import Proposer
from pursuit.proposers.importance import importance_of
from pursuit.proposers.language import LanguageModel, ProposerContext
from pursuit.reports.wording import moment
from pursuit.sandbox import Sandbox


async def write_report(run: Run) -> None:
    """Builds the final report and stores it, once; from then on a search finds the mission by its lessons."""
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
    """The report of a mission as it stands in the ledger now, with the hashes that prove it.

    `state` is the fold of the same stream, if the caller has it, and `newest` the last events in it.
    """
    older = None if state is None or not newest else state.seq - len(newest)
    stored = await ledger.read(mission_id, limit=older)
    events: list[Event] = [*(decode(event.type, event.body) for event in stored), *newest]
    state = state or fold(events)
    if state is None:
        raise ValueError("a mission without events has no report")
    head = await ledger.read(mission_id, after=state.seq - 1, limit=1) if newest else stored[-1:]
    results = await _check_results(ledger, events) if state.asks else {}
    diffs = await _turn_diffs(ledger, events) if isinstance(state.mission.proposer, AgentProposer) else {}
    report = build_report(mission_id, events, state, results, diffs)
    if shares := importance_of(state.mission, report.get("trials", ())):
        report["importance"] = shares
    report["ledger"] = {
        "head_seq": head[-1].seq if head else 0,
        "head_hash": head[-1].hash.hex() if head else "",
        "root": await ledger.root(),
    }
    return report


async def _check_results(ledger: Ledger, events: Sequence[Event]) -> dict[str, dict[str, Any]]:
    """The results of the last checks that are too large for their events, by their digests."""
    checks = {event.call_id for event in events if isinstance(event, CallIntended) and event.purpose == "check"}
    wanted = [
        event.blob for event in events if isinstance(event, CallSettled) and event.blob and event.call_id in checks
    ]
    bodies = {digest: await ledger.blob(digest) for digest in wanted[-MOST_CHECKS:]}
    return {digest: msgspec.json.decode(body) for digest, body in bodies.items() if body is not None}


async def _turn_diffs(ledger: Ledger, events: Sequence[Event]) -> dict[str, str]:
    """The diffs of the last turns of an agent, by their digests."""
    changes = [event.change for event in events if isinstance(event, CallSettled) and event.change is not None]
    wanted = [change.diff for change in changes if change.diff is not None][-MOST_CHECKS:]
    bodies = {digest: await ledger.blob(digest) for digest in wanted}
    return {digest: body.decode(errors="replace") for digest, body in bodies.items() if body is not None}


class ToolSource(Protocol):
    """Gives the tools of a mission, connecting what is needed."""

    async def tools_for(
        self, names: tuple[str, ...], policy: MissionPolicy | None = None, callers: Sequence[str] = ()
    ) -> Tools:
        """The tools by these names, under the mission's policy and that for each of these tokens.

        Raises `UpstreamUnavailable` if one of their servers cannot be reached.
        """
        ...


ProposerFactory = Callable[[Mission, Proposal | None, ProposerContext], Proposer]
Recorded = Callable[[str, MissionState, Sequence[tuple[int, Event]]], None]
"""Gets the state of a mission and the events that were just stored, each with its number; must return at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Drives missions in this process."""

    ledger: Ledger
    states: States
    source: ToolSource
    sandbox: Sandbox
    clock: Clock
    proposer_for: ProposerFactory
    ready: Callable[[Mission], Awaitable[None]] | None = None
    """Raises if the proposer of a mission cannot be asked."""
    settings: Settings = field(default_factory=Settings)
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    surroundings: Surroundings = USUAL_SURROUNDINGS
    workspaces: Path | None = None
    """The folder for the workspaces of agents."""
    live: Path | None = None
    """The folder for what models say right now."""
    recorded: Recorded | None = None
    tracking: Observer | None = None
    """Sees every mission that this process drives."""
    ceiling: Ceiling | None = None
    """Says when a client has reached a limit of the operator."""

    async def drive(
        self,
        mission_id: str,
        *,
        iterations: int | None = None,
        proposal: Proposal | None = None,
        observer: Observer | None = None,
        resume: bool = False,
        background: bool = False,
        after: int | None = None,
        claimed: Callable[[MissionState], None] | None = None,
        sampler: LanguageModel | None = None,
        mode: str | None = None,
        driver: Identity | None = None,
        placed: Placed | None = None,
    ) -> MissionState:
        """Advances a mission by so many iterations (None: until it ends or waits) and returns its state.

        With `resume` a paused or failed mission goes on. Raises `Conflict` at once if another driver holds it, and
        `UpstreamUnavailable` or `ModelUnavailable` before anything is spent if one of its servers or its language
        model cannot be reached. Raises `Overtaken` if the mission has more than `after` iterations. `claimed` is
        called with the state once the run is in the ledger: a run that dies later can be resumed. `sampler` is the
        model of the client that asks for this, if it has one. `mode` is recorded as the policy mode that the operator
        chose for this run, `driver` the client that asks for it (None: the operator). A `placed` run ends early when
        its worker leaves, and at a long wait.
        """
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            raise await self._driven(mission_id)
        try:
            with self.ledger.bell(mission_id) as bell:
                state, head = await self.states.take(mission_id)
                try:
                    if after is not None and state.iteration_count > after:
                        raise Overtaken(f"{mission_id} is already past iteration {after}", session_id=mission_id)
                    _runnable(mission_id, state, proposal, resume=resume)
                    if self.ready is not None:
                        await self.ready(state.mission)
                    warnings = await self._prepare(mission_id, state)
                except PursuitError:
                    self.states.give(mission_id, state, head)
                    raise
                journal = Journal(self.ledger, mission_id, state, head, bell, claim=claim)
                run = await self._begin(
                    journal,
                    iterations,
                    proposal,
                    observer,
                    background=background,
                    mode=mode,
                    driver=driver,
                    placed=placed,
                )
                for warning in warnings:
                    journal.stage(warning)
                if claimed is not None:
                    claimed(journal.state)
                lessons = await lessons_for(self.ledger, mission_id, run.state, self.settings.memory_lessons)

                async def compact(event: ConversationCompacted) -> None:
                    await journal.record(lambda _state: [event])

                means = ProposerContext(
                    tools=offered(run.state, run.tools),
                    record=lambda model: RecordedModel(run=run, model=model, words=LiveWords(self.live, mission_id)),
                    past=journal.past,
                    blob=journal.blob,
                    compact=compact,
                    mission_id=mission_id,
                    now=self.clock.now,
                    sampler=sampler,
                    lessons=lessons,
                )
                try:
                    state = await self._guarded(run, self.proposer_for(journal.state.mission, proposal, means))
                finally:
                    if run.agent is not None:
                        await run.agent.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await claim.release()
        row = await self.ledger.row(mission_id)
        if row is not None and row.head.seq > journal.head:  # the operator spoke after the last look at the stream
            return await self.close(mission_id) or state
        self.states.give(mission_id, state, journal.head)
        return state

    async def _driven(self, mission_id: str) -> Conflict:
        """The error for a mission that another process drives; it names the process."""
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
        """Writes the end of a mission that the operator stopped, unless a driver does it."""
        claim = await self.ledger.claim(mission_id)
        if claim is None:
            return None
        try:
            journal = Journal(self.ledger, mission_id, *await self.states.take(mission_id), claim=claim)
            run = self._new_run(journal, await self.source.tools_for(()), None)
            if journal.state.stop is not None and not journal.state.closed:
                await _end_as_ordered(run)
            if journal.state.closed and journal.state.report is None:
                if run.state.status == "completed":
                    await leave_branch(run)
                await write_report(run)
            self.states.give(mission_id, journal.state, journal.head)
            return journal.state
        finally:
            await claim.release()

    async def _begin(
        self,
        journal: Journal,
        iterations: int | None,
        proposal: Proposal | None,
        observer: Observer | None,
        *,
        background: bool,
        mode: str | None,
        driver: Identity | None,
        placed: Placed | None,
    ) -> Run:
        """Records who drives now and how far, and settles what a dead driver left behind."""
        state = journal.state
        callers = tuple(dict.fromkeys([*state.callers, *drivers_with(state, driver)]))
        policy = state.mission.policy if placed is None else _tightened(state)
        tools = await self.source.tools_for(state.tools, policy, callers)
        run = self._new_run(journal, tools, observer)
        run.placed = placed
        now, before = self.clock.now(), journal.state.status
        claimed = RunClaimed(
            at=now,
            run=secrets.token_hex(8),
            pid=os.getpid(),
            host=platform.node(),
            iterations=iterations,
            background=background,
            proposal=proposal.model_dump(mode="json") if background and proposal is not None else None,
            mode=mode,
            driver=driver,
        )

        def begin(state: MissionState) -> Sequence[Event]:
            if state.status == "paused" and before != "paused":  # paused while the servers were being connected
                return ()
            claim = msgspec.structs.replace(claimed, waited=state.waited(now))
            return [MissionResumed(at=now), claim] if before in ("paused", "failed") else [claim]

        # Not staged: a pause before the claim stops this run, one after it interrupts the run.
        if not await journal.record(begin):
            _runnable(journal.mission_id, journal.state, None, resume=False)
        await recover_turn(run)
        settle_lost(run)
        await journal.flush()
        return run

    async def _guarded(self, run: Run, proposer: Proposer) -> MissionState:
        """Advances while it watches for the operator; a fault of our own becomes the mission's `failed`."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.watch_operator)
                tasks.start_soon(run.watch_claim)
                async with tools_for_agent(run, tasks):
                    await self._advance(run, proposer)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the boundary: our own fault becomes the mission's `failed`
            if (known := _typed(error)) is not None:
                raise known from None
            await _record_failure(run, error)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(PursuitError):
                await run.journal.flush()  # a call that has just come back is settled first
            raise
        return run.state

    def _new_run(self, journal: Journal, tools: Tools, observer: Observer | None) -> Run:
        if self.recorded is not None:
            journal.on_recorded = partial(self.recorded, journal.mission_id, journal.state)
        return Run(
            mission_id=journal.mission_id,
            journal=journal,
            tools=tools,
            sandbox=self.sandbox,
            clock=self.clock,
            settings=self.settings,
            observer=_both(observer, self.tracking),
            checks=self.checks,
            surroundings=self.surroundings,
            agent=self._agent_of(journal.mission_id, journal.state.mission),
            started=self.clock.monotonic(),
            ceiling=self.ceiling,
        )

    def _agent_of(self, mission_id: str, mission: Mission) -> AgentTurns | None:
        settings = mission.proposer
        if self.workspaces is None or mission.workspace is None or not isinstance(settings, AgentProposer):
            return None
        inherit = settings.inherit_env if isinstance(settings.inherit_env, bool) else tuple(settings.inherit_env)
        around = replace(self.surroundings, inherit=inherit or self.surroundings.inherit)
        return AgentTurns(settings, Workspace(mission.workspace, mission_id, self.workspaces / mission_id), around)

    async def _prepare(self, mission_id: str, state: MissionState) -> list[Event]:
        """Makes the workspace of an agent before anything is spent, and says if it starts from uncommitted changes."""
        agent, best_of = self._agent_of(mission_id, state.mission), state.mission.proposer.kind == BEST_OF
        try:
            if best_of and state.mission.workspace is not None:
                await Workspace(state.mission.workspace, mission_id, Path()).locate()
            if agent is None:
                return []
            await agent.prepare()
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="workspace.path") from None
        if not agent.workspace.began_dirty:
            return []
        text = f"{agent.workspace.top} has changes that are not committed; the workspace starts from them"
        return [MissionWarned(at=self.clock.now(), iteration=0, code="uncommitted", message=text)]

    async def _advance(self, run: Run, proposer: Proposer) -> None:
        """Runs turns until the mission has ended, waits or is paused, or the run has reached its goal."""
        done = False
        while not done:
            await run.fold_stop()
            if run.state.stop is not None and not run.state.closed:
                await _end_as_ordered(run)
            if run.state.terminal:
                if run.state.status == "completed":
                    await leave_branch(run)
                await write_report(run)
                await run.count_spent()
                return
            if run.state.status == "paused" or run.state.run is None:
                break
            with run.effects():  # the operator's stop leaves the turn where it is; it goes on at the same call
                done = await _run_turns(run, proposer)
        await run.journal.flush()
        await run.count_spent()
        run.report_phase("waiting")


def _tightened(state: MissionState) -> MissionPolicy | None:
    """The mission's policy in the mode that its operator chose; of that and the worker's own, the stricter holds."""
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
    """The error for a mission that has ended; it names the way on, and not the operator's file: clients read it."""
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


async def _run_turns(run: Run, proposer: Proposer) -> bool:
    """Turn after turn; True once this run has nothing more to do, False if the mission ended or was stopped."""
    state = run.state
    while not (state.terminal or state.stopped or state.run is None or run.stop_ordered):
        if state.run_goal is not None and state.iteration_count >= state.run_goal:
            return True
        if await run.held():
            continue
        if run.lets_go():
            return True
        if state.open is None and _used_up(run, state) is not None and await _out_of_budget(run):
            continue
        if state.waiting_for == "budget":
            return True
        if state.waiting_for == "pace" and not await _pace(run):
            continue
        if state.waiting_for == "model" and not await _until(run) and not (state.open and _used_up(run, state)):
            continue
        if not await turn(run, proposer) and (state.status == "failed" or _waits(state)):
            return True
    return False


def _waits(state: MissionState) -> bool:
    """Whether the mission waits for something that this process cannot wait for."""
    return state.status == "waiting" and state.waiting_for != "model"


def _used_up(run: Run, state: MissionState) -> str | None:
    """The cap that leaves no room for another iteration, or None."""
    return reached_cap(state, elapsed=run.elapsed(), iterations=state.iteration_count)


async def _out_of_budget(run: Run) -> bool:
    """Ends the mission, or makes it wait: a cap was used up before this iteration could begin."""

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
    """Waits until the time that the mission waits for; False if the operator or the wall clock came first."""
    until = run.state.wait_until
    if until is None:
        return True
    run.report_phase("waiting")
    left = run.wall_clock_left()
    seconds = max(0.0, until - run.clock.now())
    with anyio.move_on_after(seconds if left is None else max(0.0, min(seconds, left))):
        await run.interrupted.wait()
        run.interrupted = anyio.Event()
        await run.journal.catch_up()
        return False
    return run.clock.now() >= until


def _typed(error: Exception) -> PursuitError | None:
    """The `PursuitError` in what parallel calls raised together, or None."""
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        return next((found for each in group.exceptions if (found := _typed(each)) is not None), None)
    return error if isinstance(error, PursuitError) else None


async def _record_failure(run: Run, error: Exception) -> None:
    cause = error
    while isinstance(cause, ExceptionGroup):  # parallel calls wrap what broke
        cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
    text = f"{type(cause).__name__}: {cause}"
    trace = "".join(traceback.format_exception(error))[-20_000:]
    with anyio.CancelScope(shield=True):
        await run.journal.record(
            lambda _state: [MissionFailed(at=run.clock.now(), error=text, trace=trace, elapsed=run.elapsed())]
        )
