"""Translates results, errors and parameters between the two generations of the protocol.

A *legacy* peer uses a version with a handshake (up to 2025-11-25); a *modern* peer uses 2026-07-28, which has neither a
handshake nor requests from the server. Modern results have `resultType`, the server's name in `_meta`, and, if they may
be cached, `ttlMs` and `cacheScope`; a missing resource is an "invalid params" error there.

Invariant: messages between peers of the same generation are not changed; a translation changes only the envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import INVALID_PARAMS, LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY

from pursuit.core.tools import UpstreamError, without_meta
from pursuit.server.errors import CACHEABLE, NEVER_CACHED, RESOURCE_NOT_FOUND, as_object, modern_result

MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods whose modern result may be `input_required`."""

LEGACY_ONLY = frozenset({"initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
MODERN_ONLY = frozenset({"server/discover", "subscriptions/listen"})

ROUND_TRIP_KEYS = ("inputResponses", "requestState")
"""The keys that a client adds to a modern request when it repeats it with answers."""


def result_for(
    method: str, result: dict[str, Any], *, to_modern: bool, from_modern: bool, info: Mapping[str, Any] | None
) -> dict[str, Any]:
    if to_modern == from_modern:
        return result
    if to_modern:
        return modern_result(method, result, info)
    taken = {"resultType", *(NEVER_CACHED if method in CACHEABLE else ())}
    return without_meta({key: value for key, value in result.items() if key not in taken}, SERVER_INFO_META_KEY)


def error_for(method: str, error: UpstreamError, *, to_modern: bool, from_modern: bool) -> UpstreamError:
    if to_modern == from_modern or method != "resources/read":
        return error
    if to_modern and error.code == RESOURCE_NOT_FOUND:
        return UpstreamError(INVALID_PARAMS, error.message, error.data)
    if not to_modern and error.code == INVALID_PARAMS and "uri" in as_object(error.data):
        return UpstreamError(RESOURCE_NOT_FOUND, error.message, error.data)
    return error


def params_for(params: Mapping[str, Any], *, to_modern: bool, level: str | None = None) -> dict[str, Any]:
    """A client's parameters for a server; for a legacy server without answers and without a log level."""
    body = dict(params)
    given = body.get("_meta")
    meta = dict(as_object(given))
    if to_modern:
        if level is not None:
            meta.setdefault(LOG_LEVEL_META_KEY, level)
    else:
        for key in ROUND_TRIP_KEYS:
            body.pop(key, None)
        meta.pop(LOG_LEVEL_META_KEY, None)
    if meta:
        body["_meta"] = meta
    elif isinstance(given, Mapping):
        body.pop("_meta")
    return body
