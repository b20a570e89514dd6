"""The remains of a forgotten stream: the number and hash of each event, and a `Forgotten` event in the audit.

Invariant: events leave the ledger only in the transaction that appends their `Forgotten` event, and that event is
hashed like any other. So a stream that was removed by an edit of the file has tombstones that no event covers.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

from pursuit.core.audit import AUDIT, AnyAuditEvent, Forgotten, encode_audit, own_stream
from pursuit.errors import InvalidArgument
from pursuit.ledger.chain import GENESIS, SqlConnection, link
from pursuit.ledger.contract import FORGOTTEN

FORGETTABLE = frozenset(("mission", "attempt", "task"))
"""The kinds of streams that can be forgotten; others, such as the audit, are records about them."""


_NUMBERED = "2:"
"""Before a digest over numbers and hashes; one without it is of an older release, over positions, too."""


def own_audit() -> str:
    return _audit_of(os.getpid())


@lru_cache(maxsize=1)
def _audit_of(_pid: int) -> str:
    return own_stream(secrets.token_hex(8))


def require_forgettable(stream: str, kind: str) -> None:
    """Refuses to forget a stream that records what others did."""
    if kind not in FORGETTABLE:
        raise InvalidArgument(
            f"the stream {stream} of the kind {kind} cannot be forgotten: only missions, attempts and tasks can",
            stream=stream,
        )


def forget(connection: sqlite3.Connection, identity: int, now: float) -> None:
    """Removes the events, the text and the blobs of a stream, within the caller's transaction."""
    connection.execute(
        "INSERT INTO tombstones (stream, seq, hash, position) "
        "SELECT stream, seq, hash, position FROM events WHERE stream = ?",
        (identity,),
    )
    _record(connection, identity, now)
    connection.execute(
        "DELETE FROM blobs WHERE digest IN (SELECT digest FROM blob_refs WHERE stream = ?) AND NOT EXISTS "
        "(SELECT 1 FROM blob_refs WHERE blob_refs.digest = blobs.digest AND blob_refs.stream <> ?)",
        (identity, identity),
    )
    connection.execute("DELETE FROM blob_refs WHERE stream = ?", (identity,))
    connection.execute("DELETE FROM events WHERE stream = ?", (identity,))
    forgotten = connection.execute("DELETE FROM texts WHERE rowid = ?", (identity,)).rowcount
    if forgotten:
        # A deleted text leaves its words in the index until the index is rewritten.
        connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")
    connection.execute(
        "UPDATE streams SET status = ?, summary = '{}', updated_at = ? WHERE id = ?", (FORGOTTEN, now, identity)
    )


def cover_all(connection: sqlite3.Connection, now: float) -> None:
    """Records the streams that a release without `Forgotten` events forgot. A migration does this once."""
    for (identity,) in connection.execute("SELECT id FROM streams WHERE status = ?", (FORGOTTEN,)).fetchall():
        _record(connection, identity, now, placed=True)
        connection.execute("UPDATE streams SET updated_at = ? WHERE id = ?", (now, identity))


def check(connection: SqlConnection, covering: Mapping[str, Sequence[Forgotten]]) -> Iterator[str]:
    """The faults of the tombstones, given the `Forgotten` events of the audit."""
    rows = connection.execute(
        "SELECT id, name, kind, created_at, updated_at, summary FROM streams WHERE status = ?", (FORGOTTEN,)
    ).fetchall()
    for identity, name, kind, created_at, updated_at, summary in rows:
        events = covering.get(name, ())
        count, (seq, hash_), digests = _digests(connection, identity)
        if not events:
            yield f"stream {name}: its events were removed, and no event of the audit says that it was forgotten"
        elif not any((e.seq, e.seq, e.hash) == (count, seq, hash_.hex()) and e.tombstones in digests for e in events):
            yield f"stream {name}: it was forgotten, and its tombstones were changed"
        elif (kind, created_at, updated_at, summary) not in [(e.kind, e.created_at, e.at, "{}") for e in events]:
            yield f"stream {name}: it was forgotten, and its row in the listing was changed"
    for (identity,) in connection.execute(
        "SELECT DISTINCT stream FROM tombstones WHERE stream NOT IN (SELECT id FROM streams WHERE status = ?)",
        (FORGOTTEN,),
    ):
        yield f"stream number {identity}: it has tombstones, but was not forgotten"


def _record(connection: sqlite3.Connection, identity: int, now: float, *, placed: bool = False) -> None:
    row = connection.execute(
        "SELECT name, kind, status, created_at, head_seq, head_hash FROM streams WHERE id = ?", (identity,)
    ).fetchone()
    name, kind, status, created_at, seq, hash_ = row
    event = Forgotten(
        at=now,
        stream=name,
        kind=kind,
        status=status,
        created_at=created_at,
        seq=seq,
        hash=hash_.hex(),
        tombstones=_digests(connection, identity)[2][placed],
    )
    _append_to_audit(connection, AUDIT if placed else own_audit(), event, now)


def _digests(connection: SqlConnection, identity: int) -> tuple[int, tuple[int, bytes], tuple[str, str]]:
    """The number of tombstones of a stream, the last one's number and hash, and its digests of both forms."""
    numbered, placed, count, last = sha256(), sha256(), 0, (0, GENESIS)
    rows = connection.execute("SELECT position, seq, hash FROM tombstones WHERE stream = ? ORDER BY seq", (identity,))
    for position, seq, hash_ in rows:
        shown = hash_.hex() if isinstance(hash_, bytes) else str(hash_)
        numbered.update(f"{seq} {shown}\n".encode())
        placed.update(f"{position} {seq} {shown!r}\n".encode())
        count, last = count + 1, (seq, hash_ if isinstance(hash_, bytes) else b"")
    return count, last, (_NUMBERED + numbered.hexdigest(), placed.hexdigest())


def _append_to_audit(connection: sqlite3.Connection, stream: str, event: AnyAuditEvent, now: float) -> None:
    """Appends on the transaction that removes the events: neither is stored without the other."""
    find = "SELECT id, head_seq, head_hash FROM streams WHERE name = ?"
    row = connection.execute(find, (stream,)).fetchone()
    if row is None:
        connection.execute(
            "INSERT INTO streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary) "
            "VALUES (?, ?, 'open', ?, ?, 0, ?, '{}')",
            (stream, AUDIT, now, now, GENESIS),
        )
        row = connection.execute(find, (stream,)).fetchone()
    identity, seq, hash_ = row
    type_, body = encode_audit(event)
    linked = link(hash_, stream, seq + 1, at=now, type_=type_, body=body)
    connection.execute(
        "INSERT INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)",
        (identity, seq + 1, now, type_, body, linked),
    )
    connection.execute(
        "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ? WHERE id = ?", (seq + 1, linked, now, identity)
    )
