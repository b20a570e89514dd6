"""The ledger in an SQLite file: the default, with nothing to start.

Owns: putting the parts together and checking what callers hand in. Knows nothing of missions.
Invariant: only well-formed requests reach the writer, so that nothing but the disk can refuse them there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import msgspec

from pursuit.errors import InvalidArgument
from pursuit.ledger.commit import Request
from pursuit.ledger.contract import (
    FORGOTTEN,
    Anywhere,
    Bell,
    Draft,
    Found,
    Head,
    Page,
    StoredEvent,
    StreamRow,
    Verification,
)
from pursuit.ledger.locks import StreamClaim, require_name, take_claim
from pursuit.ledger.schema import Handles, open_file, real_path
from pursuit.ledger.sqlite_reads import SqliteReads
from pursuit.ledger.verify import forget_stream, verify_file
from pursuit.ledger.watch import Bells, follow
from pursuit.ledger.writer import Writer

_encode = msgspec.json.Encoder().encode


class SqliteLedger:
    """`contract.Ledger` over one SQLite file; every promise is written there."""

    def __init__(self, path: Path, handles: Handles, clock: Callable[[], float]) -> None:
        self._path = path
        self._handles = handles
        self._clock = clock
        self._reads = SqliteReads(path, handles.reader)
        self._bells = Bells(self._reads)
        self._writer = Writer(path, handles, self._bells, clock)
        self._closed = False

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> SqliteLedger:
        """Opens the ledger in this file; a new file, and a folder made for it, are the owner's alone.

        Raises `LedgerTooNew` for a file of a newer release and `LedgerUnavailable` for one that is no ledger.
        """
        path = real_path(path)
        handles = open_file(path)
        try:
            return cls(path, handles, clock)
        except BaseException:
            handles.close()
            raise

    async def append(
        self,
        stream: str,
        expected: int | Anywhere,
        events: Sequence[Draft],
        *,
        kind: str = "mission",
        status: str | None = None,
        summary: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        text: str | None = None,
        by: Bell | None = None,
    ) -> Head:
        """See `contract.Ledger.append`."""
        require_name(stream)
        if not events and status is None and summary is None and text is None:
            why = f"an append to stream {stream} needs an event, a status, a summary or a text"
            raise InvalidArgument(why, stream=stream)
        _check_drafts(stream, events)
        _check_text("kind", kind)
        if status is not None:
            _check_status(stream, status)
        if blobs:
            _check_blobs(blobs)
        if text is not None:
            _check_text("text", text)
        request = Request(
            stream=stream,
            expected=expected,
            events=events,
            kind=kind,
            status=status,
            summary=None if summary is None else _summary_text(summary),
            blobs=tuple(blobs.items()) if blobs else (),
            text=text,
            by=by,
        )
        return await self._writer.append(request)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """See `contract.Ledger.read`."""
        require_name(stream)
        return await self._reads.events(stream, after, limit)

    async def row(self, stream: str) -> StreamRow | None:
        """See `contract.Ledger.row`."""
        require_name(stream)
        await anyio.lowlevel.checkpoint()
        return self._reads.row(stream)

    async def streams(
        self,
        *,
        kind: str | None = None,
        status: str | Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """See `contract.Ledger.streams`."""
        await anyio.lowlevel.checkpoint()
        return self._reads.page(kind=kind, status=status, since=since, until=until, cursor=cursor, limit=limit)

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[Found]:
        """See `contract.Ledger.search`."""
        await anyio.lowlevel.checkpoint()
        return self._reads.search(words, kind=kind, limit=limit)

    def bell(self, stream: str | None = None) -> AbstractContextManager[Bell]:
        """See `contract.Ledger.bell`."""
        if stream is not None:
            require_name(stream)
        return self._bells.hang(stream)

    def watch(self, stream: str, after: int = 0) -> AsyncGenerator[StoredEvent, None]:
        """See `contract.Ledger.watch`."""
        require_name(stream)
        return follow(self._bells, self._reads.events, stream, after)

    async def blob(self, digest: str) -> bytes | None:
        """See `contract.Ledger.blob`."""
        await anyio.lowlevel.checkpoint()
        return self._reads.blob(digest)

    async def digests(self, stream: str) -> list[str]:
        """See `contract.Ledger.digests`."""
        require_name(stream)
        await anyio.lowlevel.checkpoint()
        return self._reads.digests(stream)

    async def claim(self, stream: str) -> StreamClaim | None:
        """See `contract.Ledger.claim`."""
        await anyio.lowlevel.checkpoint()
        return take_claim(self._path.parent / "locks", stream)

    async def root(self) -> str:
        """See `contract.Ledger.root`."""
        await anyio.lowlevel.checkpoint()
        return self._reads.root()

    async def verify(self, *, expect: str | None = None) -> Verification:
        """See `contract.Ledger.verify`."""
        return await verify_file(self._path, expect)

    async def forget(self, stream: str) -> None:
        """See `contract.Ledger.forget`."""
        require_name(stream)
        await anyio.to_thread.run_sync(forget_stream, self._path, stream, self._clock())

    async def close(self) -> None:
        """See `contract.Ledger.close`."""
        with anyio.CancelScope(shield=True):
            await self._writer.close()
        if not self._closed:
            self._closed = True
            self._bells.close()
            self._handles.close()


def _check_drafts(stream: str, events: Sequence[Draft]) -> None:
    for draft in events:
        if draft.type.isascii() and type(draft.body) is bytes:
            continue
        _check_text("type", draft.type)
        if not isinstance(draft.body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"the body of an event must be bytes, not {type(draft.body).__name__}", stream=stream)


def _check_status(stream: str, status: str) -> None:
    _check_text("status", status)
    if status == FORGOTTEN:
        raise InvalidArgument(f"the status {FORGOTTEN!r} is kept for streams that were forgotten", stream=stream)


def _check_text(name: str, text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the {name} {text!r} is no valid text", field=name) from None


def _check_blobs(blobs: Mapping[str, bytes]) -> None:
    for digest, body in blobs.items():
        if sha256(body).hexdigest() != digest:
            raise InvalidArgument(f"{digest!r} is not the sha256 of the blob that it names", digest=digest)


def _summary_text(summary: Mapping[str, Any]) -> str:
    try:
        return _encode(summary).decode()
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the summary cannot be written as JSON: {error}") from error
