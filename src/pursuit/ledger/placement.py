"""The port `Placement`: which worker drives a mission, and when.

Correctness does not depend on it: a job is a hint to look at a mission, and the lease of the ledger decides who drives.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol, Self

import anyio
import msgspec

from pursuit.core.mission import QUEUE
from pursuit.errors import advice

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
CONTROL = "worker:"
"""The prefix of the queue of orders to a worker; no mission can name such a queue."""
DRAIN = "drain"
MACHINE = "machine:"
FILE = "file:"
CHECK = "check:"
CODE = "code:"
EVENT = "event:"
"""The kinds of requirements besides servers: a machine, a file, a named check, code that the configuration lists, or a
type of event that the worker must know.
"""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements for a worker: the queue, and each of these servers, files and machines."""

    queue: str = QUEUE
    things: tuple[str, ...] = ()

    def __str__(self) -> str:
        return json.dumps([self.queue, *self.things])

    @classmethod
    def of(cls, text: str) -> Self:
        """The requirements in the text of a job."""
        queue, *things = json.loads(text)
        return cls(queue, tuple(things))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker, as it last announced itself."""

    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    servers: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    jobs: tuple[str, ...] = ()
    """The missions that it drives."""
    draining: bool = False
    since: float = 0.0
    seen_ago: float = 0.0
    """Seconds since its last announcement, by the clock of the database."""
    lease_age: float | None = None
    """Seconds since the oldest lease of its missions was renewed; None if it has no mission."""
    live: bool = True

    def lacks(self, needs: Requirements) -> list[str]:
        """The requirements that this worker did not announce."""
        missing = [] if needs.queue in self.queues else [f"queue {needs.queue}"]
        has = {*self.servers, f"{MACHINE}{self.host}"}
        unseen = (FILE, EVENT)  # the worker checks these itself
        return missing + [one for one in needs.things if one not in has and not one.startswith(unseen)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The queue and its workers, newest first."""

    workers: tuple[WorkerRow, ...]
    queued: int
    running: int

    @property
    def live(self) -> list[WorkerRow]:
        """The workers that announced themselves recently and take missions."""
        return [one for one in self.workers if one.live and not one.draining]

    def why_unplaced(self, needs: Requirements) -> str | None:
        """Why no live worker can drive a mission with these requirements, or None."""
        if not self.live:
            return f"no worker runs; start one with `{advice('pursuit worker')}`"
        lacking = [one.lacks(needs) for one in self.live]
        if not all(lacking):
            return None
        best = min(lacking, key=len)
        return f"no live worker can drive it: the nearest one lacks {', '.join(map(_shown, best))}"


def _shown(thing: str) -> str:
    kind, _, name = thing.partition(":")
    words = {
        "machine": f"the machine {name}",
        "check": f"the check {name}",
        "code": f"{name} among its callables",
    }
    return thing if " " in thing else words.get(kind, f"the server {thing}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work for a worker: a mission that is due, or an order to the worker."""

    key: str
    attempts: int = 0
    """How often the job was postponed because no worker could do it."""
    leaving: anyio.Event | None = None
    """Set when the worker must return the job; if None, it does so when it stops."""
    pauses: bool = False
    """True if the mission must be paused, not driven."""


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Makes a job due again after some seconds; `attempts` counts the failed ones.

    `requires` are further requirements for the worker.
    """

    seconds: float
    attempts: int = 0
    requires: tuple[str, ...] = ()


class Serving(Protocol):
    """The worker, as the placement sees it."""

    @property
    def stopping(self) -> anyio.Event:
        """Set when the worker takes no further jobs; `run` then waits for the current ones, and returns."""
        ...

    def about(self) -> WorkerRow:
        """The data that the worker announces."""
        ...

    def serves(self, needs: Requirements) -> bool:
        """True if the worker meets the requirements of a job."""
        ...

    async def work(self, job: Job) -> Reschedule | None:
        """Does a job. Returns when the job is due again, or None if it is done."""
        ...


class Placement(Protocol):
    """Hands jobs to workers. If a worker dies, another one gets its jobs."""

    async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
        """Makes a job of this key due after `delay` seconds, unless one is due sooner.

        Callers take turns: a job of a caller with few jobs comes before those of a caller with many.
        """
        ...

    async def run(self, serving: Serving, concurrency: int) -> None:
        """Does jobs, at most `concurrency` concurrently, until the worker stops; survives a restart of the database."""
        ...

    async def health(self) -> Health:
        """The workers, and the number of jobs."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


class InProcessPlacement:
    """The jobs of one process, in memory. The next process finds unfinished ones in the ledger."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Job, Requirements]] = {}
        self._running = 0
        self._changed = anyio.Event()

    async def enqueue(self, key: str, needs: Requirements, *, caller: str = "", delay: float = 0.0) -> None:
        """See `Placement.enqueue`; with only one worker, callers need no turns."""
        self._add(Job(key=key), needs, delay)

    def _add(self, job: Job, needs: Requirements, delay: float) -> None:
        due = anyio.current_time() + delay
        if job.key not in self._due or due < self._due[job.key][0]:
            self._due[job.key] = due, job, needs
            self._changed.set()

    async def run(self, serving: Serving, concurrency: int) -> None:
        places = anyio.CapacityLimiter(concurrency)

        async def stop() -> None:
            await serving.stopping.wait()
            self._changed.set()

        async def work(job: Job, needs: Requirements) -> None:
            async with places:
                self._running += 1
                try:
                    again = await serving.work(job)
                finally:
                    self._running -= 1
            if again is not None:
                more = Requirements(needs.queue, (*needs.things, *again.requires))
                self._add(Job(key=job.key, attempts=again.attempts), more, again.seconds)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            while not serving.stopping.is_set():
                self._changed = anyio.Event()
                usable = {key: one for key, one in self._due.items() if serving.serves(one[2])}
                now = anyio.current_time()
                for key, (due, job, needs) in usable.items():
                    if due <= now:
                        del self._due[key]
                        tasks.start_soon(work, job, needs)
                with anyio.CancelScope(
                    deadline=min((due for due, *_ in usable.values() if due > now), default=math.inf)
                ):
                    await self._changed.wait()

    async def health(self) -> Health:
        """See `Placement.health`; nobody asks about the only worker of a process."""
        return Health(workers=(), queued=len(self._due), running=self._running)

    async def close(self) -> None:
        """Does nothing: no connection is open."""


def as_row(about: dict[str, Any], **more: Any) -> WorkerRow:
    """A worker, read from its announcement; ignores fields of newer releases."""
    return msgspec.convert({**about, **more}, WorkerRow)
