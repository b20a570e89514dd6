"""The one way into the ledger: everything that is queued is committed together.

Owns: the queue of appends, the wait for other processes, and who is told the outcome.
Knows nothing of rows. Invariant: every queued request gets exactly one outcome, whatever happens to the tasks
that wait for it, and a transaction never spans a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path

import anyio
import anyio.lowlevel

from pursuit.errors import LedgerUnavailable
from pursuit.ledger.commit import Committer, Request
from pursuit.ledger.contract import Head
from pursuit.ledger.schema import PATIENCE_SECONDS, Handles, displaced, is_busy, unavailable
from pursuit.ledger.watch import Bells

_MOST_IN_A_BATCH = 256
"""Bounds how long one commit may keep the event loop."""

_COURTESY_SECONDS = 1.0
"""How long to queue at the gate before going past it: its holder may be stopped, and SQLite's lock still holds."""


class _Batch:
    """Requests that will share a commit; the task that opened it is the one that commits it.

    Each follower waits on a future of its own, which costs less than an event for all and is its own to cancel.
    In a `young` batch there is a turn of the event loop still to come before its commit.
    """

    __slots__ = ("done", "followers", "requests", "young")

    def __init__(self, first: Request) -> None:
        self.requests = [first]
        self.followers: list[asyncio.Future[None]] = []
        self.young = True
        self.done = asyncio.Event()

    def join(self, request: Request) -> asyncio.Future[None]:
        """Takes one more along; the future is done when its outcome is there."""
        self.requests.append(request)
        follower: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.followers.append(follower)
        return follower

    def leave_out_cancelled(self) -> None:
        """Lets go of those who have been cancelled meanwhile: nothing is stored for them."""
        staying = [not follower.cancelled() for follower in self.followers]
        if not all(staying):
            self.requests = [self.requests[0], *compress(self.requests[1:], staying)]
            self.followers = list(compress(self.followers, staying))

    def end(self) -> None:
        """Wakes everybody: the outcomes are there."""
        self.done.set()
        for follower in self.followers:
            if not follower.done():
                follower.set_result(None)


class Writer:
    """Group commit without a task of its own: the first appender leads, those that come meanwhile follow."""

    def __init__(self, path: Path, handles: Handles, bells: Bells, clock: Callable[[], float]) -> None:
        self._path = path
        self._file = handles.file
        self._gate = handles.gate
        self._bells = bells
        self._committer = Committer(handles.writer, clock)
        self._filling: _Batch | None = None
        self._unfinished: set[_Batch] = set()
        self._closed = False

    async def append(self, request: Request) -> Head:
        """Stores one request together with all that are queued; one that is cancelled before its commit is left out."""
        if self._filling is None or not self._filling.young:
            # In a young batch there is time for a cancellation to arrive: looking for one costs more than the wait.
            await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise LedgerUnavailable(f"the ledger {self._path} is closed; open it again", path=str(self._path))
        batch = self._filling
        if batch is None:
            batch = self._filling = _Batch(request)
            with anyio.CancelScope(shield=True):
                await self._lead(batch)
        else:
            ended = batch.join(request)
            if len(batch.requests) >= _MOST_IN_A_BATCH:
                self._filling = None
            try:
                await ended
            except asyncio.CancelledError:
                if request.outcome is None or not _comes_again():
                    raise
        if isinstance(request.outcome, Head):
            return request.outcome
        raise request.outcome or self._gave_up()

    async def close(self) -> None:
        """Refuses new appends and returns when the queued ones have their outcome."""
        self._closed = True
        for batch in tuple(self._unfinished):
            await batch.done.wait()

    async def _lead(self, batch: _Batch) -> None:
        self._unfinished.add(batch)
        deadline = time.monotonic() + PATIENCE_SECONDS
        courtesy = deadline - PATIENCE_SECONDS + _COURTESY_SECONDS
        try:
            # One turn of the loop: whoever is ready to append now comes along.
            await asyncio.sleep(0)
            batch.young = False
            if batch.followers:
                await asyncio.sleep(0)
            while True:
                now = time.monotonic()
                if self._try_commit(batch, courteous=now < courtesy) or now > deadline:
                    break
                await anyio.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 - jitter needs no secrecy
        except asyncio.CancelledError:
            # A plain `task.cancel()` goes through the shield: those who follow must not suffer from it.
            self._try_commit(batch, courteous=False)
            raise
        finally:
            self._end(batch)

    def _end(self, batch: _Batch) -> None:
        for request in batch.requests:
            request.outcome = request.outcome or self._gave_up()
        self._stop_filling(batch)
        self._unfinished.discard(batch)
        batch.end()

    def _try_commit(self, batch: _Batch, *, courteous: bool) -> bool:
        """One try, without waiting: False if another process is writing, else every request has its outcome."""
        if not self._gate.try_pass() and courteous:
            return False
        batch.leave_out_cancelled()
        try:
            self._commit(batch.requests)
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            # One by one, so that a value that SQLite refuses fails its own append and no other.
            for request in batch.requests:
                self._commit_alone(request)
        except LedgerUnavailable as error:
            for request in batch.requests:
                request.outcome = LedgerUnavailable(error.message, **error.details)
        finally:
            self._gate.leave()
        self._stop_filling(batch)
        return True

    def _commit(self, requests: Sequence[Request]) -> None:
        try:
            self._committer.begin()
            staged = self._committer.stage(requests)
            lost = displaced(self._path, self._file)
            if lost is not None:
                raise lost
            self._committer.seal(staged)
        except BaseException:
            self._committer.undo()
            raise
        self._bells.committed(staged.first, staged.last, staged.stored())

    def _commit_alone(self, request: Request) -> None:
        try:
            self._commit([request])
        except sqlite3.Error as error:
            request.outcome = unavailable(self._path, error)
        except LedgerUnavailable as error:
            request.outcome = error

    def _stop_filling(self, batch: _Batch) -> None:
        if self._filling is batch:
            self._filling = None

    def _gave_up(self) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"nothing was stored in the ledger {self._path}: another process kept it locked; try again",
            path=str(self._path),
        )


def _comes_again() -> bool:
    """Whether a cancellation comes again by itself, as that of a cancel scope does."""
    return anyio.current_effective_deadline() == -math.inf
