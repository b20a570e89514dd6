"""Headings of the first level in Markdown.

Owns: what a reader of Markdown takes for one: `# …`, a line underlined with `=`, `<h1>`; also inside quotes and lists.
Also whether a code block is left open. Pure. Invariant: what stands in a code block is no heading; the time is linear
in the text, whatever it is.
"""

from __future__ import annotations

import re

# One mark takes its blanks or leaves them to the next: the marks are peeled off one by one, never tried again.
_MARK = re.compile(r" {0,3}(?:>|[-*+]|\d{1,9}[.)])[ \t]?")
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<rest>.*)")
_HASHED = re.compile(r" {0,3}#(?:[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}=+[ \t]*$")
_HTML = re.compile(r"<h1[\s>/]", re.IGNORECASE)
_TICKS = re.compile(r"(`+)")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


def first_level_heading(text: str) -> str | None:
    """The first line that is a heading of the first level, or nothing."""
    return _looked_through(text)[0]


def open_fence(text: str) -> str | None:
    """The fence of a code block that is not closed, which would swallow whatever comes after the text; or nothing."""
    return _looked_through(text)[1]


def _looked_through(text: str) -> tuple[str | None, str | None]:
    fence = before = ""
    heading: str | None = None
    for line in _LINE_ENDS.split(text):
        within = _peeled(line)
        found = _FENCE.match(within)
        if fence:
            if found is not None and found["marks"].startswith(fence) and not found["rest"].strip():
                fence = ""
            before = ""
            continue
        if found is not None and not (found["marks"][0] == "`" and "`" in found["rest"]):
            fence, before = found["marks"], ""
            continue
        if _HASHED.match(within) or (_HTML.search(line) and _HTML.search(_without_code(line))):
            heading = heading or line.strip()
        if _UNDERLINE.match(within) and before.strip():
            heading = heading or before.strip()
        before = line
    return heading, fence or None


def _peeled(line: str) -> str:
    """A line without the marks of quotes and lists that it begins with."""
    at = 0
    while (mark := _MARK.match(line, at)) is not None:
        at = mark.end()
    return line[at:]


def _without_code(line: str) -> str:
    """A line without its code spans: from a row of backticks to the next one of the same length."""
    parts = _TICKS.split(line)
    last = {ticks: place for place, ticks in enumerate(parts) if place % 2}
    kept: list[str] = []
    place = 0
    while place < len(parts):
        part = parts[place]
        if place % 2 and last[part] > place:
            place = parts.index(part, place + 1)
        elif not place % 2:
            kept.append(part)
        place += 1
    return "".join(kept)
