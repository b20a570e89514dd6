"""The events of the audit: who requested which change, and which were refused. Pure.

Invariant: the audit contains neither secrets nor large values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import msgspec

from pursuit.core.events import encode

AUDIT = "audit"
"""The kind of the audit's streams, and the name of the single audit stream of early releases."""
REDACTED = "[redacted]"
MAX_TEXT = 500
MAX_NAME = 100
MAX_ITEMS = 50
MAX_DEPTH = 6
NUMBER = (int, float)
MAPPING = (dict, Mapping)
"""A dict comes first because the check against `Mapping` is slower."""

_SECRET = re.compile(
    r"pass(word|wd|phrase)|(?<![a-z])(pass|pwd)$|secret|token|(api|access|private|signing)[ _-]?key|authori[sz]ation"
    r"|bearer|credential|cookie",
    re.I,
)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    at: float
    call: str


class ControlCalled(AuditEvent, frozen=True, kw_only=True):
    """A change was requested; written before it is made."""

    verb: str
    who: str
    transport: str
    client: str | None = None
    session_id: str | None = None
    arguments: dict[str, Any] = {}


class ControlRefused(AuditEvent, frozen=True, kw_only=True):
    """The change was not made, or only in part."""

    code: str
    message: str


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A stream was forgotten in the same transaction: its kind, last status and head, and the hash of its tombstones.

    `status` is `forgotten` if an older release forgot the stream without such an event.
    """

    at: float
    stream: str
    kind: str
    status: str
    created_at: float
    seq: int
    hash: str
    tombstones: str


AnyAuditEvent = ControlCalled | ControlRefused | Forgotten


def own_stream(process: str) -> str:
    """The name of one process's audit stream. Each process has one, so that none waits for another to write."""
    return f"{AUDIT}-{process}"


encode_audit: Callable[[AnyAuditEvent], tuple[str, bytes]] = encode
decode_audit: Callable[[bytes], AnyAuditEvent] = msgspec.json.Decoder(AnyAuditEvent).decode


def redacted(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value without secrets; long texts, long lists and deep nesting are cut."""
    if value is None or isinstance(value, NUMBER):
        return value
    if isinstance(value, str):
        text = value if value.isascii() else value.encode(errors="replace").decode()
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
    if isinstance(value, MAPPING):
        if depth == 0:
            return "{…}"
        table, many = cast("Mapping[Any, Any]", value), len(cast("Mapping[Any, Any]", value)) > MAX_ITEMS
        shown = dict(islice(table.items(), MAX_ITEMS)) if many else table
        kept = _named(shown, redacted, lambda item: redacted(item, depth - 1))
        return {**kept, "…": f"{len(table) - MAX_ITEMS} more"} if many else kept
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        more = [f"{len(items) - MAX_ITEMS} more"] if len(items) > MAX_ITEMS else []
        return "[…]" if depth == 0 else [*(redacted(item, depth - 1) for item in items[:MAX_ITEMS]), *more]
    return redacted(str(value), depth)


def masked(value: Any) -> Any:
    """The value with secrets masked by name, and nothing cut."""
    match value:
        case str():
            return _masked_text(value.encode(errors="replace").decode())
        case Mapping():
            return _named(cast("Mapping[Any, Any]", value), masked, masked)
        case list() | tuple():
            return [masked(item) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def _masked_text(value: str) -> str:
    """The text; JSON, which servers send as text for older clients, is rewritten if it contains secrets."""
    if value[:1] not in ("{", "["):
        return value
    try:
        found = json.loads(value)
        shown = masked(found)
    except (ValueError, RecursionError):
        return value
    return value if shown == found else json.dumps(shown, ensure_ascii=False)


_names_secret = lru_cache(maxsize=1024)(_SECRET.search)
"""Cached, for short names only: clients can send names of any length."""


def _is_secret(name: str, item: Any) -> bool:
    """True if the name says that the value is a secret; a number of `tokens`, such as `max_tokens`, is a count."""
    if item is None or not (_names_secret if len(name) <= MAX_NAME else _SECRET.search)(name):
        return False
    return not (isinstance(item, NUMBER) and name.lower().endswith("tokens"))


def _named(value: Mapping[Any, Any], name_of: Callable[[str], str], shown: Callable[[Any], Any]) -> dict[str, Any]:
    """The entries without secrets; if two keys get the same name, the second gets its position added."""
    kept: dict[str, Any] = {}
    for place, (key, item) in enumerate(value.items(), 1):
        name = name_of(str(key))
        while name in kept:
            name = f"{name} (key {place})"
        kept[name] = REDACTED if _is_secret(str(key), item) else shown(item)
    return kept
