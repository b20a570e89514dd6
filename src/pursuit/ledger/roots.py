"""Roots: one line that stands for a whole ledger at one moment, and the check against one written down earlier.

Owns: the form `POSITION:HASH` and what it covers in an SQLite ledger. Knows nothing of chains.
Invariant: a root stays checkable while the ledger grows, and when an ended stream is forgotten.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from pursuit.errors import InvalidArgument
from pursuit.ledger.chain import root
from pursuit.ledger.contract import FORGOTTEN, Head

_ROOT = re.compile(r"(\d{1,18}):([0-9a-f]{64})")


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
    return 0 if row is None else int(row[0])


def current_root(connection: sqlite3.Connection) -> str:
    """The root of what is stored now."""
    connection.execute("BEGIN")
    try:
        heads = connection.execute("SELECT name, head_seq, head_hash FROM streams").fetchall()
        return written_root(last_position(connection), ((name, Head(seq, hash_)) for name, seq, hash_ in heads))
    finally:
        connection.execute("ROLLBACK")


def check_expected(connection: sqlite3.Connection, position: int, expected: str) -> list[str]:
    """What is wrong if the ledger no longer holds everything that an earlier root stands for."""
    last = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()[0]
    forgotten = connection.execute(
        "SELECT id, name, head_seq, head_hash FROM streams WHERE status = ? ORDER BY id", (FORGOTTEN,)
    ).fetchall()
    if last < position and not forgotten:
        return [f"the ledger ends at position {last}; the expected root was written at {position}: its tail is cut"]
    live = connection.execute(
        "SELECT streams.name, events.seq, events.hash FROM events JOIN streams ON streams.id = events.stream "
        "WHERE events.position IN (SELECT max(position) FROM events WHERE position <= ? GROUP BY stream)",
        (position,),
    ).fetchall()
    heads = [(name, Head(seq, hash_)) for name, seq, hash_ in live]
    # Streams are numbered as they are made, so those that were there then and are forgotten now come first.
    for count in range(len(forgotten) + 1):
        gone = [(name, Head(seq, hash_)) for _, name, seq, hash_ in forgotten[:count]]
        if root([*heads, *gone]) == expected:
            return []
    return [f"what the ledger held at position {position} is not what the expected root stands for"]
