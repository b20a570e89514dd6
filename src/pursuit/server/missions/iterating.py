"""Drives missions for `mission_iterate`: in a call of one or more requests, or as a durable task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.server.session import ServerSession

from pursuit.core.events import Channel
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.engine.context import Observer, Phase
from pursuit.engine.journal import Seen
from pursuit.errors import LimitReached
from pursuit.server.errors import Context, caller_of
from pursuit.server.missions.elicitation import MAX_ROUNDS, ClientAnswers, Elicitation
from pursuit.server.sampling import ClientModel
from pursuit.server.tasks.promotion import answers_to
from pursuit.service.audit import Caller, local_subject
from pursuit.service.runner import Runner
from pursuit.service.tasks import LOCAL
from pursuit.tasks.execution import TaskContext

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IterateCall:
    """One call of `mission_iterate`, which may take several requests; `model` is the client's own.

    Invariant: repeated requests never run more iterations than the call asked for; a late request gets the answer that
    it missed.
    """

    service: Runner
    elicitation: Elicitation
    ctx: Context
    mission_id: str
    count: int
    model: ClientModel | None
    observer: Observer

    async def begin(self, seen: Seen, proposal: Proposal | None, after: int | None) -> dict[str, Any]:
        answer = await self._drive(self.count, proposal, after, seen)
        rows = answer["iterations"]
        first = rows[0]["iteration_index"] if rows else (await self.service.seen(self.mission_id)).iteration_count
        return await self._while_asked(range(first, first + self.count)) or answer

    async def resume(self, answers: ClientAnswers) -> dict[str, Any]:
        """Continues a call that returned with answers; a repeated request gets the answer that it missed."""
        span = range(answers.first, answers.first + self.count)
        if answers.answered and self._unfinished(await self.service.state(self.mission_id), span):
            await self._continue(span)
        answer = await self.service.missed(self.mission_id, self.count, span.start)
        if not answers.answered:
            return answer
        return await self._while_asked(span) or answer

    def _unfinished(self, state: MissionState, span: range) -> bool:
        if state.iteration_count >= span.stop:
            return False
        asks_model = self.model is not None and state.waiting_for == "input"
        return state.open is not None or state.status == "running" or asks_model

    async def _while_asked(self, span: range) -> dict[str, Any] | None:
        """Continues while the client's user answers; None if the mission asks nothing."""
        answer: dict[str, Any] | None = None
        for _ in range(MAX_ROUNDS):
            waits_for = (await self.service.seen(self.mission_id)).waiting_for
            if waits_for == "input" and self.model is not None and self.model.question is not None:
                name, question = self.model.question
                self.elicitation.put(self.ctx, self.mission_id, {name: question}, span.start)
            if waits_for != "approval" or not self.elicitation.can_ask(self.ctx, self.mission_id):
                break
            if not await self.elicitation.ask(self.ctx, self.mission_id, span.start):
                break
            await self._continue(span)
            answer = await self.service.missed(self.mission_id, len(span), span.start)
        return answer

    async def _continue(self, span: range) -> None:
        done = (await self.service.state(self.mission_id)).iteration_count
        await self._drive(max(1, span.stop - done))

    async def _drive(
        self, iterations: int, proposal: Proposal | None = None, after: int | None = None, seen: Seen | None = None
    ) -> dict[str, Any]:
        return await self.service.iterate(
            self.mission_id,
            iterations=iterations,
            proposal=proposal,
            after=after,
            observer=self.observer,
            caller=caller_of(self.ctx),
            sampler=self.model,
            seen=seen,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionRun:
    """A mission run as a task: a number of iterations from `first`, with the client's proposal for the first.

    However often it is resumed, it runs only the requested iterations.
    """

    session_id: str
    first: int
    iterations: int
    caller: Caller
    """The requestor of the run: the client's ceilings and policy also apply after a restart."""
    proposal: Proposal | None = None
    channel: Channel | None = None
    """The channel for answers of its requestor's user; None if the user cannot be asked."""

    def origin(self) -> dict[str, Any]:
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

    async def drive(self, runner: Runner, elicitation: Elicitation, task: TaskContext) -> dict[str, Any]:
        while True:
            state = await runner.state(self.session_id)
            left = self.first + self.iterations - state.iteration_count
            if left <= 0 or state.status not in ("pending", "running", "waiting"):
                break
            if state.waiting_for == "approval" and not await self._asked(elicitation, task):
                break
            begun = state.open is not None or state.iteration_count > self.first

            async def tell(done: float, words: str) -> None:
                await task.update_status(words, done=done, total=self.iterations)

            try:
                async with runner.limits.driving(self.caller, self.session_id), _progress(tell, self.first) as observer:
                    await runner.iterate(
                        self.session_id,
                        iterations=left,
                        proposal=None if begun else self.proposal,
                        after=state.iteration_count,
                        observer=observer,
                        caller=self.caller,
                    )
            except LimitReached:  # its client is at its limit of runs, and one of them will end
                await anyio.sleep(RETRY_SECONDS)
                continue
            if (await runner.state(self.session_id)).waiting_for != "approval":
                break
        return await runner.missed(self.session_id, self.iterations, self.first)

    async def _asked(self, elicitation: Elicitation, task: TaskContext) -> bool:

        async def put(questions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
            return await answers_to(task, questions, lambda: elicitation.until_answered(self.session_id, questions))

        return self.channel is not None and await elicitation.ask_later(put, self.session_id, self.caller, self.channel)


_KEPT = ("who", "client", "credential", "subject", "holder")


def _before_callers(state: TaskState) -> dict[str, Any]:
    """The caller and the channel of a task from before tasks stored them."""
    credential, requestor = state.origin.get("credential"), state.requestor
    subject = requestor if requestor != LOCAL else local_subject() if credential is None else None
    channel = "stdio-elicitation" if credential is None else "http-elicitation"
    return {
        "caller": {"who": credential or requestor, "credential": credential, "subject": subject},
        "channel": channel if state.origin.get("asks") else None,
    }


_SHARE: dict[Phase, float] = {"propose": 0.1, "execute": 0.2, "verify": 0.7, "evaluate": 0.8}
"""The completed fraction of an iteration at the start of each phase."""
BACKLOG = 64


def reported_to(session: ServerSession, total: int) -> AbstractAsyncContextManager[Observer]:
    """An observer that reports progress to the caller within the block."""

    async def tell(value: float, message: str) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the caller has gone
            await session.report_progress(value, total, message)

    return _progress(tell)


@asynccontextmanager
async def _progress(
    tell: Callable[[float, str], Awaitable[None]], first: int | None = None
) -> AsyncGenerator[Observer]:
    """An observer that reports the number of completed iterations, from `first`.

    The numbers only rise, as MCP requires. A slow reader never delays the run.
    """
    send, receive = anyio.create_memory_object_stream[tuple[float, str]](BACKLOG)
    last = -1.0

    async def report() -> None:
        async for value, message in receive:
            await tell(value, message)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        nonlocal first, last
        first = state.iteration_count if first is None else first
        value = state.iteration_count - first + _SHARE.get(phase, 0.0)
        if value <= last:
            return
        last = value
        met = sum(one.status == "met" for one in state.results.values())
        of = len(state.mission.criteria)
        if send.statistics().current_buffer_used < BACKLOG:
            send.send_nowait((value, f"iteration {state.iteration_number}: {phase}; {met} of {of} criteria met"))

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report)
            try:
                yield observe
            finally:
                send.close()
