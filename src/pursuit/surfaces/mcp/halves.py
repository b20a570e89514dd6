"""Half a pair of surrogates, which other languages let through: JSON can say it, UTF-8 cannot.

Owns: what becomes of it where a message must be UTF-8: the sign for what cannot be read. Pure. Invariant: what holds
none comes out equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def whole(value: Any) -> Any:
    """The same without halves."""
    if isinstance(value, str):
        return _readable(value)
    if isinstance(value, Mapping):
        return {whole(key): whole(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [whole(item) for item in cast("list[Any]", value)]
    return value


def _readable(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
