"""What a file says, also where it is packed: compressed, or an archive of others.

Owns: which packed forms are known and how far they are followed. Does not know: what is looked for. Invariant: nothing
is unpacked beside the file itself, and no more than `MOST_UNPACKED` bytes and `MOST_PARTS` files of one; what cannot be
unpacked is passed by.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from pursuit.problems.files import pieces_of

MOST_UNPACKED = 256 * 1024 * 1024
MOST_PARTS = 10_000
DEEPEST = 3
_SMALLEST = 22
"""Bytes that an archive has at least: a zip without a file."""

_BLOCK = 1024 * 1024
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError),
)


class _Packed(Protocol):
    """A file that is packed in another one."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


_COMPRESSED: Mapping[bytes, Callable[[Path], _Packed]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


class _Room:
    """A folder to unpack into, and how many bytes and files may still be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes_left = MOST_UNPACKED
        self.parts_left = MOST_PARTS

    def take(self, source: _Packed, into: Path) -> None:
        self.parts_left -= 1
        with into.open("wb") as file:
            while self.bytes_left > 0 and (block := source.read(min(_BLOCK, self.bytes_left))):
                self.bytes_left -= len(block)
                file.write(block)


def pieces_in(path: Path) -> Iterator[str]:
    """What a file says piece after piece, then what is packed in it says."""
    yield from pieces_of(path)
    with suppress(*_BROKEN), tempfile.TemporaryDirectory() as folder:
        yield from _packed(path, _Room(Path(folder)), DEEPEST)


def _packed(path: Path, room: _Room, deeper: int) -> Iterator[str]:
    part = room.folder / f"part-{deeper}"
    with suppress(*_BROKEN):
        for source in _parts(path):
            if not room.parts_left:
                return
            with suppress(*_BROKEN), closing(source):
                room.take(source, part)
            yield from pieces_of(part)
            if deeper > 1:
                yield from _packed(part, room, deeper - 1)


def _parts(path: Path) -> Iterator[_Packed]:
    """The files that are packed in this one."""
    if path.stat().st_size < _SMALLEST:
        return
    with path.open("rb") as file:
        begin = file.read(tarfile.BLOCKSIZE)
    unpacked = next((opened for mark, opened in _COMPRESSED.items() if begin.startswith(mark)), None)
    if unpacked is not None:
        yield unpacked(path)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with suppress(*_BROKEN):  # one behind a password
                    yield archive.open(member)
    elif _begins_tar(begin):
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                source = archive.extractfile(entry) if entry.isfile() else None
                if source is not None:
                    yield source


def _begins_tar(block: bytes) -> bool:
    """Whether a file begins as a tar archive does, without trying to read all of it as one."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True
