"""Quoted text in a prompt: lines that cannot be mistaken for the runtime's own, in as many bytes as there are.

Owns: the fence around a block, how values look behind the quote, who is cut when there is no room. Knows no mission.
Invariant: a block measures at most what it was given, and no text in it can end its line, its quote or its fence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from pursuit.model.cutting import cut_to

QUOTE = "| "
NO_MARK = "0" * 16
LEAST_ROW = 160
_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
_ODD = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\uffff\U000e0000-\U000e0fff]"
)


class Block(NamedTuple):
    """Quoted lines, what they are, and the runtime's word about them."""

    title: str
    kind: str
    lines: Sequence[str]

    @property
    def size(self) -> int:
        """Its bytes, with the gap after it."""
        return len(self.shown().encode()) + 2

    def shown(self, mark: str = NO_MARK) -> str:
        """The block as a model sees it."""
        return "\n".join([self.title, f"<<< {mark} {self.kind}", *self.lines, f">>> {mark} {self.kind}"])


@dataclass(slots=True)
class Page:
    """Blocks that together have so much room, each its share of it."""

    room: int
    used: int = 0
    blocks: list[Block] = field(default_factory=list[Block])

    def add(self, block: Block) -> None:
        """One more block, as it is."""
        self.used += block.size
        self.blocks.append(block)

    def rows(self, kind: str, title: str, rows: Iterable[Any], *, share: int, least: int = 0) -> None:
        """One JSON value on each line; those at the end go first if there are too many, and it is said how many."""
        room = max(self.room // share, least) - around(kind, title)
        self.add(Block(title, kind, _fitting(list(rows), room)))


def around(kind: str, title: str) -> int:
    """What a block takes besides its lines, and the gap after it."""
    return Block(title, kind, ()).size + 1


def divided(room: int, wanted: Sequence[int], weights: Sequence[int] | None = None) -> list[int]:
    """So much for each: what it wants, or else its part of what the modest ones leave."""
    shares = list(weights or [1] * len(wanted))
    given: list[int] = [0] * len(wanted)
    waiting: list[int] = list(range(len(wanted)))
    while waiting:
        total = sum(shares[one] for one in waiting)
        parts = {one: room * shares[one] // total for one in waiting}
        modest = [one for one in waiting if wanted[one] <= parts[one]]
        if not modest:
            for one in waiting:
                given[one] = parts[one]
            break
        for one in modest:
            given[one] = wanted[one]
            room -= wanted[one]
            waiting.remove(one)
    return given


def quoted(text: str, room: int | None = None) -> list[str]:
    """The text line by line, each behind the quote, as far as it fits."""
    lines: list[str] = []
    for line in _BREAKS.split(text.encode(errors="replace").decode()):
        shown = QUOTE + _ODD.sub("\N{REPLACEMENT CHARACTER}", line)
        size = bytes_of(shown)
        if room is not None and size > room:
            cut = shown.encode()[: max(0, room - 40)].decode(errors="ignore")
            if len(cut) > len(QUOTE):
                lines.append(cut)
            return [*lines, f"{QUOTE}… (cut here)"]
        room = None if room is None else room - size
        lines.append(shown)
    return lines


def fairly(rows: Sequence[Any], room: int) -> list[str]:
    """The rows whole, but for those longer than an even part of the room; the last ones go if it is too small."""
    lines = [whole(row) for row in rows]
    parts = divided(room - 40, [bytes_of(line) for line in lines])
    return _kept(
        (
            line if bytes_of(line) <= part else row_of(row, max(part, LEAST_ROW))
            for row, line, part in zip(rows, lines, parts, strict=True)
        ),
        len(rows),
        room,
    )


def _fitting(rows: Sequence[Any], room: int) -> list[str]:
    """The rows, each cut to its share of the room; the last ones are counted instead of shown if it is too small."""
    if not rows:
        return [f"{QUOTE}(none)"]
    each = max(room // len(rows), LEAST_ROW)
    return _kept((row_of(row, each) for row in rows), len(rows), room)


def _kept(lines: Iterable[str], count: int, room: int) -> list[str]:
    """As many of the lines as fit, from the first on; the rest is counted."""
    kept: list[str] = []
    for line in lines:
        if bytes_of(line) > room - 40:
            return [*kept, f"{QUOTE}({count - len(kept)} more)"]
        room -= bytes_of(line)
        kept.append(line)
    return kept


def bytes_of(line: str) -> int:
    """What a line takes, its break included."""
    return len(line.encode()) + 1


def row_of(value: Any, most: int) -> str:
    """A value on one quoted line of at most so many bytes, its break included."""
    return whole(cut_to(value, most, lambda shown: bytes_of(whole(shown))))


def whole(value: Any) -> str:
    """A value on one quoted line, however long that is."""
    text = msgspec.json.encode(value).decode()
    # In JSON such a character only ever stands inside a text, where it may be written like this.
    return QUOTE + _ODD.sub(lambda found: _escaped(found.group()), text)


def _escaped(character: str) -> str:
    body = character.encode("utf-16-be")
    return "".join(f"\\u{body[at]:02x}{body[at + 1]:02x}" for at in range(0, len(body), 2))
