"""The hash chain that makes a changed, lost or reordered event visible.

The hash of each event includes the hash of the event before it. Different histories never give the same bytes to hash,
because each part is preceded by its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol

from pursuit.ledger.contract import Draft, Head


class SqlConnection(Protocol):
    """The connection of checks: SQLite, or PostgreSQL behind the same interface; a `?` stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any: ...


GENESIS = bytes(32)
"""The hash before the first event of a stream."""

_EVENT = sha256(b"pursuit event 1\0")
"""The beginning of every event's hash; copying a started hash costs less than starting one."""
_ROOT_TAG = b"pursuit root 1\0"
_EVENT_FRAME = struct.Struct(">QdIIQ")
_HEAD_FRAME = struct.Struct(">IQI")


_pack = _EVENT_FRAME.pack
_encoded = lru_cache(maxsize=1_024)(str.encode)


def link_all(previous: bytes, stream: str, seq: int, *, at: float, drafts: Iterable[Draft]) -> list[bytes]:
    """The hashes of events that follow the event `seq`, given its hash."""
    name = stream.encode()
    length = len(name)
    hashes: list[bytes] = []
    for draft in drafts:
        seq += 1
        kind, body = _encoded(draft.type), draft.body
        hash_ = _EVENT.copy()
        hash_.update(b"".join((previous, _pack(seq, at, length, len(kind), len(body)), name, kind, body)))
        previous = hash_.digest()
        hashes += (previous,)
    return hashes


def link(previous: bytes, stream: str, seq: int, *, at: float, type_: str, body: bytes) -> bytes:
    """The hash of one event, given the hash of the event before it."""
    return link_all(previous, stream, seq - 1, at=at, drafts=[Draft(type_, body)])[0]


def can_be_framed(stream: object, seq: object, hash_: object) -> bool:
    """True if these can be a stream's name and head: they have the types and ranges that are written."""
    if not (isinstance(stream, str) and isinstance(seq, int) and isinstance(hash_, bytes)):
        return False
    try:
        _HEAD_FRAME.pack(len(stream.encode()), seq, len(hash_))
    except (UnicodeEncodeError, struct.error):
        return False
    return True


def root(heads: Iterable[tuple[str, Head]]) -> str:
    """One hash (hex) over the heads of streams, in the order of their names."""
    total = sha256(_ROOT_TAG)
    for stream, head in sorted(heads, key=lambda pair: pair[0]):
        name = stream.encode()
        total.update(_HEAD_FRAME.pack(len(name), head.seq, len(head.hash)) + name + head.hash)
    return total.hexdigest()


class Walk:
    """Follows the events of one stream in order and collects their faults."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.head = Head(0, GENESIS)
        self.events = 0
        self.faults: list[str] = []

    def step(self, seq: int, *, at: float, type_: str, body: bytes, stored: bytes) -> None:
        """Checks the next stored event; a fault is reported once, and the walk continues from there."""
        self.events += 1
        due = self.head.seq + 1
        if seq > due:
            # The hash before the gap is missing, so this event's own hash cannot be checked.
            self._fault(f"event {due} is missing" if seq == due + 1 else f"events {due} to {seq - 1} are missing")
        elif seq < due:
            self._fault(f"event {seq} is out of order: event {due} was due")
        elif not self._matches(seq, at, type_, body, stored):
            self._fault(f"event {seq} does not match its hash: it or the event before it was changed")
        self.head = Head(seq, stored)

    def end(self, claimed: Head) -> None:
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
