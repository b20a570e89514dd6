"""The hash chain that makes a changed, lost or reordered event visible.

Each event is hashed onto the one before it, and a root is one hash over the heads of all streams. Two different
histories never share a frame, because the length of each part comes before the part.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Protocol

from pursuit.errors import InvalidArgument, advice
from pursuit.ledger.contract import Head


class SqlConnection(Protocol):
    """What checks ask: an SQLite connection, or one to PostgreSQL in its guise; a `?` stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """The cursor with the rows."""
        ...


GENESIS = bytes(32)
"""The hash before the first event of a stream."""

_EVENT = sha256(b"pursuit event 1\0")
"""The beginning of every event's hash; copying a started hash costs less than starting one."""
_ROOT_TAG = b"pursuit root 1\0"
_EVENT_FRAME = struct.Struct(">QdIIQ")
_HEAD_FRAME = struct.Struct(">IQI")


def link(previous: bytes, stream: str, seq: int, *, at: float, type_: str, body: bytes) -> bytes:
    """The hash of one event, given the hash of the event before it."""
    name, kind = stream.encode(), type_.encode()
    frame = _EVENT_FRAME.pack(seq, at, len(name), len(kind), len(body))
    hash_ = _EVENT.copy()
    hash_.update(b"".join((previous, frame, name, kind, body)))
    return hash_.digest()


def can_be_framed(stream: object, seq: object, hash_: object) -> bool:
    """Whether these can be a stream's name and head: the types and ranges that are written."""
    if not (isinstance(stream, str) and isinstance(seq, int) and isinstance(hash_, bytes)):
        return False
    try:
        _HEAD_FRAME.pack(len(stream.encode()), seq, len(hash_))
    except (UnicodeEncodeError, struct.error):
        return False
    return True


def root(heads: Iterable[tuple[str, Head]]) -> str:
    """One hash (hex) over the heads of all streams, in the order of their names."""
    total = sha256(_ROOT_TAG)
    for stream, head in sorted(heads, key=lambda pair: pair[0]):
        name = stream.encode()
        total.update(_HEAD_FRAME.pack(len(name), head.seq, len(head.hash)) + name + head.hash)
    return total.hexdigest()


class Walk:
    """Follows the events of one stream in order and collects what is wrong with them."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.head = Head(0, GENESIS)
        self.events = 0
        self.faults: list[str] = []

    def step(self, seq: int, *, at: float, type_: str, body: bytes, stored: bytes) -> None:
        """Takes the next event as it is stored; a fault is reported once, and the walk continues from there."""
        self.events += 1
        due = self.head.seq + 1
        if seq > due:
            # The hash before the gap is gone, so this event's own hash cannot be checked.
            self._fault(f"event {due} is missing" if seq == due + 1 else f"events {due} to {seq - 1} are missing")
        elif seq < due:
            self._fault(f"event {seq} is out of order: event {due} was due")
        elif not self._matches(seq, at, type_, body, stored):
            self._fault(f"event {seq} does not match its hash: it or the event before it was changed")
        self.head = Head(seq, stored)

    def end(self, claimed: Head) -> None:
        """Compares the last event with the stream's head."""
        if claimed.seq != self.head.seq:
            self._fault(f"the head is at event {claimed.seq} but the events end at {self.head.seq}")
        elif claimed.hash != self.head.hash:
            self._fault(f"the head's hash is not the hash of event {self.head.seq}")

    def _matches(self, seq: int, at: float, type_: str, body: bytes, stored: bytes) -> bool:
        try:
            return link(self.head.hash, self.stream, seq, at=at, type_=type_, body=body) == stored
        except (TypeError, AttributeError, ValueError, struct.error):
            # A column that was overwritten with a value of another type cannot be framed.
            return False

    def _fault(self, sentence: str) -> None:
        self.faults.append(f"stream {self.stream}: {sentence}")


# A root stands for a whole ledger at one moment. It stays checkable while the ledger grows, and when an ended stream is
# forgotten: the position and hash of each of its events stay, so any earlier head of it is still known.

_ROOT = re.compile(r"(\d{1,18}):([0-9a-f]{64})")
_EVER = "SELECT position, stream, seq, hash FROM events UNION ALL SELECT position, stream, seq, hash FROM tombstones"
_LAST_EVER = (
    "SELECT coalesce(max(position), 0) FROM (SELECT max(position) AS position FROM events "
    "UNION ALL SELECT max(position) FROM tombstones) AS ever"
)
_HEADS_THEN = (
    f"SELECT streams.name, heads.seq, heads.hash FROM (SELECT stream, seq, hash, max(position) FROM ({_EVER}) "  # noqa: S608 - both parts stand above
    "WHERE position <= ? GROUP BY stream) AS heads JOIN streams ON streams.id = heads.stream"
)


def written_root(position: int, heads: Iterable[tuple[str, Head]]) -> str:
    """The root as people write it down."""
    return f"{position}:{root(heads)}"


def parse_root(text: str) -> tuple[int, str]:
    """The position and the hash of a root."""
    match = _ROOT.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is not a root; write POSITION:HASH, as `{advice('pursuit verify')}` prints it")
    return int(match[1]), match[2]


def last_position(connection: sqlite3.Connection) -> int:
    """The position of the newest event that was ever stored."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def last_ever(connection: SqlConnection) -> int:
    """The position of the last event or tombstone that is there."""
    return connection.execute(_LAST_EVER).fetchone()[0]


def current_root(connection: sqlite3.Connection) -> str:
    """The root of what is stored now; a row that was tampered with is left out, and `verify` reports it."""
    connection.execute("BEGIN")
    try:
        rows = connection.execute("SELECT name, head_seq, head_hash FROM streams").fetchall()
        heads = [(name, Head(seq, hash_)) for name, seq, hash_ in rows if can_be_framed(name, seq, hash_)]
        return written_root(last_position(connection), heads)
    finally:
        connection.execute("ROLLBACK")


def check_expected(connection: SqlConnection, position: int, expected: str, heads_then: str = _HEADS_THEN) -> list[str]:
    """What is wrong if the ledger no longer contains everything that an earlier root stands for."""
    last = last_ever(connection)
    if last < position:
        return [f"the ledger ends at position {last}; the expected root was written at {position}: its tail is cut"]
    rows = connection.execute(heads_then, (position,)).fetchall()
    heads = [(name, Head(seq, hash_)) for name, seq, hash_ in rows if can_be_framed(name, seq, hash_)]
    if root(heads) == expected:
        return []
    return [f"what the ledger held at position {position} is not what the expected root stands for"]
