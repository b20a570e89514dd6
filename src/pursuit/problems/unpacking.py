"""What a file says, also where it is packed: compressed, or an archive of others.

Owns: which packed forms are known and how far they are followed. Does not know: what is looked for. Invariant: nothing
is unpacked beside the file itself, and no more than `MOST_UNPACKED` bytes of one; what cannot be unpacked is passed by.
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
from typing import IO, Protocol

from pursuit.problems.files import pieces_of

MOST_UNPACKED = 256 * 1024 * 1024
DEEPEST = 3
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
    """How many bytes may still be unpacked."""

    def __init__(self) -> None:
        self.left = MOST_UNPACKED

    def take(self, source: _Packed, into: IO[bytes]) -> None:
        while self.left > 0 and (block := source.read(min(_BLOCK, self.left))):
            self.left -= len(block)
            into.write(block)


def pieces_in(path: Path) -> Iterator[str]:
    """What a file says piece after piece, then what is packed in it says."""
    yield from _pieces(path, _Room(), DEEPEST)


def _pieces(path: Path, room: _Room, deeper: int) -> Iterator[str]:
    yield from pieces_of(path)
    if not deeper:
        return
    with suppress(*_BROKEN), tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        for source in _parts(path):
            with suppress(*_BROKEN), closing(source), part.open("wb") as into:
                room.take(source, into)
            yield from _pieces(part, room, deeper - 1)


def _parts(path: Path) -> Iterator[_Packed]:
    """The files that are packed in this one."""
    with path.open("rb") as file:
        begin = file.read(8)
    unpacked = next((opened for mark, opened in _COMPRESSED.items() if begin.startswith(mark)), None)
    if unpacked is not None:
        yield unpacked(path)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with suppress(*_BROKEN):  # one behind a password
                    yield archive.open(member)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                source = archive.extractfile(entry) if entry.isfile() else None
                if source is not None:
                    yield source
