"""Roots: each is one hash over the previous root and the heads of the streams that have grown since.

Invariant: a root never changes, so a noted root stays checkable while the ledger grows, and after an ended stream is
forgotten. An earlier release numbered all events, and its roots are hashes over all heads: they are checked by the
positions that it stored.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Generator, Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from pursuit.errors import InvalidArgument, advice
from pursuit.ledger.chain import GENESIS, SqlConnection, can_be_framed, root
from pursuit.ledger.contract import Head

_TAG = b"pursuit root 2\0"
_FRAME = struct.Struct(">QQ")
_ROOT = re.compile(r"(\d{1,18}):([0-9a-f]{64})")
_HEAD = re.compile(r"([a-z0-9][a-z0-9_-]{0,127})@(\d{1,18}):([0-9a-f]{64})")

_LAST = "SELECT number, events, hash FROM roots ORDER BY number DESC LIMIT 1"
_EVER = "SELECT position, stream, seq, hash FROM events UNION ALL SELECT position, stream, seq, hash FROM tombstones"
_HEAD_HASH = (
    "coalesce((SELECT hash FROM events WHERE events.stream = {0}.stream AND events.seq = {0}.seq), "
    "(SELECT hash FROM tombstones WHERE tombstones.stream = {0}.stream AND tombstones.seq = {0}.seq))"
)
# Before the first root, the tombstones of an older release count as new.
_GROWN = (
    "SELECT stream, max(seq) AS seq FROM (SELECT stream, seq FROM events WHERE position > :since "
    "UNION ALL SELECT stream, seq FROM tombstones WHERE :since = 0) GROUP BY stream"
)
_FRESH = (
    f"SELECT streams.name, grown.stream, grown.seq, {_HEAD_HASH.format('grown')}, "  # noqa: S608 - the parts stand above
    "coalesce((SELECT max(seq) FROM sealed WHERE sealed.stream = grown.stream), 0) AS last "
    "FROM ({}) AS grown JOIN streams ON streams.id = grown.stream WHERE grown.seq > last ORDER BY streams.name"
)
_SEALED = (
    f"SELECT sealed.number, streams.name, sealed.stream, sealed.seq, {_HEAD_HASH.format('sealed')} AS hash "  # noqa: S608
    "FROM sealed LEFT JOIN streams ON streams.id = sealed.stream ORDER BY sealed.number, streams.name"
)
_HEADS_THEN = (
    "SELECT streams.name, ever.seq, ever.hash FROM "  # noqa: S608
    f"(SELECT stream, max(position) AS last FROM ({_EVER}) AS known WHERE position <= ? GROUP BY stream) AS heads "
    f"JOIN ({_EVER}) AS ever ON ever.position = heads.last JOIN streams ON streams.id = heads.stream"
)


class LedgerRoot(NamedTuple):
    """One root: its number, the number of events ever stored until then, and the hash."""

    number: int = 0
    events: int = 0
    hash: bytes = GENESIS

    def __str__(self) -> str:
        return f"{self.events}:{self.hash.hex()}"

    def next(self, heads: Iterable[tuple[str, int, bytes]], events: int) -> LedgerRoot:
        """The root over this one and the new heads, ordered by name, after `more` further events."""
        total = sha256(_TAG + self.hash + _FRAME.pack(self.number + 1, self.events + events))
        for name, seq, hash_ in heads:
            total.update(struct.pack(">I", len(name)) + name.encode() + struct.pack(">Q", seq) + hash_)
        return LedgerRoot(self.number + 1, self.events + events, total.digest())


def parse_root(text: str) -> tuple[int, str]:
    match = _ROOT.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a root; write EVENTS:HASH, as `{advice('pursuit verify')}` prints it, or "
            "STREAM@SEQ:HASH from a report"
        )
    return int(match[1]), match[2]


def require_roots(texts: Iterable[str]) -> None:
    for text in texts:
        if not _HEAD.fullmatch(text.strip()):
            parse_root(text)


def last_root(connection: SqlConnection) -> LedgerRoot:
    row = connection.execute(f"SELECT * FROM ({_LAST}) AS last WHERE number > ?", (0,)).fetchone()  # noqa: S608
    return LedgerRoot(*row) if row is not None and _is_root(row) else LedgerRoot()


def _is_root(row: Any) -> bool:
    return isinstance(row[0], int) and isinstance(row[1], int) and isinstance(row[2], bytes)


def last_position(connection: sqlite3.Connection) -> int:
    """The position of the newest event ever stored in a file."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def sealed_position(connection: sqlite3.Connection) -> int:
    """The position of a file up to which all events are sealed."""
    row = connection.execute("SELECT position FROM roots ORDER BY number DESC LIMIT 1").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def seal(connection: sqlite3.Connection, now: float, alone: int | None = None) -> None:
    """Makes the next root of a file if a stream (or one given stream) has grown, within the caller's transaction."""
    last, position = last_root(connection), sealed_position(connection)
    if alone is None:
        grown, given, position = _GROWN, {"since": position}, last_position(connection)
    else:
        grown, given = "SELECT stream, max(seq) AS seq FROM events WHERE stream = :alone", {"alone": alone}
    rows = [row for row in connection.execute(_FRESH.format(grown), given) if can_be_framed(row[0], row[2], row[3])]
    if not rows:
        return
    made = last.next([(name, seq, hash_) for name, _, seq, hash_, _ in rows], sum(row[2] - row[4] for row in rows))
    values = (made.number, made.events, now, bytearray(made.hash), position)
    connection.execute("INSERT INTO roots (number, events, at, hash, position) VALUES (?, ?, ?, ?, ?)", values)
    connection.executemany(
        "INSERT INTO sealed (stream, seq, number) VALUES (?, ?, ?)", [(row[1], row[2], made.number) for row in rows]
    )


def check_roots(connection: SqlConnection) -> Generator[str, None, LedgerRoot]:
    """The faults of the roots and of the events that they cover; returns the last root."""
    groups = _sealed_heads(connection)
    group = next(groups, None)
    counted: dict[int, int] = {}
    last = LedgerRoot()
    for row in connection.execute("SELECT number, events, hash FROM roots ORDER BY number").fetchall():
        if not _is_root(row) or row[0] != last.number + 1:
            yield f"root {last.number + 1}: it is missing, or its row was changed"
            return last
        heads: list[tuple[Any, ...]] = []
        while group is not None and group[0] <= row[0]:
            heads += group[1]
            group = next(groups, None)
        if not all(can_be_framed(name, seq, hash_) for name, _, seq, hash_ in heads):
            yield f"root {row[0]}: an event that it covers is missing"
            return LedgerRoot(*row)
        grown = sum(seq - counted.get(stream, 0) for _, stream, seq, _ in heads)
        counted |= {stream: seq for _, stream, seq, _ in heads}
        if not heads or last.next([(name, seq, hash_) for name, _, seq, hash_ in heads], grown) != LedgerRoot(*row):
            yield f"root {row[0]}: it, or the heads of the streams that it covers, were changed"
            return LedgerRoot(*row)
        last = LedgerRoot(*row)
    if group is not None:
        yield f"root {last.number + 1}: it is missing, but its heads exist"
    return last


def _sealed_heads(connection: SqlConnection) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    for number, rows in groupby(connection.execute(_SEALED), key=lambda row: row[0]):
        yield number, [row[1:] for row in rows]


def check_expected(connection: SqlConnection, expected: str) -> Iterator[str]:
    """The fault if the ledger no longer contains everything that a root or a head covers."""
    if match := _HEAD.fullmatch(expected.strip()):
        found = (
            f"SELECT {_HEAD_HASH.format('wanted')} FROM "  # noqa: S608 - the part stands above
            "(SELECT id AS stream, CAST(? AS BIGINT) AS seq FROM streams WHERE name = ?) AS wanted"
        )
        row = connection.execute(found, (int(match[2]), match[1])).fetchone()
        if row is None or row[0] is None or row[0] != bytes.fromhex(match[3]):
            yield f"event {match[2]} of stream {match[1]} is missing, or differs from the expected head"
        return
    events, hash_ = parse_root(expected)
    if str(LedgerRoot()) == f"{events}:{hash_}":
        return
    known = connection.execute("SELECT 1 FROM roots WHERE events = ? AND hash = ?", (events, bytes.fromhex(hash_)))
    if known.fetchone() is not None:
        return
    rows = connection.execute(_HEADS_THEN, (events,)).fetchall()
    heads = [(name, Head(seq, then)) for name, seq, then in rows if can_be_framed(name, seq, then)]
    if root(heads) != hash_:
        yield f"the ledger up to event {events} does not match the expected root: it was cut or changed"
