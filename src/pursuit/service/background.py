"""Background runs: a serving process drives them, and resumes those that were interrupted.

Invariant: a run that was promised to a caller is in the ledger, so the next serving process resumes it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pursuit.core.events import Channel, Identity
from pursuit.core.mission import Proposal, parse_proposal
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.engine.context import Observer, Phase
from pursuit.errors import Conflict, LimitReached, PursuitError, SessionNotFound
from pursuit.service.audit import Caller, local_subject
from pursuit.service.service import Service
from pursuit.service.tasks import LOCAL
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending

POLL_SECONDS = 0.5
SHARED_POLL_SECONDS = 2.0
"""The same on a database, which other processes need, too."""
FIRST_RETRY = 1.0
LAST_RETRY = 60.0

log = logging.getLogger(__name__)

Prepare = Callable[[str], Awaitable[None]]


class BackgroundRuns:
    """The runs of one process. Leaving it stops them where they are, recorded and resumable."""

    def __init__(self, service: Service, prepare: Prepare) -> None:
        self._service = service
        self._prepare = prepare
        self._driving: set[str] = set()
        self._not_before: dict[str, tuple[float, float]] = {}
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._poll_interrupted)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, value, trace)

    async def begin(
        self,
        mission_id: str,
        iterations: int | None,
        proposal: Proposal | None,
        after: int | None = None,
        *,
        driver: Identity | None = None,
    ) -> None:
        """Starts a run (iterations None: to the end), returns once it is in the ledger; raises what refuses it.

        Where workers can drive it, it is left to them.
        """
        await self._prepare(mission_id)
        if await self._service.is_for_workers(mission_id):
            await self._service.hand_over(mission_id, iterations, proposal, after, driver=driver)
            return
        refused = await self._tasks.start(self._run, mission_id, iterations, proposal, after, driver)
        if refused is not None:
            raise refused

    async def _run(
        self,
        mission_id: str,
        iterations: int | None,
        proposal: Proposal | None,
        after: int | None,
        driver: Identity | None,
        *,
        task_status: TaskStatus[Exception | None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        claimed: list[bool] = []

        def tell(_state: MissionState) -> None:
            self._driving.add(mission_id)
            claimed.append(True)
            task_status.started(None)

        try:
            await self._service.driver.drive(
                mission_id,
                iterations=iterations,
                proposal=proposal,
                background=True,
                after=after,
                claimed=tell,
                driver=driver,
            )
        except Exception as error:  # noqa: BLE001 - the boundary: one mission's fault must not stop the others
            if not claimed:
                task_status.started(error)
                return
            log.warning("run stopped", extra=_fields(mission_id, error))
        finally:
            if claimed:
                self._driving.discard(mission_id)

    async def _poll_interrupted(self) -> None:
        """Resumes interrupted runs, also those of a dead process and those whose approval was answered."""
        while True:
            try:
                names = await self._service.interrupted(background=True)
            except PursuitError as error:
                log.warning("cannot look for interrupted runs", extra=_fields(None, error))
                names = []
            self._not_before = {name: wait for name, wait in self._not_before.items() if name in names}
            for name in names:
                due = self._not_before.get(name, (0.0, 0.0))[0]
                if name not in self._driving and anyio.current_time() >= due:
                    self._driving.add(name)
                    self._tasks.start_soon(self._continue, name)
            await anyio.sleep(POLL_SECONDS if self._service.placement is None else SHARED_POLL_SECONDS)

    async def _continue(self, mission_id: str) -> None:
        try:
            if await self._service.is_for_workers(mission_id):
                if not await self._service.ledger.is_claimed(mission_id):
                    await self._service.place(mission_id)
                self._later(mission_id, LAST_RETRY)
                return
            await self._prepare(mission_id)
            driver = (await self._service.state(mission_id)).driver or Identity()
            caller = Caller(transport="background", credential=driver.credential, subject=driver.subject)
            async with self._service.driving(caller, mission_id):
                log.info("continues a run that no process drove", extra={"pursuit_fields": {"mission": mission_id}})
                await self._service.continue_run(mission_id)
        except (Conflict, LimitReached):
            # Another process drives it, and may die; or its client runs as many others as it may, and one will end.
            self._later(mission_id, FIRST_RETRY)
        except SessionNotFound:
            return
        except Exception as error:  # noqa: BLE001 - the boundary: one mission's fault must not stop the others
            waited = self._not_before.get(mission_id, (0.0, FIRST_RETRY / 2))[1]
            self._later(mission_id, min(2 * waited, LAST_RETRY))
            log.warning("run cannot go on", extra=_fields(mission_id, error))
        finally:
            self._driving.discard(mission_id)

    def _later(self, mission_id: str, seconds: float) -> None:
        self._not_before[mission_id] = (anyio.current_time() + seconds, seconds)


def _fields(mission_id: str | None, error: Exception) -> dict[str, Any]:
    """What a log line about an error carries."""
    code = error.code if isinstance(error, PursuitError) else type(error).__name__
    return {"pursuit_fields": {"mission": mission_id, "code": code, "reason": str(error)}}


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
        self, service: Service, prepare: Prepare, *, ask: Ask | None = None, words: Render = as_tool_result
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
                await anyio.sleep(FIRST_RETRY)
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
