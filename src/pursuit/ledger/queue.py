"""`Placement` over the table of jobs in the ledger's database.

Invariant: a worker takes a job under the lock of its stream, and announces itself until it is finished. The job of a
silent worker goes to another one, once the lease of its stream has expired, too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgspec
import psycopg
from anyio import create_task_group
from anyio.abc import TaskGroup

from pursuit.errors import PursuitError
from pursuit.ledger.placement import CONTROL, Health, Job, Requirements, Reschedule, Serving, as_row
from pursuit.ledger.postgres import NOTIFY_WORKERS
from pursuit.ledger.postgres_schema import RETRY_SECONDS, Link
from pursuit.ledger.schema import PATIENCE_SECONDS

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 8.0
"""Seconds of silence after which a worker has lost its jobs."""
DEQUEUE_SECONDS = 1.0
_LAST_RETRY = 5.0
_ANNOUNCED_EVERY = 1 / 3
"""The period, in heartbeats, in which a worker announces itself and so keeps its jobs."""

_DUE = "SELECT DISTINCT needs FROM pursuit.job_list WHERE (free OR worker = %s) AND NOT key = ANY (%s::text[])"
_COUNTED = (
    "SELECT count(*) FILTER (WHERE worker IS NULL OR free), count(*) FILTER (WHERE worker IS NOT NULL AND NOT free) "
    "FROM pursuit.job_list"
)
_KNOWN = """
SELECT w.about, extract(epoch FROM clock_timestamp() - w.seen)::float8, w.until + (w.until - w.seen) > now(), (
    SELECT extract(epoch FROM clock_timestamp() - min(l.until))::float8 FROM pursuit.leases l
    WHERE l.host = w.about->>'host' AND l.pid = (w.about->>'pid')::integer AND l.stream LIKE 'mission-%%'
)
FROM pursuit.workers w ORDER BY w.seen DESC
"""


class PostgresPlacement:
    """`placement.Placement` over the database of the ledger, in the ledger's schema."""

    def __init__(self, address: str, *, heartbeat: float = HEARTBEAT_SECONDS, dequeue: float = DEQUEUE_SECONDS) -> None:
        self._address = address
        self._heartbeat = heartbeat
        self._dequeue = dequeue
        self.link, self._listening = Link(address, PATIENCE_SECONDS), Link(address, PATIENCE_SECONDS)

    async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
        await self.link.read("SELECT pursuit.enqueue(%s, %s, %s, %s)", (key, str(needs), caller, delay))
        if delay <= 0:
            with suppress(psycopg.Error):  # workers look anyway
                await self.link.ask(NOTIFY_WORKERS)

    async def run(self, serving: Serving, concurrency: int) -> None:
        worker = TakenJobs(self.link, serving, concurrency, self._heartbeat)
        async with create_task_group() as keeping:
            keeping.start_soon(worker.keep)
            keeping.start_soon(self._listen, worker)
            keeping.start_soon(worker.hear_stop)
            async with create_task_group() as jobs:
                await worker.take_all(jobs, self._dequeue)
            keeping.cancel_scope.cancel()
        await worker.leave()

    async def _listen(self, worker: TakenJobs) -> None:
        while True:
            try:
                connection = await self._listening.connected()
                if self._listening.pooled:
                    return  # notifications do not arrive; the worker also looks for jobs regularly
                await connection.execute("LISTEN pursuit_jobs")
                async for _ in connection.notifies():
                    worker.stirred.set()
            except psycopg.Error:
                await self._listening.close()
                await asyncio.sleep(RETRY_SECONDS)

    async def health(self) -> Health:
        ((queued, running),) = await self.link.read(_COUNTED)
        workers = tuple(
            as_row(
                about,
                seen_ago=ago,
                lease_age=None if late is None else max(0.0, about["lease_seconds"] + late),
                live=live,
            )
            for about, ago, live, late in await self.link.read(_KNOWN)
        )
        return Health(workers=workers, queued=queued, running=running)

    async def close(self) -> None:
        await self.link.close()
        await self._listening.close()


class TakenJobs:
    """The current jobs of one worker."""

    def __init__(self, link: Link, serving: Serving, concurrency: int, heartbeat: float) -> None:
        self._link = link
        self._serving = serving
        self._concurrency = concurrency
        self._heartbeat = heartbeat
        self._me = f"{serving.about().name} {secrets.token_hex(8)}"
        self._order = str(Requirements(f"{CONTROL}{serving.about().name}"))
        self._running: dict[str, str] = {}
        """The callers of the jobs, by their keys."""
        self._announced = False
        self.stirred = asyncio.Event()
        """Set when there may be a job, or a free slot."""

    async def take_all(self, jobs: TaskGroup, poll: float) -> None:
        """Takes jobs until the worker stops; survives a restart of the database."""
        wait, served = RETRY_SECONDS, list[str]()
        while not self._serving.stopping.is_set():
            try:
                self.stirred.clear()
                if not served:
                    if not self._announced:
                        await self.announce()  # a job of a worker that is not known is free
                    served = self._served(await self._link.ask(_DUE, (self._me, list(self._running))))
                taken = await self._take(served) if served else []
                for key, needs, caller, attempts in taken:
                    self._running[key] = caller
                    jobs.start_soon(self._work, Job(key=key, attempts=attempts), Requirements.of(needs))
                wait = RETRY_SECONDS
                if taken:
                    continue
                served = []
                with suppress(TimeoutError):
                    async with asyncio.timeout(poll):
                        await self.stirred.wait()
            except psycopg.Error:
                log.warning("cannot take jobs; next try in %.1f s", wait, exc_info=True)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LAST_RETRY)

    def _served(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        """The requirements of due jobs that this worker meets."""
        served: list[str] = []
        for (needs,) in rows:
            with suppress(ValueError, TypeError):  # a newer release uses another form
                if needs == self._order or self._serving.serves(Requirements.of(needs)):
                    served.append(needs)
        return served

    async def _take(self, served: list[str]) -> list[Any]:
        # An order needs no slot; each caller leaves one slot to others.
        places = Counter(self._running.values())
        if sum(places.values()) >= self._concurrency:
            served = [needs for needs in served if needs == self._order]
        full = [caller for caller, count in places.items() if count >= max(1, self._concurrency - 1)]
        values = (self._me, list(self._running), served, full)
        query = "SELECT key, needs, caller, attempts FROM pursuit.take(%s, %s::text[], %s::text[], %s::text[])"
        return await self._link.ask(query, values) if served else []

    async def _work(self, job: Job, needs: Requirements) -> None:
        """Does a job and reports it; if the database cannot be reached, another worker takes the job later."""
        again: Reschedule | None
        try:
            again = await self._serving.work(job)
        except Exception:
            log.exception("a job failed")
            again = Reschedule(_LAST_RETRY)
        if again is not None:
            needs = Requirements(needs.queue, tuple(dict.fromkeys((*needs.things, *again.requires))))
        had_its_turn = again is not None and again.seconds > 0 and not again.attempts
        seconds, attempts = (None, 0) if again is None else (again.seconds, again.attempts)
        values = (job.key, self._me, seconds, str(needs), attempts, had_its_turn)
        while True:
            try:
                await self._link.read("SELECT pursuit.finish(%s, %s, %s::float8, %s, %s, %s)", values)
                break
            except PursuitError:
                if self._serving.stopping.is_set():
                    break
        del self._running[job.key]
        self.stirred.set()

    async def leave(self) -> None:
        """Removes the worker."""
        with suppress(psycopg.Error):
            await self._link.ask("SELECT pursuit.leave(%s)", (self._me,))

    async def hear_stop(self) -> None:
        """Ends the wait for jobs when the worker stops, and announces that."""
        await self._serving.stopping.wait()
        self.stirred.set()
        with suppress(psycopg.Error):
            await self.announce()

    async def keep(self) -> None:
        """Announces the worker, which so keeps its jobs, until it ends."""
        while True:
            try:
                await self.announce()
            except psycopg.Error:
                log.warning("the worker could not announce itself", exc_info=True)
            await asyncio.sleep(self._heartbeat * _ANNOUNCED_EVERY)

    async def announce(self) -> None:
        about = asdict(self._serving.about())
        text = msgspec.json.encode(about).decode()
        await self._link.ask("SELECT pursuit.announce(%s, %s::jsonb, %s)", (self._me, text, self._heartbeat))
        self._announced = True
