"""Mission runs that are tasks, taken up again after their process died.

Owns: what such a task remembers of its run, and how the run goes on. Knows no protocol. Invariant: however often it is
taken up, no more iterations are driven than were asked for; what was done before counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.engine.context import Observer, Phase
from pursuit.errors import PursuitError
from pursuit.service.service import Service
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending

Prepare = Callable[[str], Awaitable[None]]
Ask = Callable[[TaskContext, str], Awaitable[bool]]
"""Puts what a mission waits for to the requestor of a task; whether every question has its answer then."""

Words = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""How an answer looks as a tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionRun:
    """So many iterations of a mission from the first one on, and what a client proposed for that one."""

    session_id: str
    first: int
    iterations: int
    proposal: Proposal | None = None
    asks: bool = False
    """Whether its requestor can be asked."""

    def origin(self) -> dict[str, Any]:
        """What a task keeps of it."""
        kept: dict[str, Any] = {
            "session_id": self.session_id,
            "first": self.first,
            "iterations": self.iterations,
            "asks": self.asks,
        }
        return kept if self.proposal is None else {**kept, "proposal": self.proposal.model_dump(mode="json")}

    @classmethod
    def of(cls, origin: Mapping[str, Any]) -> MissionRun:
        """The run that a task kept."""
        given = origin.get("proposal")
        return cls(
            session_id=origin["session_id"],
            first=origin["first"],
            iterations=origin["iterations"],
            proposal=None if given is None else parse_proposal(given),
            asks=origin.get("asks", False),
        )


class MissionTasks:
    """Goes on with the runs of tasks; `prepare` makes the servers of a mission known."""

    def __init__(
        self, service: Service, prepare: Prepare, *, ask: Ask | None = None, words: Words = as_tool_result
    ) -> None:
        self._service = service
        self._prepare = prepare
        self._ask = ask
        self._words = words

    def resume(self, state: TaskState) -> Work:
        """The rest of a run whose process died."""
        run = MissionRun.of(state.origin)

        async def work(task: TaskContext) -> Ending:
            try:
                answer = await self._go_on(run, task)
            except PursuitError as error:
                said = {**as_tool_result(error.as_dict()), "isError": True}
                return Ending(status="failed", message=f"{error.code}: {error.message}", result=said)
            return Ending(status="completed", result=self._words(answer))

        return work

    async def _go_on(self, run: MissionRun, task: TaskContext) -> dict[str, Any]:
        await self._prepare(run.session_id)
        while True:
            state = await self._service.state(run.session_id)
            left = run.first + run.iterations - state.iteration_count
            if left <= 0 or state.status not in ("pending", "running", "waiting"):
                break
            if state.waiting_for == "approval" and not await self._asked(run, task):
                break
            begun = state.open is not None or state.iteration_count > run.first
            async with _told(task, run) as observer:
                await self._service.iterate(
                    run.session_id,
                    iterations=left,
                    proposal=None if begun else run.proposal,
                    after=state.iteration_count,
                    observer=observer,
                )
            if (await self._service.state(run.session_id)).waiting_for != "approval":
                break
        return await self._service.missed(run.session_id, run.iterations, run.first)

    async def _asked(self, run: MissionRun, task: TaskContext) -> bool:
        """Whether the questions of the mission have their answers now."""
        return self._ask is not None and run.asks and await self._ask(task, run.session_id)


@asynccontextmanager
async def _told(task: TaskContext, run: MissionRun) -> AsyncGenerator[Observer]:
    """An observer whose latest word goes to the task's record while the block runs."""
    send, receive = anyio.create_memory_object_stream[tuple[Phase, int]](1)

    async def pass_on() -> None:
        async for phase, count in receive:
            await task.update_status(f"iteration {count}: {phase}", done=count - run.first, total=run.iterations)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        if send.statistics().current_buffer_used == 0:
            send.send_nowait((phase, state.iteration_count))

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                yield observe
            finally:
                send.close()
