"""Verifies and seals a ledger, and forgets streams, the only way to remove something from it.

Invariant: verification sees one snapshot of the ledger and changes nothing; a forgotten stream keeps its head, so
earlier roots can still be checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import msgspec

from pursuit.core.audit import AUDIT, Forgotten, decode_audit
from pursuit.core.lessons import remembered
from pursuit.errors import LedgerUnavailable, PursuitError
from pursuit.ledger import tombstones
from pursuit.ledger.chain import SqlConnection, Walk, can_be_framed
from pursuit.ledger.contract import FORGOTTEN, Folded, Folds, Head, StreamFold, Verification
from pursuit.ledger.locks import WriteQueue
from pursuit.ledger.roots import LedgerRoot, check_expected, check_roots, last_position, require_roots, seal
from pursuit.ledger.schema import (
    UNREADABLE_REPORT,
    connect,
    layout,
    open_reader,
    own_layout,
    unavailable,
    wait_for_turn,
)

CHUNK = 2000
_LAST_EVER = (
    "SELECT coalesce(max(position), 0) FROM "
    "(SELECT max(position) AS position FROM events UNION ALL SELECT max(position) FROM tombstones)"
)
UNFOLDABLE = (msgspec.MsgspecError, PursuitError, LookupError, TypeError, ValueError, AttributeError)
"""The errors of a fold for events that no release of Pursuit wrote in this order."""


@dataclass(slots=True)
class _Findings:
    folds: Folds | None = None
    faults: list[str] = field(default_factory=list[str])
    forgotten: dict[str, list[Forgotten]] = field(default_factory=dict[str, list[Forgotten]])
    """The `Forgotten` events of the audit, by stream."""
    streams: int = 0
    events: int = 0
    blobs: int = 0
    root: LedgerRoot = field(default_factory=LedgerRoot)

    def verification(self) -> Verification:
        return Verification(
            streams=self.streams,
            events=self.events,
            blobs=self.blobs,
            root=str(self.root),
            faults=tuple(self.faults),
        )


async def verify_file(path: Path, expect: Sequence[str] = (), folds: Folds | None = None) -> Verification:
    """Checks everything that `contract.Ledger.verify` names, on its own connection and snapshot."""
    require_roots(expect)
    found = _Findings(folds)
    try:
        with closing(open_reader(path)) as connection:
            connection.execute("BEGIN")
            found.faults += await anyio.to_thread.run_sync(_check_database, connection)
            for _ in _check_everything(connection, found, expect):
                await anyio.lowlevel.checkpoint()
    except sqlite3.Error as error:
        found.faults.append(f"the database cannot be read to its end: {error}")
    return found.verification()


def verify_snapshot(
    connection: SqlConnection,
    faults: Sequence[str],
    *,
    expect: Sequence[str] = (),
    folds: Folds | None,
    rows: str | None = None,
) -> Verification:
    """Verifies a snapshot of another database, whose own `faults` are known. Slow: run it in a thread.

    `rows` reads the listing: streams without a hash of their head, and the event of their summaries in its place.
    """
    require_roots(expect)
    found = _Findings(folds, faults=list(faults))
    for _ in _check_everything(connection, found, expect, rows or _ROWS):
        pass
    return found.verification()


_ROWS = "SELECT id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary FROM streams"


def _check_everything(
    connection: SqlConnection, found: _Findings, expect: Sequence[str], rows: str = _ROWS
) -> Iterator[None]:
    yield from _check_streams(connection, found, rows)
    for check in (_check_tombstones, _check_blobs, _check_references, _check_roots):
        yield from check(connection, found)
    for one in expect:
        found.faults += check_expected(connection, one)
        yield


def _check_roots(connection: SqlConnection, found: _Findings) -> Iterator[None]:
    checking = check_roots(connection)
    while True:
        try:
            found.faults.append(next(checking))
        except StopIteration as end:
            found.root = end.value
            return
        yield


def _check_database(connection: sqlite3.Connection) -> list[str]:
    """Pages and indexes as SQLite checks them, and tables, indexes and triggers as the migrations make them."""
    faults = [
        f"the database is damaged: {text}"
        for (text,) in connection.execute("PRAGMA integrity_check(5)")
        if text != "ok"
    ]
    there, own = layout(connection), own_layout()
    changed = sorted({(kind, name) for kind, name, _ in there ^ own})
    faults += [f"the {kind} {name} of the database was added, changed or removed" for kind, name in changed]
    (last,) = connection.execute(_LAST_EVER).fetchone()
    if last_position(connection) != last:
        faults.append("the number of the last position was changed: the next event would leave a gap or reuse a place")
    return faults


@dataclass(slots=True, kw_only=True)
class _StreamCheck:
    """One row of the listing, and the fold of its events."""

    id: int
    name: str
    kind: str
    status: str
    created_at: float
    updated_at: float
    head: Head | None
    summary: str
    summary_seq: int
    walk: Walk
    fold: StreamFold | None
    unfoldable: str | None = None
    first_at: float = 0.0
    told_at: float | None = None
    told: Folded | None = None
    """The fold of the events up to that of the summary."""

    def step(self, seq: int, at: float, type_: str, body: bytes) -> None:
        """Folds an event whose hash the walk has checked."""
        if self.walk.events == 1:
            self.first_at = at
        if self.fold is not None and self.unfoldable is None and not self.walk.faults:
            try:
                self.fold.step(type_, body)
            except UNFOLDABLE as error:
                self.unfoldable = f"event {self.walk.events} cannot follow the events before it: {error}"
        if seq == self.summary_seq:
            self.told_at = at
            self.told = None if self.fold is None or self.unfoldable is not None else self.fold.result()


def _check_streams(connection: SqlConnection, found: _Findings, rows_query: str) -> Iterator[None]:
    """Walks all events, stream after stream; yields after each chunk."""
    streams, broken = _read_rows(connection, found, rows_query)
    stray: dict[int, int] = {}
    cursor = connection.execute("SELECT stream, seq, at, type, body, hash FROM events ORDER BY stream, seq")
    while rows := cursor.fetchmany(CHUNK):
        for identity, seq, at, type_, body, hash_ in rows:
            stream = streams.get(identity)
            if stream is None:
                stray[identity] = stray.get(identity, 0) + 1
            elif not isinstance(seq, int):
                found.faults.append(f"stream {stream.name}: the number of one of its events was changed")
            else:
                stream.walk.step(seq, at=at, type_=type_, body=body, stored=hash_)
                stream.step(seq, at, type_, body)
                if stream.kind == AUDIT and type_ == Forgotten.__name__ and not stream.walk.faults:
                    _take_forgotten(found, stream, body)
        found.events += len(rows)
        yield
    for number, stream in enumerate(streams.values()):
        found.faults += _stream_faults(connection, stream)
        if number % CHUNK == 0:
            yield
    for identity, events in stray.items():
        if identity not in broken:
            found.faults.append(f"stream number {identity}: it has {events} events, but its row is missing")


def _read_rows(connection: SqlConnection, found: _Findings, query: str) -> tuple[dict[int, _StreamCheck], set[int]]:
    """The rows of the listing by their ids, and the ids of rows that cannot be compared."""
    streams: dict[int, _StreamCheck] = {}
    broken: set[int] = set()
    for identity, name, kind, status, created_at, updated_at, seq, hash_, summary in connection.execute(query):
        if not can_be_framed(name, seq, b"" if query is not _ROWS else hash_):
            broken.add(identity)
            found.faults.append(f"stream {name if isinstance(name, str) else identity}: its row was changed")
            continue
        found.streams += 1
        streams[identity] = _StreamCheck(
            id=identity,
            name=name,
            kind=kind,
            status=status,
            created_at=created_at,
            updated_at=updated_at,
            head=None if hash_ is None else Head(seq, hash_),
            summary=summary,
            summary_seq=seq,
            walk=Walk(name),
            fold=None if found.folds is None else found.folds.begin(name),
        )
    return streams, broken


def _take_forgotten(found: _Findings, audit: _StreamCheck, body: bytes) -> None:
    try:
        event = decode_audit(body)
    except msgspec.MsgspecError:
        return  # the fold reports it
    if not isinstance(event, Forgotten):
        return
    found.forgotten.setdefault(event.stream, []).append(event)
    if found.folds is not None and not found.folds.has_ended(event.kind, event.status):
        audit.walk.faults.append(
            f"stream {event.stream}: it was forgotten as {event.status!r}; only ended streams can be forgotten"
        )


def _stream_faults(connection: SqlConnection, stream: _StreamCheck) -> list[str]:
    walk, name = stream.walk, stream.name
    if stream.status == FORGOTTEN:
        return [f"stream {name}: it was forgotten and still has {walk.events} events"] if walk.events else []
    if stream.head is not None:
        walk.end(stream.head)
    if walk.faults or not walk.events:
        return walk.faults or [f"stream {name}: its events are missing"]
    if stream.unfoldable is not None:
        return [f"stream {name}: {stream.unfoldable}"]
    faults: list[str] = []
    if (stream.created_at, stream.updated_at) != (stream.first_at, stream.told_at):
        faults.append(f"stream {name}: the times in its row differ from its first and last event")
    folded = None if stream.fold is None else stream.fold.result()
    if folded is not None:
        told = (stream.told or folded).says(_json(stream.summary))
        if not told or (stream.kind, stream.status in folded.statuses) != (folded.kind, True):
            faults.append(f"stream {name}: its row in the listing does not agree with its events")
        faults += _blob_faults(connection, stream, folded)
    return faults


def _blob_faults(connection: SqlConnection, stream: _StreamCheck, folded: Folded) -> Iterator[str]:
    """Faults of blobs that are missing or that no event names, and of a text that is not that of its report."""
    own = {row[0] for row in connection.execute("SELECT digest FROM blob_refs WHERE stream = ?", (stream.id,))}
    for digest in sorted(folded.digests - own):
        yield f"stream {stream.name}: its events name the blob {digest}, which is missing"
    for digest in sorted(own - folded.digests):
        yield f"stream {stream.name}: none of its events names its blob {digest}"
    row = connection.execute("SELECT text FROM texts WHERE rowid = ?", (stream.id,)).fetchone()
    # PostgreSQL keeps the text as bytes.
    text = None if row is None else (row[0].decode() if isinstance(row[0], bytes) else row[0],)
    report = connection.execute("SELECT body FROM blobs WHERE digest = ?", (folded.report,)).fetchone()
    if folded.report is not None and report is None:
        return  # it is reported as missing
    try:
        said = None if report is None else (remembered(msgspec.json.decode(report[0])),)
    except UNREADABLE_REPORT:
        return
    if text != said:
        yield f"stream {stream.name}: the text that searches find is not that of its report"


def _json(text: Any) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, TypeError):
        return None


def _check_tombstones(connection: SqlConnection, found: _Findings) -> Iterator[None]:
    for fault in tombstones.check(connection, found.forgotten):
        found.faults.append(fault)
        yield


def _check_blobs(connection: SqlConnection, found: _Findings) -> Iterator[None]:
    for digest, size, body in connection.execute("SELECT digest, size, body FROM blobs"):
        found.blobs += 1
        if not isinstance(body, bytes) or sha256(body).hexdigest() != digest or len(body) != size:
            found.faults.append(f"blob {digest}: its bytes were changed")
        yield


def _check_references(connection: SqlConnection, found: _Findings) -> Iterator[None]:
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
        found.faults.append(f"blob {digest}: it does not belong to a stream")
    yield


def forget_stream(path: Path, stream: str, now: float) -> None:
    """Removes the events of a stream and the blobs that only it used. Slow: run it in a thread.

    It has its own connection, so appends continue as soon as its transaction is over.
    """
    try:
        with closing(connect(path)) as connection, closing(WriteQueue.beside(path)) as queue:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            wait_for_turn(queue)
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute(
                "SELECT id, kind FROM streams WHERE name = ? AND status <> ?", (stream, FORGOTTEN)
            ).fetchone()
            if row is not None:
                tombstones.require_forgettable(stream, row[1])
                seal(connection, now, row[0])
                tombstones.forget(connection, row[0], now)
            connection.execute("COMMIT")
            queue.leave()
            # The write-ahead log still has the old pages; a reader with an open snapshot may keep them a little longer.
            connection.execute("PRAGMA busy_timeout = 500")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def seal_file(path: Path, now: float) -> None:
    """Makes the next root of a file, on its own connection. Slow: run it in a thread."""
    try:
        with closing(connect(path)) as connection, closing(WriteQueue.beside(path)) as queue:
            connection.execute("PRAGMA synchronous = FULL")
            wait_for_turn(queue)
            connection.execute("BEGIN IMMEDIATE")
            seal(connection, now)
            connection.execute("COMMIT")
            queue.leave()
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
    except OSError as error:
        raise LedgerUnavailable(f"cannot make a root in {path}: {error.strerror}", path=str(path)) from error
