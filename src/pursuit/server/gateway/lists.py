"""Lists tools, prompts and resources: of one server page by page as it returns them, of several servers in one page.

Invariant: an entry is the server's own JSON except for its name; an unusable entry, or a server that cannot be reached,
is left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from pursuit.core.tools import CallFailed, Tool
from pursuit.errors import PursuitError, UpstreamUnavailable
from pursuit.server.errors import as_object
from pursuit.server.gateway.clients import INTERACTIVE, ClientRequest
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.upstreams import MAX_NAME, GatewayLimits, Upstreams
from pursuit.upstream.client import LIST_METHODS, McpUpstream, pages
from pursuit.upstream.listing import read_listing
from pursuit.upstream.transport import too_large, write_json

KINDS: Mapping[str, str] = {method: kind for kind, method in LIST_METHODS.items()}
MAX_CURSORS = 10_000
LISTED_SECONDS = 30.0
"""Seconds for which a tool that a server shows only to some clients counts as listed."""

_log = logging.getLogger(__name__)


class Lists:
    """The lists of these servers; calls `late` with each server that is missing from a list of several."""

    def __init__(
        self, upstreams: Upstreams, relay: Relay, limits: GatewayLimits, late: Callable[[McpUpstream], object]
    ) -> None:
        self._upstreams = upstreams
        self._late = late
        self._relay = relay
        self._limits = limits
        self._slow: set[str] = set()
        self._seen: dict[tuple[str, str], tuple[frozenset[str], int]] = {}
        self._listed: dict[str, dict[str, tuple[float, Tool]]] = {}
        self._warned: set[str] = set()

    async def page(self, request: ClientRequest) -> dict[str, Any]:
        """A page of a single server's list, or the whole list of several."""
        if not self._upstreams.names.single:
            return await self._combined(request)
        server, kind = self._upstreams.names.servers[0], KINDS[request.method]
        result = await self._relay.send(request, self._upstreams[server], request.params)
        page = self._usable(server, request.params.get("cursor"), result) if kind == "tools" else result
        return self._spelled(server, kind, page)

    async def all_tools(self, request: ClientRequest) -> list[Any]:
        """All tools as this client sees them, of one server or of several."""
        listing = _list_tools(request)
        if self._upstreams.names.single:
            server = self._upstreams.names.servers[0]
            return self._spelled(server, "tools", {"tools": await self._all_pages(listing, server)})["tools"]
        return (await self._combined(listing))["tools"]

    async def find(self, request: ClientRequest, server: str, tool: str) -> Tool | None:
        """A tool by its server's own name for it, as this client sees it."""
        shared = await self._upstreams[server].tools()
        for one in shared:
            if one.name == tool:
                return one
        if request.client.modern and not request.client.interactive:
            return None
        known = self._listed.get(server, {}).get(tool)
        if known is None or anyio.current_time() - known[0] > LISTED_SECONDS:
            # A server may show more tools to clients with more capabilities.
            await self._all_pages(_list_tools(request), server)
            known = self._listed.get(server, {}).get(tool)
        return None if known is None else await self._checked(request, server, known[1], shared)

    async def _checked(self, request: ClientRequest, server: str, tool: Tool, shared: Sequence[Tool]) -> Tool:
        """A tool that only some clients see, compared with the definition pinned for clients like this one."""
        upstream = self._upstreams[server]
        if upstream.pins is None:
            return tool
        names = {one.name for one in shared}
        extra = [one for _, one in self._listed.get(server, {}).values() if one.name not in names]
        view = "for " + " ".join(one for one in INTERACTIVE if request.client.can(one))
        found, _ = await upstream.pins.check(upstream.config, extra, view=view)
        return next((one for one in found if one.name == tool.name), tool)

    def changed(self, server: str | None = None) -> None:
        if server is None:
            self._listed.clear()
        else:
            self._listed.pop(server, None)

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a tool, if it was listed."""
        owner = self._upstreams.names.owner(name)
        known = None if owner is None else self._listed.get(owner[0], {}).get(owner[1])
        return None if known is None else known[1].input_schema

    def _usable(self, server: str, cursor: Any, result: dict[str, Any]) -> dict[str, Any]:
        """The page without tools that are unusable or were on earlier pages."""
        entries: Any = result.get("tools")
        if not isinstance(entries, list):
            return result
        upstream = self._upstreams[server]
        tools, warnings = read_listing(upstream.config, cast("list[Any]", entries), source=upstream.traits)
        nothing = (frozenset[str](), 0)
        before, size = self._seen.get((server, cursor), nothing) if isinstance(cursor, str) else nothing
        warnings += [f"{tool.qualified}: listed twice; the first one counts" for tool in tools if tool.name in before]
        fresh = [tool for tool in tools if tool.name not in before]
        following = result.get("nextCursor")
        if isinstance(following, str):
            if len(self._seen) >= MAX_CURSORS:
                self._seen.clear()
            size, most = size + len(write_json(entries)), self._upstreams[server].config.client.limits.list
            if size > most:  # the list continues over more pages than we can hold
                raise CallFailed(too_large(f"the list of tools of {server} has", "list", most))
            self._seen[server, following] = before | {tool.name for tool in fresh}, size
        self._warn(warnings)
        now = anyio.current_time()
        self._listed.setdefault(server, {}).update({tool.name: (now, tool) for tool in fresh})
        return {**result, "tools": [tool.definition for tool in fresh]}

    async def _combined(self, request: ClientRequest) -> dict[str, Any]:
        """The lists of all servers, under qualified names; a server that fails is left out."""
        kind = KINDS[request.method]
        found: dict[str, list[Any]] = {}

        async def ask(server: str) -> None:
            # A server that was too slow once does not delay the next list.
            seconds = self._limits.slow_list_seconds if server in self._slow else self._limits.list_seconds
            try:
                with anyio.move_on_after(seconds) as limit:
                    found[server] = await self._all_pages(request, server)
                    self._slow.discard(server)
                if limit.cancelled_caught:
                    _log.warning("%s of %s are not listed: no answer within %g s", kind, server, seconds)
                    self._slow.add(server)
                    self._late(self._upstreams[server])
            except (PursuitError, CallFailed, MCPError) as error:
                if not (isinstance(error, MCPError) and error.code == METHOD_NOT_FOUND):
                    _log.warning("%s of %s are not listed: %s", kind, server, error)
                if isinstance(error, UpstreamUnavailable):
                    self._late(self._upstreams[server])

        async with anyio.create_task_group() as tasks:
            for server in self._upstreams.names.servers:
                tasks.start_soon(ask, server)
        ordered = {server: found[server] for server in self._upstreams.names.servers if server in found}
        if kind == "resources":
            return {kind: self._resources(ordered)}
        if kind == "resourceTemplates":
            return {kind: [entry for entries in ordered.values() for entry in entries]}
        return {kind: [named for server, entries in ordered.items() for named in self._named(server, entries)]}

    async def _all_pages(self, request: ClientRequest, server: str) -> list[Any]:
        kind, upstream = KINDS[request.method], self._upstreams[server]
        entries: list[Any] = []
        meta = {key: value for key, value in request.params.items() if key == "_meta"}

        async def ask(params: dict[str, Any]) -> dict[str, Any]:
            result = await self._relay.send(request, upstream, meta | params)
            return self._usable(server, params.get("cursor"), result) if kind == "tools" else result

        most = upstream.config.client.limits.list
        async for page in pages(ask, kind, most, f"the list of {kind} of {server}"):
            found: Any = page.get(kind)
            entries += found if isinstance(found, list) else []
        return entries

    def _spelled(self, server: str, kind: str, page: dict[str, Any]) -> dict[str, Any]:
        """A page of the only server, with names that are valid in this spelling."""
        entries: Any = page.get(kind)
        dotted = self._upstreams.names.spelling == "dotted"
        if dotted or kind not in ("tools", "prompts") or not isinstance(entries, list):
            return page
        return {**page, kind: self._named(server, cast("list[Any]", entries))}

    def _named(self, server: str, entries: list[Any]) -> list[dict[str, Any]]:
        named: list[dict[str, Any]] = []
        for entry in entries:
            name = as_object(entry).get("name")
            if not isinstance(name, str):
                self._warn([f"{server}: an entry without a name is left out"])
                continue
            qualified = self._upstreams.names.qualified(server, name)
            if len(qualified) > MAX_NAME:
                self._warn([f"{qualified} is left out: a name has at most {MAX_NAME} characters"])
                continue
            named.append({**entry, "name": qualified})
        return named

    def _resources(self, found: Mapping[str, list[Any]]) -> list[Any]:
        """A resource keeps its URI unless another server has it, too."""
        owners: dict[Any, set[str]] = {}
        for server, entries in found.items():
            for entry in entries:
                owners.setdefault(_uri(entry), set()).add(server)
        return [
            {**entry, "uri": self._upstreams.names.uri_of(server, uri)}
            if (uri := _uri(entry)) is not None and len(owners[uri]) > 1
            else entry
            for server, entries in found.items()
            for entry in entries
        ]

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            if warning not in self._warned and len(self._warned) < MAX_CURSORS:
                self._warned.add(warning)
                _log.warning("%s", warning)


def _list_tools(request: ClientRequest) -> ClientRequest:
    meta: Any = request.params.get("_meta")
    listing = ClientRequest(request.ctx, request.client)
    listing.method = "tools/list"
    listing.params = {"_meta": {**as_object(meta), "progressToken": None}} if isinstance(meta, Mapping) else {}
    return listing


def _uri(entry: Any) -> str | None:
    uri = as_object(entry).get("uri")
    return uri if isinstance(uri, str) else None
