"""What the two eras of the protocol say differently.

Owns: every translation of a result or an error from the server's era to the client's. Pure. Invariant: between the
same eras nothing is touched; what is added or taken away is the envelope, never what a server said.

What the new era (2026-07-28) has and the old one has not: `resultType`, `ttlMs` and `cacheScope` on what may be cached,
the server's name in `_meta`, and invalid params as the code of a resource that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp_types import INVALID_PARAMS, LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.core.tools import UpstreamError

RESOURCE_NOT_FOUND = -32002
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

CACHEABLE = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
)
ASKING = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods whose answer may be a question in the new era."""

OLD_ONLY = frozenset({"initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
NEW_ONLY = frozenset({"server/discover", "subscriptions/listen"})

_CACHE_FIELDS = ("ttlMs", "cacheScope")
_NEVER_CACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}
_ANSWERS = ("inputResponses", "requestState")


def as_object(value: Any) -> Mapping[str, Any]:
    """A part of a message that should be an object; empty where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def is_modern(version: str) -> bool:
    """Whether it is a version without handshake and without requests from the server."""
    return version in MODERN_PROTOCOL_VERSIONS


def result_for(
    method: str, result: dict[str, Any], *, to_modern: bool, from_modern: bool, info: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A server's result as a client of the other era would have got it."""
    if to_modern == from_modern:
        return result
    return enveloped(method, result, info) if to_modern else _bare(method, result)


def enveloped(method: str, result: Mapping[str, Any], info: Mapping[str, Any] | None) -> dict[str, Any]:
    """A result as the new era has it."""
    body = {**result}
    body.setdefault("resultType", "complete")
    if method in CACHEABLE and body["resultType"] == "complete":
        for key, value in _NEVER_CACHED.items():
            body.setdefault(key, value)
    meta = body.get("_meta")
    if info is not None and (meta is None or isinstance(meta, Mapping)):
        body["_meta"] = {SERVER_INFO_META_KEY: info} | dict(as_object(meta))
    return body


def _bare(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    taken = {"resultType", *(_CACHE_FIELDS if method in CACHEABLE else ())}
    body = {key: value for key, value in result.items() if key not in taken}
    meta = body.get("_meta")
    if isinstance(meta, Mapping) and SERVER_INFO_META_KEY in meta:
        rest = {key: one for key, one in as_object(meta).items() if key != SERVER_INFO_META_KEY}
        body["_meta"] = rest
        if not rest:
            del body["_meta"]
    return body


def error_for(method: str, error: UpstreamError, *, to_modern: bool, from_modern: bool) -> UpstreamError:
    """A server's error with the code that a client of the other era would have got."""
    if to_modern == from_modern or method != "resources/read":
        return error
    if to_modern and error.code == RESOURCE_NOT_FOUND:
        return UpstreamError(INVALID_PARAMS, error.message, error.data)
    if not to_modern and error.code == INVALID_PARAMS and _names_a_resource(error.data):
        return UpstreamError(RESOURCE_NOT_FOUND, error.message, error.data)
    return error


def _names_a_resource(data: Any) -> bool:
    return "uri" in as_object(data)


def params_for(params: Mapping[str, Any], *, to_modern: bool, level: str | None = None) -> dict[str, Any]:
    """A client's parameters for a server: to the old era without answers and log level, which it does not know."""
    body = dict(params)
    given = body.get("_meta")
    meta = dict(as_object(given))
    if to_modern:
        if level is not None:
            meta.setdefault(LOG_LEVEL_META_KEY, level)
    else:
        for key in _ANSWERS:
            body.pop(key, None)
        meta.pop(LOG_LEVEL_META_KEY, None)
    if meta:
        body["_meta"] = meta
    elif isinstance(given, Mapping):
        body.pop("_meta")
    return body


def log_level(params: Mapping[str, Any]) -> str | None:
    """The log messages that a request of the new era wants."""
    level = as_object(params.get("_meta")).get(LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def is_wanted(level: str | None, params: Mapping[str, Any]) -> bool:
    """Whether a log message is at this level or above; one without a known level is."""
    said = params.get("level")
    if level is None:
        return False
    return said not in LEVELS or LEVELS.index(cast("str", said)) >= LEVELS.index(level)
