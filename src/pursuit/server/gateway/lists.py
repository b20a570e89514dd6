"""Lists as clients see them: of one server page by page as it gives them, of several all together.

Owns: which tool is left out, with a reason; what a thing is called; where a tool is found when it is called. Does not
know: policy. Invariant: what is listed is the server's own JSON but for its name; one unusable entry, or one server
that cannot be reached, costs itself alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from pursuit.core.tools import CallFailed, Tool
from pursuit.errors import PursuitError, UpstreamUnavailable
from pursuit.server.gateway.clients import ClientRequest
from pursuit.server.gateway.protocol_versions import as_object
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.upstreams import LONGEST_NAME, Upstreams
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.listing import read_listing

KINDS: Mapping[str, str] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
MOST_PAGES = 1_000
MOST_CURSORS = 10_000
LISTED_SECONDS = 30.0
LIST_SECONDS = 15.0
"""How long a list of several servers waits for one of them."""

AGAIN_SECONDS = 1.0
"""The same for one that was too slow the last time."""

_log = logging.getLogger(__name__)


class Lists:
    """The lists of these servers; `late` is told of one that is not there, or not in time."""

    def __init__(self, roster: Upstreams, relay: Relay, late: Callable[[McpUpstream], object]) -> None:
        self._roster = roster
        self._late = late
        self._relay = relay
        self._slow: set[str] = set()
        self._seen: dict[tuple[str, str], frozenset[str]] = {}
        self._extra: dict[str, dict[str, tuple[float, Tool]]] = {}
        self._warned: set[str] = set()

    async def page(self, visit: ClientRequest) -> dict[str, Any]:
        """A page of a single server's list, or the whole list of several."""
        if self._roster.names.single:
            server = self._roster.names.servers[0]
            result = await self._relay.send(visit, self._roster[server], visit.params)
            page = self._usable(server, visit.params.get("cursor"), result) if visit.method == "tools/list" else result
            return self._spelled(server, KINDS[visit.method], page)
        return await self._together(visit)

    async def everything(self, visit: ClientRequest) -> list[Any]:
        """All tools as this client sees them, of one server or of several."""
        asked = _listing(visit)
        if self._roster.names.single:
            server = self._roster.names.servers[0]
            return self._spelled(server, "tools", {"tools": await self._everything(asked, server)})["tools"]
        return (await self._together(asked))["tools"]

    async def find(self, visit: ClientRequest, server: str, tool: str) -> Tool | None:
        """A tool by its server's own name for it, as this client sees it."""
        upstream = self._roster[server]
        for one in await upstream.tools():
            if one.name == tool:
                return one
        if visit.guest.modern and not visit.guest.interactive:
            return None
        known = self._extra.get(server, {}).get(tool)
        if known is None or anyio.current_time() - known[0] > LISTED_SECONDS:
            # Servers show more to clients that can do more.
            await self._everything(_listing(visit), server)
            known = self._extra.get(server, {}).get(tool)
        return None if known is None else known[1]

    def changed(self, server: str | None = None) -> None:
        """The list of tools of a server, or of all, is not what it was."""
        if server is None:
            self._extra.clear()
        else:
            self._extra.pop(server, None)

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """What a tool takes, if it was listed."""
        owner = self._roster.names.owner(name)
        known = None if owner is None else self._extra.get(owner[0], {}).get(owner[1])
        return None if known is None else known[1].input_schema

    def _usable(self, server: str, cursor: Any, result: dict[str, Any]) -> dict[str, Any]:
        """The page without what cannot be served, and without what was on a page before."""
        entries: Any = result.get("tools")
        if not isinstance(entries, list):
            return result
        tools, warnings = read_listing(self._roster[server].config, cast("list[Any]", entries))
        before = self._seen.get((server, cursor), frozenset()) if isinstance(cursor, str) else frozenset[str]()
        warnings += [f"{tool.qualified}: listed twice; the first one counts" for tool in tools if tool.name in before]
        fresh = [tool for tool in tools if tool.name not in before]
        following = result.get("nextCursor")
        if isinstance(following, str):
            if len(self._seen) >= MOST_CURSORS:
                self._seen.clear()
            self._seen[server, following] = before | {tool.name for tool in fresh}
        self._warn(warnings)
        now = anyio.current_time()
        self._extra.setdefault(server, {}).update({tool.name: (now, tool) for tool in fresh})
        return {**result, "tools": [tool.definition for tool in fresh]}

    async def _together(self, visit: ClientRequest) -> dict[str, Any]:
        """Everything that the servers list, under qualified names; one that fails is left out."""
        kind = KINDS[visit.method]
        found: dict[str, list[Any]] = {}

        async def ask(server: str) -> None:
            # One that kept everybody waiting once does not do so again.
            seconds = AGAIN_SECONDS if server in self._slow else LIST_SECONDS
            try:
                with anyio.move_on_after(seconds) as limit:
                    found[server] = await self._everything(visit, server)
                    self._slow.discard(server)
                if limit.cancelled_caught:
                    _log.warning("%s of %s are not listed: no answer within %g s", kind, server, seconds)
                    self._slow.add(server)
                    self._late(self._roster[server])
            except (PursuitError, CallFailed, MCPError) as error:
                if not (isinstance(error, MCPError) and error.code == METHOD_NOT_FOUND):
                    _log.warning("%s of %s are not listed: %s", kind, server, error)
                if isinstance(error, UpstreamUnavailable):
                    self._late(self._roster[server])

        async with anyio.create_task_group() as asking:
            for server in self._roster.names.servers:
                asking.start_soon(ask, server)
        ordered = {server: found[server] for server in self._roster.names.servers if server in found}
        if kind == "resources":
            return {kind: self._resources(ordered)}
        if kind == "resourceTemplates":
            return {kind: [entry for entries in ordered.values() for entry in entries]}
        return {kind: [named for server, entries in ordered.items() for named in self._named(server, entries)]}

    async def _everything(self, visit: ClientRequest, server: str) -> list[Any]:
        """All pages of one server's list."""
        kind = KINDS[visit.method]
        entries: list[Any] = []
        seen: set[str] = set()
        params = {key: value for key, value in visit.params.items() if key == "_meta"}
        for _ in range(MOST_PAGES):
            result = await self._relay.send(visit, self._roster[server], params)
            page = self._usable(server, params.get("cursor"), result) if kind == "tools" else result
            found: Any = page.get(kind)
            entries += found if isinstance(found, list) else []
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {**params, "cursor": cursor}
        return entries

    def _spelled(self, server: str, kind: str, page: dict[str, Any]) -> dict[str, Any]:
        """A page of the only server, whose names are its own but for what a model does not take."""
        entries: Any = page.get(kind)
        if self._roster.names.spelling == "dotted" or kind not in ("tools", "prompts") or not isinstance(entries, list):
            return page
        return {**page, kind: self._named(server, cast("list[Any]", entries))}

    def _named(self, server: str, entries: list[Any]) -> list[dict[str, Any]]:
        named: list[dict[str, Any]] = []
        for entry in entries:
            name = as_object(entry).get("name")
            if not isinstance(name, str):
                self._warn([f"{server}: an entry without a name is left out"])
                continue
            whole = self._roster.names.qualified(server, name)
            if len(whole) > LONGEST_NAME:
                self._warn([f"{whole} is left out: a name has at most {LONGEST_NAME} characters"])
                continue
            named.append({**entry, "name": whole})
        return named

    def _resources(self, found: Mapping[str, list[Any]]) -> list[Any]:
        """A resource keeps its address if no other server has it."""
        owners: dict[Any, set[str]] = {}
        for server, entries in found.items():
            for entry in entries:
                owners.setdefault(_uri(entry), set()).add(server)
        return [
            {**entry, "uri": self._roster.names.uri_of(server, uri)}
            if (uri := _uri(entry)) is not None and len(owners[uri]) > 1
            else entry
            for server, entries in found.items()
            for entry in entries
        ]

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            if warning not in self._warned and len(self._warned) < MOST_CURSORS:
                self._warned.add(warning)
                _log.warning("%s", warning)


def _listing(visit: ClientRequest) -> ClientRequest:
    """The same client, as if it asked for the list of tools."""
    meta = visit.params.get("_meta")
    kept = (
        {} if not isinstance(meta, Mapping) else {"_meta": {**cast("Mapping[str, Any]", meta), "progressToken": None}}
    )
    other = ClientRequest(visit.ctx, visit.guest)
    other.method, other.params = "tools/list", kept
    return other


def _uri(entry: Any) -> str | None:
    uri = as_object(entry).get("uri")
    return uri if isinstance(uri, str) else None
