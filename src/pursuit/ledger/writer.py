"""The only writer of the ledger: everything that is queued is committed together.

Invariant: every queued request gets exactly one outcome, whatever happens to the tasks that wait for it, and a
transaction never spans a turn of the event loop. No request has an outcome before its transaction is committed, and a
refused append leaves no row behind.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.ledger.chain import GENESIS, link
from pursuit.ledger.contract import ANY, FORGOTTEN, Anywhere, Bell, Draft, Head
from pursuit.ledger.schema import PATIENCE_SECONDS, Handles, displaced, is_busy, unavailable
from pursuit.ledger.watch import Bells

_REMEMBERED = 20_000

_INSERT_EVENT = "INSERT INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)"
_TOGETHER = 20
# A row among twenty costs half of a statement of its own. OR ROLLBACK: to abort only the statement, SQLite would first
# copy every page that it changes, and a refused batch is rolled back anyway.
_INSERT_EVENTS = (
    "INSERT OR ROLLBACK INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)"
    + ", (?, ?, ?, ?, ?, ?)" * (_TOGETHER - 1)
)
_INSERT_STREAM = (
    "INSERT INTO streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary) "
    "VALUES (?, ?, ?, ?, ?, 0, ?, '{}')"
)
_LAST_ROW = "SELECT last_insert_rowid()"
_MOVE_HEAD = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ? WHERE id = ?"
_SET_SUMMARY = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ?, summary = ? WHERE id = ?"
# Separate from the head: naming the status in every update would rewrite its index entry every time.
_SET_STATUS = "UPDATE streams SET status = ? WHERE id = ?"
_INSERT_BLOB = "INSERT OR IGNORE INTO blobs (digest, size, body) VALUES (?, ?, ?)"
_SET_TEXT = "INSERT OR REPLACE INTO texts (rowid, text) VALUES (?, ?)"
_INSERT_REF = "INSERT OR IGNORE INTO blob_refs (stream, digest) VALUES (?, ?)"

_Row = tuple[int, int, float, str, bytearray, bytearray]


class AppendRequest(msgspec.Struct, kw_only=True, eq=False):
    """An append that waits for its commit; `outcome` is set once, when the outcome is known for good."""

    stream: str
    expected: int | Anywhere
    events: Sequence[Draft]
    kind: str
    status: str | None
    summary: str | None
    blobs: Sequence[tuple[str, bytes]]
    text: str | None
    by: Bell | None
    epoch: int | None = None
    """The holder of a lease that writes; only PostgreSQL has leases."""
    outcome: Head | PursuitError | None = None


class _Tip(msgspec.Struct, frozen=True, gc=False):
    """What the writer remembers of a stream."""

    id: int
    seq: int
    hash: bytes
    status: str
    at: float
    """When its last event was stored."""


@dataclass(slots=True)
class Staged:
    """What a transaction will have done once it is committed, with the positions of its first and last event."""

    outcomes: list[tuple[AppendRequest, Head | PursuitError]] = field(
        default_factory=list[tuple[AppendRequest, Head | PursuitError]]
    )
    tips: dict[str, _Tip] = field(default_factory=dict[str, _Tip])
    first: int = 0
    last: int = 0

    def stored(self) -> list[tuple[str, Bell | None]]:
        """The streams that grew, each with the bell that must not ring for it."""
        return [(request.stream, request.by) for request, outcome in self.outcomes if isinstance(outcome, Head)]


class Committer:
    """Stages requests on the writing connection; the caller commits or rolls back."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._tips: dict[str, _Tip] = {}
        self._version = -1

    def begin(self) -> None:
        """Takes SQLite's write lock; the cached tips stay only if no other connection has written since."""
        self._connection.execute("BEGIN IMMEDIATE")
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._tips) > _REMEMBERED:
            self._tips.clear()
            self._version = version

    def stage(self, requests: Sequence[AppendRequest]) -> Staged:
        """Checks each request against the head that those before it leave, and writes the rows of the valid ones."""
        now = self._clock()
        staged = Staged()
        events: list[_Row] = []
        summaries: dict[str, str] = {}
        for request in requests:
            tip = staged.tips.get(request.stream) or self._find(request.stream)
            refusal = _refusal(request, tip)
            if refusal is not None:
                staged.outcomes.append((request, refusal))
                continue
            if tip is None:
                tip = self._create(request, now)
            seq, hash_ = tip.seq, tip.hash
            for draft in request.events:
                seq += 1
                hash_ = link(hash_, request.stream, seq, at=now, type_=draft.type, body=draft.body)
                # Byte arrays: for bytes the sqlite3 module first searches an adapter, which costs more than a copy.
                events.append((tip.id, seq, now, draft.type, bytearray(draft.body), bytearray(hash_)))
            if request.summary is not None:
                summaries[request.stream] = request.summary
            status = self._store_extras(request, tip)
            staged.tips[request.stream] = _Tip(tip.id, seq, hash_, status, now if request.events else tip.at)
            staged.outcomes.append((request, Head(seq, hash_)))
        if events:
            self._insert(events)
            staged.last = self._connection.execute(_LAST_ROW).fetchone()[0]
            staged.first = staged.last - len(events) + 1
        self._move_heads(staged.tips, summaries)
        return staged

    def commit(self, staged: Staged) -> None:
        """Commits durably; only now do the requests get their outcome."""
        self._connection.execute("COMMIT")
        self._tips.update(staged.tips)
        for request, outcome in staged.outcomes:
            request.outcome = outcome

    def roll_back(self) -> None:
        """Rolls back what has begun; harmless if SQLite has already done so."""
        self._tips.clear()
        self._version = -1
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _find(self, stream: str) -> _Tip | None:
        tip = self._tips.get(stream)
        if tip is None:
            row = self._connection.execute(
                "SELECT id, head_seq, head_hash, status, updated_at FROM streams WHERE name = ?", (stream,)
            ).fetchone()
            if row is not None:
                tip = self._tips[stream] = _Tip(*row)
        return tip

    def _insert(self, events: Sequence[_Row]) -> None:
        """Writes the events, most of them together."""
        whole = len(events) - len(events) % _TOGETHER
        for first in range(0, whole, _TOGETHER):
            self._connection.execute(_INSERT_EVENTS, list(chain.from_iterable(events[first : first + _TOGETHER])))
        self._connection.executemany(_INSERT_EVENT, events[whole:])

    def _create(self, request: AppendRequest, now: float) -> _Tip:
        status = request.status or ""
        values = (request.stream, request.kind, status, now, now, GENESIS)
        self._connection.execute(_INSERT_STREAM, values)
        identity: int = self._connection.execute(_LAST_ROW).fetchone()[0]
        return _Tip(identity, 0, GENESIS, status, now)

    def _move_heads(self, tips: Mapping[str, _Tip], summaries: Mapping[str, str]) -> None:
        """Writes the new head of each stream, once for all its appends, and its summary."""
        plain = [(tip.seq, bytearray(tip.hash), tip.at, tip.id) for name, tip in tips.items() if name not in summaries]
        if plain:
            self._connection.executemany(_MOVE_HEAD, plain)
        if summaries:
            described = [
                (tips[name].seq, bytearray(tips[name].hash), tips[name].at, text, tips[name].id)
                for name, text in summaries.items()
            ]
            self._connection.executemany(_SET_SUMMARY, described)

    def _store_extras(self, request: AppendRequest, tip: _Tip) -> str:
        """Writes what comes with the events, and returns the new status."""
        status = tip.status if request.status is None else request.status
        if status != tip.status:
            self._connection.execute(_SET_STATUS, (status, tip.id))
        for digest, body in request.blobs:
            self._connection.execute(_INSERT_BLOB, (digest, len(body), body))
            self._connection.execute(_INSERT_REF, (tip.id, digest))
        if request.text is not None:
            self._connection.execute(_SET_TEXT, (tip.id, request.text))
        return status


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


MOST_IN_A_BATCH = 256
"""Bounds how long one commit may block the event loop."""

_COURTESY_SECONDS = 1.0
"""How long to wait in the write queue before ignoring it: its holder may be stopped, and SQLite's lock still holds."""


class _Batch:
    """Requests that share a commit; the task that opened the batch commits it.

    Each follower waits on a future of its own, which costs less than an event for all and can be cancelled alone.
    A `young` batch has a turn of the event loop before its commit.
    """

    __slots__ = ("done", "followers", "requests", "young")

    def __init__(self, first: AppendRequest) -> None:
        self.requests = [first]
        self.followers: list[asyncio.Future[None]] = []
        self.young = True
        self.done = asyncio.Event()

    def join(self, request: AppendRequest) -> asyncio.Future[None]:
        """Adds a request; the future is done when it has its outcome."""
        self.requests.append(request)
        follower: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.followers.append(follower)
        return follower

    def leave_out_cancelled(self) -> None:
        """Drops the requests whose tasks were cancelled meanwhile: nothing is stored for them."""
        staying = [not follower.cancelled() for follower in self.followers]
        if not all(staying):
            self.requests = [self.requests[0], *compress(self.requests[1:], staying)]
            self.followers = list(compress(self.followers, staying))

    def end(self) -> None:
        """Wakes all followers: the requests have their outcomes."""
        self.done.set()
        for follower in self.followers:
            if not follower.done():
                follower.set_result(None)


class Writer:
    """Group commit without a task of its own: the first appender leads, those that come meanwhile follow.

    `patience` is how long another process may keep the ledger locked before an append fails.
    """

    def __init__(
        self,
        path: Path,
        handles: Handles,
        bells: Bells,
        clock: Callable[[], float],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._path = path
        self._file = handles.file
        self._queue = handles.queue
        self._bells = bells
        self._patience = patience
        self._committer = Committer(handles.writer, clock)
        self._filling: _Batch | None = None
        self._unfinished: set[_Batch] = set()
        self._closed = False

    async def append(self, request: AppendRequest) -> Head:
        """Stores one request together with all that are queued; one that is cancelled before its commit is left out."""
        if self._filling is None or not self._filling.young:
            # A young batch leaves time for a cancellation to arrive: checking for one costs more than the wait.
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
            if len(batch.requests) >= MOST_IN_A_BATCH:
                self._filling = None
            try:
                await ended
            except asyncio.CancelledError:
                # The cancellation of a scope is delivered again at the next await, so the outcome can be returned.
                if request.outcome is None or anyio.current_effective_deadline() != -math.inf:
                    raise
        if isinstance(request.outcome, Head):
            return request.outcome
        raise request.outcome or self._gave_up()

    async def close(self) -> None:
        """Refuses new appends, and returns when the queued ones have their outcome."""
        self._closed = True
        for batch in tuple(self._unfinished):
            await batch.done.wait()

    async def _lead(self, batch: _Batch) -> None:
        self._unfinished.add(batch)
        began = time.monotonic()
        try:
            # One turn of the loop: the tasks that are ready to append now join the batch.
            await asyncio.sleep(0)
            batch.young = False
            if batch.followers:
                await asyncio.sleep(0)
            while True:
                waited = time.monotonic() - began
                if self._try_commit(batch, courteous=waited < _COURTESY_SECONDS) or waited > self._patience:
                    break
                await anyio.sleep(random.uniform(0.0005, 0.003))  # noqa: S311 - jitter needs no secrecy
        except asyncio.CancelledError:
            # A plain `task.cancel()` goes through the shield; the followers still get their commit.
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
        if not self._queue.try_enter() and courteous:
            return False
        batch.leave_out_cancelled()
        try:
            self._commit(batch.requests)
        except sqlite3.Error as error:
            if is_busy(error):
                return False
            # One by one, so a value that SQLite refuses fails its own append and no other.
            for request in batch.requests:
                self._commit_alone(request)
        except LedgerUnavailable as error:
            for request in batch.requests:
                request.outcome = LedgerUnavailable(error.message, **error.details)
        finally:
            self._queue.leave()
        self._stop_filling(batch)
        return True

    def _commit(self, requests: Sequence[AppendRequest]) -> None:
        try:
            self._committer.begin()
            staged = self._committer.stage(requests)
            lost = displaced(self._path, self._file)
            if lost is not None:
                raise lost
            self._committer.commit(staged)
        except BaseException:
            self._committer.roll_back()
            raise
        self._bells.committed(staged.first, staged.last, staged.stored())

    def _commit_alone(self, request: AppendRequest) -> None:
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
