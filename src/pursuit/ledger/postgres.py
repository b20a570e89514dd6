"""The ledger on PostgreSQL: one for many machines.

Invariant: only well-formed requests reach the database, and each batch of them is one statement (`pursuit.commit` in
the migrations). Each batch has a number: if its answer is lost, it is sent again under the same number, and is stored
once.
"""

from __future__ import annotations

import asyncio
import math
import time
import unicodedata
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, LiteralString, Unpack, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
from msgspec import structs

from pursuit.errors import InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.ledger.contract import (
    ANY,
    LEASE_SECONDS,
    Anywhere,
    AppendOptions,
    Draft,
    Folds,
    FoundStream,
    Head,
    Holder,
    StoredEvent,
    StreamFilter,
    StreamPage,
    StreamRow,
    Verification,
    Wakeup,
)
from pursuit.ledger.leases import Lease, Leases, fenced
from pursuit.ledger.locks import require_name
from pursuit.ledger.postgres_schema import (
    RETRY_SECONDS,
    SETTLE,
    Array,
    Link,
    bodies,
    connection_settings,
    cut_off,
    is_lost,
    numbers,
    prepare,
    shown,
    texts,
    unavailable,
)
from pursuit.ledger.roots import LedgerRoot
from pursuit.ledger.schema import PATIENCE_SECONDS
from pursuit.ledger.sqlite import (
    CHUNK,
    LARGEST,
    MAX_WORD,
    TOO_MANY,
    WORD,
    new_request,
    page_query,
    rarest,
    search_words,
    stream_page,
    stream_row,
)
from pursuit.ledger.tombstones import own_audit, require_forgettable
from pursuit.ledger.verify import verify_snapshot
from pursuit.ledger.watch import StreamWakeup, Wakeups, follow
from pursuit.ledger.writer import MAX_IN_A_BATCH, AppendRequest, refused

LOOK_SECONDS = 0.25
"""Seconds between the looks of a waiting process for commits of others."""
_GATHER_SECONDS = 0.05
"""Notifications within this time are combined, when sent and when received."""
_COMPARE_SECONDS = 15.0
"""Seconds between comparisons of the ends of the watched streams, in case a look missed a commit: a cursor is a hint.
"""
_STALE_SECONDS = 300.0
"""After so long without a look a process compares, too: after ten minutes `seal` removes rows that others have not
read.
"""
_SUMMARY_SECONDS = 1.0
"""Minimum seconds between writes of a stream's row for a summary alone. A status is written immediately."""
MAX_RANKED = 2_000
_REMEMBERED = 10_000
_TOGETHER = 1_000
"""Maximum blobs to remove in one transaction; no commit with blobs may run at the same time."""

_COMMIT = f"SELECT * FROM pursuit.commit({', '.join(['%s'] * 24)})"  # noqa: S608 - marks alone
_COLUMNS = "id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary"
_ROW = f"SELECT {_COLUMNS}, summary_seq FROM pursuit.listing"  # noqa: S608 - the columns stand above
_VERIFIED = (
    "SELECT id, name, kind, status, created_at, updated_at, summary_seq, NULL::bytea, summary FROM pursuit.streams"
)
_EVENTS = (
    "SELECT seq, at, type, body, hash FROM pursuit.events "
    "WHERE stream = (SELECT id FROM pursuit.streams WHERE name = %s) AND seq > %s ORDER BY seq LIMIT %s"
)
# The commits after a snapshot: of transactions that began later, and of those that were open then. The new snapshot is
# that of the same statement.
_GROWN = """
SELECT pg_current_snapshot()::text, pg_is_in_recovery(), array_agg(grown.name), array_agg(grown.seq) FROM (
    SELECT s.name, g.seq FROM pursuit.grown g JOIN pursuit.streams s ON s.id = g.stream
    WHERE g.xact >= pg_snapshot_xmax(%s::pg_snapshot) OR g.xact = ANY (ARRAY(SELECT pg_snapshot_xip(%s::pg_snapshot)))
    LIMIT %s
) AS grown
"""
_ENDS = "SELECT name, head_seq FROM pursuit.listing WHERE name = ANY (%s::text[])"
NOTIFY_WORKERS = "NOTIFY pursuit_jobs"
_FORGET_BLOBS = "SELECT pursuit.forget_blobs(%s) WHERE NOT pg_is_in_recovery()"
_SEAL = "SELECT pursuit.seal(%s) WHERE NOT pg_is_in_recovery()"
_STORED = """
SELECT coalesce((SELECT max(events) FROM pursuit.roots), 0) + coalesce(sum(g.seq - coalesce(x.seq, 0)), 0)::bigint
FROM (
    SELECT stream, max(grown.seq) AS seq FROM pursuit.grown, pursuit.sealing
    WHERE xact >= pg_snapshot_xmax(seen) OR xact = ANY (ARRAY(SELECT pg_snapshot_xip(seen))) GROUP BY stream
) AS g
LEFT JOIN LATERAL (SELECT s.seq FROM pursuit.sealed s WHERE s.stream = g.stream ORDER BY s.seq DESC LIMIT 1) x ON true
WHERE g.seq > coalesce(x.seq, 0)
"""
_DIGESTS = (
    "SELECT digest FROM pursuit.blob_refs WHERE stream = (SELECT id FROM pursuit.streams WHERE name = %s) "
    "ORDER BY digest"
)
_COUNTED = """
SELECT one.word, (SELECT count(*) FROM (
    SELECT 1 FROM pursuit.texts t WHERE t.words @@ (chr(39) || one.word || chr(39))::tsquery LIMIT %s
) AS counted)
FROM (SELECT DISTINCT pursuit.stem(given) AS word FROM unnest(%s::text[]) AS given) AS one
"""
# The BM25 formula of FTS5, so both backends rank alike.
_FOUND = f"""
WITH known AS (SELECT count(*) AS texts, coalesce(sum(length), 0)::float8 AS words FROM pursuit.texts), wanted AS (
    SELECT one.word,
           greatest(ln(greatest(known.texts - one.texts + 0.5, 0.5) / (one.texts + 0.5)), 1e-6)::float8 AS weight,
           greatest(known.words / greatest(known.texts, 1), 1) AS average
    FROM unnest(%s::text[], %s::bigint[]) AS one (word, texts), known
), newest AS (
    SELECT rowid, words, length FROM pursuit.texts JOIN pursuit.streams ON id = rowid
    WHERE words @@ (SELECT string_agg(chr(39) || word || chr(39), ' | ')::tsquery FROM wanted)
        AND (%s::text IS NULL OR kind = %s::text)
    ORDER BY rowid DESC LIMIT %s
), ranked AS (
    SELECT rowid AS stream, round(sum(
        weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / average))
    )::numeric, 9)::float8 AS closeness
    FROM newest, LATERAL (SELECT lexeme AS word, cardinality(positions) AS times FROM unnest(words)) AS said
    JOIN wanted USING (word)
    GROUP BY rowid ORDER BY closeness DESC, rowid DESC LIMIT %s
)
SELECT {_COLUMNS}, summary_seq, text, closeness FROM ranked
JOIN pursuit.listing ON id = stream JOIN pursuit.texts ON rowid = stream ORDER BY closeness DESC, stream DESC
"""  # noqa: S608 - the columns stand above
_GUARDS = (
    "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'append_only%' AND tgenabled = 'O' "
    "AND tgrelid IN ('events'::regclass, 'tombstones'::regclass, 'roots'::regclass, 'sealed'::regclass)"
)


class WatchedWakeups(Wakeups):
    """Wakeups for commits of other processes: one task looks regularly which streams grew.

    Invariant: `_own` has the commits of this process that no look has seen yet; their waiters are already awake.
    """

    def __init__(self) -> None:
        self._own: dict[tuple[str, int], float] = {}
        self._ends: dict[str, int] = {}
        """The last known sequence number of each watched stream."""
        self._entered: dict[str | None, set[StreamWakeup]] = {}
        self._closed = False
        self.wanted = asyncio.Event()
        """Set while there is a waiter."""

    @property
    def streams(self) -> list[str]:
        return [name for name in self._entered if name is not None]

    @property
    def entered(self) -> bool:
        return bool(self._entered)

    def stored(self, requests: Iterable[AppendRequest]) -> None:
        """Wakes the waiters for a commit of this process."""
        ends: dict[str, int] = {}
        for request in requests:
            if isinstance(request.outcome, Head):
                if request.events:
                    ends[request.stream] = request.outcome.seq
                self._wake(request.stream, request.by)
        self._own |= dict.fromkeys(ends.items(), time.monotonic())

    def grew(self, ends: Iterable[tuple[str, int]]) -> None:
        """Wakes the waiters for those of the found commits that other processes made."""
        for name, seq in ends:
            self._ends[name] = max(seq, self._ends.get(name, 0))
            if self._own.pop((name, seq), None) is None:
                self._wake(name, None)

    def compare(self, ends: Iterable[tuple[str, int]]) -> None:
        """Wakes the waiters of each stream whose end has changed, and those of all streams."""
        old = time.monotonic() - _STALE_SECONDS
        self._own = {end: at for end, at in self._own.items() if at > old}
        known, self._ends = self._ends, dict(ends)
        for name, seq in self._ends.items():
            if known.get(name) != seq:
                self._wake(name, None)
        for wakeup in self._entered.get(None, ()):
            wakeup.wake()

    def wake_all(self) -> None:
        """Wakes every waiter, because too many streams grew to list them."""
        for wakeups in self._entered.values():
            for wakeup in wakeups:
                wakeup.wake()

    async def wait(self, wakeup: StreamWakeup) -> None:
        while not wakeup.due:
            self._require_open()
            if wakeup.changed.is_set():
                wakeup.changed = anyio.Event()
            await wakeup.changed.wait()

    def _look(self) -> None:
        """Starts the watching task, because there is a waiter now."""
        self._require_open()
        self.wanted.set()


class _Queued:
    """A request that waits for its batch, with the future of the task that waits for it."""

    __slots__ = ("flying", "mark", "request", "waiter")

    def __init__(self, request: AppendRequest, mark: int | None = None) -> None:
        self.request = request
        self.mark = mark
        """The event of the summary, where that is not the last one."""
        self.flying = False
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class _Told:
    """The last write to the row of a stream by this process: the time, and the waiting summary with its event."""

    at: float
    status: str | None
    waiting: tuple[AppendRequest, int] | None = None


class PostgresWriter:
    """Group commit: the requests that arrive while a batch is committed form the next batch.

    A summary within a second of the last one waits. Updating a stream's row at each commit would let a long snapshot
    elsewhere (`verify`, a dump) slow all commits.
    """

    def __init__(
        self,
        address: str,
        link: Link,
        wakeups: WatchedWakeups,
        *,
        clock: Callable[[], float],
        patience: float,
        holder: str,
    ) -> None:
        self._address = address
        self._link = link
        self._wakeups = wakeups
        self._clock = clock
        self._patience = patience
        self._holder = holder
        self._told: dict[str, _Told] = {}
        self._telling: asyncio.Task[None] | None = None
        self._notifying: asyncio.Task[None] | None = None
        self._notified = 0.0
        self._id = uuid.uuid4()
        self._batch = 0
        self._queue: deque[_Queued] = deque()
        self._working: asyncio.Task[None] | None = None
        self._landed = asyncio.Event()
        self._landed.set()
        self._closed = False

    @property
    def backend(self) -> int | None:
        """The server's process for this writer."""
        return self._link.backend

    async def append(self, request: AppendRequest) -> Head:
        """Stores a request in one batch with all queued ones; leaves it out if it is cancelled before its commit."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise LedgerUnavailable(f"the ledger {shown(self._address)} is closed; open it again")
        queued = _Queued(request)
        self._enqueue(queued)
        try:
            await queued.waiter
        except asyncio.CancelledError:
            if not queued.flying:
                raise
            with anyio.CancelScope(shield=True):
                queued.waiter = asyncio.get_running_loop().create_future()
                if request.outcome is None:
                    await queued.waiter
            # The cancellation of a scope is delivered again at the next await, so the outcome can be returned.
            if anyio.current_effective_deadline() != -math.inf:
                raise
        if isinstance(request.outcome, Head):
            return request.outcome
        raise request.outcome or unavailable(self._address, RuntimeError("the append has no outcome"))

    def _enqueue(self, queued: _Queued) -> None:
        self._queue.append(queued)
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    def summary(self, stream: str) -> tuple[str, int] | None:
        """The summary that waits for its write, and its event."""
        told = self._told.get(stream)
        if told is None or told.waiting is None or told.waiting[0].summary is None:
            return None
        return told.waiting[0].summary, told.waiting[1]

    async def landed(self) -> None:
        """Returns when the current batch has its outcomes."""
        await self._landed.wait()

    async def close(self) -> None:
        """Refuses new appends, and returns when the queued ones have their outcomes."""
        self._closed = True
        if self._working is not None:
            await asyncio.wait([self._working])
        if self._telling is not None:
            self._telling.cancel()
        self._tell(math.inf)
        tasks = {task for task in (self._working, self._telling, self._notifying) if task is not None}
        if tasks:
            await asyncio.wait(tasks)
        await self._link.close()

    async def _work(self) -> None:
        # One pass of the event loop: tasks that are ready to append now join the batch.
        await asyncio.sleep(0)
        while self._queue:
            batch: list[_Queued] = []
            while self._queue and len(batch) < MAX_IN_A_BATCH:
                queued = self._queue.popleft()
                if not queued.waiter.cancelled():
                    queued.flying = True
                    batch.append(queued)
            if batch:
                self._landed.clear()
                # All processes lock streams in the same order, which excludes deadlocks.
                batch.sort(key=lambda queued: queued.request.stream)
                try:
                    await self._store(batch)
                except Exception as error:  # noqa: BLE001 - the boundary: the tasks that wait get the error
                    _all_fail(batch, unavailable(self._address, error))
                finally:
                    self._landed.set()
                    for queued in batch:
                        if not queued.waiter.done():
                            queued.waiter.set_result(None)
                if any(queued.request.job for queued in batch):
                    with suppress(psycopg.Error):  # workers look anyway
                        await self._link.ask(NOTIFY_WORKERS)
        self._working = None

    async def _store(self, batch: Sequence[_Queued]) -> None:
        """Stores a batch and sets the outcome of each request."""
        self._batch += 1
        requests = [queued.request for queued in batch]
        late = [self._comes_too_soon(queued) for queued in batch]
        values = (self._id, self._batch, self._clock(), self._holder, *_columns(batch, late))
        until = time.monotonic() + self._patience
        doubtful = False
        while True:
            sent = self._link.backend
            try:
                ((seqs, hashes, refusals),) = await self._link.ask(_COMMIT, values)
                break
            except psycopg.Error as error:
                if is_lost(error):
                    # The same number: if the lost statement was stored, its outcome is returned.
                    doubtful = doubtful or sent is not None
                    if time.monotonic() < until:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    return _all_fail(batch, self._unknown(error) if doubtful else unavailable(self._address, error))
                if len(requests) == 1:
                    return _all_fail(batch, unavailable(self._address, error))
                # One by one: a value that the database refuses fails only its own append.
                for queued in batch:
                    await self._store([queued])
                return None
        for request, seq, hash_, refusal in zip(requests, seqs, hashes, refusals, strict=True):
            if refusal is None:
                request.outcome = Head(seq, hash_)
            else:
                request.outcome = fenced(request.stream) if refusal == "fenced" else refused(request, refusal, seq)
        self._wakeups.stored(requests)
        for queued, waits in zip(batch, late, strict=True):
            self._note(queued.request, queued.mark, waits=waits)
        if self._notifying is None and any(one.epoch is None and one.events for one in requests):
            self._notifying = asyncio.create_task(self._notify())
        return None

    def _comes_too_soon(self, queued: _Queued) -> bool:
        """True if the row got a summary within the last second, and the status stays."""
        request = queued.request
        told = self._told.get(request.stream)
        soon = told is not None and request.status in (None, told.status)
        return soon and queued.mark is None and bool(told) and time.monotonic() < told.at + _SUMMARY_SECONDS

    def _note(self, request: AppendRequest, mark: int | None, *, waits: bool) -> None:
        """Remembers what was written to the row, and what is still to be written."""
        told = self._told.get(request.stream)
        if told is not None and told.waiting is not None and told.waiting[1] == mark:
            told.waiting = None if not isinstance(request.outcome, LedgerUnavailable) else told.waiting
        if mark is not None or request.summary is None or not isinstance(request.outcome, Head):
            return
        if waits and told is not None:
            again = structs.replace(
                request, expected=ANY, events=(), status=None, blobs=(), text=None, job=None, outcome=None
            )
            told.waiting = again, request.outcome.seq
            if self._telling is None and not self._closed:
                self._telling = asyncio.create_task(self._tell_later())
        else:
            self._told[request.stream] = _Told(time.monotonic(), request.status or (told and told.status))

    async def _tell_later(self) -> None:
        while any(told.waiting for told in self._told.values()):
            await asyncio.sleep(_SUMMARY_SECONDS / 4)
            self._tell(time.monotonic())
        self._telling = None

    def _tell(self, now: float) -> None:
        """Queues the summaries that are due, and drops the entries of quiet streams."""
        for told in self._told.values():
            if told.waiting is not None and now >= told.at + _SUMMARY_SECONDS:
                request, mark = told.waiting
                told.at = now
                self._enqueue(_Queued(structs.replace(request), mark))
        if len(self._told) > _REMEMBERED:
            self._told = {name: told for name, told in self._told.items() if told.waiting is not None}

    async def _notify(self) -> None:
        """Notifies other processes of an event by a person or a client, in a transaction that writes nothing."""
        await asyncio.sleep(self._notified + _GATHER_SECONDS - time.monotonic())
        self._notified = time.monotonic()
        with suppress(psycopg.Error):
            await self._link.ask("NOTIFY pursuit")
        self._notifying = None

    def _unknown(self, error: BaseException) -> LedgerUnavailable:
        why = unavailable(self._address, error)
        message = f"{why.message}; the connection was lost during a commit, so it is not known whether it was stored"
        return LedgerUnavailable(message, **why.details)


def _all_fail(batch: Sequence[_Queued], error: PursuitError) -> None:
    for queued in batch:
        queued.request.outcome = LedgerUnavailable(error.message, **error.details)


def _columns(batch: Sequence[_Queued], late: Sequence[bool]) -> tuple[Array, ...]:
    """The requests as the arrays for `pursuit.commit`, after the holder; a `late` summary is left out."""
    requests = [queued.request for queued in batch]
    blobs = [(i, digest, body) for i, one in enumerate(requests, 1) for digest, body in one.blobs]
    words = [
        (i, word, times)
        for i, one in enumerate(requests, 1)
        if one.text is not None
        for word, times in Counter(index_words(one.text)).items()
    ]
    jobs = [(i, one.job) for i, one in enumerate(requests, 1) if one.job is not None]
    return (
        texts(one.stream for one in requests),
        numbers(None if one.expected is ANY else one.expected for one in requests),
        numbers(one.epoch for one in requests),
        texts(one.kind for one in requests),
        texts(one.status for one in requests),
        texts(None if waits else one.summary for one, waits in zip(requests, late, strict=True)),
        numbers(queued.mark for queued in batch),
        bodies(None if one.text is None else one.text.encode() for one in requests),
        numbers(len(one.events) for one in requests),
        texts(draft.type for one in requests for draft in one.events),
        bodies(draft.body for one in requests for draft in one.events),
        numbers(row[0] for row in blobs),
        texts(row[1] for row in blobs),
        bodies(row[2] for row in blobs),
        numbers(row[0] for row in words),
        texts(row[1] for row in words),
        numbers(row[2] for row in words),
        numbers(row[0] for row in jobs),
        texts(row[1].needs for row in jobs),
        texts(row[1].caller for row in jobs),
    )


def index_words(text: str) -> Iterable[str]:
    """The words of a text in lower case and without accents, as in the index before stemming."""
    return (found.group()[:MAX_WORD] for found in WORD.finditer(_plain(text)))


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.lower())
    return "".join(one for one in parts if not unicodedata.combining(one))


class _Snapshot:
    """A connection of psycopg with the interface of SQLite, for the checks of `verify`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursors: list[psycopg.ServerCursor[Any]] = []

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Runs a query. A query without values reads a whole table, in parts."""
        if values:
            return self._connection.execute(cast("LiteralString", query.replace("?", "%s")), values)
        cursor = self._connection.cursor(f"verify_{len(self._cursors)}")
        self._cursors.append(cursor)
        cursor.itersize = CHUNK
        return cursor.execute(cast("LiteralString", query))

    def cut_off(self) -> None:
        """Ends the connection, from any thread."""
        if not self._connection.closed:
            cut_off(self._connection)

    def close(self) -> None:
        for cursor in self._cursors:
            cursor.close()


@contextmanager
def snapshot(address: str) -> Generator[_Snapshot]:
    """One snapshot of the ledger, on a separate connection; it blocks the thread."""
    try:
        with psycopg.connect(connection_settings(address)) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET LOCAL search_path = pursuit, pg_catalog")
            with closing(_Snapshot(connection)) as rows:
                yield rows
    except psycopg.Error as error:
        raise unavailable(address, error) from error


class PostgresLedger:
    """`contract.Ledger` over the schema `pursuit` of a PostgreSQL database."""

    def __init__(self, address: str, seen: str, clock: Callable[[], float], patience: float, lease: float) -> None:
        self._address = address
        self._clock = clock
        self._patience = patience
        self._reader = Link(address, patience)
        self._listener = Link(address, patience)
        self._wakeups = WatchedWakeups()
        self._leases = Leases(Link(address, patience), lease)
        self._writer = PostgresWriter(
            address,
            Link(address, patience),
            self._wakeups,
            clock=clock,
            patience=patience,
            holder=self._leases.me,
        )
        self._seen: str = seen
        self._looked = self._compared = time.monotonic()
        """The snapshot of the last look, and the times of that look and of the last comparison."""
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        address: str,
        *,
        clock: Callable[[], float] = time.time,
        patience: float = PATIENCE_SECONDS,
        lease: float = LEASE_SECONDS,
        migrate: bool = True,
    ) -> PostgresLedger:
        """Opens the ledger of a database; creates or migrates its schema unless `migrate` is false.

        A lost connection is reopened for up to `patience` seconds. A claim is a lease of `lease` seconds. Raises
        `LedgerTooNew` for a schema of a newer release and `LedgerUnavailable` for a server that cannot be reached.
        """
        return cls(address, prepare(address, migrate=migrate), clock, patience, lease)

    @property
    def pooled(self) -> bool:
        """True if a pooler is between us and the database: then only looking finds commits of others."""
        return self._reader.pooled or self._listener.pooled

    async def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Head:
        request = new_request(stream, expected, events, **options)
        names = (("kind", request.kind), ("status", request.status or ""), *(("type", draft.type) for draft in events))
        for name, value in names:
            if "\0" in value:
                raise InvalidArgument(f"the {name} {value!r} contains NUL, which PostgreSQL does not store", field=name)
        return await self._writer.append(request)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        require_name(stream)
        found: list[StoredEvent] = []
        while limit is None or len(found) < limit:
            want = CHUNK if limit is None else min(CHUNK, limit - len(found))
            rows = await self._all(_EVENTS, (stream, after, want))
            found += [StoredEvent(stream, *row) for row in rows]
            if len(rows) < want:
                break
            after = rows[-1][0]
        return found

    async def row(self, stream: str) -> StreamRow | None:
        require_name(stream)
        rows = await self._all(f"{_ROW} WHERE name = %s", (stream,))
        return self._as_told(rows[0]) if rows else None

    def _as_told(self, row: Any) -> StreamRow:
        """The row, with the last summary that this process wrote."""
        waiting = self._writer.summary(row[1])
        summary, seq = (row[8], row[9]) if waiting is None or waiting[1] < row[9] else waiting
        return replace(stream_row((*row[:8], summary)), summary_seq=seq)

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        rest, values = page_query(**wanted)
        rows = await self._all(f"{_ROW} {rest.replace('?', '%s')}", values)
        return stream_page(rows, values[-1], self._as_told)

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[FoundStream]:
        if limit < 1:
            raise InvalidArgument(f"a search needs a limit of at least 1, not {limit}", limit=limit)
        wanted = [part for word in search_words(words) for part in index_words(word)]
        if not wanted:
            await anyio.lowlevel.checkpoint()
            return []
        counted = {word: count for word, count in await self._all(_COUNTED, (MAX_RANKED, wanted)) if count}
        kept, most = rarest([(count, word) for word, count in counted.items()], MAX_RANKED)
        limit = min(limit, LARGEST)
        counts = [counted[word] for word in kept]
        rows = await self._all(_FOUND, (kept, counts, kind, kind, max(most, limit), limit)) if kept else []
        return [FoundStream(row=self._as_told(row[:10]), text=row[10].decode(), rank=row[11]) for row in rows]

    def wakeup(self, stream: str | None = None) -> AbstractContextManager[Wakeup]:
        if stream is not None:
            require_name(stream)
        self._start_watching()
        return self._wakeups.enter(stream)

    def watch(self, stream: str, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
        require_name(stream)
        self._start_watching()
        return follow(self._wakeups, self.read, stream, after)

    def _start_watching(self) -> None:
        if self._watching is None and not self._closed:
            self._watching = asyncio.create_task(self._watch())

    async def blob(self, digest: str) -> bytes | None:
        if not digest.isalnum():
            return None
        rows = await self._all("SELECT body FROM pursuit.blobs WHERE digest = %s", (digest,))
        return rows[0][0] if rows else None

    async def digests(self, stream: str) -> list[str]:
        require_name(stream)
        return [row[0] for row in await self._all(_DIGESTS, (stream,))]

    async def claim(self, stream: str) -> Lease | None:
        return await self._leases.claim(stream)

    async def is_claimed(self, stream: str) -> bool:
        return await self._leases.is_claimed(stream)

    async def holder(self, stream: str) -> Holder | None:
        return await self._leases.holder(stream)

    async def root(self) -> str:
        await self._all(_SEAL, (True,))
        rows = await self._all("SELECT number, events, hash FROM pursuit.roots ORDER BY number DESC LIMIT 1")
        return str(LedgerRoot(*rows[0]) if rows else LedgerRoot())

    async def seal(self) -> None:
        await self._all(_SEAL, (False,))
        await self._forget_blobs()

    async def stored(self) -> int:
        ((count,),) = await self._all(_STORED)
        return int(count)

    async def verify(self, *, expect: str | Sequence[str] | None = None, folds: Folds | None = None) -> Verification:
        roots = () if expect is None else (expect,) if isinstance(expect, str) else expect
        begun: list[_Snapshot] = []
        await self.root()
        await self._forget_blobs()
        try:
            return await anyio.to_thread.run_sync(self._verify, roots, folds, begun, abandon_on_cancel=True)
        finally:
            for one in begun:  # the thread of a cancelled check ends, too
                one.cut_off()

    def _verify(self, expect: Sequence[str], folds: Folds | None, begun: list[_Snapshot]) -> Verification:
        with snapshot(self._address) as rows:
            begun.append(rows)
            faults: list[str] = []
            if rows.execute(_GUARDS).fetchone()[0] != 8:
                faults.append("the triggers that keep events from being changed were removed or disabled")
            return verify_snapshot(rows, faults, expect=expect, folds=folds, rows=_VERIFIED)

    async def forget(self, stream: str) -> None:
        require_name(stream)
        for (kind,) in await self._all("SELECT kind FROM pursuit.streams WHERE name = %s", (stream,)):
            require_forgettable(stream, kind)
        await self._all("SELECT pursuit.forget(%s, %s, %s)", (stream, self._clock(), own_audit()))
        await self._forget_blobs()

    async def _forget_blobs(self) -> None:
        """Removes the blobs of forgotten streams, even if the process that forgot them died before it could."""
        while any(row[0] for row in await self._all(_FORGET_BLOBS, (_TOGETHER,))):
            pass

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._writer.close()
            if not self._closed:
                self._closed = True
                self._wakeups.close()
                if self._watching is not None:
                    self._watching.cancel()
                    await asyncio.wait([self._watching])
                await self._leases.close()
                await self._listener.close()
                await self._reader.close()

    async def _all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        if self._closed:
            raise LedgerUnavailable(f"the ledger {shown(self._address)} is closed; open it again")
        return await self._reader.read(query, values)

    async def _watch(self) -> None:
        """Wakes the waiters for commits of other processes while the ledger is open."""
        known: psycopg.AsyncConnection[Any] | None = None
        while True:
            if not self._wakeups.entered:
                self._wakeups.wanted.clear()
                await self._wakeups.wanted.wait()
            try:
                connection = await self._listener.connected()
                if connection is not known:
                    # It may be another server, or one that was restored.
                    await self._listener.ask(SETTLE)
                    is_standby = await self._look(compare=known is not None)
                    if not self._listener.pooled and not is_standby:
                        await connection.execute("LISTEN pursuit")
                    known = connection
                while self._wakeups.entered:
                    await self._look(compare=False)
                    await self._told(connection)
            except (psycopg.Error, LedgerUnavailable):
                await self._listener.close()
                await asyncio.sleep(RETRY_SECONDS)

    async def _told(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Waits for a notification of another process, or until it is time to look without one."""
        until = time.monotonic() + LOOK_SECONDS
        while (left := until - time.monotonic()) > 0:
            if self._listener.pooled:
                await asyncio.sleep(left)
                return
            told = [one.pid async for one in connection.notifies(timeout=left, stop_after=1)]
            if any(pid != self._writer.backend for pid in told):
                await asyncio.sleep(_GATHER_SECONDS / 2)
                return

    async def _look(self, *, compare: bool) -> bool:
        """Wakes the waiters of streams that grew since the last look.

        Now and then it compares the ends of all watched streams; on a standby each time, and returns true: a snapshot
        there does not list open transactions.
        """
        now = time.monotonic()
        compare = compare or now > self._looked + _STALE_SECONDS or now > self._compared + _COMPARE_SECONDS
        rows = await self._listener.ask(_GROWN, (self._seen, self._seen, TOO_MANY + 1))
        seen: str = rows[0][0]
        _, is_standby, names, seqs = rows[0]
        # A commit of our own may be among the rows before its answer has arrived.
        await self._writer.landed()
        if not is_standby:
            self._wakeups.grew(zip(names or (), seqs or (), strict=True))
        if len(names or ()) > TOO_MANY:
            self._wakeups.wake_all()
        # If transaction ids decrease, this is another server, which lacks the last commits of the old one.
        compare = compare or is_standby or int(seen.split(":")[1]) < int(self._seen.split(":")[1])
        self._seen, self._looked = self._seen if is_standby else seen, now
        if compare:
            self._compared = now
            self._wakeups.compare(await self._listener.ask(_ENDS, (self._wakeups.streams,)))
        return is_standby
