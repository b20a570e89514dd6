"""Verifies an SQLite ledger, and forgets a stream, which is the only way to remove something from it.

Invariant: verifying sees one moment of the ledger and changes nothing; forgetting leaves every head, and so the root,
as it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import anyio.lowlevel

from pursuit.ledger.chain import Walk, can_be_framed, check_expected, last_position, parse_root, written_root
from pursuit.ledger.contract import FORGOTTEN, Head, Verification
from pursuit.ledger.locks import WriteQueue
from pursuit.ledger.schema import connect, open_reader, unavailable, wait_for_turn

CHUNK = 2000


@dataclass(slots=True)
class _Findings:
    heads: list[tuple[str, Head]] = field(default_factory=list[tuple[str, Head]])
    faults: list[str] = field(default_factory=list[str])
    events: int = 0
    blobs: int = 0


async def verify_file(path: Path, expect: str | None = None) -> Verification:
    """Checks every chain, every head and every blob, on a connection and a snapshot of its own."""
    wanted = parse_root(expect) if expect is not None else None
    found = _Findings()
    position = 0
    try:
        with closing(open_reader(path)) as connection:
            connection.execute("BEGIN")
            position = last_position(connection)
            for check in (_check_streams, _check_tombstones, _check_blobs, _check_references):
                for _ in check(connection, found):
                    await anyio.lowlevel.checkpoint()
            if wanted is not None:
                found.faults += check_expected(connection, *wanted)
    except sqlite3.Error as error:
        found.faults.append(f"the database cannot be read to its end: {error}")
    return Verification(
        streams=len(found.heads),
        events=found.events,
        blobs=found.blobs,
        root=written_root(position, found.heads),
        faults=tuple(found.faults),
    )


def _check_streams(connection: sqlite3.Connection, found: _Findings) -> Iterator[None]:
    """Walks all events, stream after stream; yields after each chunk."""
    streams: dict[int, tuple[str, Head, bool]] = {}
    broken: set[int] = set()
    for identity, name, seq, hash_, status in connection.execute(
        "SELECT id, name, head_seq, head_hash, status FROM streams"
    ):
        if not can_be_framed(name, seq, hash_):
            broken.add(identity)
            found.faults.append(f"stream {name if isinstance(name, str) else identity}: its row was changed")
            continue
        streams[identity] = (name, Head(seq, hash_), status == FORGOTTEN)
        found.heads.append((name, streams[identity][1]))
    walks: dict[int, Walk] = {}
    cursor = connection.execute("SELECT stream, seq, at, type, body, hash FROM events ORDER BY stream, seq")
    while rows := cursor.fetchmany(CHUNK):
        for identity, seq, at, type_, body, hash_ in rows:
            if identity in broken:
                continue
            walk = walks.get(identity)
            if walk is None:
                name = streams[identity][0] if identity in streams else f"number {identity}"
                walk = walks[identity] = Walk(name)
            if isinstance(seq, int):
                walk.step(seq, at=at, type_=type_, body=body, stored=hash_)
            else:
                found.faults.append(f"stream {walk.stream}: the number of one of its events was changed")
        found.events += len(rows)
        yield
    for identity, (name, head, forgotten) in streams.items():
        walk = walks.pop(identity, None)
        if forgotten:
            if walk is not None:
                found.faults.append(f"stream {name}: it was forgotten and still has {walk.events} events")
            continue
        walk = walk or Walk(name)
        walk.end(head)
        found.faults += walk.faults or ([] if walk.events else [f"stream {name}: it has no events"])
    for identity, walk in walks.items():
        found.faults.append(f"stream number {identity}: it has {walk.events} events and no row of its own")


def _check_tombstones(connection: sqlite3.Connection, found: _Findings) -> Iterator[None]:
    """What stays of a forgotten stream must end at the head that it had."""
    for name, seq, hash_, count, last, last_hash in connection.execute(
        "SELECT streams.name, head_seq, head_hash, count(tombstones.seq), max(tombstones.seq), tombstones.hash "
        "FROM streams LEFT JOIN tombstones ON tombstones.stream = streams.id WHERE status = ? GROUP BY streams.id",
        (FORGOTTEN,),
    ):
        if (count, last, last_hash) != (seq, seq, hash_):
            found.faults.append(f"stream {name}: it was forgotten, and what stays of it was changed")
    yield


def _check_blobs(connection: sqlite3.Connection, found: _Findings) -> Iterator[None]:
    for digest, size, body in connection.execute("SELECT digest, size, body FROM blobs"):
        found.blobs += 1
        if not isinstance(body, bytes) or sha256(body).hexdigest() != digest or len(body) != size:
            found.faults.append(f"blob {digest}: its bytes were changed")
        yield


def _check_references(connection: sqlite3.Connection, found: _Findings) -> Iterator[None]:
    for digest, name in connection.execute(
        "SELECT blob_refs.digest, coalesce(streams.name, 'number ' || blob_refs.stream) FROM blob_refs "
        "LEFT JOIN streams ON streams.id = blob_refs.stream "
        "WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE blobs.digest = blob_refs.digest)"
    ):
        found.faults.append(f"stream {name}: its blob {digest} is missing")
    yield
    for (digest,) in connection.execute(
        "SELECT digest FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest)"
    ):
        found.faults.append(f"blob {digest}: it belongs to no stream")
    yield


def forget_stream(path: Path, stream: str, now: float) -> None:
    """Removes the events of a stream and the blobs that only it used. Slow: run it in a thread.

    It has a connection of its own, so appends continue as soon as its transaction is over.
    """
    try:
        with closing(connect(path)) as connection, closing(WriteQueue.beside(path)) as queue:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            wait_for_turn(queue)
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute(
                "SELECT id FROM streams WHERE name = ? AND status <> ?", (stream, FORGOTTEN)
            ).fetchone()
            if row is not None:
                _remove(connection, row[0], now)
            connection.execute("COMMIT")
            queue.leave()
            # The write-ahead log still has the old pages; a reader with an open snapshot may keep them a little longer.
            connection.execute("PRAGMA busy_timeout = 500")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def _remove(connection: sqlite3.Connection, identity: int, now: float) -> None:
    connection.execute(
        "DELETE FROM blobs WHERE digest IN (SELECT digest FROM blob_refs WHERE stream = ?) AND NOT EXISTS "
        "(SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest AND blob_refs.stream <> ?)",
        (identity, identity),
    )
    connection.execute("DELETE FROM blob_refs WHERE stream = ?", (identity,))
    connection.execute(
        "INSERT INTO tombstones (position, stream, seq, hash) "
        "SELECT position, stream, seq, hash FROM events WHERE stream = ?",
        (identity,),
    )
    connection.execute("DELETE FROM events WHERE stream = ?", (identity,))
    forgotten = connection.execute("DELETE FROM texts WHERE rowid = ?", (identity,)).rowcount
    if forgotten:
        # A deleted text leaves its words in the index until the index is rewritten.
        connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")
    connection.execute(
        "UPDATE streams SET status = ?, summary = '{}', updated_at = ? WHERE id = ?", (FORGOTTEN, now, identity)
    )
