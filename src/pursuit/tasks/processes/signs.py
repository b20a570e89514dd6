"""What the lines of a command say: how far it is, what it works at, what failed.

Owns: the three patterns and what counts as news. Knows no file but that of its units, and no process.
Invariant: a line costs no work of its own unless a pattern asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pursuit.tasks.processes.command import Command
from pursuit.tasks.processes.units import Units

LONGEST_MESSAGE = 200
MOST_FAILURES = 10
_MOST_LOOKED = 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])|[\x00-\x08\x0b-\x1f\x7f]")


class Signs:
    """What was found so far."""

    def __init__(self, command: Command, units: Units) -> None:
        self.units = units
        self.lines = 0
        self.message: str | None = None
        self.item: str | None = None
        self.failures: list[str] = []
        self._unit, self._failure, self._item = (
            None if pattern is None else re.compile(pattern, re.MULTILINE)
            for pattern in (command.unit_pattern, command.failure_pattern, command.item_pattern)
        )

    @property
    def counts(self) -> bool:
        """Whether units are counted at all."""
        return self._unit is not None

    def take(self, lines: bytes) -> None:
        """Looks at whole lines."""
        if not lines:
            return
        self.lines += lines.count(b"\n")
        self.message = _last_word(lines) or self.message
        wants_failures = self._failure is not None and len(self.failures) < MOST_FAILURES
        if self._unit is None and self._item is None and not wants_failures:
            return
        text = lines.decode("utf-8", "replace")
        if self._unit is not None:
            self.units.add(_meant(found) for found in matches(self._unit, text))
        if self._item is not None:
            for found in matches(self._item, text):
                self.item = shortened(_meant(found)) or self.item
        if self._failure is not None and wants_failures:
            self._collect(self._failure, text)

    def _collect(self, pattern: re.Pattern[str], text: str) -> None:
        """Keeps whole lines, each once however often it matches."""
        after = 0
        for found in matches(pattern, text):
            if found.start() < after:
                continue
            begin = text.rfind("\n", 0, found.start()) + 1
            after = text.index("\n", found.start()) + 1
            self.failures.append(shortened(text[begin:after]))
            if len(self.failures) >= MOST_FAILURES:
                return


def matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Every match that lies in one line; the whole text is searched at once, which is what makes it quick."""
    place: int | None = 0
    while place is not None:
        begin, place = place, None
        for found in pattern.finditer(text, begin):
            if "\n" not in found[0]:
                yield found
                continue
            # It went over the end of a line, as `\s` does: that line is looked at alone.
            line_end = text.index("\n", found.start())
            yield from pattern.finditer(text, found.start(), line_end)
            place = line_end + 1
            break


def shortened(text: str) -> str:
    """A line as a message: without colours and control characters, and not too long."""
    plain = _ESCAPES.sub("", text[: LONGEST_MESSAGE * 20]).strip()
    return plain if len(plain) <= LONGEST_MESSAGE else plain[: LONGEST_MESSAGE - 1] + "…"


def _meant(found: re.Match[str]) -> str:
    return (found[1] if found.re.groups and found[1] is not None else found[0]).strip()


def _last_word(lines: bytes) -> str | None:
    """The last line that says something to a person."""
    end = len(lines)
    for _ in range(_MOST_LOOKED):
        kept = lines[max(0, end - LONGEST_MESSAGE * 400) : end].rstrip()
        if not kept:
            return None
        end = max(0, end - LONGEST_MESSAGE * 400) + len(kept)
        begin = lines.rfind(b"\n", 0, end) + 1
        said = shortened(lines[begin:end].decode("utf-8", "replace"))
        if said:
            return said
        end = begin
    return None
