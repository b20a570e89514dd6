"""The nine tools, each one call of the service.

Owns: how arguments become a verb and what is answered. Knows no wire. Invariant: a verb that is refused raises an
error of ours and has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
from mcp.server.session import ServerSession

from pursuit.core.mission import AnyProposer, Mission, ModelProposer, Proposal
from pursuit.core.state import MissionState
from pursuit.engine.context import Observer, Phase
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, caller_of
from pursuit.server.missions import arguments as given
from pursuit.server.missions.elicitation import MOST_ROUNDS, ClientAnswers, Elicitation
from pursuit.server.sampling import ClientModel, declares_sampling
from pursuit.server.signing import Seal
from pursuit.service.approvals import Approvals
from pursuit.service.background import BackgroundRuns
from pursuit.service.service import Service

# One call of `mission_iterate`, from its arguments to its answer, also if it takes several requests.
# Invariant: however often a request is repeated, no more iterations are driven than the call asked for; what comes
# too late is told what it missed.

Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterateCall:
    """So many iterations of a mission for one client; `model` is the client's own."""

    service: Service
    asking: Elicitation
    ctx: Context
    mission_id: str
    count: int
    model: ClientModel | None
    observer: Observer

    async def begin(self, proposal: Proposal | None, after: int | None) -> Result:
        """The call's first request."""
        answer = await self._drive(self.count, proposal, after)
        rows = answer["iterations"]
        first = rows[0]["iteration_index"] if rows else (await self._state()).iteration_count
        return await self._while_asked(range(first, first + self.count)) or answer

    async def go_on(self, told: ClientAnswers) -> Result:
        """The rest of a call that came back with answers; one that comes once more is told what it missed."""
        span = range(told.first, told.first + self.count)
        if told.answered and self._unfinished(await self._state(), span):
            await self._continue(span)
        answer = await self.service.missed(self.mission_id, self.count, span.start)
        if not told.answered:
            return answer
        return await self._while_asked(span) or answer

    def _unfinished(self, state: MissionState, span: range) -> bool:
        """Whether the run that stopped for a question can go on."""
        if state.iteration_count >= span.stop:
            return False
        asks_model = self.model is not None and state.waiting_for == "input"
        return state.open is not None or state.status == "running" or asks_model

    async def _while_asked(self, span: range) -> Result | None:
        """Goes on for as long as the person behind the client answers; None if the mission asks nothing."""
        answer: Result | None = None
        for _ in range(MOST_ROUNDS):
            waits_for = (await self._state()).waiting_for
            if waits_for == "input" and self.model is not None and self.model.question is not None:
                name, question = self.model.question
                self.asking.put(self.ctx, self.mission_id, {name: question}, span.start)
            if waits_for != "approval" or not self.asking.can_ask(self.ctx, self.mission_id):
                break
            if not await self.asking.ask(self.ctx, self.mission_id, span.start):
                break
            await self._continue(span)
            answer = await self.service.missed(self.mission_id, len(span), span.start)
        return answer

    async def _continue(self, span: range) -> None:
        """Drives the rest of the run that stopped for a question."""
        await self._drive(max(1, span.stop - (await self._state()).iteration_count))

    async def _drive(self, iterations: int, proposal: Proposal | None = None, after: int | None = None) -> Result:
        return await self.service.iterate(
            self.mission_id,
            iterations=iterations,
            proposal=proposal,
            after=after,
            observer=self.observer,
            caller=caller_of(self.ctx),
            sampler=self.model,
        )

    async def _state(self) -> MissionState:
        return await self.service.state(self.mission_id)


# Progress of a run, told to the one who asked for it.
# Invariant: a slow client never holds up the run; the numbers only rise.

_WAY: dict[Phase, float] = {"propose": 0.1, "execute": 0.2, "verify": 0.7, "evaluate": 0.8}
BACKLOG = 64


class ReportedProgress(NamedTuple):
    """One notification."""

    progress: float
    message: str


@asynccontextmanager
async def progress(session: ServerSession, total: int) -> AsyncGenerator[Observer]:
    """An observer whose words go to the caller while the block runs."""
    send, receive = anyio.create_memory_object_stream[ReportedProgress](BACKLOG)
    steps = _Steps()

    async def pass_on() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the caller has gone
            async for told in receive:
                await session.report_progress(told.progress, total, told.message)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        told = steps.told(phase, state)
        if told is not None and send.statistics().current_buffer_used < BACKLOG:
            send.send_nowait(told)

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                yield observe
            finally:
                send.close()


class _Steps:
    """Turns phases into rising numbers: whole ones are iterations of this call."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = -1.0

    def told(self, phase: Phase, state: MissionState) -> ReportedProgress | None:
        if self._first is None:
            self._first = state.iteration_count
        value = state.iteration_count - self._first + _WAY.get(phase, 0.0)
        if value <= self._last:
            return None
        self._last = value
        met = sum(result.status == "met" for result in state.results.values())
        of = len(state.mission.criteria)
        return ReportedProgress(value, f"iteration {state.iteration_count}: {phase}; {met} of {of} criteria met")


class Missions:
    """What the tools do."""

    def __init__(self, runtime: Runtime, runs: BackgroundRuns) -> None:
        self._runtime = runtime
        self._service = runtime.service
        self._runs = runs
        service = runtime.service
        self._approvals = Approvals(service)
        self.asking = Elicitation(self._approvals, lambda: Seal.beside(runtime.state_path), service.state)

    async def start(self, ctx: Context, asked: given.Start) -> Result:
        """Accepts a mission."""
        able = declares_sampling(ctx)
        mission = asked.mission(self._runtime.model, sampling=able)
        proposer = mission.proposer
        started = await self._service.start(mission, caller=caller_of(ctx), operators_own=False)
        return {
            "session_id": started.session_id,
            "status": "pending",
            "use_sampling": proposer.kind == "sampling",
            "sampling_backend_resolved": _backend(proposer),
            "proposer": proposer.kind,
            "warnings": [*started.warnings, *_sampling_warnings(mission, able=able)],
        }

    async def status(self, ctx: Context, asked: given.Session) -> Result:
        """How it stands."""
        return await self._service.status(asked.session_id)

    async def iterate(self, ctx: Context, asked: given.Iterate) -> Result:
        """Drives it, now or in the background."""
        name, count = asked.session_id, asked.max_iterations_this_call
        if asked.background:
            return await self._service.iterate_later(
                name,
                iterations=count,
                proposal=asked.proposal,
                after=asked.after,
                drive=lambda iterations, proposal: self._runs.begin(name, iterations, proposal, asked.after),
                caller=caller_of(ctx),
            )
        await self._runtime.use_servers_of(name)
        told = await self.asking.take_answers(ctx, name)
        model = await self.asking.model_of(ctx, name, told)
        async with progress(ctx.session, count) as observer:
            call = IterateCall(
                service=self._service,
                asking=self.asking,
                ctx=ctx,
                mission_id=name,
                count=count,
                model=model,
                observer=observer,
            )
            answer = await (call.begin(asked.proposal, asked.after) if told is None else call.go_on(told))
        waits_for = await self._approvals.open(name) if answer["status"] == "waiting" else []
        return {**answer, "pending_approvals": waits_for} if waits_for else answer

    async def checkpoint(self, ctx: Context, asked: given.Session) -> Result:
        """The verdict again."""
        return await self._service.checkpoint(asked.session_id)

    async def complete(self, ctx: Context, asked: given.Complete) -> Result:
        """Ends it as completed."""
        state = await self._service.complete(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def abort(self, ctx: Context, asked: given.Abort) -> Result:
        """Ends it as terminated, or pauses it."""
        verb = self._service.pause if asked.pause else self._service.abort
        state = await verb(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def resume(self, ctx: Context, asked: given.Session) -> Result:
        """Lets it go on."""
        state = await self._service.resume(asked.session_id, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def history(self, ctx: Context, asked: given.History) -> Result:
        """Its iterations."""
        return await self._service.history(asked.session_id, full=asked.format == "full", cursor=asked.cursor)

    async def list(self, ctx: Context, asked: given.Listing) -> Result:
        """The missions."""
        return await self._service.list(status=asked.status, cursor=asked.cursor)


def _backend(proposer: AnyProposer) -> str | None:
    """Whose language model proposes: the client's own (`sampling`), a provider's by its name, or nobody's."""
    if isinstance(proposer, ModelProposer):
        return proposer.model
    return "sampling" if proposer.kind == "sampling" else None


def _sampling_warnings(mission: Mission, *, able: bool) -> list[str]:
    if mission.proposer.kind != "sampling":
        return []
    warnings: list[str] = []
    if not able:
        warnings.append("this client declares no sampling; the mission waits until one drives it that does")
    if mission.budget.max_tokens != -1 or mission.budget.max_cost_usd != -1:
        warnings.append(
            "MCP does not say what a client's model uses up, so max_tokens and max_cost_usd are never reached by it"
        )
    return warnings
