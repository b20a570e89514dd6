"""The only writer of the ledger: everything that is queued is committed together.

Invariant: every queued request gets exactly one outcome, whatever happens to the tasks that wait for it, and a
transaction never spans a pass of the event loop. A request gets its outcome only after its transaction is committed,
and a refused append leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.ledger.chain import GENESIS, link_all
from pursuit.ledger.contract import ANY, FORGOTTEN, Anywhere, Draft, Head, QueuedJob, Wakeup
from pursuit.ledger.locks import displaced
from pursuit.ledger.schema import PATIENCE_SECONDS, Handles, is_busy, unavailable
from pursuit.ledger.watch import Wakeups

_REMEMBERED = 20_000

_TOGETHER = 20
# A row among twenty costs half of a separate statement. OR ROLLBACK: to abort only the statement, SQLite would first
# copy every page that it changes, and a refused batch is rolled back anyway.
_INSERT_EVENT = "INSERT OR ROLLBACK INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)"
_INSERTS = [_INSERT_EVENT + ", (?, ?, ?, ?, ?, ?)" * more for more in range(_TOGETHER)]
_COLUMNS = 6
_INSERT_STREAM = (
    "INSERT INTO streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary) "
    "VALUES (?, ?, ?, ?, ?, 0, ?, '{}')"
)
_MOVE_HEAD = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ? WHERE id = ?"
_SET_SUMMARY = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ?, summary = ? WHERE id = ?"
# Separate from the head: naming the status in every update would rewrite its index entry every time.
_SET_STATUS = "UPDATE streams SET status = ? WHERE id = ?"
_INSERT_BLOB = "INSERT OR IGNORE INTO blobs (digest, size, body) VALUES (?, ?, ?)"
_SET_TEXT = "INSERT OR REPLACE INTO texts (rowid, text) VALUES (?, ?)"
_INSERT_REF = "INSERT OR IGNORE INTO blob_refs (stream, digest) VALUES (?, ?)"

Waiter = asyncio.Future[Head]


class AppendRequest(msgspec.Struct, kw_only=True, eq=False):
    """An append that waits for its commit; its outcome is set once, when it is final.

    A writer in the event loop sets the future `waiter` once it is committed.
    """

    stream: str
    expected: int | Anywhere
    events: Sequence[Draft]
    kind: str
    status: str | None
    summary: str | None
    blobs: Sequence[tuple[str, bytes]]
    text: str | None
    by: Wakeup | None
    epoch: int | None = None
    """The holder of a lease that writes; only PostgreSQL has leases, and jobs."""
    job: QueuedJob | None = None
    outcome: Head | PursuitError | None = None
    waiter: Waiter | None = None


class _Tip(msgspec.Struct, gc=False):
    """The writer's view of a stream: as stored, or as the current transaction leaves it."""

    id: int
    seq: int
    hash: bytes
    status: str
    at: float
    """When its last event was stored."""
    summary: str | None = None
    """The summary from this transaction."""


class Committer:
    """Stages requests on the writing connection; the caller commits or rolls back."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._tips: dict[str, _Tip] = {}
        self._version = -1
        self.first = self.last = 0
        """The positions of its first and last event."""

    def begin(self) -> None:
        """Takes SQLite's write lock; drops the cached tips if another connection has written since."""
        self._connection.execute("BEGIN IMMEDIATE")
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._tips) > _REMEMBERED:
            self._tips.clear()
            self._version = version

    def stage(self, requests: Sequence[AppendRequest]) -> None:
        """Checks each request against the head after the preceding requests, and writes the rows of the valid ones."""
        now = self._clock()
        tips = self._tips
        moved: dict[str, _Tip] = {}
        events: list[Any] = []
        for request in requests:
            stream, drafts = request.stream, request.events
            tip = tips[stream] if stream in tips else self._find(stream)
            if tip is None or request.expected != tip.seq or tip.status == FORGOTTEN:
                refusal = _refusal(request, tip)
                if refusal is not None:
                    request.outcome = refusal
                    continue
            if tip is None:
                tip = tips[stream] = self._create(request, now)
            moved[stream] = tip
            identity, seq = tip.id, tip.seq
            for draft, hash_ in zip(drafts, link_all(tip.hash, stream, seq, at=now, drafts=drafts), strict=True):
                seq += 1
                # Byte arrays: for bytes the sqlite3 module first searches an adapter, which costs more than a copy.
                events += (identity, seq, now, draft.type, bytearray(draft.body), bytearray(hash_))
                tip.hash, tip.at = hash_, now
            tip.seq = seq
            if request.summary is not None:
                tip.summary = request.summary
            if request.status is not None or request.blobs or request.text is not None:
                self._store_extras(request, tip)
            request.outcome = Head(seq, tip.hash)
        self._insert(events)
        self._move_heads(moved.values())

    def commit(self) -> None:
        """Commits durably."""
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Rolls back the transaction; harmless if SQLite has already done so."""
        self._tips.clear()
        self._version = -1
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _find(self, stream: str) -> _Tip | None:
        row = self._connection.execute(
            "SELECT id, head_seq, head_hash, status, updated_at FROM streams WHERE name = ?", (stream,)
        ).fetchone()
        if row is None:
            return None
        tip = self._tips[stream] = _Tip(*row)
        return tip

    def _insert(self, values: list[Any]) -> None:
        """Writes the events, most of them together."""
        self.first = self.last = 0
        step = _COLUMNS * _TOGETHER
        for begin in range(0, len(values), step):
            rows = values[begin : begin + step]
            self.last = self._connection.execute(_INSERTS[len(rows) // _COLUMNS - 1], rows).lastrowid or 0
        if values:
            self.first = self.last - len(values) // _COLUMNS + 1

    def _create(self, request: AppendRequest, now: float) -> _Tip:
        status = request.status or ""
        values = (request.stream, request.kind, status, now, now, GENESIS)
        return _Tip(self._connection.execute(_INSERT_STREAM, values).lastrowid or 0, 0, GENESIS, status, now)

    def _move_heads(self, tips: Iterable[_Tip]) -> None:
        """Writes the new head of each stream, once for all its appends, and its summary."""
        plain: list[tuple[Any, ...]] = []
        described: list[tuple[Any, ...]] = []
        for tip in tips:
            if tip.summary is None:
                plain.append((tip.seq, bytearray(tip.hash), tip.at, tip.id))
            else:
                described.append((tip.seq, bytearray(tip.hash), tip.at, tip.summary, tip.id))
                tip.summary = None
        if plain:
            self._connection.executemany(_MOVE_HEAD, plain)
        if described:
            self._connection.executemany(_SET_SUMMARY, described)

    def _store_extras(self, request: AppendRequest, tip: _Tip) -> None:
        """Writes the blobs and the text that come with the events."""
        if request.status is not None and request.status != tip.status:
            self._connection.execute(_SET_STATUS, (request.status, tip.id))
            tip.status = request.status
        for digest, body in request.blobs:
            self._connection.execute(_INSERT_BLOB, (digest, len(body), body))
            self._connection.execute(_INSERT_REF, (tip.id, digest))
        if request.text is not None:
            self._connection.execute(_SET_TEXT, (tip.id, request.text))


def _refusal(request: AppendRequest, tip: _Tip | None) -> PursuitError | None:
    actual = 0 if tip is None else tip.seq
    if request.expected is not ANY and request.expected != actual:
        return refused(request, "conflict", actual)
    if tip is None and not request.events:
        return refused(request, "unborn", actual)
    if tip is not None and tip.status == FORGOTTEN:
        return refused(request, "forgotten", actual)
    return None


def refused(request: AppendRequest, why: str, actual: int) -> PursuitError:
    """The error for an append that does not fit its stream, which is at event `actual`."""
    stream = request.stream
    match why:
        case "conflict":
            return Conflict(
                f"stream {stream} is at event {actual}, not at {request.expected}: read it again, then retry",
                stream=stream,
                expected=request.expected,
                actual=actual,
            )
        case "unborn":
            return InvalidArgument(f"stream {stream} cannot begin without an event", stream=stream)
        case _:
            return InvalidArgument(f"stream {stream} was forgotten: use a new name", stream=stream)


MAX_IN_A_BATCH = 256
"""Limits the time for which one commit blocks the event loop."""

_COURTESY_SECONDS = 1.0
"""Seconds in the write queue before ignoring it: its holder may be stopped, and SQLite's lock still protects."""


class _Batch:
    """Requests that share a commit. A `young` batch waits one pass of the event loop before its commit."""

    __slots__ = ("began", "done", "requests", "young")

    def __init__(self) -> None:
        self.requests: list[AppendRequest] = []
        self.young = True
        self.began = time.monotonic()
        self.done = asyncio.Event()


class Writer:
    """Group commit without a task: the first append schedules a commit in the next pass of the event loop.

    An append fails if another process keeps the ledger locked for longer than `patience` seconds.
    """

    def __init__(
        self,
        path: Path,
        handles: Handles,
        wakeups: Wakeups,
        clock: Callable[[], float],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._path = path
        self._file = handles.file
        self._queue = handles.queue
        self._wakeups = wakeups
        self._patience = patience
        self._committer = Committer(handles.writer, clock)
        self._filling: _Batch | None = None
        self._unfinished: set[_Batch] = set()
        self._closed = False

    def append(self, request: AppendRequest) -> Waiter:
        """Queues a request and returns the future of its outcome; if that is cancelled first, nothing is stored."""
        if self._closed:
            raise LedgerUnavailable(f"the ledger {self._path} is closed; open it again", path=str(self._path))
        loop = asyncio.get_running_loop()
        waiter = request.waiter = asyncio.Future(loop=loop)
        batch = self._filling
        # A young batch leaves time for the cancellation of a scope to arrive; an older one may not.
        if batch is None or (not batch.young and anyio.current_effective_deadline() == -math.inf):
            batch = self._filling = _Batch()
            self._unfinished.add(batch)
            loop.call_soon(self._turned, batch)
        batch.requests.append(request)
        if len(batch.requests) >= MAX_IN_A_BATCH:
            self._filling = None
        return waiter

    async def close(self) -> None:
        """Refuses new appends, and returns once the queued ones have their outcome."""
        self._closed = True
        for batch in tuple(self._unfinished):
            await batch.done.wait()

    def _turned(self, batch: _Batch) -> None:
        """One pass of the loop is over: all tasks that were ready to append have joined; with company, one more."""
        if batch.young and len(batch.requests) > 1:
            batch.young = False
            asyncio.get_running_loop().call_soon(self._turned, batch)
            return
        batch.young = False
        waited = time.monotonic() - batch.began
        try:
            stored = self._try_commit(batch, courteous=waited < _COURTESY_SECONDS)
        except BaseException as error:
            self._end(batch, error)
            raise
        if stored or waited > self._patience:
            self._end(batch, None if stored else self._gave_up())
        else:
            pause = random.uniform(0.0005, 0.003)  # noqa: S311 - jitter needs no secrecy
            asyncio.get_running_loop().call_later(pause, self._turned, batch)

    def _end(self, batch: _Batch, error: BaseException | None) -> None:
        """Ends the batch: requests without an outcome fail with this error."""
        self._stop_filling(batch)
        self._unfinished.discard(batch)
        batch.done.set()
        if error is not None:
            _fail(batch.requests, error)

    def _try_commit(self, batch: _Batch, *, courteous: bool) -> bool:
        """Tries to commit without waiting: False if another process is writing, else every request has its outcome."""
        if not self._queue.try_enter() and courteous:
            return False
        # Requests whose tasks were cancelled before the commit are not stored.
        batch.requests = [one for one in batch.requests if one.waiter is not None and not one.waiter.cancelled()]
        try:
            self._commit(batch.requests)
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            # One by one: a value that SQLite refuses fails only its own append.
            for request in batch.requests:
                self._commit_alone(request)
        except LedgerUnavailable as error:
            _fail(batch.requests, error)
        finally:
            self._queue.leave()
        self._stop_filling(batch)
        return True

    def _commit(self, requests: Sequence[AppendRequest]) -> None:
        """Commits these requests together, and only then sets their outcomes and wakes the waiters."""
        if not requests:
            return
        committer = self._committer
        try:
            committer.begin()
            committer.stage(requests)
            lost = displaced(self._path, self._file)
            if lost is not None:
                raise lost
            committer.commit()
        except BaseException:
            committer.roll_back()
            raise
        stored: list[tuple[str, Wakeup | None]] = []
        for request in requests:
            outcome = request.outcome
            if request.waiter is None:
                continue
            if type(outcome) is Head:
                request.waiter.set_result(outcome)
                stored.append((request.stream, request.by))
            elif isinstance(outcome, PursuitError):
                request.waiter.set_exception(outcome)
        self._wakeups.committed(committer.first, committer.last, stored)

    def _commit_alone(self, request: AppendRequest) -> None:
        try:
            self._commit([request])
        except sqlite3.Error as error:
            _fail([request], unavailable(self._path, error))
        except LedgerUnavailable as error:
            _fail([request], error)

    def _stop_filling(self, batch: _Batch) -> None:
        if self._filling is batch:
            self._filling = None

    def _gave_up(self) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"nothing was stored in the ledger {self._path}: another process kept it locked; try again",
            path=str(self._path),
        )


def _fail(requests: Iterable[AppendRequest], error: BaseException) -> None:
    """Sets this error for requests without an outcome; each gets its own copy of our errors."""
    for request in requests:
        if request.waiter is not None and not request.waiter.done():
            own = LedgerUnavailable(error.message, **error.details) if isinstance(error, LedgerUnavailable) else error
            request.waiter.set_exception(own)
