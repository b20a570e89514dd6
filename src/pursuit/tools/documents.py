"""Reads a TOML or JSON document that a person wrote.

Owns: the way from a file or a text to plain data, and the words and places of what cannot be read. Does not know: what
a document means. Invariant: whatever is in the file, the answer is data or `ValidationFailed` with the file's name.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pursuit.errors import Fault, ValidationFailed
from pursuit.tools.fields import kind

_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")


def read_text(path: Path) -> str:
    """The file as text, without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(str(path), f"is not UTF-8 text (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise unreadable(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The table that a TOML text stands for."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        reason = f"is not valid TOML: {_PLACE.sub('', str(error))}"
        if place is not None and place[1]:
            raise unreadable(source, reason, int(place[1]), int(place[2])) from None
        lines = text.split("\n")
        raise unreadable(source, f"{reason} (at the end)", len(lines), len(lines[-1]) + 1) from None
    except ValueError as error:
        raise _beyond(source, "TOML", error) from None
    except RecursionError:
        raise too_deep(source) from None


def parse_json(text: str, *, source: str) -> object:
    """The value that a JSON text stands for. A key that stands twice is a fault: plain JSON drops the first one."""
    twice: list[Fault] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                twice.append(Fault(field=key, reason="stands twice in the same table", source=source))
            table[key] = value
        return table

    try:
        value: object = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise unreadable(source, f"is not valid JSON: {error.msg}", error.lineno, error.colno) from None
    except ValueError as error:
        raise _beyond(source, "JSON", error) from None
    except RecursionError:
        raise too_deep(source) from None
    if twice:
        raise ValidationFailed(twice)
    return value


def no_table(source: str, value: object) -> ValidationFailed:
    """The document is sound, and something else than a table."""
    return unreadable(source, f"must be a table, not {kind(value)}")


def too_deep(source: str) -> ValidationFailed:
    """The document has more levels than can be followed."""
    return unreadable(source, "is nested too deeply")


def unreadable(source: str, reason: str, line: int | None = None, column: int | None = None) -> ValidationFailed:
    """One fault of the document as a whole."""
    return ValidationFailed([Fault(field="", reason=reason, source=source, line=line, column=column)])


def _beyond(source: str, form: str, error: ValueError) -> ValidationFailed:
    # Python refuses numbers of thousands of digits; what follows its semicolon is advice for programmers.
    return unreadable(source, f"cannot be read as {form}: {str(error).partition(';')[0]}")
