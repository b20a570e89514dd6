"""The nine tools, each one call of the service.

Owns: how arguments become a verb and what is answered. Knows no wire. Invariant: a verb that is refused raises an
error of ours and has changed nothing.
"""

from __future__ import annotations

from typing import Any

from pursuit.app import Runtime
from pursuit.errors import Fault, ValidationFailed
from pursuit.service.background import BackgroundRuns
from pursuit.surfaces.mcp import arguments as given
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.progress import progress

Answer = dict[str, Any]


class Missions:
    """What the tools do."""

    def __init__(self, runtime: Runtime, runs: BackgroundRuns) -> None:
        self._runtime = runtime
        self._service = runtime.service
        self._runs = runs

    async def start(self, ctx: Context, asked: given.Start) -> Answer:
        """Accepts a mission."""
        if asked.use_sampling:
            why = "this release cannot ask the client's model; leave it out, and propose with mission_iterate"
            raise ValidationFailed([Fault(field="use_sampling", reason=why)])
        mission = asked.mission()
        started = await self._service.start(mission, caller=caller_of(ctx))
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
        async with progress(ctx.session, count) as observer:
            return await self._service.iterate(
                name,
                iterations=count,
                proposal=asked.proposal,
                after=asked.after,
                observer=observer,
                caller=caller_of(ctx),
            )

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
