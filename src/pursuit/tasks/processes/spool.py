"""The spool of one stream, seen from the side that reads it.

Owns: which segment comes next, and which may go. Does not know: lines, or who writes.
Invariant: every byte is given once and in order, or its loss is told where it happened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pursuit.tasks.processes.identity import read_json
from pursuit.tasks.processes.keeper import segment_name


@dataclass(frozen=True, slots=True)
class Gap:
    """So many bytes were dropped here, since too much lay unread."""

    dropped: int


class Spool:
    """One stream from a place on: the number of a segment and an offset in it."""

    def __init__(self, folder: Path, stream: str, *, number: int = 1, offset: int = 0) -> None:
        self._folder = folder
        self._place = str(folder)
        self._stream = stream
        self._kept = self._first(number)
        self.number = number
        self.offset = offset

    def read(self, most: int) -> bytes | Gap | None:
        """The next piece, out of one segment; None if there is nothing yet."""
        while True:
            over = self._exists(self.number + 1)  # asked first: the next one begins after the last byte of this
            data = self._bytes(most)
            if data:
                self.offset += len(data)
                return data
            gap = read_json(self._path(self.number, gap=True))
            if gap is not None:
                self.number, self.offset = self.number + 1, 0
                return Gap(int(gap.get("dropped", 0)))
            if not over:
                return None
            self.number, self.offset = self.number + 1, 0

    def has_grown(self) -> bool:
        """Whether there is more in the segment that is being read, at the price of a look; new ones do not count."""
        try:
            # Done very often, for which paths are too slow.
            return os.stat(f"{self._place}/{segment_name(self._stream, self.number)}").st_size > self.offset  # noqa: PTH116
        except FileNotFoundError:
            return False

    def discard(self, number: int) -> None:
        """Removes the segments before that one, which nobody needs again."""
        while self._kept < number:
            for gap in (False, True):
                self._path(self._kept, gap=gap).unlink(missing_ok=True)
            self._kept += 1

    def _first(self, number: int) -> int:
        """The oldest segment; those before `number` are of a reader that died before it removed them."""
        names = (path.name.split(".")[1] for path in self._folder.glob(f"{self._stream}.[0-9]*"))
        return min([int(name) for name in names if name.isdigit()], default=number)

    def _bytes(self, most: int) -> bytes:
        try:
            descriptor = os.open(self._path(self.number), os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, most, self.offset)
        finally:
            os.close(descriptor)

    def _exists(self, number: int) -> bool:
        return self._path(number).exists() or self._path(number, gap=True).exists()

    def _path(self, number: int, *, gap: bool = False) -> Path:
        return self._folder / (segment_name(self._stream, number) + (".gap" if gap else ""))
