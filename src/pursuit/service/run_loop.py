"""Drives background runs: a serving process its own, a worker those that a shared `Placement` assigns to it.

Invariant: a started iteration is finished here or by the next process; a due background run without a live driver is
enqueued.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pursuit.core.events import KNOWN, UPCASTS, Identity
from pursuit.core.mission import QUEUE
from pursuit.core.state import MissionState
from pursuit.engine.context import WorkerRun
from pursuit.engine.driver import RunOrder
from pursuit.errors import (
    Conflict,
    Fenced,
    InvalidArgument,
    LedgerTooNew,
    LimitReached,
    PursuitError,
    SessionNotFound,
    SessionTerminal,
)
from pursuit.ledger.placement import (
    CONTROL,
    DRAIN,
    EVENT,
    FILE,
    MACHINE,
    InProcessPlacement,
    Job,
    Placement,
    Requirements,
    Reschedule,
    WorkerRow,
)
from pursuit.service.audit import Caller
from pursuit.service.runner import Runner
from pursuit.service.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How missions are taken and postponed; the operator of a worker sets some of the fields."""

    version: str = ""
    lease_seconds: float = 0.0
    name: str = field(default_factory=lambda: f"{platform.node()}-{os.getpid()}")
    queues: Sequence[str] = (QUEUE,)
    concurrency: int = 8
    grace: float = 60.0
    """Seconds that a running call gets when the worker stops; then it is cancelled and its mission handed back."""
    longest_wait: float = 2.0
    """Seconds that a worker keeps a mission while it waits for its pace or for a model."""
    sweep_seconds: float = 30.0
    """Seconds between searches for due missions that are not enqueued."""
    seal_seconds: float = 600.0
    """Seconds between roots of the ledger; none is made without new events."""
    first_retry: float = 1.0
    last_retry: float = 60.0


class RunLoop:
    """Runs the jobs of one placement; `prepare` registers the servers of a mission.

    A worker runs jobs of the shared placement, and has the servers and checks that `has` names. A serving process has
    its own placement: it drives only the missions that workers cannot drive.
    `finish_calls` returns once every call in this process that outlives the run of its mission has ended.
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
        """Time until which a mission that could not be driven is skipped."""
        self._scopes: set[anyio.CancelScope] = set()
        self._late = False
        self._tasks: TaskGroup
        self.stopping = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Drives missions until `stop` is called; returns once each is finished or handed back."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            self._tasks.start_soon(self._sweep)
            self._tasks.start_soon(self._keep_time)
            self._tasks.start_soon(self._seal)
            await self._placement.run(self, self._settings.concurrency)
            if self._finish_calls is not None:
                with self._graceful():
                    await self._finish_calls()  # calls that are tasks: no worker drives their missions now
            self._tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no further missions, and stops driving each after its current iteration."""
        self.stopping.set()

    async def begin(self, order: RunOrder) -> None:
        """Begins a run in the background; returns once it is in the ledger, and raises the error that refuses it.

        A run that workers can drive is left to them.
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
        return needs.queue in self._settings.queues and all(map(self._has_thing, needs.things))

    def _has_thing(self, thing: str) -> bool:
        if thing.startswith(FILE):
            return Path(thing.removeprefix(FILE)).is_file()
        if thing.startswith(EVENT):
            return (kind := thing.removeprefix(EVENT)) in KNOWN or kind in UPCASTS
        return thing in self._has or thing == f"{MACHINE}{platform.node()}"

    async def work(self, job: Job) -> Reschedule | None:
        """Drives a mission as far as possible now, or carries out an order."""
        if job.key == f"{CONTROL}{self._settings.name}:{DRAIN}":
            self.stop()
            return None
        if self.stopping.is_set():
            return Reschedule(0.0, job.attempts)
        if job.pauses:
            with suppress(SessionNotFound, SessionTerminal):
                await self._runner.pause(job.key, reason="its placement was cancelled", caller=Caller(who="placement"))
            return None
        if job.key in self._jobs:
            return Reschedule(self._settings.first_retry)  # it was enqueued again while this process drives it
        self._jobs.add(job.key)
        try:
            again = await self._drive(job)
        finally:
            self._jobs.discard(job.key)
        if again is not None and again.attempts:
            self._put_off[job.key] = anyio.current_time() + again.seconds
        return again

    async def _drive(self, job: Job) -> Reschedule | None:
        mission_id = job.key
        runner, settings, tries = self._runner, self._settings, job.attempts + 1
        try:
            state = await runner.state(mission_id)
            before, due = state.seq, await runner.due_in(state)
            if due is None or (job.attempts and not self._is_worker and not state.background):
                return None
            if due > 0 and self._is_worker:
                return Reschedule(due)
            with self._graceful():
                await self._advance(mission_id, state, job.leaving or self.stopping)
            if not self._is_worker:
                return None  # the next sweep finds the remaining work
            now = await runner.state(mission_id)
            due = await runner.due_in(now)
            if due == 0 and now.seq == before and not self.stopping.is_set():
                due = settings.first_retry  # it did not advance; another process is about to end it
            return None if due is None else Reschedule(due)
        except SessionNotFound:
            return None
        except Fenced as error:  # the worker that now drives it also has its job
            log.warning("run stopped", extra=_fields(mission_id, error))
            return None
        except (Conflict, LimitReached):
            # Another process drives it, and may die; or its client has reached its limit of runs, and one will end.
            many = tries >= 10 and self._is_worker
            return Reschedule(10 * settings.first_retry if many else settings.first_retry, tries)
        except Exception as error:  # noqa: BLE001 - the boundary: an error of one mission must not stop the others
            if isinstance(error, LedgerTooNew) and (kind := error.details.get("event")) is not None and self._is_worker:
                return Reschedule(0.0, requires=(f"{EVENT}{kind}",))  # a release that knows this event can continue
            wait = min(settings.first_retry * 2 ** min(job.attempts, 10), settings.last_retry)
            log.warning("mission postponed", extra=_fields(mission_id, error, f"; retry in {wait:g} s"))
            return Reschedule(wait, tries)

    async def _advance(self, mission_id: str, state: MissionState, leaving: anyio.Event) -> None:
        runner = self._runner
        if state.terminal:
            await runner.driver.close(mission_id)
            return
        await self._prepare(mission_id)
        owner = None if state.owner is None else Identity(subject=state.owner, credential=state.credential)
        driver = state.driver or (owner if self._is_worker else None)
        who = driver or Identity()
        caller = Caller(transport="worker", credential=who.credential, subject=who.subject)
        placed = WorkerRun(leaving=leaving, longest_wait=self._settings.longest_wait) if self._is_worker else None
        async with runner.limits.driving(caller, mission_id):
            if not self._is_worker:
                log.info("resuming a run that no process drove", extra={"pursuit_fields": {"mission": mission_id}})
            await runner.continue_run(mission_id, placed=placed, driver=driver)

    @contextmanager
    def _graceful(self) -> Generator[None]:
        """Cancels the block when the grace period after `stop` is over."""
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

    async def _seal(self) -> None:
        while True:
            await anyio.sleep(self._settings.seal_seconds)
            try:
                await self._runner.ledger.seal()
            except PursuitError as error:
                log.warning("the root was not made", extra=_fields(None, error))

    async def _sweep(self) -> None:
        """Enqueues background runs that are not: of a dead process, or with an approval that was answered elsewhere."""
        while True:
            names: list[str] = []
            try:
                names = await self._runner.interrupted(background=True)
            except PursuitError as error:
                log.warning("cannot search for interrupted runs", extra=_fields(None, error))
            self._put_off = {name: until for name, until in self._put_off.items() if name in names}
            for name in names:
                if name not in self._jobs and anyio.current_time() >= self._put_off.get(name, 0.0):
                    await self._restore(name)
            await anyio.sleep(self._settings.sweep_seconds)

    async def _restore(self, mission_id: str) -> None:
        """Enqueues a mission without a driver, unless it is enqueued."""
        try:
            if await self._runner.ledger.is_claimed(mission_id):
                return
            if not self._is_worker and not await self._runner.is_for_workers(mission_id):
                await self._placement.enqueue(mission_id, Requirements())
                return
            await self._runner.place(mission_id)
            self._put_off[mission_id] = anyio.current_time() + (0 if self._is_worker else self._settings.last_retry)
        except Exception as error:  # noqa: BLE001 - the boundary: an error of one mission must not stop the others
            log.warning("a mission cannot be enqueued", extra=_fields(mission_id, error))


POLL_SECONDS = 0.5
SHARED_POLL_SECONDS = 2.0
"""`POLL_SECONDS` for a ledger on a database, which other processes use too."""


@asynccontextmanager
async def background_runs(runner: Runner, prepare: Callable[[str], Awaitable[None]]) -> AsyncGenerator[RunLoop]:
    """The background runs of a serving process. On exit it stops them; they are recorded and can be resumed."""
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
    if service.placement is None:
        raise InvalidArgument("workers need a ledger on PostgreSQL; this one is a file", field="--state")
    known = [one.name for one in (await service.placement.health()).workers if one.live]
    if name not in known:
        raise InvalidArgument(f"no live worker is called {name[:80]!r}; live workers: {', '.join(known) or 'none'}")
    async with service.audit.control(caller or service.caller, "workers drain", None, {"worker": name}):
        await service.placement.enqueue(f"{CONTROL}{name}:{DRAIN}", Requirements(f"{CONTROL}{name}"))


def _fields(mission_id: str | None, error: Exception, more: str = "") -> dict[str, object]:
    code = error.code if isinstance(error, PursuitError) else type(error).__name__
    return {"pursuit_fields": {"mission": mission_id, "code": code, "reason": f"{error}{more}"}}
