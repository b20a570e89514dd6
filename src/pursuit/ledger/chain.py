"""The hash chain that makes a changed, lost or reordered event visible.

Owns: how an event is hashed onto the one before it, how a chain is walked, and the root over all heads.
Knows nothing of databases or files. Invariant: two different histories never share a frame, because every
part of variable length is preceded by its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256

from pursuit.ledger.contract import Head

GENESIS = bytes(32)
"""What the first event of a stream is chained to."""

_EVENT = sha256(b"pursuit event 1\0")
"""What every event's hash begins with; copying a hash that has begun costs less than beginning one."""
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
    """Whether these are a stream's name and head, of the types and ranges that were once written."""
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
        """Takes the next event as it is stored; a fault is told once and the walk goes on from there."""
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
        """Compares where the events end with where the stream's head says that they do."""
        if claimed.seq != self.head.seq:
            self._fault(f"the head is at event {claimed.seq} but the events end at {self.head.seq}")
        elif claimed.hash != self.head.hash:
            self._fault(f"the head's hash is not the hash of event {self.head.seq}")

    def _matches(self, seq: int, at: float, type_: str, body: bytes, stored: bytes) -> bool:
        try:
            return link(self.head.hash, self.stream, seq, at=at, type_=type_, body=body) == stored
        except (TypeError, AttributeError, ValueError, struct.error):
            # A column that was overwritten with a value of another type cannot even be framed.
            return False

    def _fault(self, sentence: str) -> None:
        self.faults.append(f"stream {self.stream}: {sentence}")
