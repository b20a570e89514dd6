"""Whether a file holds what another one does.

Owns: what of a text is distinctive, and how much in common makes a copy: all of it, several distinctive lines, or
several stretches of characters; capitals and blanks do not count. Does not know: which files matter. Pure but for
reading. Invariant: what every program begins with (imports, comments, reading the input) is no sign of a copy; of each
line only a hash is kept, whatever the size of the file, and no more than `_MOST_STRETCHES` are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pursuit.problems.files import pieces_of

_LEAST = 8
_LONG_LINE = 24
_SEVERAL = 3
_STRETCH = 48
_MOST_STRETCHES = 16
_VARIED = 8
_BLANKS = b" \t\r\n\x0b\x0c"
_MARKS = bytes(code for code in range(128) if not chr(code).isalnum())
_BOILERPLATE = re.compile(
    r"\s*(?:#|//|/\*|\*|--|;|%|import\b|from\b|@|if __name__|def main|with open\(|print\(|parser\b|\"\"\"|'''"
    r"|.*(?:json\.loads?\(|json\.dumps?\(|csv\.\w*reader\(|sys\.(?:stdin|argv|exit)|argparse|copyright|licen[cs]e))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file in the forms that are compared: long lines as hashes, characters, letters and digits."""

    text: str
    lines: dict[int, int]
    solid: bytes
    bare: bytes

    def line(self, hashed: int) -> str:
        """One of the lines, with single blanks."""
        return " ".join(self.text.split("\n")[self.lines[hashed]].split())


def piece_of(text: str) -> Piece:
    """A part of a file in all of its forms."""
    raw = text.lower().encode(errors="replace")
    return Piece(
        text=text,
        lines={
            hash(line): place
            for place, line in enumerate(raw.translate(None, b" \t\r\x0b\x0c").split(b"\n"))
            if len(line) >= _LONG_LINE
        },
        solid=raw.translate(None, _BLANKS),
        bare=raw.translate(None, _MARKS),
    )


@dataclass(slots=True)
class Original:
    """A file that shall not be copied, its lines as hashes, and what was seen of it so far."""

    what: str
    solid: bytes
    lines: set[int]
    stretches: list[bytes]
    seen: set[int] = field(default_factory=set[int])
    seen_parts: set[bytes] = field(default_factory=set[bytes])
    quoted: str = ""
    same: bool = False
    whole: bool = False

    def look(self, piece: Piece) -> None:
        """Notes what of this file a piece of another one holds."""
        self.same = self.same or (len(self.solid) >= _LEAST and piece.solid == self.solid)
        found = self.lines & piece.lines.keys()
        self.seen |= found
        if found and not self.quoted:
            self.quoted = piece.line(min(found, key=piece.lines.__getitem__))
        self.seen_parts |= {part for part in self.stretches if part not in self.seen_parts and part in piece.solid}
        self.whole = self.whole or (len(self.solid) >= _STRETCH and self.solid in piece.solid)

    def copied(self) -> str | None:
        """What another file holds of this one, if that is enough to call it copied."""
        if self.same:
            return f"holds a copy of {self.what}"
        lines = len(self.seen)
        if lines >= _SEVERAL or (lines > 1 and 2 * lines >= len(self.lines)) or len(self.seen_parts) > 1:
            stretch = next((part.decode(errors="replace") for part in self.stretches if part in self.seen_parts), "")
            return f"holds lines of {self.what}, such as {(self.quoted or stretch)[:80]!r}"
        return None

    def pasted(self) -> bool:
        """Whether another text holds this file as a whole, but for a line here and there."""
        lines = len(self.seen)
        return self.whole or (lines > 1 and 10 * lines >= 9 * len(self.lines))

    def anew(self) -> Original:
        """The same file, of which nothing was seen yet."""
        return Original(what=self.what, solid=self.solid, lines=self.lines, stretches=self.stretches)


def original_of(path: Path, what: str) -> Original:
    """What is distinctive of a file: its lines, and of its first piece the stretches."""
    first, lines = "", set[int]()
    for text in pieces_of(path):
        first = first or text
        # A line that is cut off at the end of a piece is whole in the next one, which begins with that end.
        lines |= {hash(solid) for line in _own_lines(text) if len(solid := _solid(line)) >= _LONG_LINE}
    stretches = [part for run in _runs(first) for part in _cut(run)]
    step = max(1, len(stretches) // _MOST_STRETCHES)
    return Original(what=what, solid=_solid(first), lines=lines, stretches=stretches[::step][:_MOST_STRETCHES])


def _own_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if not _BOILERPLATE.match(line[:200]))


def _runs(text: str) -> Iterator[bytes]:
    """The parts of a text between what is common to all, without blanks."""
    run: list[str] = []
    for line in text.splitlines():
        if _BOILERPLATE.match(line[:200]):
            yield _solid("".join(run))
            run = []
        else:
            run.append(line)
    yield _solid("".join(run))


def _cut(run: bytes) -> Sequence[bytes]:
    parts = (run[at : at + _STRETCH] for at in range(0, len(run) - _STRETCH + 1, _STRETCH))
    return [part for part in dict.fromkeys(parts) if len(set(part)) >= _VARIED]


def _solid(text: str) -> bytes:
    return text.lower().encode(errors="replace").translate(None, _BLANKS)
