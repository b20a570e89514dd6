"""Verifies a ledger, and forgets a stream, which is the only way to remove something from it.

Invariant: verifying sees one moment of the ledger and changes nothing; forgetting leaves the head of the stream, so
earlier roots stay checkable.
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
from pursuit.errors import PursuitError
from pursuit.ledger import tombstones
from pursuit.ledger.chain import (
    SqlConnection,
    Walk,
    can_be_framed,
    check_expected,
    last_ever,
    last_position,
    parse_root,
    written_root,
)
from pursuit.ledger.contract import FORGOTTEN, Folded, Folds, Head, StreamFold, Verification
from pursuit.ledger.locks import WriteQueue
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
UNFOLDABLE = (msgspec.MsgspecError, PursuitError, LookupError, TypeError, ValueError, AttributeError)
"""What a fold raises for events that no release of Pursuit wrote in this order."""


@dataclass(slots=True)
class _Findings:
    folds: Folds | None = None
    heads: list[tuple[str, Head]] = field(default_factory=list[tuple[str, Head]])
    faults: list[str] = field(default_factory=list[str])
    forgotten: dict[str, list[Forgotten]] = field(default_factory=dict[str, list[Forgotten]])
    """The `Forgotten` events of the audit, by stream."""
    events: int = 0
    blobs: int = 0

    def verification(self, position: int) -> Verification:
        """What was found in a ledger that ends at this position."""
        return Verification(
            streams=len(self.heads),
            events=self.events,
            blobs=self.blobs,
            root=written_root(position, self.heads),
            faults=tuple(self.faults),
        )


async def verify_file(path: Path, expect: Sequence[str] = (), folds: Folds | None = None) -> Verification:
    """Checks everything that `contract.Ledger.verify` names, on a connection and a snapshot of its own."""
    wanted = [parse_root(root) for root in expect]
    found = _Findings(folds)
    position = 0
    try:
        with closing(open_reader(path)) as connection:
            connection.execute("BEGIN")
            position = last_position(connection)
            found.faults += await anyio.to_thread.run_sync(_check_database, connection)
            for _ in _check_everything(connection, found):
                await anyio.lowlevel.checkpoint()
            for position_then, root in wanted:
                found.faults += check_expected(connection, position_then, root)
                await anyio.lowlevel.checkpoint()
    except sqlite3.Error as error:
        found.faults.append(f"the database cannot be read to its end: {error}")
    return found.verification(position)


def verify_snapshot(
    connection: SqlConnection,
    position: int,
    faults: Sequence[str],
    *,
    expect: Sequence[str],
    folds: Folds | None,
    heads_then: str,
) -> Verification:
    """The same for a snapshot of another database, whose own `faults` are known. Slow: run it in a thread."""
    wanted = [parse_root(root) for root in expect]
    found = _Findings(folds, faults=list(faults))
    for _ in _check_everything(connection, found):
        pass
    for position_then, root in wanted:
        found.faults += check_expected(connection, position_then, root, heads_then)
    return found.verification(position)


def _check_everything(connection: SqlConnection, found: _Findings) -> Iterator[None]:
    for check in (_check_streams, _check_tombstones, _check_blobs, _check_references):
        yield from check(connection, found)


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
    if last_position(connection) != last_ever(connection):
        faults.append("the number of the last position was changed: the next event would leave a gap or reuse a place")
    return faults


@dataclass(slots=True, kw_only=True)
class _StreamCheck:
    """One row of the listing, and what its events say about it."""

    id: int
    name: str
    kind: str
    status: str
    created_at: float
    updated_at: float
    head: Head
    summary: str
    walk: Walk
    fold: StreamFold | None
    unfoldable: str | None = None
    first_at: float = 0.0
    last_at: float = 0.0
    position: int = 0

    def step(self, position: int, at: float, type_: str, body: bytes) -> None:
        """Takes an event whose hash the walk has checked."""
        if position <= self.position:
            self.walk.faults.append(f"stream {self.name}: the positions of its events were changed")
        self.position, self.last_at = position, at
        if self.walk.events == 1:
            self.first_at = at
        if self.fold is not None and self.unfoldable is None and not self.walk.faults:
            try:
                self.fold.step(type_, body)
            except UNFOLDABLE as error:
                self.unfoldable = f"event {self.walk.events} cannot follow the events before it: {error}"


def _check_streams(connection: SqlConnection, found: _Findings) -> Iterator[None]:
    """Walks all events, stream after stream; yields after each chunk."""
    streams, broken = _read_rows(connection, found)
    stray: dict[int, int] = {}
    cursor = connection.execute("SELECT position, stream, seq, at, type, body, hash FROM events ORDER BY stream, seq")
    while rows := cursor.fetchmany(CHUNK):
        for position, identity, seq, at, type_, body, hash_ in rows:
            stream = streams.get(identity)
            if stream is None:
                stray[identity] = stray.get(identity, 0) + 1
            elif not isinstance(seq, int):
                found.faults.append(f"stream {stream.name}: the number of one of its events was changed")
            else:
                stream.walk.step(seq, at=at, type_=type_, body=body, stored=hash_)
                stream.step(position, at, type_, body)
                if stream.name == AUDIT and type_ == Forgotten.__name__ and not stream.walk.faults:
                    _take_forgotten(found, stream, body)
        found.events += len(rows)
        yield
    for number, stream in enumerate(streams.values()):
        found.faults += _stream_faults(connection, stream)
        if number % CHUNK == 0:
            yield
    for identity, events in stray.items():
        if identity not in broken:
            found.faults.append(f"stream number {identity}: it has {events} events and no row of its own")


def _read_rows(connection: SqlConnection, found: _Findings) -> tuple[dict[int, _StreamCheck], set[int]]:
    """The rows of the listing by their ids, and the ids of those that nothing can be compared with."""
    streams: dict[int, _StreamCheck] = {}
    broken: set[int] = set()
    for identity, name, kind, status, created_at, updated_at, seq, hash_, summary in connection.execute(
        "SELECT id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary FROM streams"
    ):
        if not can_be_framed(name, seq, hash_):
            broken.add(identity)
            found.faults.append(f"stream {name if isinstance(name, str) else identity}: its row was changed")
            continue
        head = Head(seq, hash_)
        found.heads.append((name, head))
        streams[identity] = _StreamCheck(
            id=identity,
            name=name,
            kind=kind,
            status=status,
            created_at=created_at,
            updated_at=updated_at,
            head=head,
            summary=summary,
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
            f"stream {event.stream}: it was forgotten as {event.status!r}: only what has ended can be forgotten"
        )


def _stream_faults(connection: SqlConnection, stream: _StreamCheck) -> list[str]:
    """What is wrong with a stream once all of its events were read."""
    walk, name = stream.walk, stream.name
    if stream.status == FORGOTTEN:
        return [f"stream {name}: it was forgotten and still has {walk.events} events"] if walk.events else []
    walk.end(stream.head)
    if walk.faults or not walk.events:
        return walk.faults or [f"stream {name}: it has no events"]
    if stream.unfoldable is not None:
        return [f"stream {name}: {stream.unfoldable}"]
    faults: list[str] = []
    if (stream.created_at, stream.updated_at) != (stream.first_at, stream.last_at):
        faults.append(f"stream {name}: the times in its row are not those of its first and last event")
    folded = None if stream.fold is None else stream.fold.result()
    if folded is not None:
        if not folded.says(stream.kind, stream.status, _json(stream.summary)):
            faults.append(f"stream {name}: its row in the listing is not what its events say")
        faults += _blob_faults(connection, stream, folded)
    return faults


def _blob_faults(connection: SqlConnection, stream: _StreamCheck, folded: Folded) -> Iterator[str]:
    """The blobs that its events name must be there and be its own; no others; the text must be that of its report."""
    own = {row[0] for row in connection.execute("SELECT digest FROM blob_refs WHERE stream = ?", (stream.id,))}
    for digest in sorted(folded.digests - own):
        yield f"stream {stream.name}: its events name the blob {digest}, which is missing"
    for digest in sorted(own - folded.digests):
        yield f"stream {stream.name}: it has the blob {digest}, which none of its events names"
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
                "SELECT id, kind FROM streams WHERE name = ? AND status <> ?", (stream, FORGOTTEN)
            ).fetchone()
            if row is not None:
                tombstones.require_forgettable(stream, row[1])
                tombstones.forget(connection, row[0], now)
            connection.execute("COMMIT")
            queue.leave()
            # The write-ahead log still has the old pages; a reader with an open snapshot may keep them a little longer.
            connection.execute("PRAGMA busy_timeout = 500")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
