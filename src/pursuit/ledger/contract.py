"""The `Ledger` protocol and its values, whichever database is behind it. The body of an event is bytes.

Invariant: an event that `append` returned for is durable, in order, and never changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypedDict, Unpack, cast

import anyio
import msgspec


class Anywhere(Enum):
    """The type of `ANY`: append at the head, whatever its number."""

    ANY = "any"


ANY: Final = Anywhere.ANY

LEASE_SECONDS = 10.0
"""The lease time on a shared database: a lease expires so long after its last renewal, and then its missions continue.
"""

FORGOTTEN: Final = "forgotten"
"""The status of a forgotten stream, of which only a tombstone is left."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event that is not stored yet."""

    type: str
    body: bytes


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in the ledger; `seq` counts from 1 in its stream. Events of two streams have no order."""

    stream: str
    seq: int
    at: float
    type: str
    body: bytes
    hash: bytes


class Head(msgspec.Struct, frozen=True, gc=False):
    """The end of a stream: the number and the chain hash of its last event."""

    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """The row of a stream in a listing; status and summary are those of the last append that gave them.

    On a database that machines share, a summary from another process may be up to a second old: it is that of the event
    `summary_seq`. The status and the head are never late.
    """

    name: str
    kind: str
    status: str
    created_at: float
    updated_at: float
    head: Head
    summary: Mapping[str, Any]
    summary_seq: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StreamPage:
    """A page of streams, newest first; `next_cursor` is None on the last one."""

    rows: tuple[StreamRow, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStream:
    """A stream that a search found, with its text; a higher `rank` is a better match."""

    row: StreamRow
    text: str
    rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of `verify`; `root` is the last root."""

    streams: int
    events: int
    blobs: int
    root: str
    faults: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """True if there are no faults."""
        return not self.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The fold of a stream's events: its row in the listing, and the blobs that they name.

    More than one status is possible if the status depends on the time of an append. The text for searches derives from
    the blob `report`.
    """

    kind: str
    statuses: frozenset[str]
    summary: Mapping[str, Any]
    later: frozenset[str] = frozenset()
    """Keys of the summary that older releases did not write: a row may lack them."""
    digests: frozenset[str] = frozenset()
    report: str | None = None

    def says(self, summary: object) -> bool:
        """True if a summary of the listing agrees with the events."""
        if not isinstance(summary, Mapping):
            return False
        absent = self.later - cast("Mapping[str, Any]", summary).keys()
        return summary == {key: value for key, value in self.summary.items() if key not in absent}


class StreamFold(Protocol):
    """Folds the events of one stream for `verify`."""

    def step(self, type_: str, body: bytes) -> None:
        """Applies the next event."""
        ...

    def result(self) -> Folded | None:
        """The fold; None if a stream of Pursuit cannot begin with these events."""
        ...


class Folds(Protocol):
    """How `verify` reads the streams that Pursuit writes."""

    def begin(self, stream: str) -> StreamFold:
        """A fold for a stream."""
        ...

    def has_ended(self, kind: str, status: str) -> bool:
        """True if a stream of this kind may be forgotten in this status."""
        ...


async def every_stream(
    ledger: Ledger, *, kind: str | None = None, status: str | Sequence[str] | None = None, since: float | None = None
) -> AsyncGenerator[StreamRow]:
    """The rows of all pages, newest first; with `since` only streams that were created then or later."""
    cursor: str | None = None
    while True:
        page = await ledger.streams(kind=kind, status=status, since=since, cursor=cursor, limit=1_000)
        for row in page.rows:
            yield row
        cursor = page.next_cursor
        if cursor is None:
            return


class Wakeup(Protocol):
    """Wakes its waiter when another writer appends to its streams."""

    async def wait(self) -> None:
        """Returns after an append that did not pass this wakeup as `by`; appends before the last return do not count.

        It may return without cause. It returns within 250 ms of a commit by any process.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a driver's lock, and the wall clock when it took the lock."""

    pid: int
    host: str
    since: float


class Claim(Protocol):
    """The driver's lock on one stream, held until `release` or the death of the process.

    On a shared database it is a lease, which the ledger renews by itself. A process that was stopped for too long or
    lost its connection loses the lease to another.
    """

    @property
    def epoch(self) -> int:
        """The number of this holder: a later holder of the same stream has a greater number."""
        ...

    @property
    def lost(self) -> anyio.Event:
        """Set once the lock was not renewed in time or was taken; never for a lock of the operating system."""
        ...

    @property
    def expired(self) -> bool:
        """True if the lock may have expired; then `confirm` it before you send something under it."""
        ...

    async def confirm(self) -> None:
        """Renews the lock; raises `Fenced` if that is too late."""
        ...

    async def release(self) -> None:
        """Frees the lock; may be called twice."""
        ...


class QueuedJob(NamedTuple):
    """The job of a stream: the requirements for its worker, and the caller whose turn it uses."""

    needs: str
    caller: str


class AppendOptions(TypedDict, total=False):
    """The options of an append; the kind of a stream is a mission unless `kind` is given."""

    kind: str
    status: str | None
    summary: Mapping[str, Any] | msgspec.Struct | None
    blobs: Mapping[str, bytes] | None
    text: str | None
    by: Wakeup | None
    claim: Claim | None
    job: QueuedJob | None


class StreamFilter(TypedDict, total=False):
    """Selects streams to list, at most `limit` (default 100)."""

    kind: str | None
    status: str | Sequence[str] | None
    since: float | None
    until: float | None
    cursor: str | None
    limit: int


class TaskStore(Protocol):
    """Streams of events under compare-and-set, which hold the records of tasks. Each ledger is a task store.

    `pursuit.testing.check_task_store` checks one; tasks do not use the options `text`, `by`, `claim` and `job`.
    """

    def append(
        self, stream: str, expected: int | Anywhere, events: Sequence[Draft], **options: Unpack[AppendOptions]
    ) -> Awaitable[Head]:
        """Stores the events, the blobs and the new status together or not at all, durably, and returns the new head.

        `expected` is the stream's last sequence number (0: the stream must not exist); any other number raises
        `Conflict` with `details["actual"]`. `ANY` never conflicts. The events of one call are contiguous in the
        stream. `status` and `summary` replace what the listing shows; None leaves them, and they may come without an
        event. `text` replaces the text by which `search` finds the stream; no hash covers it, so it must follow from
        the events. A blob is named by its sha256 (hex) and belongs to every stream that it was appended to.

        An append under a `claim` that was lost raises `Fenced`, whatever it expects. With `job` the stream is a job for
        workers from the same commit on, in a database that has their queue.

        A caller that is cancelled before its commit stores nothing; one that is cancelled during the commit still
        gets the outcome, and its cancellation at the next await. A disk error raises `LedgerUnavailable` and stores
        nothing of this call; if a connection was lost and the database cannot be reached again, the error says that the
        outcome is not known. A forgotten stream, an empty append and a blob under a wrong name are `InvalidArgument`.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """The events with `seq > after`, in order; an unknown stream is empty."""
        ...

    async def row(self, stream: str) -> StreamRow | None:
        """The listing's row of one stream, or None."""
        ...

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """Streams by creation time (`since <= created_at < until`), newest first, filters ANDed.

        An invalid cursor is `InvalidArgument`. A stream that exists during the whole walk is listed exactly once.
        """
        ...

    def wakeup(self, stream: str | None = None) -> AbstractContextManager[Wakeup]:
        """A wakeup for one stream (None: for all) that notices every append from the moment of entering."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """The bytes whose sha256 (hex) is `digest`, or None."""
        ...

    async def forget(self, stream: str) -> None:
        """Removes the events and the text of a stream, and the blobs that only it used.

        Its tombstones stay, so earlier roots stay checkable, and this process's stream of the audit gets a `Forgotten`
        event in the same transaction. An unknown or already forgotten stream is ignored. Only missions,
        attempts and tasks can be forgotten; another kind is `InvalidArgument`.
        """
        ...


class Ledger(TaskStore, Protocol):
    """Append-only streams of all kinds, with their locks, hash chain and roots."""

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[FoundStream]:
        """The streams whose text has any of these words, in any of their English forms, the best match first.

        Matches with more and rarer words come first; of equal matches, the newer. The words cannot contain operators.
        Stop words ("the", a single letter) are ignored; in a large ledger, so are words in thousands of texts, unless
        there are no rarer ones.
        """
        ...

    def watch(self, stream: str, after: int = 0) -> AsyncIterator[StoredEvent]:
        """Every event with `seq > after`, past and future, each once and in order, until closed."""
        ...

    async def digests(self, stream: str) -> list[str]:
        """The digests of all blobs that appends to this stream have stored, sorted."""
        ...

    async def claim(self, stream: str) -> Claim | None:
        """Takes the driver's lock, or immediately returns None if another holder, in any process, has it."""
        ...

    async def is_claimed(self, stream: str) -> bool:
        """True if a live process holds the driver's lock; this check never makes a `claim` fail."""
        ...

    async def holder(self, stream: str) -> Holder | None:
        """The process that last took the driver's lock, for the error message; None if unknown."""
        ...

    async def root(self) -> str:
        """Makes a root if there are new events; returns a line that covers everything stored so far: `EVENTS:HASH`."""
        ...

    async def seal(self) -> None:
        """Makes a root if there are new events and no other process does so; finishes an interrupted `forget`."""
        ...

    async def stored(self) -> int:
        """The number of events ever stored."""
        ...

    async def verify(self, *, expect: str | Sequence[str] | None = None, folds: Folds | None = None) -> Verification:
        """Makes a root, then checks every chain, head, blob, tombstone and root.

        With `folds`, it also checks that each row of the listing agrees with its events, and that each blob that an
        event names exists.

        With `expect`, roots from earlier moments or heads of streams (`STREAM@SEQ:HASH`), it also checks that
        everything that they cover still exists: a cut tail and a dropped stream are faults, later growth is not. Any
        other text is `InvalidArgument`.
        """
        ...

    async def close(self) -> None:
        """Finishes queued appends, then closes the database."""
        ...
