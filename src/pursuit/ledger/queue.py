"""`Placement` over PgQueuer, in the schema `pursuit_queue` of the ledger's database.

PgQueuer keeps the jobs, finds those of dead workers and runs ours. What it lacks is here: connections that survive a
restart of the database, turns between callers (by its priorities), requirements of a job and a place that its caller
leaves to others (by its entrypoints), and the list of workers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from typing import Any, LiteralString, Self, TypeVar, cast

import msgspec
import psycopg
import psycopg.errors
import psycopg.sql
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment, QueryQueueBuilder, QuerySchedulerBuilder
from pgqueuer.core.executors import AbstractEntrypointExecutor, EntrypointExecutorParameters
from pgqueuer.core.qm import QueueManager
from pgqueuer.core.tm import TaskManager
from pgqueuer.domain.errors import RetryRequested
from pgqueuer.domain.models import Context as JobContext
from pgqueuer.domain.models import Job as QueuedJob
from pgqueuer.domain.models import TracebackRecord
from pgqueuer.domain.settings import DBSettings, Durability
from pgqueuer.domain.types import JOB_STATUS, Channel, JobId, QueueEntrypoint, QueueManagerId
from pgqueuer.ports.driver import NotifyCallback
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from pursuit.errors import LedgerUnavailable, advice
from pursuit.ledger.placement import CONTROL, Again, Health, Job, Requirements, Serving, WorkerRow, as_row
from pursuit.ledger.postgres_schema import (
    LOCK,
    RETRY_SECONDS,
    Link,
    connection_settings,
    is_lost,
    shown,
    unavailable,
)
from pursuit.ledger.schema import PATIENCE_SECONDS

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 8.0
"""A worker that was silent for so long has lost its jobs."""
DEQUEUE_SECONDS = 1.0
_LAST_RETRY = 5.0
_ANNOUNCED_EVERY, _LIVE = 0.75, 2.0
"""A worker announces itself so often, in heartbeats, and counts as live for so long after it."""
_TIDY_EVERY = 900
"""Announcements of a worker, about an hour, between two removals of old rows."""
_LARGEST = 2**31 - 1

# Each name is given: PgQueuer takes those that are not from variables of the environment (`TRIGGER`, `QUEUE_TABLE`).
_SETTINGS = DBSettings(
    prefix="",
    db_schema="pursuit_queue",
    channel=Channel("pursuit_queue"),
    function="jobs_changed",
    trigger="jobs_changed",
    queue_table="jobs",
    queue_table_log="jobs_log",
    queue_status_type="job_status",
    statistics_table="jobs_statistics",
    schedules_table="jobs_schedules",
    durability=Durability.balanced,
)
_JOBS = _SETTINGS.qualified.queue_table

_WORKERS = """
CREATE TABLE pursuit_queue.workers (
    name  text        PRIMARY KEY,
    about jsonb       NOT NULL,
    seen  timestamptz NOT NULL
)
"""
_INSTALLED = "SELECT 1 FROM pg_tables WHERE schemaname = 'pursuit_queue' AND tablename = 'workers'"
_GRANTS = (
    "GRANT USAGE ON SCHEMA pursuit_queue TO {}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pursuit_queue TO {}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA pursuit_queue TO {}",
)

# Start-time fair queueing: the tag of a job is one more than that of its caller's last one, and at least that of the
# jobs that are next. Jobs with lower tags come first, so a caller with a thousand jobs delays others by one. A job that
# comes back after a wait counts from its own last tag ($2): it goes neither before all others again and again, nor
# behind a thousand of its caller's.
_TAG = f"""
SELECT least({_LARGEST}, greatest(
    coalesce(
        min(-priority) FILTER (WHERE status = 'queued' AND execute_after <= now()),
        max(-priority) FILTER (WHERE status = 'picked'),
        0
    ),
    coalesce($2::integer, max(-priority) FILTER (WHERE headers->>'caller' = $1), -1)::bigint + 1
)) AS tag FROM {_JOBS} WHERE status IN ('queued', 'picked') AND dedupe_key IS DISTINCT FROM $3
"""  # noqa: S608 - names of our own
_DUE = f"""
SELECT entrypoint FROM {_JOBS}
WHERE (status = 'queued' AND execute_after <= now()) OR (status = 'picked' AND heartbeat < now() - $1::interval)
GROUP BY entrypoint ORDER BY max(priority) DESC, min(id)
"""  # noqa: S608
_LATER = f"""
DELETE FROM {_JOBS} WHERE dedupe_key = $1 AND status = 'queued' AND execute_after > now() + $2::interval RETURNING id
"""  # noqa: S608
# From here on the key is free: what is to be done meanwhile becomes a job of its own, and no word is lost.
_RELEASED = f"UPDATE {_JOBS} SET dedupe_key = NULL WHERE id = $1"  # noqa: S608
_MINE = f"SELECT id FROM {_JOBS} WHERE id = ANY($1) AND queue_manager_id = $2"  # noqa: S608
_COUNTED = f"SELECT status::text, count(*) AS jobs FROM {_JOBS} GROUP BY status"  # noqa: S608
_ANNOUNCED = """
INSERT INTO pursuit_queue.workers VALUES ($1, $2::jsonb, now())
ON CONFLICT (name) DO UPDATE SET about = EXCLUDED.about, seen = EXCLUDED.seen
"""
_KNOWN = """
SELECT w.about, extract(epoch FROM now() - w.seen)::float AS ago, (
    SELECT extract(epoch FROM clock_timestamp() - min(l.until))::float FROM pursuit.leases l
    WHERE l.host = w.about->>'host' AND l.pid = (w.about->>'pid')::integer AND l.stream LIKE 'mission-%'
) AS late
FROM pursuit_queue.workers w ORDER BY w.seen DESC
"""
_OLD = (
    "DELETE FROM pursuit_queue.workers WHERE seen < now() - interval '1 day'",
    f"DELETE FROM {_SETTINGS.qualified.queue_table_log} WHERE created < now() - interval '1 day'",  # noqa: S608
)


def prepare_queue(address: str) -> None:
    """Makes the schema of the queue, unless it is there."""
    try:
        with psycopg.connect(connection_settings(address), autocommit=True) as connection:
            if connection.execute(_INSTALLED).fetchone() is not None:
                return
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                if connection.execute(_INSTALLED).fetchone() is None:  # another process may have made it since
                    script = QueryBuilderEnvironment(_SETTINGS).build_install_query()
                    connection.execute(cast("LiteralString", script))
                    connection.execute(_WORKERS)
    except psycopg.errors.InsufficientPrivilege as error:
        raise LedgerUnavailable(
            f"{shown(address)} has no queue for workers, and this role may not make it; "
            f"run `{advice('pursuit migrate up --role {}', 'NAME')}` with the role that owns the schema",
            path=shown(address),
        ) from error
    except psycopg.Error as error:
        raise unavailable(address, error) from error


async def upgrade_queue(address: str, role: str | None = None) -> None:
    """Brings the schema of the queue to the installed PgQueuer's; `role` may then use it."""
    prepare_queue(address)
    link = Link(address, PATIENCE_SECONDS)
    try:
        await _queries(_Driver(link, link), Queries).upgrade()
        if role is not None:
            name = psycopg.sql.Identifier(role).as_string()
            for grant in _GRANTS:
                await link.ask(grant.format(name))
    except psycopg.Error as error:
        raise unavailable(address, error) from error
    finally:
        await link.close()


Q = TypeVar("Q", bound=Queries)


class _Driver:
    """PgQueuer's port to the database. A lost connection is opened again.

    Its own driver asks and listens on one connection, where a question waits for up to a second.
    """

    def __init__(self, asking: Link, listening: Link) -> None:
        self._asking = asking
        self._listening = listening
        self.is_patient: Callable[[], bool] = lambda: False
        """Whether it waits for a database that is gone without end: a worker does, until it stops."""
        self._callbacks: dict[str, list[NotifyCallback]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.shutdown = asyncio.Event()
        self.tm = TaskManager()

    async def fetch(self, query: str, *args: object) -> list[dict[str, object]]:
        wait, began = RETRY_SECONDS, time.monotonic()
        while True:
            try:
                return await self._asking.ask_by_name(query, args)
            except psycopg.Error as error:
                late = time.monotonic() - began > PATIENCE_SECONDS
                if not is_lost(error) or (late and not self.is_patient()):
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LAST_RETRY)

    async def execute(self, query: str, *args: object) -> str:
        await self.fetch(query, *args)
        return ""

    async def notify(self, channel: str, payload: str) -> None:
        await self.fetch("SELECT pg_notify($1, $2)", channel, payload)

    async def add_listener(self, channel: str, callback: NotifyCallback) -> None:
        self._callbacks.setdefault(channel, []).append(callback)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            try:
                connection = await self._listening.connected()
                if self._listening.pooled:
                    return  # notifications do not arrive; jobs are looked for anyway
                for channel in self._callbacks:
                    await connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
                async for note in connection.notifies():
                    for callback in self._callbacks.get(note.channel, ()):
                        callback(note.payload)
            except psycopg.Error:
                await self._listening.close()
                await asyncio.sleep(RETRY_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        self._callbacks.clear()  # those of a queue that is run again are others


def _queries(driver: _Driver, kind: type[Q]) -> Q:
    return kind(
        driver, QueryBuilderEnvironment(_SETTINGS), QueryQueueBuilder(_SETTINGS), QuerySchedulerBuilder(_SETTINGS)
    )


class _Jobs(Queries):
    """The jobs that one worker may take. A look without a job for it costs one statement."""

    manager: _Manager

    async def dequeue(
        self,
        batch_size: int,
        entrypoints: dict[QueueEntrypoint, EntrypointExecutionParameter],
        queue_manager_id: QueueManagerId,
        global_concurrency_limit: int | None,
        heartbeat_timeout: timedelta,
    ) -> list[QueuedJob]:
        rows = await self.driver.fetch(_DUE, heartbeat_timeout)
        wanted = self.manager.wanted(str(row["entrypoint"]) for row in rows)
        # The statement locks the next job of each entrypoint, and workers look at the same moment: with all of them in
        # hand, one worker would hide the only jobs of many callers from the others until they look again.
        for some in (islice(wanted, 1), wanted):
            limits = {one: EntrypointExecutionParameter(concurrency_limit=0) for one in some}
            if limits and (
                jobs := await super().dequeue(batch_size, limits, queue_manager_id, None, heartbeat_timeout)
            ):
                self.manager.took(jobs)
                return jobs
        return []

    async def log_jobs(self, job_status: list[tuple[QueuedJob, JOB_STATUS, TracebackRecord | None]]) -> None:
        """Ends jobs, but for those that another worker has taken: a stopped worker that goes on has lost them."""
        rows = await self.driver.fetch(_MINE, [job.id for job, _, _ in job_status], self.manager.queue_manager_id)
        mine = {row["id"] for row in rows}
        await super().log_jobs([one for one in job_status if one[0].id in mine])

    # Three more statements for each look would find out how soon to look again: we look every second.

    async def eligible_queued_work(self, entrypoints: list[QueueEntrypoint]) -> int:
        return 0

    async def queued_work(self, entrypoints: list[QueueEntrypoint]) -> int:
        return 0

    async def next_deferred_eta(self, entrypoints: list[QueueEntrypoint]) -> timedelta | None:
        return None


class _Executors(dict[QueueEntrypoint, AbstractEntrypointExecutor]):
    """One executor for all entrypoints: there are as many as callers, and PgQueuer would keep each."""

    def __init__(self, executor: AbstractEntrypointExecutor) -> None:
        super().__init__()
        self._executor = executor

    def __missing__(self, _entrypoint: QueueEntrypoint) -> AbstractEntrypointExecutor:
        return self._executor


class _Manager(QueueManager):
    """Runs the jobs of one worker."""

    def serve(self, placement: PgQueuerPlacement, serving: Serving, concurrency: int) -> None:
        """Says what this worker does, and how much of it at once."""
        self._serving = serving
        self._concurrency = concurrency
        self._control = str(Requirements(f"{CONTROL}{serving.about().name}"))
        self._callers: dict[JobId, str] = {}
        self.entrypoint_registry = _Executors(_Executor(placement, serving))

    def wanted(self, due: Iterable[str]) -> Iterator[QueueEntrypoint]:
        """Those of the entrypoints with due jobs that this worker takes now; orders to it in any case."""
        if self._serving.stopping.is_set():
            return
        full = len(self.job_context) >= self._concurrency
        self._callers = {job: caller for job, caller in self._callers.items() if job in self.job_context}
        places = Counter(self._callers.values())
        for one in due:
            if one == self._control or (not full and self._takes(one, places)):
                yield QueueEntrypoint(one)

    def took(self, jobs: Iterable[QueuedJob]) -> None:
        """Notes whose jobs these are."""
        self._callers |= {job.id: _parts(job.entrypoint)[1] for job in jobs if job.entrypoint != self._control}

    def _takes(self, entrypoint: str, places: Counter[str]) -> bool:
        """Whether this worker serves it, and its caller leaves a place to others."""
        try:
            needs, caller = _parts(entrypoint)
        except ValueError:  # a newer release has another form
            return False
        return places[caller] < max(1, self._concurrency - 1) and self._serving.serves(needs)


def _entrypoint(needs: Requirements, caller: str) -> str:
    """What workers choose a job by. Releases that chose by the requirements alone leave it to others."""
    return f"{needs}\n{caller}" if caller else str(needs)


def _parts(entrypoint: str) -> tuple[Requirements, str]:
    """The requirements and the caller. Jobs of a release that did not name callers here count as one caller's."""
    needs, _, caller = entrypoint.partition("\n")
    return Requirements.of(needs), caller


async def _nothing(_job: QueuedJob) -> None:
    """What PgQueuer would call; our executor does not."""


class _Executor(AbstractEntrypointExecutor):
    def __init__(self, placement: PgQueuerPlacement, serving: Serving) -> None:
        super().__init__(EntrypointExecutorParameters(concurrency_limit=0, func=_nothing))
        self._placement = placement
        self._serving = serving

    async def execute(self, job: QueuedJob, context: JobContext) -> None:
        """Does the job; one that is due again becomes a new one."""
        key, headers = (job.payload or b"").decode(), cast("dict[str, Any]", job.headers or {})
        await self._placement.release(job.id)
        again: Again | None
        try:
            again = await self._serving.work(Job(key=key, attempts=headers.get("attempts", 0)))
        except Exception:
            log.exception("a job failed")
            again = Again(_LAST_RETRY)
        if again is None:
            return
        needs, _ = _parts(job.entrypoint)
        had_its_turn = again.seconds > 0 and not again.attempts
        try:
            await self._placement.enqueue(
                key,
                Requirements(needs.queue, tuple(dict.fromkeys((*needs.things, *again.requires)))),
                caller=headers.get("caller", ""),
                delay=again.seconds,
                attempts=again.attempts,
                priority=job.priority,
                next_turn=had_its_turn,
            )
        except LedgerUnavailable as error:  # the worker leaves, and the database is gone: the job stays as it is
            raise RetryRequested(timedelta(seconds=_LAST_RETRY)) from error


class PgQueuerPlacement:
    """`placement.Placement` over PgQueuer."""

    def __init__(self, address: str, *, heartbeat: float = HEARTBEAT_SECONDS, dequeue: float = DEQUEUE_SECONDS) -> None:
        self._address = address
        self._heartbeat = heartbeat
        self._dequeue = dequeue
        self._asking, self._listening = Link(address, PATIENCE_SECONDS), Link(address, PATIENCE_SECONDS)
        self._driver = _Driver(self._asking, self._listening)
        self._queries = _queries(self._driver, Queries)

    @classmethod
    def open(cls, address: str, *, migrate: bool = True, **settings: float) -> Self:
        """Opens the queue of a database, and makes its schema unless `migrate` is false."""
        if migrate:
            prepare_queue(address)
        return cls(address, **settings)

    async def enqueue(
        self,
        key: str,
        needs: Requirements,
        *,
        caller: str = "",
        delay: float = 0.0,
        attempts: int = 0,
        priority: int | None = None,
        next_turn: bool = True,
    ) -> None:
        """See `placement.Placement.enqueue`. A job that is due again had a `priority`.

        Without `next_turn` it keeps that, and so its turn. Else a mission whose worker died would wait behind all that
        were never begun: the first worker that takes it may come before its lease has run out.
        """
        after = timedelta(seconds=max(0.0, delay))
        headers: dict[str, Any] = {"caller": caller, "attempts": attempts}
        try:
            if priority is None or next_turn:
                (row,) = await self._driver.fetch(_TAG, caller, None if priority is None else -priority, key)
                priority = -cast("int", row["tag"])
            while True:
                made = await self._queries.enqueue(
                    _entrypoint(needs, caller),
                    key.encode(),
                    priority,
                    after,
                    dedupe_key=key,
                    headers=headers,
                    on_conflict="skip",
                )
                # One that is due later than now gives way; a new one wakes the workers, a changed one does not.
                if made != [None] or not await self._driver.fetch(_LATER, key, after):
                    return
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error

    async def release(self, job_id: int) -> None:
        """Frees the key of a job that is being done."""
        await self._driver.fetch(_RELEASED, job_id)

    async def run(self, serving: Serving, concurrency: int) -> None:
        """See `placement.Placement.run`."""
        wait = RETRY_SECONDS
        self._driver.is_patient = lambda: not serving.stopping.is_set()
        async with self._announcing(serving):
            while not serving.stopping.is_set():
                began = time.monotonic()
                try:
                    await self._run(serving, concurrency)
                except Exception:
                    log.exception("the queue stopped; it is opened again in %.1f s", wait)
                wait = RETRY_SECONDS if time.monotonic() - began > 60 else min(2 * wait, _LAST_RETRY)
                if not serving.stopping.is_set():
                    await asyncio.sleep(wait)

    async def _run(self, serving: Serving, concurrency: int) -> None:
        jobs = _queries(self._driver, _Jobs)
        manager = jobs.manager = _Manager(jobs, Channel(_SETTINGS.channel))
        manager.serve(self, serving, concurrency)

        async def stop() -> None:
            await serving.stopping.wait()
            manager.shutdown.set()
            with suppress(psycopg.Error):
                await self._announce(serving.about())

        stopping = asyncio.create_task(stop())
        try:
            # Batches of one: a worker takes what it has room for, and leaves the rest to others.
            await manager.run(
                dequeue_timeout=timedelta(seconds=self._dequeue),
                batch_size=1,
                heartbeat_timeout=timedelta(seconds=self._heartbeat),
                log_aggregation_interval=timedelta(0),
            )
        finally:
            stopping.cancel()
            await asyncio.wait([stopping])

    @asynccontextmanager
    async def _announcing(self, serving: Serving) -> AsyncGenerator[None]:
        async def announce() -> None:
            count = 0
            while True:
                try:
                    if count % _TIDY_EVERY == 0:
                        for query in _OLD:
                            await self._driver.fetch(query)
                    await asyncio.sleep(self._heartbeat * _ANNOUNCED_EVERY)
                    await self._announce(serving.about())
                except psycopg.Error:  # a timeout of the server, a deadlock; silent, it would count as dead
                    log.warning("the worker could not announce itself", exc_info=True)
                count += 1

        await self._announce(serving.about())
        announcing = asyncio.create_task(announce())
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])
            with suppress(psycopg.Error):
                await self._driver.fetch("DELETE FROM pursuit_queue.workers WHERE name = $1", serving.about().name)

    async def _announce(self, about: WorkerRow) -> None:
        kept = {name: value for name, value in asdict(about).items() if name not in ("seen_ago", "lease_age", "live")}
        kept["heartbeat"] = self._heartbeat
        await self._driver.fetch(_ANNOUNCED, about.name, msgspec.json.encode(kept).decode())

    async def health(self) -> Health:
        """See `placement.Placement.health`."""
        try:
            counts = {str(row["status"]): cast("int", row["jobs"]) for row in await self._driver.fetch(_COUNTED)}
            rows = cast("list[dict[str, Any]]", await self._driver.fetch(_KNOWN))
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error
        workers = tuple(
            as_row(
                row["about"],
                seen_ago=row["ago"],
                lease_age=None if row["late"] is None else max(0.0, row["about"]["lease_seconds"] + row["late"]),
                live=row["ago"] < row["about"].get("heartbeat", self._heartbeat) * _LIVE,
            )
            for row in rows
        )
        return Health(workers=workers, queued=counts.get("queued", 0), running=counts.get("picked", 0))

    async def close(self) -> None:
        """See `placement.Placement.close`."""
        await self._asking.close()
        await self._listening.close()
