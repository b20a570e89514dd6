"""Data inside a prompt: bounded in size, and fenced so that it stays data.

Owns: the cutting and the fence. Knows nothing of what the data means. Invariant: what comes out is at most as long as
was asked for, every line of it is JSON, and no value in it can close the fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pursuit.core.truncate import cut_to

_FENCE = "```"


def fenced(rows: Iterable[object]) -> str:
    """A block with one JSON value on each line."""
    return "\n".join([f"{_FENCE}jsonl", *(_line(row) for row in rows), _FENCE])


def fit(value: Any, most: int) -> Any:
    """The value, with long texts and long lists cut until its JSON has at most so many characters."""
    return cut_to(value, most, lambda shown: len(_line(shown)))


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
