"""`Placement` over Temporal: one workflow for each mission that is due, one activity for each drive.

The ledger still needs PostgreSQL: it has the state of a mission, and its lease decides who drives. Workers are listed
there, too. Invariant: a wakeup is a signal that also starts the workflow, so none is lost between two workflows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import anyio
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError
from temporalio.worker import Worker

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.placement import CONTROL, MACHINE, Health, Job, Requirements, Serving
from pursuit.ledger.queue import PostgresPlacement, TakenJobs
from pursuit.temporal.workflow import (
    DRIVE,
    DRIVE_SECONDS,
    PAUSE,
    WAKE,
    WORKFLOW,
    DriveInput,
    DriveResult,
    MissionWorkflow,
    Wake,
    WorkflowInput,
)

log = logging.getLogger(__name__)

_COUNTED = 1_000  # the most open workflows that `health` counts
_NOT_SERVED = 5.0
_DECIDE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalSettings:
    """The address of Temporal. `lease` is the maximum silence of a worker, in seconds."""

    address: str = "localhost:7233"
    namespace: str = "default"
    tls: bool = False
    key: str | None = None
    lease: float = 10.0
    drive_seconds: float = DRIVE_SECONDS


class TemporalPlacement:
    """See the module. `workers` is the ledger's list of workers."""

    def __init__(self, settings: TemporalSettings, workers: PostgresPlacement) -> None:
        self._settings = settings
        self._workers = workers
        self._connected: Client | None = None
        self._begun: deque[str] = deque(maxlen=32)
        """The workflows that were begun here last, because Temporal lists them a moment later."""

    async def _client(self) -> Client:
        if self._connected is None:
            given = self._settings
            try:
                self._connected = await Client.connect(
                    given.address, namespace=given.namespace, tls=given.tls, api_key=given.key
                )
            except RuntimeError as error:
                why = f"Temporal at {given.address} is unavailable: {error}"
                raise LedgerUnavailable(why, path=given.address) from error
        return self._connected

    async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
        """See `Placement.enqueue`. Temporal decides about the turns of callers."""
        queue = queue_of(needs)
        try:
            found = await (await self._client()).start_workflow(
                WORKFLOW,
                WorkflowInput(
                    drive=DriveInput(key=key, needs=str(needs)), lease=self._settings.lease, task_queue=queue
                ),
                id=f"pursuit-{key}",
                task_queue=queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                start_signal=WAKE,
                start_signal_args=[Wake(seconds=max(0.0, delay), task_queue=queue)],
                memo={"caller": caller},
            )
            self._begun.append(found.id)
        except RPCError as error:
            why = f"Temporal at {self._settings.address} is unavailable: {error}"
            raise LedgerUnavailable(why, path=self._settings.address) from error

    async def run(self, serving: Serving, concurrency: int) -> None:
        """See `Placement.run`."""
        client, taken = await self._client(), TakenJobs(self._workers.link, serving, concurrency, self._settings.lease)
        drives, about = Drives(serving, self._settings), serving.about()
        for one in (await self._workers.health()).live:
            if (other := {*one.servers} ^ {*about.servers}) and {*one.queues} & {*about.queues}:
                log.warning(
                    "workers of a queue need the same servers; %s differs: %s", one.name, ", ".join(sorted(other))
                )
        names = [*about.queues, *(f"{name}@{about.host}" for name in about.queues), f"{CONTROL}{about.name}"]
        every = timedelta(seconds=self._settings.lease / 3)
        # Two for each queue: the decisions of the last activities are still processed when no more activities are
        # taken.
        deciding = [Worker(client, task_queue=f"pursuit-{name}", workflows=[MissionWorkflow]) for name in names]
        driving = [
            Worker(
                client,
                task_queue=f"pursuit-{name}",
                activities=[drives.drive, drives.pause],
                max_concurrent_activities=concurrency,
                max_heartbeat_throttle_interval=every,
                default_heartbeat_throttle_interval=every,
                graceful_shutdown_timeout=timedelta(days=1),
            )
            for name in names
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taken.keep)
            for one in deciding:
                tasks.start_soon(one.run)
            async with anyio.create_task_group() as polling:
                for one in driving:
                    polling.start_soon(one.run)
                await serving.stopping.wait()
                for one in driving:
                    polling.start_soon(one.shutdown)
            with anyio.move_on_after(_DECIDE_SECONDS):
                for key in drives.done:
                    with suppress(WorkflowFailureError):
                        await client.get_workflow_handle(f"pursuit-{key}").result()
            for one in deciding:
                await one.shutdown()
            tasks.cancel_scope.cancel()
        await taken.leave()

    async def health(self) -> Health:
        """See `Placement.health`."""
        client, workers = await self._client(), (await self._workers.health()).workers
        listed = client.list_workflows(f"WorkflowType='{WORKFLOW}' AND ExecutionStatus='Running'", limit=_COUNTED)
        names = {found.id async for found in listed}
        for name in self._begun:
            with suppress(RPCError):  # its history may be gone
                now = await client.get_workflow_handle(name).describe()
                (names.add if now.status is WorkflowExecutionStatus.RUNNING else names.discard)(name)
        running = min(len(names), sum(len(one.jobs) for one in workers if one.live))
        return Health(workers=workers, queued=len(names) - running, running=running)

    async def close(self) -> None:
        await self._workers.close()


def queue_of(needs: Requirements) -> str:
    """The task queue for these requirements; work that must stay on a machine has a queue of that machine."""
    for thing in needs.things:
        if thing.startswith(MACHINE):
            return f"pursuit-{needs.queue}@{thing.removeprefix(MACHINE)}"
    return f"pursuit-{needs.queue}"


class Drives:
    """The activities of one worker."""

    def __init__(self, serving: Serving, settings: TemporalSettings) -> None:
        self._serving = serving
        self._settings = settings
        self.done: deque[str] = deque(maxlen=8)
        """The last missions that were not due any more."""

    @activity.defn(name=DRIVE)
    async def drive(self, given: DriveInput) -> DriveResult:
        """Drives a mission as far as possible now, for at most ten minutes."""
        needs = Requirements.of(given.needs)
        # The server counts the activities of each queue alone; a worker has one limit for all of its queues.
        about = self._serving.about()
        busy = self._serving.stopping.is_set() or len(about.jobs) >= about.concurrency
        if not needs.queue.startswith(CONTROL) and (busy or not self._serving.serves(needs)):
            return DriveResult(seconds=_NOT_SERVED, attempts=given.attempts, needs=given.needs)
        leaving = anyio.Event()
        keeping = asyncio.create_task(self._keep(leaving))
        try:
            again = await self._serving.work(Job(key=given.key, attempts=given.attempts, leaving=leaving))
        finally:
            keeping.cancel()
        if again is None:
            self.done.append(given.key)
            return DriveResult(seconds=None)
        more = Requirements(needs.queue, tuple(dict.fromkeys((*needs.things, *again.requires))))
        return DriveResult(seconds=again.seconds, attempts=again.attempts, needs=str(more), task_queue=queue_of(more))

    async def _keep(self, leaving: anyio.Event) -> None:
        """Sends heartbeats; stops the drive when its time is over or the worker stops."""
        over = asyncio.get_running_loop().time() + self._settings.drive_seconds
        while True:
            activity.heartbeat()
            if self._serving.stopping.is_set() or asyncio.get_running_loop().time() >= over:
                leaving.set()
            await asyncio.sleep(min(1.0, self._settings.lease / 6))

    @activity.defn(name=PAUSE)
    async def pause(self, key: str) -> None:
        """Pauses a mission whose workflow was cancelled."""
        await self._serving.work(Job(key=key, pauses=True))
