"""Whether a table of a manifest can be told as JSON.

Owns: what TOML, or a program, can say that JSON cannot: dates, infinities, keys that are no texts, numbers without end,
halves of a character; characters that nobody can see; and how deep a table may be.
Pure. Invariant: every such place is a fault of its own, with its path; what comes out of `within_depth` can be walked.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pursuit.config.files import Fields, kind

DEEPEST = 64
_LONGEST_PLACE = 100
_LARGEST = 2**63
_TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a text, so that it reads other than it is."""


def within_depth(fields: Fields, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without what is nested too deeply, which is a fault of its part of the table."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        cut: list[str] = []
        found[key] = _within(value, key, 0, cut)
        if cut:
            fields.fault(_shown(cut[0]), f"is nested more than {DEEPEST} levels deep")
    return found


def _within(value: Any, at: str, depth: int, cut: list[str]) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > DEEPEST:
        cut.append(at)
        return {}
    if isinstance(value, Mapping):
        named = cast("Mapping[Any, Any]", value).items()
        return {key: _within(one, f"{at}.{key}", depth + 1, cut) for key, one in named}
    listed = cast("list[Any]", value)
    return [_within(one, f"{at}[{place}]", depth + 1, cut) for place, one in enumerate(listed)]


def _shown(place: str) -> str:
    return place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…"


def check_plain(fields: Fields, key: str, value: object) -> bool:
    """A fault for everything below this key that JSON has no word for; whether it can be written as JSON."""
    unlike = list(_unlike_json(value, key))
    for at, reason in unlike:
        fields.fault(at, reason)
    return not unlike and all(_is_writable(text) for _, text in _texts(value, key))


def check_unicode(fields: Fields, table: Mapping[str, object]) -> None:
    """A fault for every text that cannot be written; a file has none, a program may hand one in."""
    for key, value in table.items():
        for at, text in _texts(value, key):
            if not _is_writable(text):
                fields.fault(at, "is no valid Unicode; it holds half of a surrogate pair")


def check_printable(fields: Fields, key: str, value: object) -> None:
    """A fault for every text below this key with a character that a screen would obey instead of showing it."""
    for at, text in _texts(value, key):
        odd = unprintable(text)
        if odd is not None:
            fields.fault(at, f"has a character that cannot be printed: U+{ord(odd):04X}")


def check_line(fields: Fields, key: str) -> None:
    """A fault for a name that is more than one line, or that a screen cannot show."""
    text = fields.table.get(key)
    if isinstance(text, str) and ((odd := unprintable(text)) is not None or len(text.splitlines()) > 1 or "\t" in text):
        fields.fault(
            key, "must be one line" if odd is None else f"has a character that cannot be printed: U+{ord(odd):04X}"
        )


def unprintable(text: str) -> str | None:
    """The first character that cannot be shown, but for the ends of lines and tabs; nothing if there is none."""
    if text.isprintable():
        return None
    return next(
        (one for one in text if one in _TURNING or (unicodedata.category(one) == "Cc" and one not in "\n\r\t")), None
    )


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            yield at, str(key)
            yield from _texts(one, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from _texts(one, f"{at}[{place}]")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unlike_json(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            if isinstance(key, str):
                yield from _unlike_json(one, f"{at}.{key}")
            else:
                yield at, f"has a key that is no text: {str(key)[:60]!r}"
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from _unlike_json(one, f"{at}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield at, f"must be a finite number, not {value}"
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST:
        yield at, "is too large for a whole number"
    elif value is not None and not isinstance(value, str | int | float):
        yield at, f"must be something that JSON has, not {kind(value)}; put it in quotes"
