"""The ledger on PostgreSQL: one for many machines.

Invariant: only well-formed requests reach the database, and each batch of them is one statement (`pursuit.commit` in
the migrations). A batch has a number, so one whose answer was lost is settled by asking again, and is stored once.
"""

from __future__ import annotations

import asyncio
import math
import time
import unicodedata
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, LiteralString, Unpack, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg

from pursuit.errors import InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.ledger.chain import can_be_framed, last_ever, written_root
from pursuit.ledger.contract import (
    ANY,
    LEASE_SECONDS,
    Anywhere,
    AppendOptions,
    Bell,
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
)
from pursuit.ledger.leases import Lease, Leases, fenced
from pursuit.ledger.locks import require_name
from pursuit.ledger.postgres_schema import (
    RETRY_SECONDS,
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
from pursuit.ledger.schema import PATIENCE_SECONDS
from pursuit.ledger.sqlite import (
    CHUNK,
    LARGEST,
    LONGEST_WORD,
    MOST_RANKED,
    TOO_MANY,
    WORD,
    new_request,
    page_query,
    rarest,
    search_words,
    stream_page,
    stream_row,
)
from pursuit.ledger.tombstones import require_forgettable
from pursuit.ledger.verify import verify_snapshot
from pursuit.ledger.watch import Bells, HungBell, follow
from pursuit.ledger.writer import MOST_IN_A_BATCH, AppendRequest, refused

POLL_SECONDS = 1.0
"""How often a process looks for commits of others when no notification arrives."""
_GATHER_SECONDS = 0.02
"""Notifications within this time are one: each commit of this process notifies it, too."""

_COMMIT = "SELECT * FROM pursuit.commit(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_COLUMNS = "id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary"
_ROW = f"SELECT {_COLUMNS} FROM pursuit.streams"  # noqa: S608 - the columns stand above
_EVENTS = (
    "SELECT seq, position, at, type, body, hash FROM pursuit.events "
    "WHERE stream = (SELECT id FROM pursuit.streams WHERE name = %s) AND seq > %s ORDER BY seq LIMIT %s"
)
_GROWN = (
    "SELECT events.position, streams.name FROM pursuit.events JOIN pursuit.streams ON streams.id = events.stream "
    "WHERE events.position > %s AND events.position <= %s"
)
_DIGESTS = (
    "SELECT digest FROM pursuit.blob_refs WHERE stream = (SELECT id FROM pursuit.streams WHERE name = %s) "
    "ORDER BY digest"
)
_ROOT = "SELECT ledger.position, name, head_seq, head_hash FROM pursuit.ledger LEFT JOIN pursuit.streams ON true"
_COUNTED = (
    "SELECT one.word, (SELECT count(*) FROM (SELECT 1 FROM pursuit.words WHERE words.word = one.word LIMIT %s) "
    "AS counted) "
    "FROM (SELECT DISTINCT pursuit.stem(given) AS word FROM unnest(%s::text[]) AS given) AS one"
)
# BM25 as FTS5 computes it, so both backends rank alike.
_FOUND = f"""
WITH wanted AS (
    SELECT one.word,
           greatest(ln(greatest(ledger.texts - one.texts + 0.5, 0.5) / (one.texts + 0.5)), 1e-6)::float8 AS weight,
           greatest(ledger.words::float8 / greatest(ledger.texts, 1), 1) AS average
    FROM unnest(%s::text[], %s::bigint[]) AS one (word, texts), pursuit.ledger
), newest AS (
    SELECT DISTINCT words.stream FROM wanted JOIN pursuit.words USING (word) JOIN pursuit.streams ON id = stream
    WHERE %s::text IS NULL OR kind = %s::text ORDER BY stream DESC LIMIT %s
), ranked AS (
    SELECT stream, round(sum(
        weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / average))
    )::numeric, 9)::float8 AS closeness
    FROM newest JOIN pursuit.words USING (stream) JOIN wanted USING (word) JOIN pursuit.texts ON rowid = stream
    GROUP BY stream ORDER BY closeness DESC, stream DESC LIMIT %s
)
SELECT {_COLUMNS}, text, closeness FROM ranked
JOIN pursuit.streams ON id = stream JOIN pursuit.texts ON rowid = stream ORDER BY closeness DESC, stream DESC
"""  # noqa: S608 - the columns stand above
_HEADS_THEN = (
    "SELECT streams.name, heads.seq, heads.hash FROM (SELECT DISTINCT ON (stream) stream, seq, hash FROM "
    "(SELECT position, stream, seq, hash FROM events UNION ALL SELECT position, stream, seq, hash FROM tombstones) "
    "AS ever WHERE position <= ? ORDER BY stream, position DESC) AS heads JOIN streams ON streams.id = heads.stream"
)
_GUARDS = (
    "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'append_only%' AND tgenabled = 'O' "
    "AND tgrelid IN ('events'::regclass, 'tombstones'::regclass)"
)


class NotifiedBells(Bells):
    """Bells that a watching task rings for commits of other processes.

    Invariant: up to the position `_seen` every bell was rung; `_own` are later commits of this process, which rang by
    themselves.
    """

    def __init__(self, position: int) -> None:
        self._seen = position
        self._own: list[tuple[int, int]] = []
        self._hung: dict[str | None, set[HungBell]] = {}
        self._closed = False
        self.wanted = asyncio.Event()
        """Set while there is a bell."""

    @property
    def seen(self) -> int:
        """The position up to which all bells were rung."""
        return self._seen

    def committed(self, first: int, last: int, grown: Iterable[tuple[str, Bell | None]]) -> None:
        """Rings for a commit of this process, with events at the positions `first` to `last`."""
        if not last:
            return
        if not self._hung or first == self._seen + 1:
            self._seen = max(self._seen, last)
        else:
            self._own.append((first, last))
        for stream, by in grown:
            self._ring(stream, by)

    def grew(self, until: int, rows: Sequence[tuple[int, str]] | None) -> None:
        """Rings for the events up to a position that were not stored by this process; None: too many to list."""
        own = [(0, self._seen), *self._own]
        foreign = {name for at, name in rows or () if not any(first <= at <= last for first, last in own)}
        for stream in tuple(self._hung) if rows is None else foreign:
            self._ring(stream, None)
        self._seen = max(self._seen, until)
        self._own = [one for one in self._own if one[1] > self._seen]

    async def wait(self, bell: HungBell) -> None:
        """Sleeps until the bell rings."""
        while not bell.rung:
            self._require_open()
            if bell.stirred.is_set():
                bell.stirred = anyio.Event()
            await bell.stirred.wait()

    def _look(self) -> None:
        """A bell is hung: from now on the task watches."""
        self._require_open()
        self.wanted.set()

    @property
    def hung(self) -> bool:
        """Whether there is a bell."""
        return bool(self._hung)


class _Queued:
    """A request that waits for its batch, with the future of the task that waits for it."""

    __slots__ = ("flying", "request", "waiter")

    def __init__(self, request: AppendRequest) -> None:
        self.request = request
        self.flying = False
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class PostgresWriter:
    """Group commit: what is queued while a batch is under way is the next batch."""

    def __init__(
        self, address: str, link: Link, bells: NotifiedBells, clock: Callable[[], float], patience: float
    ) -> None:
        self._address = address
        self._link = link
        self._bells = bells
        self._clock = clock
        self._patience = patience
        self._id = uuid.uuid4()
        self._batch = 0
        self._queue: deque[_Queued] = deque()
        self._working: asyncio.Task[None] | None = None
        self._landed = asyncio.Event()
        self._landed.set()
        self._closed = False

    @property
    def backend(self) -> int | None:
        """The server's process that stores for this writer."""
        return self._link.backend

    async def append(self, request: AppendRequest) -> Head:
        """Stores one request together with all that are queued; one that is cancelled before its commit is left out."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise LedgerUnavailable(f"the ledger {shown(self._address)} is closed; open it again")
        queued = _Queued(request)
        self._queue.append(queued)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
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

    async def landed(self) -> None:
        """Returns when the batch that is under way now has its outcome."""
        await self._landed.wait()

    async def close(self) -> None:
        """Refuses new appends, and returns when the queued ones have their outcome."""
        self._closed = True
        if self._working is not None:
            await asyncio.wait([self._working])
        await self._link.close()

    async def _work(self) -> None:
        # One turn of the loop: the tasks that are ready to append now join the batch.
        await asyncio.sleep(0)
        while self._queue:
            batch: list[_Queued] = []
            while self._queue and len(batch) < MOST_IN_A_BATCH:
                queued = self._queue.popleft()
                if not queued.waiter.cancelled():
                    queued.flying = True
                    batch.append(queued)
            if batch:
                self._landed.clear()
                requests = [queued.request for queued in batch]
                try:
                    await self._store(requests)
                except Exception as error:  # noqa: BLE001 - the boundary: the tasks that wait get the error
                    _all_fail(requests, unavailable(self._address, error))
                finally:
                    self._landed.set()
                    for queued in batch:
                        if not queued.waiter.done():
                            queued.waiter.set_result(None)
        self._working = None

    async def _store(self, requests: Sequence[AppendRequest]) -> None:
        """Stores a batch; each request has its outcome afterwards."""
        self._batch += 1
        values = (self._id, self._batch, self._clock(), *_columns(requests))
        until = time.monotonic() + self._patience
        doubtful = False
        while True:
            sent = self._link.backend
            try:
                ((first, last, seqs, hashes, refusals),) = await self._link.ask(_COMMIT, values)
                break
            except psycopg.Error as error:
                if is_lost(error):
                    # With the same number again: if the lost statement was stored, the answer is its outcome.
                    doubtful = doubtful or sent is not None
                    if time.monotonic() < until:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    return _all_fail(requests, self._unknown(error) if doubtful else unavailable(self._address, error))
                if len(requests) == 1:
                    return _all_fail(requests, unavailable(self._address, error))
                # One by one, so a value that the database refuses fails its own append and no other.
                for request in requests:
                    await self._store([request])
                return None
        for request, seq, hash_, refusal in zip(requests, seqs, hashes, refusals, strict=True):
            if refusal is None:
                request.outcome = Head(seq, hash_)
            else:
                request.outcome = fenced(request.stream) if refusal == "fenced" else refused(request, refusal, seq)
        stored = [(one.stream, one.by) for one, refusal in zip(requests, refusals, strict=True) if refusal is None]
        return self._bells.committed(first, last, stored)

    def _unknown(self, error: BaseException) -> LedgerUnavailable:
        why = unavailable(self._address, error)
        message = f"{why.message}; the connection was lost during a commit, so it is not known whether it was stored"
        return LedgerUnavailable(message, **why.details)


def _all_fail(requests: Sequence[AppendRequest], error: PursuitError) -> None:
    for request in requests:
        request.outcome = LedgerUnavailable(error.message, **error.details)


def _columns(requests: Sequence[AppendRequest]) -> tuple[Array, ...]:
    """The requests as the arrays that `pursuit.commit` takes after the time."""
    blobs = [(i, digest, body) for i, one in enumerate(requests, 1) for digest, body in one.blobs]
    words = [
        (i, word, times)
        for i, one in enumerate(requests, 1)
        if one.text is not None
        for word, times in Counter(index_words(one.text)).items()
    ]
    return (
        texts(one.stream for one in requests),
        numbers(None if one.expected is ANY else one.expected for one in requests),
        numbers(one.epoch for one in requests),
        texts(one.kind for one in requests),
        texts(one.status for one in requests),
        texts(one.summary for one in requests),
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
    )


def index_words(text: str) -> Iterable[str]:
    """The words of a text in lower case and without accents, as the index has them before they are stemmed."""
    return (found.group()[:LONGEST_WORD] for found in WORD.finditer(_plain(text)))


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.lower())
    return "".join(one for one in parts if not unicodedata.combining(one))


class _Snapshot:
    """A connection of psycopg as the checks of `verify` use an SQLite one."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursors: list[psycopg.ServerCursor[Any]] = []

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Runs a query. One without values reads a whole table: it comes from the server in parts."""
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
        """Closes the cursors."""
        for cursor in self._cursors:
            cursor.close()


@contextmanager
def snapshot(address: str) -> Generator[_Snapshot]:
    """One moment of the ledger, on a connection of its own; it blocks the thread."""
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

    def __init__(self, address: str, position: int, clock: Callable[[], float], patience: float, lease: float) -> None:
        self._address = address
        self._clock = clock
        self._patience = patience
        self._reader = Link(address, patience)
        self._listener = Link(address, patience)
        self._bells = NotifiedBells(position)
        self._writer = PostgresWriter(address, Link(address, patience), self._bells, clock, patience)
        self._leases = Leases(Link(address, patience), lease)
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
        """Opens the ledger of a database, and makes or migrates its schema unless `migrate` is false.

        A lost connection is opened again for `patience` seconds. A claim is a lease of `lease` seconds. Raises
        `LedgerTooNew` for a schema of a newer release and `LedgerUnavailable` for a server that cannot be reached.
        """
        return cls(address, prepare(address, migrate=migrate), clock, patience, lease)

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands before the database: then commits of others are found by looking, once a second."""
        return self._reader.pooled

    async def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Head:
        """See `contract.Ledger.append`."""
        request = new_request(stream, expected, events, **options)
        names = (("kind", request.kind), ("status", request.status or ""), *(("type", draft.type) for draft in events))
        for name, value in names:
            if "\0" in value:
                raise InvalidArgument(f"the {name} {value!r} has a NUL, which PostgreSQL does not store", field=name)
        return await self._writer.append(request)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """See `contract.Ledger.read`."""
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
        """See `contract.Ledger.row`."""
        require_name(stream)
        rows = await self._all(f"{_ROW} WHERE name = %s", (stream,))
        return stream_row(rows[0]) if rows else None

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """See `contract.Ledger.streams`."""
        rest, values = page_query(**wanted)
        return stream_page(await self._all(f"{_ROW} {rest.replace('?', '%s')}", values), values[-1])

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[FoundStream]:
        """See `contract.Ledger.search`."""
        if limit < 1:
            raise InvalidArgument(f"a search needs a limit of at least 1, not {limit}", limit=limit)
        wanted = [part for word in search_words(words) for part in index_words(word)]
        if not wanted:
            await anyio.lowlevel.checkpoint()
            return []
        counted = {word: count for word, count in await self._all(_COUNTED, (MOST_RANKED, wanted)) if count}
        kept, most = rarest([(count, word) for word, count in counted.items()])
        limit = min(limit, LARGEST)
        counts = [counted[word] for word in kept]
        rows = await self._all(_FOUND, (kept, counts, kind, kind, max(most, limit), limit)) if kept else []
        return [FoundStream(row=stream_row(row[:9]), text=row[9].decode(), rank=row[10]) for row in rows]

    def bell(self, stream: str | None = None) -> AbstractContextManager[Bell]:
        """See `contract.Ledger.bell`."""
        if stream is not None:
            require_name(stream)
        if self._watching is None and not self._closed:
            self._watching = asyncio.create_task(self._watch())
        return self._bells.hang(stream)

    def watch(self, stream: str, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
        """See `contract.Ledger.watch`."""
        require_name(stream)
        return self._follow(stream, after)

    async def _follow(self, stream: str, after: int) -> AsyncGenerator[StoredEvent, None]:
        if self._watching is None and not self._closed:
            self._watching = asyncio.create_task(self._watch())
        async for event in follow(self._bells, self.read, stream, after):
            yield event

    async def blob(self, digest: str) -> bytes | None:
        """See `contract.Ledger.blob`."""
        if not digest.isalnum():
            return None
        rows = await self._all("SELECT body FROM pursuit.blobs WHERE digest = %s", (digest,))
        return rows[0][0] if rows else None

    async def digests(self, stream: str) -> list[str]:
        """See `contract.Ledger.digests`."""
        require_name(stream)
        return [row[0] for row in await self._all(_DIGESTS, (stream,))]

    async def claim(self, stream: str) -> Lease | None:
        """See `contract.Ledger.claim`."""
        return await self._leases.claim(stream)

    async def is_claimed(self, stream: str) -> bool:
        """See `contract.Ledger.is_claimed`."""
        return await self._leases.is_claimed(stream)

    async def holder(self, stream: str) -> Holder | None:
        """See `contract.Ledger.holder`."""
        return await self._leases.holder(stream)

    async def root(self) -> str:
        """See `contract.Ledger.root`."""
        rows = await self._all(_ROOT)
        heads = [(name, Head(seq, hash_)) for _, name, seq, hash_ in rows if can_be_framed(name, seq, hash_)]
        return written_root(rows[0][0], heads)

    async def verify(self, *, expect: str | Sequence[str] | None = None, folds: Folds | None = None) -> Verification:
        """See `contract.Ledger.verify`."""
        roots = () if expect is None else (expect,) if isinstance(expect, str) else expect
        begun: list[_Snapshot] = []
        try:
            return await anyio.to_thread.run_sync(self._verify, roots, folds, begun, abandon_on_cancel=True)
        finally:
            for one in begun:  # the thread of a check that was cancelled ends, too
                one.cut_off()

    def _verify(self, expect: Sequence[str], folds: Folds | None, begun: list[_Snapshot]) -> Verification:
        with snapshot(self._address) as rows:
            begun.append(rows)
            position = rows.execute("SELECT position FROM ledger").fetchone()[0]
            faults: list[str] = []
            if position != last_ever(rows):
                faults.append("the number of the last position was changed: the next event would leave a gap")
            if rows.execute(_GUARDS).fetchone()[0] != 4:
                faults.append("the triggers that keep events from being changed were removed or disabled")
            return verify_snapshot(rows, position, faults, expect=expect, folds=folds, heads_then=_HEADS_THEN)

    async def forget(self, stream: str) -> None:
        """See `contract.Ledger.forget`."""
        require_name(stream)
        for (kind,) in await self._all("SELECT kind FROM pursuit.streams WHERE name = %s", (stream,)):
            require_forgettable(stream, kind)
        await self._all("SELECT pursuit.forget(%s, %s)", (stream, self._clock()))

    async def close(self) -> None:
        """See `contract.Ledger.close`."""
        with anyio.CancelScope(shield=True):
            await self._writer.close()
            if not self._closed:
                self._closed = True
                self._bells.close()
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
        """Rings the bells for commits of other processes, for as long as the ledger is open."""
        while True:
            if not self._bells.hung:
                self._bells.wanted.clear()
                await self._bells.wanted.wait()
            try:
                connection = await self._listener.connected()
                if not self._listener.pooled:
                    await connection.execute("LISTEN pursuit")
                await self._look()
                while self._bells.hung:
                    if await self._told(connection):
                        await self._look()
            except (psycopg.Error, LedgerUnavailable):
                await self._listener.close()
                await asyncio.sleep(RETRY_SECONDS)

    async def _told(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Waits for a word of another process, or until it is time to look without one."""
        if self._listener.pooled:
            await asyncio.sleep(POLL_SECONDS)
            return True
        until = time.monotonic() + POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            told = [one.pid async for one in connection.notifies(timeout=left, stop_after=1)]
            if told:
                await asyncio.sleep(_GATHER_SECONDS)
                told += [one.pid async for one in connection.notifies(timeout=0)]
            if any(pid != self._writer.backend for pid in told):
                return True
        return True

    async def _look(self) -> None:
        seen = self._bells.seen
        ((last,),) = await self._all("SELECT position FROM pursuit.ledger")
        if last <= seen:
            return
        rows = await self._all(_GROWN, (seen, last)) if last - seen <= TOO_MANY else None
        # A commit of our own that is among the rows may not have come back yet.
        await self._writer.landed()
        self._bells.grew(last, rows)
