"""A worker: drives missions that a `Placement` hands to it, and hands each back while it has nothing to do.

Invariant: an iteration that was begun is finished here or by the next worker; a mission that no live process drives and
that has something to do is a job.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from pursuit.core.events import KNOWN, UPCASTS, Identity
from pursuit.core.state import MissionState
from pursuit.engine.context import Placed
from pursuit.errors import Conflict, Fenced, InvalidArgument, LedgerTooNew, LimitReached, PursuitError, SessionNotFound
from pursuit.ledger.placement import (
    CONTROL,
    DRAIN,
    EVENT,
    FILE,
    MACHINE,
    QUEUE,
    Again,
    Job,
    Placement,
    Requirements,
    WorkerRow,
)
from pursuit.service.audit import Caller
from pursuit.service.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What an operator chooses for a worker."""

    version: str
    lease_seconds: float
    name: str = field(default_factory=lambda: f"{platform.node()}-{os.getpid()}")
    queues: Sequence[str] = (QUEUE,)
    concurrency: int = 8
    grace: float = 60.0
    """Seconds that a call under way has when the worker stops; then it is cut off and handed back."""
    longest_wait: float = 2.0
    """Seconds that a worker keeps a mission which waits for its pace or for a model."""
    sweep_seconds: float = 10.0
    """How often the worker looks for missions that have something to do and are no job."""
    first_retry: float = 1.0
    last_retry: float = 60.0


class Worker:
    """One worker; `has` are the servers and checks of its configuration, `prepare` makes a mission's servers known.

    `finish_calls` returns once no call is under way in this process that outlives the run of its mission.
    """

    def __init__(
        self,
        service: Service,
        placement: Placement,
        settings: WorkerSettings,
        *,
        has: Sequence[str],
        prepare: Callable[[str], Awaitable[None]],
        finish_calls: Callable[[], Awaitable[None]],
    ) -> None:
        self._service = service
        self._placement = placement
        self._prepare = prepare
        self._has = frozenset(has)
        self._settings = settings
        self._finish_calls = finish_calls
        self._since = time.time()
        self._jobs: set[str] = set()
        self._scopes: set[anyio.CancelScope] = set()
        self._late = False
        self.stopping = anyio.Event()

    async def run(self) -> None:
        """Drives missions until `stop` was called; then returns when each is finished or handed back."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep)
            tasks.start_soon(self._keep_time)
            await self._placement.run(self, self._settings.concurrency)
            with self._graceful():
                await self._finish_calls()  # those that are tasks, whose missions are with no worker
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Takes no further missions, and leaves those that it has after their iteration."""
        self.stopping.set()

    def about(self) -> WorkerRow:
        """What the worker says of itself."""
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
            return await self._drive(job)
        finally:
            self._jobs.discard(job.key)

    async def _drive(self, job: Job) -> Again | None:
        mission_id = job.key
        settings, tries = self._settings, job.attempts + 1
        try:
            state = await self._service.state(mission_id)
            due = await self._service.due_in(state)
            if due is None or due > 0:
                return None if due is None else Again(due)
            with self._graceful():
                await self._advance(mission_id, state)
            due = await self._service.due_in(await self._service.state(mission_id))
            return None if due is None else Again(due)
        except SessionNotFound:
            return None
        except LedgerTooNew as error:  # a release that knows this event goes on with it
            kind = error.details.get("event")
            return Again(0.0, requires=() if kind is None else (f"{EVENT}{kind}",))
        except Fenced as error:  # the worker that has it now has its job, too
            log.warning("run stopped", extra=_fields(mission_id, error.code, error.message))
            return None
        except (Conflict, LimitReached):
            # Another process drives it, and may die; or its client runs as many others as it may, and one will end.
            return Again(settings.first_retry if tries < 10 else 10 * settings.first_retry, tries)
        except PursuitError as error:
            wait = min(settings.first_retry * 2 ** min(job.attempts, 10), settings.last_retry)
            why = f"{error.message}; again in {wait:g} s"
            log.warning("mission put off", extra=_fields(mission_id, error.code, why))
            return Again(wait, tries)

    async def _advance(self, mission_id: str, state: MissionState) -> None:
        service = self._service
        if state.terminal:
            await service.driver.close(mission_id)
            return
        await self._prepare(mission_id)
        owner = None if state.owner is None else Identity(subject=state.owner, credential=state.credential)
        driver = state.driver or owner
        who = driver or Identity()
        caller = Caller(transport="worker", credential=who.credential, subject=who.subject)
        placed = Placed(leaving=self.stopping, longest_wait=self._settings.longest_wait)
        async with service.driving(caller, mission_id):
            await service.continue_run(mission_id, placed=placed, driver=driver)

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
        """Finds missions whose job was lost: the process that had a word for them, or a database, died in between."""
        while True:
            await anyio.sleep(self._settings.sweep_seconds)
            try:
                for name in await self._service.interrupted(background=True):
                    await self._restore(name)
            except PursuitError as error:
                log.warning("cannot look for missions", extra=_fields(None, error.code, error.message))

    async def _restore(self, mission_id: str) -> None:
        """Makes a mission that no process drives a job, unless it is one."""
        try:
            if mission_id not in self._jobs and not await self._service.ledger.is_claimed(mission_id):
                await self._service.place(mission_id)
        except Exception as error:  # noqa: BLE001 - the boundary: what is wrong with one mission harms no other one
            log.warning("a mission cannot be looked after", extra=_fields(mission_id, type(error).__name__, str(error)))


async def drain(service: Service, name: str, *, caller: Caller | None = None) -> None:
    """Orders a worker to finish what it does and to end. Raises `InvalidArgument` if no live worker has that name."""
    if service.placement is None:
        raise InvalidArgument("workers need a ledger that machines share; this one is a file", field="--state")
    known = [one.name for one in (await service.placement.health()).workers if one.live]
    if name not in known:
        raise InvalidArgument(f"no live worker is called {name[:80]!r}; there are: {', '.join(known) or 'none'}")
    async with service.audit.control(caller or service.caller, "workers drain", None, {"worker": name}):
        await service.placement.enqueue(f"{CONTROL}{name}:{DRAIN}", Requirements(f"{CONTROL}{name}"))


def _fields(mission_id: str | None, code: str, reason: str) -> dict[str, object]:
    return {"pursuit_fields": {"mission": mission_id, "code": code, "reason": reason}}
