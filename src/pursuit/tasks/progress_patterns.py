"""Finds metrics and progress in a command's output by three patterns: units done, failures, the current item.

Invariant: a pattern cannot block the reader: if it takes too long, it is switched off with a note.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pursuit.core.log_metrics import LogMetrics
from pursuit.core.patterns import Unfinished, line_matches
from pursuit.tasks.command import Command
from pursuit.upstream.fixed_patterns import ESCAPES

if TYPE_CHECKING:
    import regex


class Units:
    """The set of counted units, which only grows. The file has eight bytes for each.

    After a crash the file is cut back to the last mark, so each unit counts once, even if its line is read again.
    """

    def __init__(self, path: Path, *, count: int = 0) -> None:
        self._path = path
        self._known: set[int] = set()
        self._new = array("Q")
        if path.exists():
            os.truncate(path, 8 * count)
            stored = array("Q")
            stored.frombytes(path.read_bytes())
            self._known.update(stored)

    @property
    def count(self) -> int:
        return len(self._known)

    def add(self, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):  # most repeats are close together, and cost less here
            number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            if number not in self._known:
                self._known.add(number)
                self._new.append(number)

    def store(self) -> None:
        """Writes the new units; raises `OSError`."""
        if not self._new:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._new.tobytes())
        self._new = array("Q")


MAX_MESSAGE = 200
MAX_FAILURES = 10
PIECE = 128 * 1024
"""Bytes that a pattern must search within `SECONDS` of processor time; a good pattern takes a few milliseconds."""
MAX_LINE = 64 * 1024
"""Maximum bytes of a line that patterns search."""
SECONDS = 2.0
_MAX_LOOKED = 20


class OutputProgress:
    """The matches so far; patterns named in `off` are switched off."""

    def __init__(self, command: Command, units: Units, *, off: Sequence[str] = (), seconds: float = SECONDS) -> None:
        self.units = units
        self.lines = 0
        self.message: str | None = None
        self.item: str | None = None
        self.failures: list[str] = []
        self.counts = command.unit_pattern is not None
        """True if units are counted."""
        self.off = list(off)
        self._seconds = seconds
        self.metrics = LogMetrics(command.metrics)
        said = {
            "unit_pattern": (command.unit_pattern, self._count),
            "failure_pattern": (command.failure_pattern, self._collect),
            "item_pattern": (command.item_pattern, self._name),
        }
        looks: dict[str, Callable[[str], None]] = {
            name: partial(self._search, pattern, take) for name, (pattern, take) in said.items() if pattern is not None
        }
        for rule in command.metrics:
            if rule.file is None:
                looks[f"metrics.{rule.name}"] = partial(self.metrics.look, rule, seconds=seconds)
        self._looks = {name: look for name, look in looks.items() if name not in self.off}

    @property
    def notes(self) -> list[str]:
        why = f"it took more than {self._seconds:g} s for {PIECE // 1024} KiB; write it without nested repetitions"
        return [f"{name} was switched off while the command ran: {why}" for name in self.off]

    def take(self, lines: bytes) -> list[str]:
        """Searches whole lines; returns new notes."""
        if not lines:
            return []
        self.lines += lines.count(b"\n")
        self.message = _last_word(lines) or self.message
        before = len(self.off)
        for piece in _pieces(lines) if self._looks else ():
            text = _bounded(piece).decode("utf-8", "replace")
            for name, look in list(self._looks.items()):
                try:
                    look(text)
                except Unfinished:
                    del self._looks[name]
                    self.off.append(name)
        return self.notes[before:]

    def _search(self, pattern: str, take: Callable[[Iterator[regex.Match[str]]], None], text: str) -> None:
        take(line_matches(pattern, text, self._seconds))

    def _count(self, found: Iterator[regex.Match[str]]) -> None:
        self.units.add(_meant(one) for one in found)

    def _name(self, found: Iterator[regex.Match[str]]) -> None:
        for one in found:
            self.item = shortened(_meant(one)) or self.item

    def _collect(self, found: Iterator[regex.Match[str]]) -> None:
        line = None
        while len(self.failures) < MAX_FAILURES and (one := next(found, None)) is not None:
            if one.string is not line:
                line = one.string
                self.failures.append(shortened(line))


def _pieces(lines: bytes) -> Iterator[bytes]:
    """Splits whole lines into pieces of about the size of one search."""
    place, size = 0, len(lines)
    while size - place > PIECE:
        end = lines.find(b"\n", place + PIECE) + 1 or size
        yield lines[place:end]
        place = end
    if place < size:
        yield lines[place:]


def _bounded(lines: bytes) -> bytes:
    """The lines, each cut to the length that a pattern may search."""
    if len(lines) <= MAX_LINE:
        return lines
    return b"\n".join(line[:MAX_LINE] for line in lines.split(b"\n"))


def shortened(text: str) -> str:
    """A line as a message: without colours and control characters, and cut to a maximum length."""
    plain = ESCAPES.sub("", text[: MAX_MESSAGE * 20]).strip()
    return plain if len(plain) <= MAX_MESSAGE else plain[: MAX_MESSAGE - 1] + "…"


def _meant(found: regex.Match[str]) -> str:
    return (found[1] if found.re.groups and found[1] is not None else found[0]).strip()


def _last_word(lines: bytes) -> str | None:
    """The last line with readable text."""
    end = len(lines)
    for _ in range(_MAX_LOOKED):
        kept = lines[max(0, end - MAX_MESSAGE * 400) : end].rstrip()
        if not kept:
            return None
        end = max(0, end - MAX_MESSAGE * 400) + len(kept)
        begin = lines.rfind(b"\n", 0, end) + 1
        said = shortened(lines[begin:end].decode("utf-8", "replace"))
        if said:
            return said
        end = begin
    return None
