"""The ledger in an SQLite file: the default, with no server to start.

Invariant: only well-formed requests reach the writer, so only the disk can refuse them there.
"""

from __future__ import annotations

import base64
import binascii
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import anyio.lowlevel
import anyio.to_thread
import msgspec

from pursuit.errors import InvalidArgument, LedgerUnavailable
from pursuit.ledger.contract import (
    FORGOTTEN,
    Anywhere,
    AppendOptions,
    Claim,
    Draft,
    Folds,
    FoundStream,
    Head,
    Holder,
    QueuedJob,
    StoredEvent,
    StreamFilter,
    StreamPage,
    StreamRow,
    Verification,
    Wakeup,
)
from pursuit.ledger.locks import StreamClaim, holder_of, is_claimed, require_name, take_claim
from pursuit.ledger.roots import last_position, last_root, sealed_position
from pursuit.ledger.schema import PATIENCE_SECONDS, Handles, open_file, real_path, unavailable
from pursuit.ledger.verify import forget_stream, seal_file, verify_file
from pursuit.ledger.watch import Wakeups, follow
from pursuit.ledger.writer import AppendRequest, Waiter, Writer

MISSION = "mission"
MAX_WORDS = 32
MAX_WORD = 64
WORD = re.compile(r"[^\W_]+")
_STOP_WORDS = frozenset(
    WORD.findall("""
    about above after again all also am an and any are as at be because been before being below between both but by can
    could did do does doing done down during each else ever every few find for from further get gets getting give go
    goes going had has have having he her here hers him his how if in into is it its just let like make makes making may
    me might more most must my need no nor not now of off on once one only or other our out over own per please put same
    set shall she should so some such than that the their them then there these they this those through to too under
    until up upon us use used using very via was way we were what when where whether which while who why will with
    within without would you your
    """)
)


def search_words(text: str) -> list[str]:
    """The words of a text that are worth a search, each once, in order, in lower case; at most `MAX_WORDS`.

    They hold letters and digits only, so they cannot be operators of FTS5. A single ASCII letter is omitted; in
    other scripts one character may be a word.
    """
    words = dict.fromkeys(found.group().lower()[:MAX_WORD] for found in WORD.finditer(text))
    kept = [word for word in words if word not in _STOP_WORDS and (len(word) > 1 or not word.isascii())]
    return kept[:MAX_WORDS]


def rarest(counted: Sequence[tuple[int, str]], most: int) -> tuple[list[str], int]:
    """The rarest of these words, as many as can be ranked, and the number of texts to rank."""
    there = sorted(counted)
    if there and there[0][0] >= most:
        return [there[0][1]], _NEWEST
    room = most
    kept: list[str] = []
    for count, word in there:
        room -= count
        if room < 0:
            break
        kept.append(word)
    return kept, most


CHUNK = 2000
"""Rows to read before other tasks get their turn."""

LARGEST = 2**63 - 1
TOO_MANY = 10_000
_ROW = "SELECT id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary FROM streams"
_EVENTS = (
    "SELECT seq, at, type, body, hash FROM events "
    "WHERE stream = (SELECT id FROM streams WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?"
)
_GROWN = (
    "SELECT DISTINCT streams.name FROM events JOIN streams ON streams.id = events.stream "
    "WHERE events.position > ? AND events.position <= ?"
)
MAX_RANKED = 3_000
"""Ranking a match takes a few microseconds, counting it a hundredth of that."""
_GLANCE = 500
_COUNTED = 8
"""Each word is counted up to a glance; of those that reach it, this many are counted up to `MAX_RANKED`."""
_NEWEST = 1_000
"""If even the rarest word has too many matches to rank, only this many are ranked, the newest."""
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM texts WHERE texts MATCH ? LIMIT ?)"
# The matches are ordered only by their ids, and only the texts of the requested ones are read. FTS5 returns the
# newest first without a sort, so only the requested number is ranked.
_FOUND = (
    "SELECT streams.id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary, texts.text, "
    "found.closeness FROM (SELECT id, closeness FROM (SELECT texts.rowid AS id, -bm25(texts) AS closeness FROM texts "
    "WHERE texts MATCH ? AND (? IS NULL OR (SELECT kind FROM streams WHERE streams.id = texts.rowid) = ?) "
    "ORDER BY texts.rowid DESC LIMIT ?) ORDER BY closeness DESC, id DESC LIMIT ?) AS found "
    "JOIN streams ON streams.id = found.id JOIN texts ON texts.rowid = found.id "
    "ORDER BY found.closeness DESC, found.id DESC"
)
_DIGESTS = "SELECT digest FROM blob_refs WHERE stream = (SELECT id FROM streams WHERE name = ?) ORDER BY digest"


class SqliteReads:
    """Queries on a connection that only reads.

    No read transaction outlives a pass of the event loop, so a slow reader never holds up a checkpoint.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._version = -1

    def page(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        rest, values = page_query(**wanted)
        return stream_page(self.all(f"{_ROW} {rest}", values), values[-1])

    def search(self, words: str, *, kind: str | None, limit: int) -> list[FoundStream]:
        if limit < 1:
            raise InvalidArgument(f"a search needs a limit of at least 1, not {limit}", limit=limit)
        query, most = self._query(search_words(words))
        limit = min(limit, LARGEST)
        rows = self.all(_FOUND, (query, kind, kind, max(most, limit), limit)) if query else []
        return [FoundStream(row=stream_row(row[:9]), text=row[9], rank=row[10]) for row in rows]

    def _query(self, words: Sequence[str]) -> tuple[str, int]:
        """The query for the rarest of these words with few enough matches, and the number of matches to rank.

        In a small ledger that is all words; if even the rarest is in too many texts, only that one. Quotes keep FTS5
        from reading a word as an operator.
        """
        glanced = {word: self._count(word, _GLANCE) for word in words}
        common = [word for word, count in glanced.items() if count == _GLANCE][:_COUNTED]
        counted = [(count, word) for word, count in glanced.items() if 0 < count < _GLANCE]
        counted += [(self._count(word, MAX_RANKED), word) for word in common]
        kept, most = rarest(counted, MAX_RANKED)
        return " OR ".join(f'"{word}"' for word in kept), most

    def _count(self, word: str, most: int) -> int:
        """The number of texts with a word, counted up to `most`."""
        return self.all(_COUNT, (f'"{word}"', most))[0][0]

    def last_position(self, known: int) -> int:
        version = self.all("PRAGMA data_version", ())[0][0]
        if version == self._version:
            return known
        last: int = self.all("SELECT coalesce(max(position), 0) FROM events", ())[0][0]
        self._version = version
        return last

    def grown(self, after: int, until: int) -> list[str] | None:
        if until - after > TOO_MANY:
            return None
        return [row[0] for row in self.all(_GROWN, (after, until))]

    def all(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self.refusals():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def refusals(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unavailable(self._path, error) from error


def stream_row(row: tuple[int, str, str, str, float, float, int, bytes, str]) -> StreamRow:
    """Converts a row of the table of streams."""
    _, name, kind, status, created_at, updated_at, seq, hash_, summary = row
    return StreamRow(
        name=name,
        kind=kind,
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        head=Head(seq, hash_),
        summary=msgspec.json.decode(summary),
    )


def page_query(**wanted: Unpack[StreamFilter]) -> tuple[str, list[Any]]:
    """The clauses of a page query from WHERE on, and their parameters; an extra row shows that a next page exists."""
    limit, status, cursor = wanted.get("limit", 100), wanted.get("status"), wanted.get("cursor")
    if limit < 1:
        raise InvalidArgument(f"a page needs a limit of at least 1, not {limit}", limit=limit)
    single = (("kind = ?", "kind"), ("created_at >= ?", "since"), ("created_at < ?", "until"))
    conditions: list[tuple[str, Sequence[Any]]] = [("1 = 1", ())]
    conditions += [(text, (wanted[name],)) for text, name in single if wanted.get(name) is not None]
    if status is not None:
        some = (status,) if isinstance(status, str) else status
        conditions.append((f"status IN ({', '.join('?' for _ in some)})" if some else "1 = 0", some))
    if cursor is not None:
        conditions.append(("(created_at, id) < (?, ?)", read_cursor(cursor)))
    where = " AND ".join(text for text, _ in conditions)
    values = [value for _, some in conditions for value in some]
    return f"WHERE {where} ORDER BY created_at DESC, id DESC LIMIT ?", [*values, min(limit, LARGEST - 1) + 1]


def stream_page(rows: list[Any], asked: int, as_row: Callable[[Any], StreamRow] = stream_row) -> StreamPage:
    """The page from the rows of such a query; its cursor is the time and number of its last stream."""
    shown = rows[: asked - 1]
    cursor = None
    if len(rows) == asked:
        place = msgspec.json.encode((shown[-1][4], shown[-1][0]))
        cursor = base64.urlsafe_b64encode(place).decode().rstrip("=")
    return StreamPage(tuple(map(as_row, shown)), cursor)


def read_cursor(cursor: str) -> tuple[float, int]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, identity = msgspec.json.decode(text, type=tuple[float, int])
        if not -LARGEST <= identity <= LARGEST:
            raise ValueError("this id is invalid")
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidArgument(
            f"{cursor!r} is not a cursor of this ledger: use `next_cursor` of the previous page, or none to start over",
            cursor=cursor,
        ) from error
    return created_at, identity


_encode = msgspec.json.Encoder().encode


class SqliteLedger:
    """`contract.Ledger` over one SQLite file."""

    def __init__(
        self, path: Path, handles: Handles, clock: Callable[[], float], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._path = path
        self._handles = handles
        self._clock = clock
        self._reads = SqliteReads(path, handles.reader)
        self._wakeups = Wakeups(self._reads)
        self._writer = Writer(path, handles, self._wakeups, clock, patience)
        self._closed = False

    @classmethod
    def open(
        cls, path: Path, *, clock: Callable[[], float] = time.time, patience: float = PATIENCE_SECONDS
    ) -> SqliteLedger:
        """Opens the ledger in this file; only the owner can read a new file, or a folder made for it.

        An append fails if another process keeps the ledger locked for longer than `patience` seconds. Raises
        `LedgerTooNew` for a file of a newer release and `LedgerUnavailable` for one that is not a ledger.
        """
        path = real_path(path)
        handles = open_file(path)
        try:
            return cls(path, handles, clock, patience)
        except BaseException:
            handles.close()
            raise

    def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Waiter:
        """See `contract.Ledger.append`; a claim is a lock of the operating system, which cannot be lost."""
        return self._writer.append(new_request(stream, expected, events, **options))

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        require_name(stream)
        found: list[StoredEvent] = []
        while limit is None or len(found) < limit:
            want = CHUNK if limit is None else min(CHUNK, limit - len(found))
            rows = self._reads.all(_EVENTS, (stream, after, want))
            found += [StoredEvent(stream, *row) for row in rows]
            await anyio.lowlevel.checkpoint()
            if len(rows) < want:
                break
            after = rows[-1][0]
        return found

    async def row(self, stream: str) -> StreamRow | None:
        require_name(stream)
        await anyio.lowlevel.checkpoint()
        rows = self._reads.all(f"{_ROW} WHERE name = ?", (stream,))
        return stream_row(rows[0]) if rows else None

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        await anyio.lowlevel.checkpoint()
        return self._reads.page(**wanted)

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[FoundStream]:
        await anyio.lowlevel.checkpoint()
        return self._reads.search(words, kind=kind, limit=limit)

    def wakeup(self, stream: str | None = None) -> AbstractContextManager[Wakeup]:
        if stream is not None:
            require_name(stream)
        return self._wakeups.enter(stream)

    def watch(self, stream: str, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
        require_name(stream)
        return follow(self._wakeups, self.read, stream, after)

    async def blob(self, digest: str) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        rows = self._reads.all("SELECT body FROM blobs WHERE digest = ?", (digest,))
        return rows[0][0] if rows else None

    async def digests(self, stream: str) -> list[str]:
        require_name(stream)
        await anyio.lowlevel.checkpoint()
        return [row[0] for row in self._reads.all(_DIGESTS, (stream,))]

    async def claim(self, stream: str) -> StreamClaim | None:
        await anyio.lowlevel.checkpoint()
        return take_claim(self._path.parent / "locks", stream)

    async def is_claimed(self, stream: str) -> bool:
        await anyio.lowlevel.checkpoint()
        return is_claimed(self._path.parent / "locks", stream)

    async def holder(self, stream: str) -> Holder | None:
        await anyio.lowlevel.checkpoint()
        return holder_of(self._path.parent / "locks", stream)

    async def root(self) -> str:
        await self.seal()
        with self._reads.refusals():
            return str(last_root(self._handles.reader))

    async def seal(self) -> None:
        """See `contract.Ledger.seal`; the processes of a machine wait for each other."""
        await anyio.lowlevel.checkpoint()
        with self._reads.refusals():
            grown = last_position(self._handles.reader) > sealed_position(self._handles.reader)
        if grown:
            await anyio.to_thread.run_sync(seal_file, self._path, self._clock())

    async def stored(self) -> int:
        await anyio.lowlevel.checkpoint()
        with self._reads.refusals():
            sealed = sealed_position(self._handles.reader)
            ((fresh,),) = self._reads.all("SELECT count(*) FROM events WHERE position > ?", (sealed,))
            return last_root(self._handles.reader).events + fresh

    async def verify(self, *, expect: str | Sequence[str] | None = None, folds: Folds | None = None) -> Verification:
        roots = () if expect is None else (expect,) if isinstance(expect, str) else expect
        with suppress(LedgerUnavailable):  # a read-only ledger keeps its existing roots
            await self.seal()
        return await verify_file(self._path, roots, folds)

    async def forget(self, stream: str) -> None:
        require_name(stream)
        await anyio.to_thread.run_sync(forget_stream, self._path, stream, self._clock())

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._writer.close()
        if not self._closed:
            self._closed = True
            self._wakeups.close()
            self._handles.close()


def new_request(
    stream: str,
    expected: int | Anywhere,
    events: Sequence[Draft],
    *,
    kind: str = MISSION,
    status: str | None = None,
    summary: Mapping[str, Any] | msgspec.Struct | None = None,
    blobs: Mapping[str, bytes] | None = None,
    text: str | None = None,
    by: Wakeup | None = None,
    claim: Claim | None = None,
    job: QueuedJob | None = None,
) -> AppendRequest:
    """Makes the writer's request for an append; raises `InvalidArgument` if it is not well formed."""
    require_name(stream)
    if not events and status is None and summary is None and text is None:
        why = f"an append to stream {stream} needs an event, a status, a summary or a text"
        raise InvalidArgument(why, stream=stream)
    for draft in events:
        if not draft.type.isascii():
            _check_text("type", draft.type)
        if type(draft.body) is not bytes:
            raise InvalidArgument(f"the body of an event must be bytes, not {type(draft.body).__name__}", stream=stream)
    if kind is not MISSION or text is not None:
        _check_text("kind", kind)
        _check_text("text", text or "")
    if status is not None:
        _check_text("status", status)
        if status == FORGOTTEN:
            raise InvalidArgument(f"the status {FORGOTTEN!r} is reserved for forgotten streams", stream=stream)
    for digest, body in blobs.items() if blobs else ():
        if sha256(body).hexdigest() != digest:
            raise InvalidArgument(f"{digest!r} is not the sha256 of the blob that it names", digest=digest)
    return AppendRequest(
        stream=stream,
        expected=expected,
        events=events,
        kind=kind,
        status=status,
        summary=None if summary is None else _summary_text(summary),
        blobs=tuple(blobs.items()) if blobs else (),
        text=text,
        by=by,
        epoch=None if claim is None else claim.epoch,
        job=job,
    )


def _check_text(name: str, text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the {name} {text!r} is not valid text", field=name) from None


def _summary_text(summary: Mapping[str, Any] | msgspec.Struct) -> str:
    try:
        return _encode(summary).decode()
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the summary cannot be written as JSON: {error}") from error
