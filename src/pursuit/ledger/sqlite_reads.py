"""What can be asked of an SQLite ledger without changing it.

Owns: the queries, the listing's cursor, and the pauses in long reads. Knows nothing of who appends.
Invariant: no read transaction outlives a turn of the event loop, so that a slow reader never holds up a checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import msgspec

from pursuit.errors import InvalidArgument
from pursuit.ledger.contract import Found, Head, Page, StoredEvent, StreamRow
from pursuit.ledger.roots import current_root
from pursuit.ledger.schema import unavailable
from pursuit.ledger.words import telling_words

CHUNK = 2000
"""Rows that are read before other tasks get their turn."""

LARGEST = 2**63 - 1
_TOO_MANY = 10_000
_ROW = "SELECT id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary FROM streams"
_EVENTS = (
    "SELECT seq, position, at, type, body, hash FROM events "
    "WHERE stream = (SELECT id FROM streams WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?"
)
_GROWN = (
    "SELECT DISTINCT streams.name FROM events JOIN streams ON streams.id = events.stream "
    "WHERE events.position > ? AND events.position <= ?"
)
_MOST_RANKED = 3_000
"""Ranking a match takes a few microseconds, counting it a hundredth of that."""
_GLANCE = 500
_COUNTED = 8
"""A word that more texts have than a glance counts is counted on, the first so many; of more there is no room for."""
_NEWEST = 1_000
"""Of words that more texts have than can be ranked only so many matches are, the newest."""
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM texts WHERE texts MATCH ? LIMIT ?)"
# The matches are ordered by their numbers alone; texts are read only of those that are wanted. FTS5 gives the newest
# first without a sort, so that no more are ranked than asked for.
_FOUND = (
    "SELECT streams.id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary, texts.text, "
    "found.closeness FROM (SELECT id, closeness FROM (SELECT texts.rowid AS id, -bm25(texts) AS closeness FROM texts "
    "WHERE texts MATCH ?1 AND (?2 IS NULL OR (SELECT kind FROM streams WHERE streams.id = texts.rowid) = ?2) "
    "ORDER BY texts.rowid DESC LIMIT ?4) ORDER BY closeness DESC, id DESC LIMIT ?3) AS found "
    "JOIN streams ON streams.id = found.id JOIN texts ON texts.rowid = found.id "
    "ORDER BY found.closeness DESC, found.id DESC"
)
_DIGESTS = "SELECT digest FROM blob_refs WHERE stream = (SELECT id FROM streams WHERE name = ?) ORDER BY digest"


class SqliteReads:
    """Queries on a connection that only reads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._version = -1

    async def events(self, stream: str, after: int, limit: int | None) -> list[StoredEvent]:
        """The events with `seq > after`, in order."""
        found: list[StoredEvent] = []
        while limit is None or len(found) < limit:
            want = CHUNK if limit is None else min(CHUNK, limit - len(found))
            rows = self._all(_EVENTS, (stream, after, want))
            found += [StoredEvent(stream, *row) for row in rows]
            await anyio.lowlevel.checkpoint()
            if len(rows) < want:
                break
            after = rows[-1][0]
        return found

    def row(self, stream: str) -> StreamRow | None:
        """What the listing says of one stream."""
        rows = self._all(f"{_ROW} WHERE name = ?", (stream,))
        return _stream_row(rows[0]) if rows else None

    def page(
        self,
        *,
        kind: str | None,
        status: str | Sequence[str] | None,
        since: float | None,
        until: float | None,
        cursor: str | None,
        limit: int,
    ) -> Page:
        """Streams by creation time, newest first."""
        if limit < 1:
            raise InvalidArgument(f"a page needs a limit of at least 1, not {limit}", limit=limit)
        wanted = (status,) if isinstance(status, str) else status
        conditions: list[tuple[str, Sequence[Any]]] = [("1", ())]
        if kind is not None:
            conditions.append(("kind = ?", (kind,)))
        if wanted is not None:
            conditions.append((f"status IN ({', '.join('?' for _ in wanted)})", wanted))
        if since is not None:
            conditions.append(("created_at >= ?", (since,)))
        if until is not None:
            conditions.append(("created_at < ?", (until,)))
        if cursor is not None:
            conditions.append(("(created_at, id) < (?, ?)", _read_cursor(cursor)))
        where = " AND ".join(text for text, _ in conditions)
        values = [value for _, some in conditions for value in some]
        # One row more than asked for tells whether there is a next page.
        rows = self._all(f"{_ROW} WHERE {where} ORDER BY created_at DESC, id DESC LIMIT ?", (*values, limit + 1))
        more = len(rows) > limit
        del rows[limit:]
        return Page(tuple(map(_stream_row, rows)), _write_cursor(rows[-1][4], rows[-1][0]) if more else None)

    def search(self, words: str, *, kind: str | None, limit: int) -> list[Found]:
        """Streams by their texts, the best match first."""
        if limit < 1:
            raise InvalidArgument(f"a search needs a limit of at least 1, not {limit}", limit=limit)
        query, most = self._query(telling_words(words))
        rows = self._all(_FOUND, (query, kind, min(limit, LARGEST), max(most, min(limit, LARGEST)))) if query else []
        return [Found(row=_stream_row(row[:9]), text=row[9], rank=row[10]) for row in rows]

    def _query(self, words: Sequence[str]) -> tuple[str, int]:
        """The rarest of these words, as many as do not make too many matches to rank, and how many of those to rank.

        All of them in a small ledger; where even the rarest is in too many texts, it alone. Quoted, a word is a word to
        FTS5, whatever it is.
        """
        glanced = {word: self._count(word, _GLANCE) for word in words}
        common = [word for word, count in glanced.items() if count == _GLANCE][:_COUNTED]
        counted = [(count, word) for word, count in glanced.items() if 0 < count < _GLANCE]
        there = sorted([*counted, *((self._count(word, _MOST_RANKED), word) for word in common)])
        if there and there[0][0] >= _MOST_RANKED:
            return f'"{there[0][1]}"', _NEWEST
        room = _MOST_RANKED
        kept: list[str] = []
        for count, word in there:
            room -= count
            if room < 0:
                break
            kept.append(f'"{word}"')
        return " OR ".join(kept), _MOST_RANKED

    def _count(self, word: str, most: int) -> int:
        """How many texts have a word, counted up to so many."""
        return self._all(_COUNT, (f'"{word}"', most))[0][0]

    def blob(self, digest: str) -> bytes | None:
        """The bytes of a blob."""
        rows = self._all("SELECT body FROM blobs WHERE digest = ?", (digest,))
        return rows[0][0] if rows else None

    def digests(self, stream: str) -> list[str]:
        """The blobs of a stream."""
        return [row[0] for row in self._all(_DIGESTS, (stream,))]

    def root(self) -> str:
        """The root of what is stored now."""
        with self._refusals():
            return current_root(self._connection)

    def last_position(self, known: int) -> int:
        """See `watch.Growth`."""
        version = self._all("PRAGMA data_version", ())[0][0]
        if version == self._version:
            return known
        last: int = self._all("SELECT coalesce(max(position), 0) FROM events", ())[0][0]
        self._version = version
        return last

    def grown(self, after: int, until: int) -> list[str] | None:
        """See `watch.Growth`."""
        if until - after > _TOO_MANY:
            return None
        return [row[0] for row in self._all(_GROWN, (after, until))]

    def _all(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._refusals():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _refusals(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unavailable(self._path, error) from error


def _stream_row(row: tuple[int, str, str, str, float, float, int, bytes, str]) -> StreamRow:
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


def _write_cursor(created_at: float, identity: int) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((created_at, identity))).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, int]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, identity = msgspec.json.decode(text, type=tuple[float, int])
        if not -LARGEST <= identity <= LARGEST:
            raise ValueError("no row has such a number")
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidArgument(
            f"{cursor!r} is no cursor of this ledger: use `next_cursor` of the page before, or none to start over",
            cursor=cursor,
        ) from error
    return created_at, identity
