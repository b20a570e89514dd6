"""Drives background runs: a serving process those of its own, a worker those that a shared `Placement` hands to it.

Invariant: an iteration that was begun is finished here or by the next process; a background run that no live process
drives and that has something to do becomes a job.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pursuit.core.events import KNOWN, UPCASTS, Identity
from pursuit.core.mission import QUEUE
from pursuit.core.state import MissionState
from pursuit.engine.context import Placed
from pursuit.engine.driver import RunOrder
from pursuit.errors import Conflict, Fenced, InvalidArgument, LedgerTooNew, LimitReached, PursuitError, SessionNotFound
from pursuit.ledger.placement import (
    CONTROL,
    DRAIN,
    EVENT,
    FILE,
    MACHINE,
    Again,
    InProcessPlacement,
    Job,
    Placement,
    Requirements,
    WorkerRow,
)
from pursuit.service.audit import Caller
from pursuit.service.runner import Runner
from pursuit.service.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How missions are taken and put off; the operator of a worker chooses some of it."""

    version: str = ""
    lease_seconds: float = 0.0
    name: str = field(default_factory=lambda: f"{platform.node()}-{os.getpid()}")
    queues: Sequence[str] = (QUEUE,)
    concurrency: int = 8
    grace: float = 60.0
    """Seconds that a call under way has when the worker stops; then it is cut off and handed back."""
    longest_wait: float = 2.0
    """Seconds that a worker keeps a mission which waits for its pace or for a model."""
    sweep_seconds: float = 10.0
    """How often it looks for missions that have something to do and are no job."""
    first_retry: float = 1.0
    last_retry: float = 60.0


class RunLoop:
    """Does the jobs of one placement; `prepare` makes the servers of a mission known.

    A worker does those of the placement that machines share, and has the servers and checks that `has` names. A serving
    process has its own placement: it leaves to workers what they can drive, and drives the rest.
    `finish_calls` returns once no call is under way in this process that outlives the run of its mission.
    """

    def __init__(
        self,
        runner: Runner,
        prepare: Callable[[str], Awaitable[None]],
        placement: Placement,
        settings: LoopSettings,
        *,
        has: Sequence[str] = (),
        finish_calls: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._runner = runner
        self._prepare = prepare
        self._placement = placement
        self._settings = settings
        self._has = frozenset(has)
        self._finish_calls = finish_calls
        self._is_worker = placement is runner.placement
        self._since = time.time()
        self._jobs: set[str] = set()
        self._put_off: dict[str, float] = {}
        """Until when a mission that could not be driven is left alone."""
        self._scopes: set[anyio.CancelScope] = set()
        self._late = False
        self._tasks: TaskGroup
        self.stopping = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Drives missions until `stop` was called; then returns when each is finished or handed back."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            self._tasks.start_soon(self._sweep)
            self._tasks.start_soon(self._keep_time)
            await self._placement.run(self, self._settings.concurrency)
            if self._finish_calls is not None:
                with self._graceful():
                    await self._finish_calls()  # those that are tasks, whose missions are with no worker
            self._tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no further missions, and leaves those that it has after their iteration."""
        self.stopping.set()

    async def begin(self, order: RunOrder) -> None:
        """Begins a run in the background, returns once it is in the ledger; raises what refuses it.

        Where workers can drive it, it is left to them.
        """
        await self._prepare(order.mission_id)
        if await self._runner.is_for_workers(order.mission_id):
            await self._runner.hand_over(order)
        else:
            await self._tasks.start(self._run_here, replace(order, background=True))

    async def _run_here(self, order: RunOrder, *, task_status: TaskStatus[None]) -> None:
        begun = False

        def tell(_state: MissionState) -> None:
            nonlocal begun
            begun = True
            self._jobs.add(order.mission_id)
            task_status.started()

        try:
            await self._runner.driver.drive(replace(order, claimed=tell))
        except Exception as error:
            if not begun:
                raise  # to the caller of `begin`
            log.warning("run stopped", extra=_fields(order.mission_id, error))
        finally:
            if begun:
                self._jobs.discard(order.mission_id)

    def about(self) -> WorkerRow:
        """What a worker says of itself."""
        settings = self._settings
        return WorkerRow(
            name=settings.name,
            host=platform.node(),
            pid=os.getpid(),
            version=settings.version,
            queues=tuple(settings.queues),
            servers=tuple(sorted(self._has)),
            concurrency=settings.concurrency,
            lease_seconds=settings.lease_seconds,
            jobs=tuple(sorted(self._jobs)),
            draining=self.stopping.is_set(),
            since=self._since,
        )

    def serves(self, needs: Requirements) -> bool:
        """Whether this worker has what a mission needs."""
        return needs.queue in self._settings.queues and all(map(self._has_thing, needs.things))

    def _has_thing(self, thing: str) -> bool:
        if thing.startswith(FILE):
            return Path(thing.removeprefix(FILE)).is_file()
        if thing.startswith(EVENT):
            return (kind := thing.removeprefix(EVENT)) in KNOWN or kind in UPCASTS
        return thing in self._has or thing == f"{MACHINE}{platform.node()}"

    async def work(self, job: Job) -> Again | None:
        """Drives a mission as far as it goes now, or obeys an order."""
        if job.key == f"{CONTROL}{self._settings.name}:{DRAIN}":
            self.stop()
            return None
        if self.stopping.is_set():
            return Again(0.0, job.attempts)
        if job.key in self._jobs:
            return Again(self._settings.first_retry)  # a word for it came while it is driven here
        self._jobs.add(job.key)
        try:
            again = await self._drive(job)
        finally:
            self._jobs.discard(job.key)
        if again is not None and again.attempts:
            self._put_off[job.key] = anyio.current_time() + again.seconds
        return again

    async def _drive(self, job: Job) -> Again | None:
        mission_id = job.key
        runner, settings, tries = self._runner, self._settings, job.attempts + 1
        try:
            state = await runner.state(mission_id)
            before, due = state.seq, await runner.due_in(state)
            if due is None or (job.attempts and not self._is_worker and not state.background):
                return None
            if due > 0 and self._is_worker:
                return Again(due)
            with self._graceful():
                await self._advance(mission_id, state)
            if not self._is_worker:
                return None  # the next look finds what is left to do
            now = await runner.state(mission_id)
            due = await runner.due_in(now)
            if due == 0 and now.seq == before and not self.stopping.is_set():
                due = settings.first_retry  # nothing came of it; another process is about to end it
            return None if due is None else Again(due)
        except SessionNotFound:
            return None
        except Fenced as error:  # the worker that has it now has its job, too
            log.warning("run stopped", extra=_fields(mission_id, error))
            return None
        except (Conflict, LimitReached):
            # Another process drives it, and may die; or its client runs as many others as it may, and one will end.
            many = tries >= 10 and self._is_worker
            return Again(10 * settings.first_retry if many else settings.first_retry, tries)
        except Exception as error:  # noqa: BLE001 - the boundary: one mission's fault must not stop the others
            if isinstance(error, LedgerTooNew) and (kind := error.details.get("event")) is not None and self._is_worker:
                return Again(0.0, requires=(f"{EVENT}{kind}",))  # a release that knows this event goes on with it
            wait = min(settings.first_retry * 2 ** min(job.attempts, 10), settings.last_retry)
            log.warning("mission put off", extra=_fields(mission_id, error, f"; again in {wait:g} s"))
            return Again(wait, tries)

    async def _advance(self, mission_id: str, state: MissionState) -> None:
        runner = self._runner
        if state.terminal:
            await runner.driver.close(mission_id)
            return
        await self._prepare(mission_id)
        owner = None if state.owner is None else Identity(subject=state.owner, credential=state.credential)
        driver = state.driver or (owner if self._is_worker else None)
        who = driver or Identity()
        caller = Caller(transport="worker", credential=who.credential, subject=who.subject)
        placed = Placed(leaving=self.stopping, longest_wait=self._settings.longest_wait) if self._is_worker else None
        async with runner.driving(caller, mission_id):
            if not self._is_worker:
                log.info("continues a run that no process drove", extra={"pursuit_fields": {"mission": mission_id}})
            await runner.continue_run(mission_id, placed=placed, driver=driver)

    @contextmanager
    def _graceful(self) -> Generator[None]:
        """What is done in the block is cut off when the time that a stop leaves is over."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._late:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)

    async def _keep_time(self) -> None:
        await self.stopping.wait()
        await anyio.sleep(self._settings.grace)
        self._late = True
        for scope in self._scopes:
            scope.cancel()

    async def _sweep(self) -> None:
        """Finds background runs that are no job: of a process that died, or whose approval was answered elsewhere."""
        while True:
            names: list[str] = []
            try:
                names = await self._runner.interrupted(background=True)
            except PursuitError as error:
                log.warning("cannot look for interrupted runs", extra=_fields(None, error))
            self._put_off = {name: until for name, until in self._put_off.items() if name in names}
            for name in names:
                if name not in self._jobs and anyio.current_time() >= self._put_off.get(name, 0.0):
                    await self._restore(name)
            await anyio.sleep(self._settings.sweep_seconds)

    async def _restore(self, mission_id: str) -> None:
        """Makes a mission that no process drives a job, unless it is one."""
        try:
            if await self._runner.ledger.is_claimed(mission_id):
                return
            if not self._is_worker and not await self._runner.is_for_workers(mission_id):
                await self._placement.enqueue(mission_id, Requirements())
                return
            await self._runner.place(mission_id)
            self._put_off[mission_id] = anyio.current_time() + (0 if self._is_worker else self._settings.last_retry)
        except Exception as error:  # noqa: BLE001 - the boundary: what is wrong with one mission harms no other one
            log.warning("a mission cannot be looked after", extra=_fields(mission_id, error))


POLL_SECONDS = 0.5
SHARED_POLL_SECONDS = 2.0
"""The same on a database, which other processes need, too."""


@asynccontextmanager
async def background_runs(runner: Runner, prepare: Callable[[str], Awaitable[None]]) -> AsyncGenerator[RunLoop]:
    """The background runs of a serving process. Leaving it stops them where they are, recorded and resumable."""
    look = POLL_SECONDS if runner.placement is None else SHARED_POLL_SECONDS
    settings = LoopSettings(sweep_seconds=look, concurrency=sys.maxsize)
    loop = RunLoop(runner, prepare, InProcessPlacement(), settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(loop.run)
        try:
            yield loop
        finally:
            tasks.cancel_scope.cancel()


async def drain(service: Service, name: str, *, caller: Caller | None = None) -> None:
    """Orders a worker to finish what it does and to end. Raises `InvalidArgument` if no live worker has that name."""
    if service.placement is None:
        raise InvalidArgument("workers need a ledger that machines share; this one is a file", field="--state")
    known = [one.name for one in (await service.placement.health()).workers if one.live]
    if name not in known:
        raise InvalidArgument(f"no live worker is called {name[:80]!r}; there are: {', '.join(known) or 'none'}")
    async with service.audit.control(caller or service.caller, "workers drain", None, {"worker": name}):
        await service.placement.enqueue(f"{CONTROL}{name}:{DRAIN}", Requirements(f"{CONTROL}{name}"))


def _fields(mission_id: str | None, error: Exception, more: str = "") -> dict[str, object]:
    code = error.code if isinstance(error, PursuitError) else type(error).__name__
    return {"pursuit_fields": {"mission": mission_id, "code": code, "reason": f"{error}{more}"}}
