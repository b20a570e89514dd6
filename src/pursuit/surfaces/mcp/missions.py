"""The nine tools, each one call of the service.

Owns: how arguments become a verb and what is answered. Knows no wire. Invariant: a verb that is refused raises an
error of ours and has changed nothing.
"""

from __future__ import annotations

from typing import Any

from pursuit.core.mission import AnyProposer, Mission, ModelProposer
from pursuit.runtime import Runtime
from pursuit.service.approvals import Approvals
from pursuit.service.background import BackgroundRuns
from pursuit.surfaces.mcp import arguments as given
from pursuit.surfaces.mcp.asking import Asking
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.iterate_call import IterateCall
from pursuit.surfaces.mcp.progress import progress
from pursuit.surfaces.mcp.sampling import declares_sampling
from pursuit.surfaces.mcp.seal import Seal

Answer = dict[str, Any]


class Missions:
    """What the tools do."""

    def __init__(self, runtime: Runtime, runs: BackgroundRuns) -> None:
        self._runtime = runtime
        self._service = runtime.service
        self._runs = runs
        service = runtime.service
        self._approvals = Approvals(service)
        self.asking = Asking(self._approvals, lambda: Seal.beside(runtime.state_path), service.state)

    async def start(self, ctx: Context, asked: given.Start) -> Answer:
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
