"""What a server says, without the secrets that its configuration holds.

Owns: which of its words are blanked. Does not know: transports, or which values are secret (`StderrTail` does).
Invariant: in what it says of itself, in errors, progress and logs no secret is left; in lists the texts for people are
blanked and names, addresses and schemas are not, which would change what can be called; the result of a request that
succeeded is data and is not touched. What holds no secret comes out equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pursuit.core.tools import About, UpstreamError
from pursuit.tools.stderr import StderrTail

_TEXTS = frozenset({"description", "title"})
_TOLD = {"notifications/progress": "message", "notifications/message": "data"}


def blanked_answer(tail: StderrTail, method: str, result: dict[str, Any]) -> dict[str, Any]:
    """A result: only a list and a tool's error are blanked."""
    if tail.secrets and result.get("isError") is True:
        return _everywhere(tail, result)
    if not tail.secrets or not method.endswith("/list"):
        return result
    entries: Any = result.get("tools")
    if method == "tools/list" and isinstance(entries, list):
        return {**result, "tools": [_tool(tail, entry) for entry in cast("list[Any]", entries)]}
    return _texts(tail, result)


def blanked_error(tail: StderrTail, error: UpstreamError) -> UpstreamError:
    """An error, in words and data."""
    return UpstreamError(error.code, tail.redacted(error.message), _everywhere(tail, error.data))


def blanked_notice(tail: StderrTail, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A notification: progress and logs."""
    key = _TOLD.get(method)
    if key is None or key not in params or not tail.secrets:
        return params
    return {**params, key: _everywhere(tail, params[key])}


def blanked_about(tail: StderrTail, about: About) -> About:
    """What a server says of itself."""
    words = about.instructions
    info = _everywhere(tail, about.server_info)
    return replace(about, server_info=info, instructions=None if words is None else tail.redacted(words))


def _tool(tail: StderrTail, entry: Any) -> Any:
    """What nobody can call has no name to keep: a warning says why it is left out, and may quote it."""
    schema: Any = cast("Mapping[str, Any]", entry).get("inputSchema") if isinstance(entry, Mapping) else None
    usable = isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("type", "object") == "object"
    return _texts(tail, entry) if usable else _everywhere(tail, entry)


def _everywhere(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, str):
        return tail.redacted(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {tail.redacted(key): _everywhere(tail, item) for key, item in table.items()}
    if isinstance(value, list):
        return [_everywhere(tail, item) for item in cast("list[Any]", value)]
    return value


def _texts(tail: StderrTail, value: Any) -> Any:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {
            key: tail.redacted(item) if key in _TEXTS and isinstance(item, str) else _texts(tail, item)
            for key, item in table.items()
        }
    if isinstance(value, list):
        return [_texts(tail, item) for item in cast("list[Any]", value)]
    return value
