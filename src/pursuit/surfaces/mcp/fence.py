"""Data inside a prompt: bounded in size, and fenced so that it stays data.

Owns: the cutting and the fence. Knows nothing of what the data means. Invariant: what comes out is at most as long as
was asked for, every line of it is JSON, and no value in it can close the fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

_FENCE = "```"
_DEPTH = 12
_STEPS = ((1_000, 200), (400, 60), (160, 20), (80, 8), (40, 3), (20, 1))
"""How long a text and how many the entries may be, from generous to mean."""


def fenced(rows: Iterable[object]) -> str:
    """A block with one JSON value on each line."""
    return "\n".join([f"{_FENCE}jsonl", *(_line(row) for row in rows), _FENCE])


def fit(value: Any, most: int) -> Any:
    """The value, with long texts and long lists cut until its JSON has at most so many characters."""
    for longest, entries in _STEPS:
        cut = _cut(value, longest, entries, _DEPTH)
        if len(_line(cut)) <= most:
            return cut
    return "…"


def fitting(rows: Iterable[Any], most: int, *, each: int) -> list[Any]:
    """Rows from the first on, each cut to its share, as long as they fit together."""
    kept: list[Any] = []
    for row in rows:
        shown = fit(row, each)
        most -= len(_line(shown)) + 1
        if most < 0:
            break
        kept.append(shown)
    return kept


def _line(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    # In JSON a backtick only ever stands inside a text, where it may be written like this.
    return text.replace(_FENCE, "\\u0060" * 3)


def _cut(value: Any, longest: int, entries: int, depth: int) -> Any:
    match value:
        case str():
            text = value.encode(errors="replace").decode()
            return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
        case Mapping():
            pairs = list(cast("Mapping[str, Any]", value).items())
            if depth == 0:
                return f"… ({len(pairs)} keys)"
            shown = {_cut(key, longest, 1, 1): _cut(one, longest, entries, depth - 1) for key, one in pairs[:entries]}
            return shown if len(pairs) <= entries else {**shown, "…": f"{len(pairs) - entries} more"}
        case list() | tuple():
            items = cast("list[Any]", value)
            if depth == 0:
                return f"… ({len(items)} entries)"
            shown = [_cut(one, longest, entries, depth - 1) for one in items[:entries]]
            return shown if len(items) <= entries else [*shown, f"… {len(items) - entries} more"]
        case _:
            return value
