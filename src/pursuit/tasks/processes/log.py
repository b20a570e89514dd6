"""What a command wrote and we have read: a log of bounded size that can be cut back, tailed and followed.

Owns: the two halves on disk and positions in the whole. Knows no command. Invariant: positions count all bytes that
were ever appended; the newest `bound` / 2 of them at least are there, in order.
"""

from __future__ import annotations

import os
from pathlib import Path

BOUND = 64 * 1024 * 1024
BLOCK = 256 * 1024
LONGEST_TAIL = 16 * 1024 * 1024


class Log:
    """The side that writes; one for each log at a time."""

    def __init__(self, folder: Path, name: str, *, bound: int = BOUND) -> None:
        self._folder = folder
        self._name = name
        self._half = max(1, bound // 2)
        self._starts = [start for start, _ in halves(folder, name)]
        self.position = log_end(folder, name)
        self.lost = 0
        """Bytes that the disk refused."""

    def append(self, data: bytes) -> None:
        """Adds whole lines; the older half goes when the newer one is full. A full disk loses them, not the command."""
        if not data:
            return
        try:
            if not self._starts or self.position - self._starts[-1] >= self._half:
                self._starts.append(self.position)
                while len(self._starts) > 2:
                    _path(self._folder, self._name, self._starts.pop(0)).unlink(missing_ok=True)
            path = _path(self._folder, self._name, self._starts[-1])
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self._write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            self.lost += len(data)

    def _write(self, descriptor: int, data: bytes) -> None:
        """All of it or nothing; raises `OSError`. Half of it would be a line that nobody wrote."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            if len(view) < len(data):
                os.ftruncate(descriptor, self.position - self._starts[-1])
            raise
        self.position += len(data)

    def cut(self, position: int) -> None:
        """Goes back to a position: what was appended after it is gone."""
        for start, path in halves(self._folder, self._name):
            if start >= position:
                path.unlink()
            elif path.stat().st_size > position - start:
                os.truncate(path, position - start)
        self._starts = [start for start, _ in halves(self._folder, self._name)]
        if log_end(self._folder, self._name) != position:
            # What came before it is not there any more, or never reached the disk: positions go on all the same.
            self._starts.append(position)
        self.position = position


def halves(folder: Path, name: str) -> list[tuple[int, Path]]:
    """The files of a log with the positions of their first bytes, oldest first."""
    return sorted((int(path.name.rpartition(".")[2]), path) for path in folder.glob(f"{name}.[0-9]*"))


def log_end(folder: Path, name: str) -> int:
    """The position after the last byte."""
    for start, path in reversed(halves(folder, name)):
        try:
            return start + path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def read_log(folder: Path, name: str, position: int, most: int = BLOCK) -> tuple[bytes, int]:
    """Bytes from a position on and the position after them; what has gone meanwhile is skipped."""
    for start, path in halves(folder, name):
        try:
            size = path.stat().st_size
            if start + size <= position:
                continue
            begin = max(start, position)
            with path.open("rb") as file:
                file.seek(begin - start)
                data = file.read(most)
            return data, begin + len(data)
        except FileNotFoundError:
            continue
    return b"", position


def tail_position(folder: Path, name: str, lines: int) -> int:
    """Where the last so many lines begin."""
    end = place = log_end(folder, name)
    found = 0
    for start, path in reversed(halves(folder, name)):
        while place > start and end - place < LONGEST_TAIL:
            begin = max(start, place - BLOCK)
            with path.open("rb") as file:
                file.seek(begin - start)
                block = file.read(place - begin)
            ends = block.count(b"\n") - (place == end)  # the end of the last line begins no other
            if found + ends >= lines:
                return begin + _nth_end(block, found + ends - lines) + 1
            found, place = found + ends, begin
    return place


def _nth_end(block: bytes, number: int) -> int:
    place = -1
    for _ in range(number + 1):
        place = block.index(b"\n", place + 1)
    return place


def _path(folder: Path, name: str, start: int) -> Path:
    return folder / f"{name}.{start:015d}"
