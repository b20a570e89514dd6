"""Which units were counted already, in eight bytes for each, in memory and on disk.

Owns: the table and its file. Knows no pattern. Invariant: after a crash the file is cut back to what was marked, so
that each unit counts once however often its line is read.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

_LEAST = 1 << 10


class Units:
    """A set of texts that can only grow; `count` of them are in it."""

    def __init__(self, path: Path, *, count: int = 0) -> None:
        self._path = path
        self._table = array("Q", bytes(8 * _LEAST))
        self._new = array("Q")
        self.count = 0
        if path.exists():
            os.truncate(path, 8 * count)
            stored = array("Q")
            stored.frombytes(path.read_bytes())
            for digest in stored:
                self._put(digest)

    def add(self, texts: Iterable[str]) -> None:
        """Counts each text, once."""
        blake, number_of, new = hashlib.blake2b, int.from_bytes, self._new
        for text in dict.fromkeys(texts):  # most repeats are near, and cost less here
            number = number_of(blake(text.encode(), digest_size=8).digest(), "little") or 1  # nought is an empty place
            if self._put(number):
                new.append(number)

    def store(self) -> None:
        """Writes down what is new; raises `OSError`."""
        if not self._new:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._new.tobytes())
        self._new = array("Q")

    def _put(self, number: int) -> bool:
        table, mask = self._table, len(self._table) - 1
        place = number & mask
        while (found := table[place]) != 0:
            if found == number:
                return False
            place = (place + 1) & mask
        table[place] = number
        self.count += 1
        if self.count * 3 > len(table) * 2:
            self._grow()
        return True

    def _grow(self) -> None:
        old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        self.count = 0
        for number in old:
            if number:
                self._put(number)
