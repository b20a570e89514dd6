"""Pinned definitions of tools: their digests, their changes, and the events of the stream that keeps them. Pure.

The first tool list of a server is pinned. An allow rule of the operator applies to a tool only while its definition is
the pinned one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pursuit.core.events import encode

PINS = "pins"
"""The name and the kind of the stream of pins."""
PARTS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""The parts of a definition. Icons, `_meta` and unknown fields may change."""
MAX_LINES = 400
"""Longer parts of a definition are not compared, so that a server cannot make the comparison slow."""
MAX_LINE = 300

How = Literal["first", "notice", "accepted"]


def definition_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {part: entry[part] for part in PARTS if entry.get(part) is not None}


def digest_of(entry: Mapping[str, Any]) -> str:
    """The digest of a definition: sha256 over canonical JSON."""
    body = json.dumps(definition_of(entry), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A server's changes since its tools were accepted: the new digests by name, and the difference for a person.

    With `denies`, changed tools are denied without a question.
    """

    server: str
    folder: str
    tools: Mapping[str, str]
    text: str = field(repr=False)
    denies: bool = False

    @property
    def key(self) -> str:
        """Identifies exactly these changes."""
        body = json.dumps([self.server, self.folder, sorted(self.tools.items())])
        return f"pin {hashlib.sha256(body.encode()).hexdigest()}"

    @property
    def what(self) -> dict[str, Any]:
        """The changes that an approval accepts, for a record."""
        return {"server": self.server, "folder": self.folder, "tools": dict(self.tools)}

    @property
    def reason(self) -> str:
        return f"server {self.server} changed {', '.join(self.tools)} after they were accepted"


class PinEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A fact about the tools of one server, named as in the configuration of `folder`."""

    at: float
    server: str
    folder: str = ""
    definitions: dict[str, Any] = {}
    """Definitions by digest; long ones are not kept."""


class ToolsChanged(PinEvent, frozen=True, kw_only=True):
    """The server's definitions differ from the pinned ones. This does not accept them."""


class ToolsPinned(PinEvent, frozen=True, kw_only=True):
    """The operator accepted these digests of tools, by name."""

    tools: dict[str, str]
    how: How
    by: str


AnyPinEvent = ToolsChanged | ToolsPinned
encode_pin: Callable[[AnyPinEvent], tuple[str, bytes]] = encode
decode_pin: Callable[[bytes], AnyPinEvent] = msgspec.json.Decoder(AnyPinEvent).decode


@dataclass(slots=True)
class PinState:
    """The accepted digests, by folder and server, and each definition seen."""

    pinned: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict[tuple[str, str], dict[str, str]])
    definitions: dict[str, Any] = field(default_factory=dict[str, Any])
    changed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The number of times that a server changed a tool."""

    def apply(self, event: AnyPinEvent) -> None:
        self.definitions |= event.definitions
        key = (event.folder, event.server)
        if isinstance(event, ToolsPinned):
            self.pinned.setdefault(key, {}).update(event.tools)
        if isinstance(event, ToolsChanged) or event.how == "notice":
            self.changed[key] = self.changed.get(key, 0) + 1


def difference(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any], *, added: bool) -> list[str]:
    """The lines that show a person how the definition of a tool changed."""
    if before is None and not added:
        return [f"changed {name}", "  (its earlier definition was too long to keep)"]
    found = [f"{'added' if added else 'changed'} {name}"]
    for part in PARTS[1:]:
        one, other = _lines(part, before or {}), _lines(part, now)
        if one == other:
            continue
        if max(len(one), len(other)) > MAX_LINES:
            found.append(f"  {part}: {len(one)} lines before, {len(other)} now; too long to compare")
            continue
        found += [
            f"{line[0]} {line[1:]}" for line in difflib.unified_diff(one, other, n=1, lineterm="") if line[:2] != "@@"
        ][2:]
    return found


def _lines(part: str, definition: Mapping[str, Any]) -> list[str]:
    if part not in definition:
        return []
    value = definition[part]
    text = value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    first, *rest = text.splitlines() or [""]
    lines = [f"{part}: {first}", *(f"  {line}" for line in rest)]
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}… ({len(line)} characters)" for line in lines]
