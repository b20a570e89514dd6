"""Shortens texts and JSON values. Pure.

Invariant: the result never exceeds the requested size, as its reader measures it, as long as that size allows a single
character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

# Control characters, halves of surrogate pairs, and the marks that make text run the other way.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_DEPTH = 12
_STEPS = ((1_000, 200), (400, 60), (160, 20), (80, 8), (40, 3), (20, 1))
"""Maximum length of texts and maximum number of entries, from generous to strict."""
_MAX_INTEGER = 1 << 63


def clean(value: object) -> str:
    """Text without characters that steer a terminal, or that no UTF-8 file can hold."""
    return _UNPRINTABLE.sub("\ufffd", str(value))


def line(value: object, most: int | None = None) -> str:
    """Text on one line, cut to `most` characters."""
    flat = " ".join(clean(value).split())
    return flat if most is None else cut_text(flat, most)


def cut_text(text: str, most: int) -> str:
    """The text, cut to at most this many characters, with a mark."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def cut_to(value: Any, most: int, size: Callable[[Any], int]) -> Any:
    """The value, with long texts and long lists cut until its `size` is at most `most`."""
    for longest, entries in _STEPS:
        shown = _cut(value, longest, entries, _DEPTH)
        if size(shown) <= most:
            return shown
    return "…"


def _cut(value: Any, longest: int, entries: int, depth: int) -> Any:
    match value:
        case str():
            text = value[: longest + 1].encode(errors="replace").decode()
            return text if len(value) <= longest else f"{text[:longest]}… ({len(value)} characters)"
        case Mapping():
            pairs = cast("Mapping[str, Any]", value)
            if depth == 0:
                return f"… ({len(pairs)} keys)"
            first = [pair for pair, _ in zip(pairs.items(), range(entries), strict=False)]
            shown = {str(_cut(key, longest, 1, 1)): _cut(one, longest, entries, depth - 1) for key, one in first}
            return shown if len(pairs) <= entries else {**shown, "…": f"{len(pairs) - entries} more"}
        case list() | tuple():
            items = cast("list[Any]", value)
            if depth == 0:
                return f"… ({len(items)} entries)"
            shown = [_cut(one, longest, entries, depth - 1) for one in items[:entries]]
            return shown if len(items) <= entries else [*shown, f"… {len(items) - entries} more"]
        case int() if not -_MAX_INTEGER <= value < _MAX_INTEGER:
            return "a number that is too long to show"
        case _:
            return value
