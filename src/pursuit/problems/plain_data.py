"""Whether a table of a manifest can be told as JSON.

Owns: what TOML, or a program, can say that JSON cannot: dates, infinities, keys that are no texts, numbers without end,
halves of a character.
Pure. Invariant: every such place is a fault of its own, with its path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast

from pursuit.tools.fields import Fields, kind

DEEPEST = 64
_LARGEST = 2**63


def check_plain(fields: Fields, key: str, value: object) -> None:
    """A fault for everything below this key that JSON has no word for."""
    for at, reason in _unlike_json(value, key, 0):
        fields.fault(at, reason)


def check_unicode(fields: Fields, table: Mapping[str, object]) -> None:
    """A fault for every text that cannot be written; a file has none, a program may hand one in."""
    for key, value in table.items():
        for at, text in _texts(value, key, 0):
            if not _is_writable(text):
                fields.fault(at, "is no valid Unicode; it holds half of a surrogate pair")


def _texts(value: object, at: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping) and depth <= DEEPEST:
        for key, one in cast("Mapping[object, object]", value).items():
            yield at, str(key)
            yield from _texts(one, f"{at}.{key}", depth + 1)
    elif isinstance(value, list | tuple) and depth <= DEEPEST:
        for place, one in enumerate(cast("list[object]", value)):
            yield from _texts(one, f"{at}[{place}]", depth + 1)


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unlike_json(value: object, at: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEEPEST:
        yield at, f"is nested more than {DEEPEST} levels deep"
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            if isinstance(key, str):
                yield from _unlike_json(one, f"{at}.{key}", depth + 1)
            else:
                yield at, f"has a key that is no text: {str(key)[:60]!r}"
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[object]", value)):
            yield from _unlike_json(one, f"{at}[{place}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield at, f"must be a finite number, not {value}"
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LARGEST:
        yield at, "is too large for a whole number"
    elif value is not None and not isinstance(value, str | int | float):
        yield at, f"must be something that JSON has, not {kind(value)}; put it in quotes"
