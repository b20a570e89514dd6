"""The brief of a server that is a problem itself, with the limits of the problem around it.

Owns: where in an answer the brief stands. Pure. Invariant: without further limits an answer passes untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pursuit.surfaces.mcp.gateway.eras import as_object

_PLACES = {"resources/read": "contents", "prompts/get": "messages", "tools/call": "content"}


def with_further(method: str, body: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    """An answer that holds the brief, with these words at its end."""
    key = _PLACES[method]
    parts = body.get(key)
    if not words or body.get("isError") or not isinstance(parts, list) or not parts:
        return body
    *others, last = cast("list[Any]", parts)
    part = as_object(last)
    if method == "prompts/get":
        return {**body, key: [*others, {**part, "content": _longer(as_object(part.get("content")), words)}]}
    return {**body, key: [*others, _longer(part, words)]}


def _longer(part: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    text = part.get("text")
    return {**part, "text": text + words} if isinstance(text, str) else part
