"""The nine tools, each one call of the service.

Owns: how arguments become a verb and what is answered. Knows no wire. Invariant: a verb that is refused raises an
error of ours and has changed nothing.
"""

from __future__ import annotations

from typing import Any

from pursuit.app import Runtime
from pursuit.engine.run import Observer
from pursuit.errors import Fault, ValidationFailed
from pursuit.service.approvals import Approvals
from pursuit.service.background import BackgroundRuns
from pursuit.surfaces.mcp import arguments as given
from pursuit.surfaces.mcp.asking import MOST_ROUNDS, Asking, Told
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.progress import progress
from pursuit.surfaces.mcp.seal import Seal

Answer = dict[str, Any]


class Missions:
    """What the tools do."""

    def __init__(self, runtime: Runtime, runs: BackgroundRuns) -> None:
        self._runtime = runtime
        self._service = runtime.service
        self._runs = runs
        self.asking = Asking(Approvals(runtime.service), lambda: Seal.beside(runtime.state_path))

    async def start(self, ctx: Context, asked: given.Start) -> Answer:
        """Accepts a mission."""
        if asked.use_sampling:
            why = "this release cannot ask the client's model; leave it out, and propose with mission_iterate"
            raise ValidationFailed([Fault(field="use_sampling", reason=why)])
        mission = asked.mission(self._runtime.model)
        started = await self._service.start(mission, caller=caller_of(ctx), operators_own=False)
        return {
            "session_id": started.session_id,
            "status": "pending",
            "use_sampling": False,
            "sampling_backend_resolved": None,
            "proposer": mission.proposer.kind,
            "warnings": list(started.warnings),
        }

    async def status(self, ctx: Context, asked: given.Session) -> Answer:
        """How it stands."""
        return await self._service.status(asked.session_id)

    async def iterate(self, ctx: Context, asked: given.Iterate) -> Answer:
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
        async with progress(ctx.session, count) as observer:
            if told is not None:
                return await self._gone_on(ctx, name, told, count, observer)
            answer = await self._service.iterate(
                name,
                iterations=count,
                proposal=asked.proposal,
                after=asked.after,
                observer=observer,
                caller=caller_of(ctx),
            )
            rows = answer["iterations"]
            first = rows[0]["iteration_index"] if rows else (await self._service.state(name)).iteration_count
            return await self._while_asked(ctx, name, range(first, first + count), observer) or answer

    async def _gone_on(self, ctx: Context, name: str, told: Told, count: int, observer: Observer) -> Answer:
        """The rest of a call that came back with answers; one that comes once more is told what it missed."""
        state = await self._service.state(name)
        if told.answered and (state.open is not None or state.status == "running"):
            await self._continue(ctx, name, observer)
        answer = await self._service.missed(name, count, told.first)
        if not told.answered:
            return answer
        return await self._while_asked(ctx, name, range(told.first, told.first + count), observer) or answer

    async def _while_asked(self, ctx: Context, name: str, span: range, observer: Observer) -> Answer | None:
        """Goes on for as long as the person behind the client answers; None if the mission asks nothing."""
        answer: Answer | None = None
        for _ in range(MOST_ROUNDS):
            waits = (await self._service.state(name)).waiting_for == "approval"
            if not waits or not self.asking.can_ask(ctx, name) or not await self.asking.ask(ctx, name, span.start):
                break
            await self._continue(ctx, name, observer)
            answer = await self._service.missed(name, len(span), span.start)
        return answer

    async def _continue(self, ctx: Context, name: str, observer: Observer) -> None:
        """Drives the rest of the run that stopped for a question."""
        state = await self._service.state(name)
        left = 1 if state.run_goal is None else max(1, state.run_goal - state.iteration_count)
        await self._service.iterate(name, iterations=left, observer=observer, caller=caller_of(ctx))

    async def checkpoint(self, ctx: Context, asked: given.Session) -> Answer:
        """The verdict again."""
        return await self._service.checkpoint(asked.session_id)

    async def complete(self, ctx: Context, asked: given.Complete) -> Answer:
        """Ends it as completed."""
        state = await self._service.complete(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def abort(self, ctx: Context, asked: given.Abort) -> Answer:
        """Ends it as terminated, or pauses it."""
        verb = self._service.pause if asked.pause else self._service.abort
        state = await verb(asked.session_id, reason=asked.reason, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def resume(self, ctx: Context, asked: given.Session) -> Answer:
        """Lets it go on."""
        state = await self._service.resume(asked.session_id, caller=caller_of(ctx))
        return {"session_id": asked.session_id, "status": state.status}

    async def history(self, ctx: Context, asked: given.History) -> Answer:
        """Its iterations."""
        return await self._service.history(asked.session_id, full=asked.format == "full", cursor=asked.cursor)

    async def list(self, ctx: Context, asked: given.Listing) -> Answer:
        """The missions."""
        return await self._service.list(status=asked.status, cursor=asked.cursor)
