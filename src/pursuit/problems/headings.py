"""Headings of the first level in Markdown.

Owns: what a reader of Markdown takes for one: `# …`, a line underlined with `=`, `<h1>`; also inside quotes and lists.
Also whether a code block is left open. Pure. Invariant: what stands in a code block is no heading.
"""

from __future__ import annotations

import re

_WITHIN = r"(?: {0,3}(?:>|[-*+]|\d{1,9}[.)])[ \t]?)*"
_FENCE = re.compile(rf"{_WITHIN} {{0,3}}(?P<marks>`{{3,}}|~{{3,}})(?P<rest>.*)")
_HASHED = re.compile(rf"{_WITHIN} {{0,3}}#(?:[ \t]|$)")
_UNDERLINE = re.compile(rf"{_WITHIN} {{0,3}}=+[ \t]*$")
_HTML = re.compile(r"<h1[\s>/]", re.IGNORECASE)
_CODE = re.compile(r"(`+).+?\1")
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
        found = _FENCE.match(line)
        if fence:
            if found is not None and found["marks"].startswith(fence) and not found["rest"].strip():
                fence = ""
            before = ""
            continue
        if found is not None and not (found["marks"][0] == "`" and "`" in found["rest"]):
            fence, before = found["marks"], ""
            continue
        if _HASHED.match(line) or _HTML.search(_CODE.sub("", line)):
            heading = heading or line.strip()
        if _UNDERLINE.match(line) and before.strip():
            heading = heading or before.strip()
        before = line
    return heading, fence or None
