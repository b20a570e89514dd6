"""One call of `mission_iterate`, from its arguments to its answer, also if it takes several requests.

Owns: when the client is asked and when the mission goes on. Knows neither era. Invariant: however often a request is
repeated, no more iterations are driven than the call asked for; what comes too late is told what it missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pursuit.core.mission import Proposal
from pursuit.core.state import MissionState
from pursuit.engine.context import Observer
from pursuit.service.service import Service
from pursuit.surfaces.mcp.asking import MOST_ROUNDS, Asking, Told
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.sampling import ClientModel

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterateCall:
    """So many iterations of a mission for one client; `model` is the client's own."""

    service: Service
    asking: Asking
    ctx: Context
    mission_id: str
    count: int
    model: ClientModel | None
    observer: Observer

    async def begin(self, proposal: Proposal | None, after: int | None) -> Answer:
        """The call's first request."""
        answer = await self._drive(self.count, proposal, after)
        rows = answer["iterations"]
        first = rows[0]["iteration_index"] if rows else (await self._state()).iteration_count
        return await self._while_asked(range(first, first + self.count)) or answer

    async def go_on(self, told: Told) -> Answer:
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

    async def _while_asked(self, span: range) -> Answer | None:
        """Goes on for as long as the person behind the client answers; None if the mission asks nothing."""
        answer: Answer | None = None
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

    async def _drive(self, iterations: int, proposal: Proposal | None = None, after: int | None = None) -> Answer:
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
