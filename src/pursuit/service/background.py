"""Runs of missions that are MCP tasks: what a task keeps of its run, and how it goes on after its process died."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from pursuit.core.events import Channel
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.engine.context import Observer, Phase
from pursuit.errors import LimitReached, PursuitError
from pursuit.service.audit import Caller, local_subject
from pursuit.service.runner import Runner
from pursuit.service.tasks import LOCAL
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending

RETRY_SECONDS = 1.0
Prepare = Callable[[str], Awaitable[None]]
Render = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""How an answer looks as a tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionRun:
    """A run of a mission that is a task: some iterations from `first` on, and the client's proposal for that one.

    However often it is resumed, it drives no more iterations than were asked for.
    """

    session_id: str
    first: int
    iterations: int
    caller: Caller
    """Its requestor: the ceilings and the policy of this client hold after a restart, too."""
    proposal: Proposal | None = None
    channel: Channel | None = None
    """How its requestor brings the answers of its user; None if it cannot be asked."""

    def origin(self) -> dict[str, Any]:
        """What a task keeps of it."""
        kept: dict[str, Any] = {
            "session_id": self.session_id,
            "first": self.first,
            "iterations": self.iterations,
            "caller": {name: value for name in _KEPT if (value := getattr(self.caller, name)) is not None},
            "channel": self.channel,
        }
        return kept if self.proposal is None else {**kept, "proposal": self.proposal.model_dump(mode="json")}

    @classmethod
    def of(cls, state: TaskState) -> MissionRun:
        """The run that a task kept."""
        origin = state.origin
        given = origin.get("proposal")
        kept = origin if "caller" in origin else _before_callers(state)
        return cls(
            session_id=origin["session_id"],
            first=origin["first"],
            iterations=origin["iterations"],
            proposal=None if given is None else parse_proposal(given),
            caller=Caller(**kept["caller"], transport="task"),
            channel=kept["channel"],
        )


_KEPT = ("who", "client", "credential", "subject", "holder")


def _before_callers(state: TaskState) -> dict[str, Any]:
    """The caller and the channel of a task that was stored before tasks kept them."""
    credential, requestor = state.origin.get("credential"), state.requestor
    subject = requestor if requestor != LOCAL else local_subject() if credential is None else None
    channel = "stdio-elicitation" if credential is None else "http-elicitation"
    return {
        "caller": {"who": credential or requestor, "credential": credential, "subject": subject},
        "channel": channel if state.origin.get("asks") else None,
    }


Ask = Callable[[TaskContext, MissionRun], Awaitable[bool]]
"""Puts the open questions of a mission to the requestor of a task; whether each has its answer then."""


class MissionTasks:
    """Goes on with the runs of tasks; `prepare` makes the servers of a mission known."""

    def __init__(
        self, service: Runner, prepare: Prepare, *, ask: Ask | None = None, words: Render = as_tool_result
    ) -> None:
        self._service = service
        self._prepare = prepare
        self._ask = ask
        self._render = words

    def resume(self, state: TaskState) -> Work:
        """The rest of a run whose process died."""
        run = MissionRun.of(state)

        async def work(task: TaskContext) -> Ending:
            try:
                answer = await self._continue(run, task)
            except PursuitError as error:
                said = {**as_tool_result(error.as_dict()), "isError": True}
                return Ending(status="failed", message=f"{error.code}: {error.message}", result=said)
            return Ending(status="completed", result=self._render(answer))

        return work

    async def _continue(self, run: MissionRun, task: TaskContext) -> dict[str, Any]:
        await self._prepare(run.session_id)
        while True:
            state = await self._service.state(run.session_id)
            left = run.first + run.iterations - state.iteration_count
            if left <= 0 or state.status not in ("pending", "running", "waiting"):
                break
            if state.waiting_for == "approval" and not await self._asked(run, task):
                break
            begun = state.open is not None or state.iteration_count > run.first
            try:
                counted = self._service.driving(run.caller, run.session_id)
                async with counted, _progress_observer(task, run) as observer:
                    await self._service.iterate(
                        run.session_id,
                        iterations=left,
                        proposal=None if begun else run.proposal,
                        after=state.iteration_count,
                        observer=observer,
                        caller=run.caller,
                    )
            except LimitReached:  # its client runs as many others as it may, and one will end
                await anyio.sleep(RETRY_SECONDS)
                continue
            if (await self._service.state(run.session_id)).waiting_for != "approval":
                break
        return await self._service.missed(run.session_id, run.iterations, run.first)

    async def _asked(self, run: MissionRun, task: TaskContext) -> bool:
        """Whether the questions of the mission have their answers now."""
        return self._ask is not None and run.channel is not None and await self._ask(task, run)


@asynccontextmanager
async def _progress_observer(task: TaskContext, run: MissionRun) -> AsyncGenerator[Observer]:
    """An observer that reports its latest phase as the task's progress while the block runs."""
    send, receive = anyio.create_memory_object_stream[tuple[str, int]](1)

    async def pass_on() -> None:
        async for words, count in receive:
            await task.update_status(words, done=count - run.first, total=run.iterations)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        if send.statistics().current_buffer_used == 0:
            send.send_nowait((f"iteration {state.iteration_number}: {phase}", state.iteration_count))

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                yield observe
            finally:
                send.close()
