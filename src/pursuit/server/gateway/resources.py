"""Which server a resource, a prompt or an argument to complete belongs to.

Owns: finding the owner among several servers, by what they list, and remembering who it was. Does not know: eras.
Invariant: with one server nothing is looked up; an address that nobody lists is asked of those whose templates it fits,
then of everybody else; a server that does not list in time holds up nobody else's resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from pursuit.core.tools import CallFailed
from pursuit.errors import UpstreamUnavailable
from pursuit.server.errors import sendable
from pursuit.server.gateway.clients import ClientRequest, ClientSession
from pursuit.server.gateway.protocol_versions import RESOURCE_NOT_FOUND, as_object
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.routing import ASIDE_SECONDS
from pursuit.server.gateway.upstreams import Upstreams

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^}]*\}")
_PASS_OVER = (INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND)
MOST_KNOWN = 10_000
_Offer = tuple[frozenset[str], list[Any]]
"""What a server lists: the addresses of its resources, and its templates."""


class Resources:
    """Sends requests about a resource or a prompt to its owner."""

    def __init__(self, roster: Upstreams, relay: Relay) -> None:
        self._roster = roster
        self._relay = relay
        self._known: dict[str, str] = {}

    async def about_uri(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers a request that names a resource: read, subscribe, unsubscribe."""
        uri = visit.params.get("uri")
        if self._roster.names.single:
            return await self._relay.send(visit, self._roster.only, visit.params)
        if not isinstance(uri, str):
            raise MCPError(INVALID_PARAMS, f"{visit.method} needs the URI of a resource")
        owner = self._roster.names.uri_owner(uri)
        if owner is not None:
            server, own = owner
            if isinstance(visit.guest, ClientSession) and visit.method == "resources/subscribe":
                visit.guest.addresses[owner] = uri
            result = await self._relay.send(visit, self._roster[server], {**visit.params, "uri": own})
            return _with_uri(result, own, uri)
        return await self._searched(visit, uri)

    async def _searched(self, visit: ClientRequest, uri: str) -> dict[str, Any]:
        """The answer of whoever has it; one that had it before is asked first, and alone."""
        failure: Exception = MCPError(INVALID_PARAMS, f"no server has a resource {sendable(uri)}", {"uri": uri})
        known = self._known.get(uri)
        candidates = await self.owners(uri)
        while candidates:
            server = candidates.pop(0)
            try:
                result = await self._relay.send(visit, self._roster[server], visit.params)
            except MCPError as error:
                if error.code not in _PASS_OVER:
                    raise
                failure = error
            except (CallFailed, UpstreamUnavailable) as error:
                failure = error
            else:
                self._remember(uri, server)
                return result
            if server == known:
                del self._known[uri]
                candidates = [one for one in await self.owners(uri) if one != known]
        raise failure

    def linked(self, server: str, result: dict[str, Any]) -> dict[str, Any]:
        """A tool's result whose links lead to its own server, also where another one has a resource of that address."""
        content: Any = result.get("content")
        if self._roster.names.single or not isinstance(content, list):
            return result
        blocks = cast("list[Any]", content)
        if not any(as_object(block).get("type") == "resource_link" for block in blocks):
            return result
        return {**result, "content": [self._link(server, block) for block in blocks]}

    def _link(self, server: str, block: Any) -> Any:
        uri = as_object(block).get("uri")
        if as_object(block).get("type") != "resource_link" or not isinstance(uri, str):
            return block
        if self._known.get(uri, server) != server:
            return {**block, "uri": self._roster.names.uri_of(server, uri)}
        self._remember(uri, server)
        return block

    def _remember(self, uri: str, server: str) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[uri] = server

    async def about_name(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `prompts/get`."""
        name = visit.params.get("name")
        owner = self._roster.names.owner(name) if isinstance(name, str) else None
        if owner is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {sendable(str(name))}")
        params = visit.params if owner[1] == name else {**visit.params, "name": owner[1]}
        return await self._relay.send(visit, self._roster[owner[0]], params)

    async def complete(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `completion/complete`: about a prompt, or about a template's address."""
        ref = as_object(visit.params.get("ref"))
        name, uri = ref.get("name"), ref.get("uri")
        owner = self._roster.names.owner(name) if isinstance(name, str) else None
        if self._roster.names.single and (owner is None or owner[1] == name):
            return await self._relay.send(visit, self._roster.only, visit.params)
        if isinstance(name, str):
            if owner is None:
                raise MCPError(INVALID_PARAMS, f"Unknown prompt: {sendable(name)}")
            params = {**visit.params, "ref": {**ref, "name": owner[1]}}
            return await self._relay.send(visit, self._roster[owner[0]], params)
        found = await self.owners(uri) if isinstance(uri, str) else []
        if not found:
            raise MCPError(INVALID_PARAMS, "Unknown reference")
        return await self._relay.send(visit, self._roster[found[0]], visit.params)

    async def owners(self, uri: str) -> list[str]:
        """The servers that may have it, the likeliest first: who had it; or those that list it, or fit it; or all."""
        return (await self.owners_of([uri]))[uri]

    async def owners_of(self, uris: Iterable[str]) -> dict[str, list[str]]:
        """The same for several."""
        wanted = list(uris)
        known = {uri: self._known[uri] for uri in wanted if self._known.get(uri) in self._roster}
        offers = {} if len(known) == len(wanted) else await self._offers()
        return {uri: [known[uri]] if uri in known else _likeliest(offers, uri) for uri in wanted}

    async def _offers(self) -> dict[str, _Offer]:
        """What the servers list, asked side by side; without those that do not answer soon."""
        found: dict[str, _Offer] = {}

        async def ask(server: str) -> None:
            upstream = self._roster[server]
            try:
                if "resources" in (await upstream.about()).capabilities:
                    listed = [as_object(one).get("uri") for one in await upstream.entries("resources")]
                    templates = await upstream.entries("resourceTemplates")
                    addresses = frozenset(uri for uri in listed if isinstance(uri, str))
                    found[server] = addresses, [as_object(one).get("uriTemplate") for one in templates]
            except UpstreamUnavailable:
                pass

        with anyio.move_on_after(ASIDE_SECONDS):
            async with anyio.create_task_group() as asking:
                for server in self._roster.names.servers:
                    asking.start_soon(ask, server)
        return {server: found[server] for server in self._roster.names.servers if server in found}


def _likeliest(offers: Mapping[str, _Offer], uri: str) -> list[str]:
    listed = [server for server, (uris, _) in offers.items() if uri in uris]
    fitting = [server for server, (_, templates) in offers.items() if any(fits(one, uri) for one in templates)]
    return list(dict.fromkeys((*listed, *fitting, *offers)))


def fits(template: Any, uri: str) -> bool:
    """Whether an address may come from a URI template (or is the template itself)."""
    if not isinstance(template, str):
        return False
    if template == uri:
        return True
    pattern, place = "", 0
    for expression in _EXPRESSION.finditer(template):
        pattern += re.escape(template[place : expression.start()])
        pattern += ".*" if expression.group(1) else "[^/?#]*"
        place = expression.end()
    return re.fullmatch(pattern + re.escape(template[place:]), uri) is not None


def _with_uri(result: dict[str, Any], own: str, shown: str) -> dict[str, Any]:
    """The contents under the address that the client knows."""
    contents: Any = result.get("contents")
    if not isinstance(contents, list):
        return result
    renamed = [
        {**one, "uri": shown} if as_object(one).get("uri") == own else one for one in cast("list[Any]", contents)
    ]
    return {**result, "contents": renamed}
