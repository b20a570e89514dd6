"""Compares each list of a server with the definitions that are pinned in the ledger.

Trust on first use: the first list is pinned silently. After that, a changed tool that needs a grant, before or after
the change, waits until the operator accepts it; any other tool changes with a notice.

Invariant: a digest is computed when a tool is listed. The ledger is read for a list and for a call of a changed tool,
never for a call of an unchanged one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import msgspec

from pursuit.config.servers import ServerConfig
from pursuit.core import pins
from pursuit.core.tools import Tool
from pursuit.errors import LedgerUnavailable
from pursuit.ledger.contract import ANY, Draft, Ledger
from pursuit.policy.traits import printable
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits, read_listing

MAX_DEFINITION = 64 << 10
MAX_BYTES = 4 << 20
"""Maximum bytes of a definition in an event: of a longer one only the digest is pinned, and its changes are not shown
in full.
"""
MAX_CHANGES = 200
"""Maximum bytes of events for one server, whose list may change each time it is read."""
FIRST_USE = "first use"

_log = logging.getLogger(__name__)


class Pins:
    """The pins of one ledger; `now` is the wall clock."""

    def __init__(self, ledger: Ledger, now: Callable[[], float], traits: ToolTraits = KNOWN_TRAITS) -> None:
        self._ledger = ledger
        self._traits = traits
        self._now = now
        self._state = pins.PinState()
        self._head = 0
        self._lock = anyio.Lock()

    async def check(
        self, config: ServerConfig, tools: Sequence[Tool], *, view: str = ""
    ) -> tuple[list[Tool], list[str]]:
        """The tools, a changed one with the changes of its server; and a notice for each change that needs no grant.

        `view` names the client capabilities for which a server shows further tools: these are pinned separately.
        """
        if config.pin == "off" or not config.operators:
            return list(tools), []
        server = f"{config.name} {view}" if view else config.name
        key = (str(config.base or ""), server)
        async with self._lock:
            known = self._state.pinned.get(key)
            if known is None or any(known.get(tool.name) != tool.digest for tool in tools):
                await self._refresh()
            if key not in self._state.pinned:
                await self._pin(key, tools, "first", FIRST_USE)
                return list(tools), []
            pinned = self._state.pinned[key]
            other = [tool for tool in tools if pinned.get(tool.name) != tool.digest]
            harmless = [tool for tool in other if self._needs_no_grant(config, pinned, tool)]
            notices = [
                f"{printable(tool.qualified)}: its definition {'changed' if tool.name in pinned else 'was added'};"
                " it only reads, before and after, so it needs no approval"
                for tool in harmless
            ]
            changed = [tool for tool in other if tool not in harmless]
            changes = self._changes(config, key, changed) if changed else None
            if harmless:
                await self._pin(key, harmless, "notice", "notice: needs no approval")
            if kept := self._to_keep(changed):  # definitions that are not accepted, to show a later difference
                await self._append(
                    key, pins.ToolsChanged(at=self._now(), folder=key[0], server=server, definitions=kept)
                )
        for notice in notices:
            _log.warning("%s", notice)
        names = {tool.name for tool in changed}
        return [replace(tool, changes=changes) if tool.name in names else tool for tool in tools], notices

    async def look_again(self, tool: Tool) -> Tool:
        """A changed tool in its current state: the operator may have accepted it, in any process."""
        changes = tool.changes
        if changes is None:
            return tool
        async with self._lock:
            await self._refresh()
        pinned = self._state.pinned.get((changes.folder, changes.server), {})
        return replace(tool, changes=None) if pinned.get(tool.name) == tool.digest else tool

    async def accept(self, changes: pins.Changes, *, by: str) -> None:
        await accept(self._ledger, changes.what, at=self._now(), by=by)

    def _needs_no_grant(self, config: ServerConfig, pinned: Mapping[str, str], tool: Tool) -> bool:
        """True if a tool only reads, before and after the change; an added tool has no state before."""
        if not tool.traits.read_only:
            return False
        if tool.name not in pinned:
            return True
        before = self._state.definitions.get(pinned[tool.name])
        earlier, _ = read_listing(config, [] if before is None else [before], source=self._traits)
        return before is not None and all(tool.traits.read_only for tool in earlier)

    def _changes(self, config: ServerConfig, key: tuple[str, str], tools: Sequence[Tool]) -> pins.Changes:
        pinned = self._state.pinned[key]
        lines: list[str] = []
        for tool in tools:
            before = self._state.definitions.get(pinned.get(tool.name, ""))
            now = pins.definition_of(tool.definition)
            lines += pins.difference(tool.name, before, now, added=tool.name not in pinned)
        return pins.Changes(
            server=key[1],
            folder=key[0],
            tools={tool.name: tool.digest for tool in tools},
            text="\n".join(printable(line) for line in lines),
            denies=config.pin == "deny",
        )

    async def _pin(self, key: tuple[str, str], tools: Sequence[Tool], how: pins.How, by: str) -> None:
        event = pins.ToolsPinned(
            at=self._now(),
            folder=key[0],
            server=key[1],
            tools={tool.name: tool.digest for tool in tools},
            definitions=self._to_keep(tools),
            how=how,
            by=by,
        )
        await self._append(key, event)

    def _to_keep(self, tools: Sequence[Tool]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        size = 0
        for tool in tools:
            definition = pins.definition_of(tool.definition)
            length = len(msgspec.json.encode(definition))
            if tool.digest not in self._state.definitions and length <= MAX_DEFINITION:
                size += length
                if size <= MAX_BYTES:
                    kept[tool.digest] = definition
        return kept

    async def _append(self, key: tuple[str, str], event: pins.AnyPinEvent) -> None:
        """Stores an event; if that fails, it counts only in this process."""
        if self._state.changed.get(key, 0) >= MAX_CHANGES:
            self._state.apply(event)
            return
        try:
            await store_pin(self._ledger, event)
            await self._refresh()
        except LedgerUnavailable as error:
            _log.warning("cannot pin the definitions of the tools of %s: %s", event.server, error.message)
            self._state.apply(event)

    async def _refresh(self) -> None:
        for stored in await self._ledger.read(pins.PINS, self._head):
            self._head = stored.seq
            self._state.apply(pins.decode_pin(stored.body))


async def store_pin(ledger: Ledger, event: pins.AnyPinEvent) -> None:
    await ledger.append(pins.PINS, ANY, [Draft(*pins.encode_pin(event))], kind=pins.PINS, status="open")


async def accept(ledger: Ledger, what: Mapping[str, Any], *, at: float, by: str) -> None:
    """Records that the operator accepts these changes of a server: `Changes.what`."""
    event = pins.ToolsPinned(
        at=at, server=what["server"], folder=what["folder"], tools=dict(what["tools"]), how="accepted", by=by
    )
    await store_pin(ledger, event)


def unlisted(config: ServerConfig, tool: str) -> pins.Changes:
    """The change of a tool that its server does not list: no rule can have allowed a tool that nobody has seen."""
    text = f"{printable(tool)} is not listed"
    return pins.Changes(server=config.name, folder="", tools={tool: ""}, text=text, denies=config.pin == "deny")
