"""One transaction that stores what several appends asked for.

Owns: the compare-and-set, the chaining and the rows of a commit, and what the writer remembers of each stream.
Knows nothing of tasks, waiting or bells. Invariant: nothing is remembered, and no request has an outcome, before
its transaction is sealed; an append that is refused leaves no row behind.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from pursuit.errors import Conflict, InvalidArgument, PursuitError
from pursuit.ledger.chain import GENESIS, link
from pursuit.ledger.contract import ANY, FORGOTTEN, Anywhere, Bell, Draft, Head

_REMEMBERED = 20_000

_INSERT_EVENT = "INSERT INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)"
_TOGETHER = 20
# A row among twenty costs half of a statement of its own. OR ROLLBACK: to abort the statement alone, SQLite would first
# copy every page that it changes, and whatever is refused is rolled back anyway.
_INSERT_EVENTS = (
    "INSERT OR ROLLBACK INTO events (stream, seq, at, type, body, hash) VALUES (?, ?, ?, ?, ?, ?)"
    + ", (?, ?, ?, ?, ?, ?)" * (_TOGETHER - 1)
)
_INSERT_STREAM = (
    "INSERT INTO streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary) "
    "VALUES (?, ?, ?, ?, ?, 0, ?, '{}')"
)
_LAST_ROW = "SELECT last_insert_rowid()"
_MOVE_HEAD = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ? WHERE id = ?"
_TELL_SUMMARY = "UPDATE streams SET head_seq = ?, head_hash = ?, updated_at = ?, summary = ? WHERE id = ?"
# Apart from the head: naming the status in every update would rewrite its index entry every time.
_SET_STATUS = "UPDATE streams SET status = ? WHERE id = ?"
_INSERT_BLOB = "INSERT OR IGNORE INTO blobs (digest, size, body) VALUES (?, ?, ?)"
_TELL_TEXT = "INSERT OR REPLACE INTO texts (rowid, text) VALUES (?, ?)"
_INSERT_REF = "INSERT OR IGNORE INTO blob_refs (stream, digest) VALUES (?, ?)"


_Row = tuple[int, int, float, str, bytearray, bytearray]


class Request(msgspec.Struct, kw_only=True, eq=False):
    """An append that waits for its commit; `outcome` is set once, when the outcome is known for good."""

    stream: str
    expected: int | Anywhere
    events: Sequence[Draft]
    kind: str
    status: str | None
    summary: str | None
    blobs: Sequence[tuple[str, bytes]]
    text: str | None
    by: Bell | None
    outcome: Head | PursuitError | None = None


class _Tip(msgspec.Struct, frozen=True, gc=False):
    """What the writer remembers of a stream."""

    id: int
    seq: int
    hash: bytes
    status: str


@dataclass(slots=True)
class Staged:
    """What a transaction will have done once it is sealed; positions are those of its first and last event."""

    outcomes: list[tuple[Request, Head | PursuitError]] = field(
        default_factory=list[tuple[Request, Head | PursuitError]]
    )
    tips: dict[str, _Tip] = field(default_factory=dict[str, _Tip])
    first: int = 0
    last: int = 0

    def stored(self) -> list[tuple[str, Bell | None]]:
        """The streams that grew, each with the bell that must stay silent about it."""
        return [(request.stream, request.by) for request, outcome in self.outcomes if isinstance(outcome, Head)]


class Committer:
    """Stages requests on the writing connection; the caller seals or undoes."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._tips: dict[str, _Tip] = {}
        self._version = -1

    def begin(self) -> None:
        """Takes SQLite's write lock; what is remembered survives only if nobody else has written since."""
        self._connection.execute("BEGIN IMMEDIATE")
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._tips) > _REMEMBERED:
            self._tips.clear()
            self._version = version

    def stage(self, requests: Sequence[Request]) -> Staged:
        """Checks each request against the head that the ones before it leave, and writes the rows of the good ones."""
        now = self._clock()
        staged = Staged()
        events: list[_Row] = []
        summaries: dict[str, str] = {}
        for request in requests:
            tip = staged.tips.get(request.stream) or self._find(request.stream)
            refusal = _refusal(request, tip)
            if refusal is not None:
                staged.outcomes.append((request, refusal))
                continue
            if tip is None:
                tip = self._create(request, now)
            seq, hash_ = tip.seq, tip.hash
            for draft in request.events:
                seq += 1
                hash_ = link(hash_, request.stream, seq, at=now, type_=draft.type, body=draft.body)
                # Byte arrays: for bytes the sqlite3 module first looks for an adapter, which costs more than a copy.
                events.append((tip.id, seq, now, draft.type, bytearray(draft.body), bytearray(hash_)))
            if request.summary is not None:
                summaries[request.stream] = request.summary
            status = self._decorate(request, tip)
            staged.tips[request.stream] = _Tip(tip.id, seq, hash_, status)
            staged.outcomes.append((request, Head(seq, hash_)))
        if events:
            self._insert(events)
            staged.last = self._connection.execute(_LAST_ROW).fetchone()[0]
            staged.first = staged.last - len(events) + 1
        self._move_heads(staged.tips, summaries, now)
        return staged

    def seal(self, staged: Staged) -> None:
        """Commits, durably; only now do the requests learn their outcome."""
        self._connection.execute("COMMIT")
        self._tips.update(staged.tips)
        for request, outcome in staged.outcomes:
            request.outcome = outcome

    def undo(self) -> None:
        """Rolls back whatever has begun; harmless where SQLite has already done so."""
        self._tips.clear()
        self._version = -1
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _find(self, stream: str) -> _Tip | None:
        tip = self._tips.get(stream)
        if tip is None:
            row = self._connection.execute(
                "SELECT id, head_seq, head_hash, status FROM streams WHERE name = ?", (stream,)
            ).fetchone()
            if row is not None:
                tip = self._tips[stream] = _Tip(*row)
        return tip

    def _insert(self, events: Sequence[_Row]) -> None:
        """Writes the events, most of them together."""
        whole = len(events) - len(events) % _TOGETHER
        for first in range(0, whole, _TOGETHER):
            self._connection.execute(_INSERT_EVENTS, list(chain.from_iterable(events[first : first + _TOGETHER])))
        self._connection.executemany(_INSERT_EVENT, events[whole:])

    def _create(self, request: Request, now: float) -> _Tip:
        status = request.status or ""
        values = (request.stream, request.kind, status, now, now, GENESIS)
        self._connection.execute(_INSERT_STREAM, values)
        identity: int = self._connection.execute(_LAST_ROW).fetchone()[0]
        return _Tip(identity, 0, GENESIS, status)

    def _move_heads(self, tips: Mapping[str, _Tip], summaries: Mapping[str, str], now: float) -> None:
        """Writes where each stream ends now, once however often it was appended to, and what is said of it."""
        plain = [(tip.seq, bytearray(tip.hash), now, tip.id) for name, tip in tips.items() if name not in summaries]
        if plain:
            self._connection.executemany(_MOVE_HEAD, plain)
        if summaries:
            told = [
                (tips[name].seq, bytearray(tips[name].hash), now, text, tips[name].id)
                for name, text in summaries.items()
            ]
            self._connection.executemany(_TELL_SUMMARY, told)

    def _decorate(self, request: Request, tip: _Tip) -> str:
        """Writes what goes along with the events, and returns the status that holds from here on."""
        status = tip.status if request.status is None else request.status
        if status != tip.status:
            self._connection.execute(_SET_STATUS, (status, tip.id))
        for digest, body in request.blobs:
            self._connection.execute(_INSERT_BLOB, (digest, len(body), body))
            self._connection.execute(_INSERT_REF, (tip.id, digest))
        if request.text is not None:
            self._connection.execute(_TELL_TEXT, (tip.id, request.text))
        return status


def _refusal(request: Request, tip: _Tip | None) -> PursuitError | None:
    actual = 0 if tip is None else tip.seq
    if request.expected is not ANY and request.expected != actual:
        return Conflict(
            f"stream {request.stream} is at event {actual}, not at {request.expected}: read it again and decide anew",
            stream=request.stream,
            expected=request.expected,
            actual=actual,
        )
    if tip is None and not request.events:
        return InvalidArgument(f"stream {request.stream} cannot begin without an event", stream=request.stream)
    if tip is not None and tip.status == FORGOTTEN:
        return InvalidArgument(
            f"stream {request.stream} was forgotten and cannot go on: use a new name", stream=request.stream
        )
    return None
