"""Roots: one line that stands for a whole ledger at one moment, and the check against one written down earlier.

Owns: the form `POSITION:HASH` and what it covers in an SQLite ledger. Knows nothing of chains.
Invariant: a root stays checkable while the ledger grows, and when an ended stream is forgotten.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from pursuit.errors import InvalidArgument
from pursuit.ledger.chain import can_be_framed, root
from pursuit.ledger.contract import Head

_ROOT = re.compile(r"(\d{1,18}):([0-9a-f]{64})")
# Of a forgotten stream the place and hash of each event stay, so that any earlier head of it is still known.
_EVER = "SELECT position, stream, seq, hash FROM events UNION ALL SELECT position, stream, seq, hash FROM tombstones"
_LAST_EVER = (
    "SELECT max(coalesce((SELECT max(position) FROM events), 0), coalesce((SELECT max(position) FROM tombstones), 0))"
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
        raise InvalidArgument(f"{text!r} is no root; one is POSITION:HASH, as `pursuit verify` and reports print it")
    return int(match[1]), match[2]


def last_position(connection: sqlite3.Connection) -> int:
    """The position of the newest event that was ever stored."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def current_root(connection: sqlite3.Connection) -> str:
    """The root of what is stored now; a row that was tampered with is left out, and `verify` tells of it."""
    connection.execute("BEGIN")
    try:
        rows = connection.execute("SELECT name, head_seq, head_hash FROM streams").fetchall()
        heads = [(name, Head(seq, hash_)) for name, seq, hash_ in rows if can_be_framed(name, seq, hash_)]
        return written_root(last_position(connection), heads)
    finally:
        connection.execute("ROLLBACK")


def check_expected(connection: sqlite3.Connection, position: int, expected: str) -> list[str]:
    """What is wrong if the ledger no longer holds everything that an earlier root stands for."""
    last = connection.execute(_LAST_EVER).fetchone()[0]
    if last < position:
        return [f"the ledger ends at position {last}; the expected root was written at {position}: its tail is cut"]
    rows = connection.execute(_HEADS_THEN, (position,)).fetchall()
    heads = [(name, Head(seq, hash_)) for name, seq, hash_ in rows if can_be_framed(name, seq, hash_)]
    if root(heads) == expected:
        return []
    return [f"what the ledger held at position {position} is not what the expected root stands for"]
