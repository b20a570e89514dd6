"""The events of the audit: who asked for what, and what was refused. Pure.

Invariant: no secret and no large value gets into the audit.
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
"""The stream of the audit, and its kind."""
REDACTED = "[redacted]"
LONGEST_TEXT = 500
LONGEST_NAME = 100
MOST_ITEMS = 50
DEEPEST = 6
NUMBER = (int, float)
MAPPING = (dict, Mapping)
"""A dict first: to ask whether something is a `Mapping` takes longer."""

_SECRET = re.compile(
    r"pass(word|wd|phrase)|(?<![a-z])(pass|pwd)$|secret|token|(api|access|private|signing)[ _-]?key|authori[sz]ation"
    r"|bearer|credential|cookie",
    re.I,
)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An entry of the audit; `call` ties a refusal to its request."""

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
    """The change was not made, or not all of it."""

    code: str
    message: str


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A stream was forgotten, in the same transaction: its kind, last status and head, and the hash of its tombstones.

    `status` is `forgotten` where an older release forgot it without such an event.
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

encode_audit: Callable[[AnyAuditEvent], tuple[str, bytes]] = encode
decode_audit: Callable[[bytes], AnyAuditEvent] = msgspec.json.Decoder(AnyAuditEvent).decode


def redacted(value: Any, depth: int = DEEPEST) -> Any:
    """The value without secrets, with long texts, long lists and deep nesting cut."""
    if value is None or isinstance(value, NUMBER):
        return value
    if isinstance(value, str):
        text = value if value.isascii() else value.encode(errors="replace").decode()
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
    if isinstance(value, MAPPING):
        return "{…}" if depth == 0 else _mapping(cast("Mapping[Any, Any]", value), depth)
    if isinstance(value, list | tuple):
        return "[…]" if depth == 0 else _sequence(cast("Sequence[Any]", value), depth)
    return redacted(str(value), depth)


def masked(value: Any) -> Any:
    """The value without secrets by their names, and with nothing cut."""
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
    """A text; one that is JSON, as servers send it for older clients, is written again if it has secrets."""
    if value[:1] not in ("{", "["):
        return value
    try:
        found = json.loads(value)
        shown = masked(found)
    except (ValueError, RecursionError):
        return value
    return value if shown == found else json.dumps(shown, ensure_ascii=False)


def _names_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


_names_secret_short = lru_cache(maxsize=1024)(_names_secret)
"""For names that are short enough to be remembered; what a client sends has names of any length."""


def _is_secret(name: str, item: Any) -> bool:
    """Whether a value is a secret by its name; a number of `tokens`, such as `max_tokens`, is a count."""
    named = _names_secret_short if len(name) <= LONGEST_NAME else _names_secret
    if item is None or not named(name):
        return False
    return not (isinstance(item, NUMBER) and name.lower().endswith("tokens"))


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    shown = value if len(value) <= MOST_ITEMS else dict(islice(value.items(), MOST_ITEMS))
    kept = _named(shown, redacted, lambda item: redacted(item, depth - 1))
    return kept if len(value) <= MOST_ITEMS else {**kept, "…": f"{len(value) - MOST_ITEMS} more"}


def _named(value: Mapping[Any, Any], name_of: Callable[[str], str], shown: Callable[[Any], Any]) -> dict[str, Any]:
    """The entries without secrets; where two keys become the same name, the second has its place in the name."""
    kept: dict[str, Any] = {}
    for place, (key, item) in enumerate(value.items(), 1):
        name = name_of(str(key))
        while name in kept:
            name = f"{name} (key {place})"
        kept[name] = REDACTED if _is_secret(str(key), item) else shown(item)
    return kept


def _sequence(value: Sequence[Any], depth: int) -> list[Any]:
    kept = [redacted(item, depth - 1) for item in value[:MOST_ITEMS]]
    return kept if len(value) <= MOST_ITEMS else [*kept, f"{len(value) - MOST_ITEMS} more"]
