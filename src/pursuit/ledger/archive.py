"""One stream in one file, which can be verified without a ledger.

The format is JSON Lines: a header, the events in order, then the blobs. A file under its final name is complete, and
contains everything needed to detect changed events or blobs. The header's kind, status, times and summary are not
hashed: `verify_archive` compares them with the fold of the events.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import msgspec

from pursuit.errors import Fault, InvalidArgument, PursuitError, ValidationFailed
from pursuit.ledger.chain import Walk, can_be_framed, root
from pursuit.ledger.contract import (
    FORGOTTEN,
    Folded,
    Folds,
    Head,
    Ledger,
    StoredEvent,
    StreamFold,
    StreamRow,
    Verification,
)

FORMAT = "pursuit-stream"
VERSION = 1

_CHUNK = 2000


class _Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: str
    version: int
    stream: str
    kind: str
    status: str
    created_at: float
    updated_at: float
    seq: int
    hash: str
    summary: dict[str, Any]
    blobs: list[str]
    summary_seq: int | None = None
    """The event of the summary, if that is not the last one."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="event", omit_defaults=True):
    seq: int
    at: float
    type: str
    hash: str
    body: str | None = None
    body_base64: str | None = None


class _Blob(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="blob"):
    digest: str
    body_base64: str


_header = msgspec.json.Decoder(_Header)
_line = msgspec.json.Decoder(_Event | _Blob)


async def export_stream(ledger: Ledger, stream: str, path: Path) -> None:
    """Writes the current stream to `path`, which only the owner can read; the file appears complete or not at all."""
    row = await ledger.row(stream)
    if row is None:
        raise InvalidArgument(f"stream {stream} does not exist in the ledger", stream=stream)
    if row.status == FORGOTTEN:
        raise InvalidArgument(f"stream {stream} was forgotten: there is nothing left to export", stream=stream)
    try:
        with _appearing_whole(path) as file:
            async for line in _lines(ledger, row):
                file.write(line)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def verify_archive(path: Path, folds: Folds | None = None) -> Verification:
    """Checks an exported stream: reports faults in its content, and refuses a file of another kind.

    With `folds`, it also checks that the header agrees with the events, and that each blob that an event names exists.
    """
    try:
        with path.open("rb") as file:
            header = _read_header(path, file.readline())
            return _verify_lines(header, file, None if folds is None else folds.begin(header.stream))
    except OSError as error:
        raise _no_archive(path, f"it cannot be read: {error.strerror}") from error


@contextmanager
def _appearing_whole(path: Path) -> Generator[IO[bytes]]:
    # mkstemp makes the file readable only by the owner, whatever the umask.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


async def _lines(ledger: Ledger, row: StreamRow) -> AsyncIterator[bytes]:
    digests = await ledger.digests(row.name)
    yield _encode(
        _Header(
            format=FORMAT,
            version=VERSION,
            stream=row.name,
            kind=row.kind,
            status=row.status,
            created_at=row.created_at,
            updated_at=row.updated_at,
            seq=row.head.seq,
            hash=row.head.hash.hex(),
            summary=dict(row.summary),
            blobs=digests,
            summary_seq=row.summary_seq if row.summary_seq != row.head.seq else None,
        )
    )
    done = 0
    while done < row.head.seq:
        events = await ledger.read(row.name, done, min(_CHUNK, row.head.seq - done))
        if not events:
            raise InvalidArgument(f"stream {row.name} ends before its head: verify the ledger", stream=row.name)
        for event in events:
            yield _encode(_event_line(event))
        done = events[-1].seq
    for digest in digests:
        body = await ledger.blob(digest)
        if body is None:
            raise InvalidArgument(f"blob {digest} of stream {row.name} is missing: verify the ledger", digest=digest)
        yield _encode(_Blob(digest=digest, body_base64=base64.b64encode(body).decode()))


def _event_line(event: StoredEvent) -> _Event:
    text: str | None = None
    binary: str | None = None
    try:
        text = event.body.decode()
    except UnicodeDecodeError:
        binary = base64.b64encode(event.body).decode()
    hash_ = event.hash.hex()
    return _Event(seq=event.seq, at=event.at, type=event.type, hash=hash_, body=text, body_base64=binary)


def _encode(line: msgspec.Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _read_header(path: Path, line: bytes) -> _Header:
    try:
        header = _header.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _no_archive(path, "its first line is not the header of an exported stream") from error
    if header.format != FORMAT:
        raise _no_archive(path, f"its format is {header.format!r}, not {FORMAT!r}")
    if header.version != VERSION:
        raise _no_archive(path, f"its version is {header.version} and this release knows {VERSION}; upgrade Pursuit")
    return header


def _verify_lines(header: _Header, lines: Iterable[bytes], fold: StreamFold | None) -> Verification:
    walk = Walk(header.stream)
    faults: list[str] = []
    found: set[str] = set()
    times: list[float] = []
    told: Folded | None = None
    for number, line in enumerate(lines, start=2):
        try:
            item = _line.decode(line)
            if isinstance(item, _Event):
                body = _body(item)
                walk.step(item.seq, at=item.at, type_=item.type, body=body, stored=bytes.fromhex(item.hash))
                times[1:] = [item.at]
                if fold is not None and not walk.faults:
                    fold.step(item.type, body)
                    told = fold.result() if item.seq == header.summary_seq else told
                continue
            found.add(item.digest)
            if sha256(base64.b64decode(item.body_base64, validate=True)).hexdigest() != item.digest:
                faults.append(f"blob {item.digest}: its bytes were changed")
        except (msgspec.MsgspecError, UnicodeError, ValueError, binascii.Error, PursuitError, LookupError, TypeError):
            faults.append(f"line {number} is neither an event nor a blob: it was cut or changed")
    head = Head(header.seq, _bytes_or_nothing(header.hash))
    heads = [(header.stream, head)] if can_be_framed(header.stream, head.seq, head.hash) else []
    if heads:
        walk.end(head)
    else:
        faults.append(f"stream {header.stream}: the head in the first line was changed")
    folded = fold.result() if fold is not None and not (walk.faults or faults) else None
    if folded is not None:
        faults += _header_faults(header, folded, told or folded, times)
    named = {*header.blobs} if folded is None else {*header.blobs, *folded.digests}
    faults += [f"stream {header.stream}: its blob {digest} is missing" for digest in sorted(named - found)]
    return Verification(
        streams=1,
        events=walk.events,
        blobs=len(found),
        root=root(heads),
        faults=(*walk.faults, *faults),
    )


def _header_faults(header: _Header, folded: Folded, told: Folded, times: list[float]) -> Iterator[str]:
    right = header.kind == folded.kind and header.status in folded.statuses and told.says(header.summary)
    if not right or [header.created_at, header.updated_at] != [times[0], times[-1]]:
        yield f"stream {header.stream}: the first line does not agree with its events"
    for digest in sorted({*header.blobs} - folded.digests):
        yield f"stream {header.stream}: none of its events names its blob {digest}"


def _body(event: _Event) -> bytes:
    if event.body is not None:
        return event.body.encode()
    return base64.b64decode(event.body_base64 or "", validate=True)


def _bytes_or_nothing(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _no_archive(path: Path, reason: str) -> ValidationFailed:
    return ValidationFailed(
        [Fault(field="", reason=reason, source=str(path))], f"{path} is not an exported stream: {reason}"
    )
