"""Finds the server of a resource, a prompt or an argument to complete, and sends the request to it.

A single server gets all requests. Among several, the owner of a URI is the server that last returned it; else the first
of those that list it, then of those with a matching template, then of all others. A slow server does not delay requests
for the resources of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from pursuit.core.tools import CallFailed
from pursuit.errors import UpstreamUnavailable
from pursuit.server.errors import RESOURCE_NOT_FOUND, as_object, sendable
from pursuit.server.gateway.clients import ClientRequest, ClientSession
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.upstreams import GatewayLimits, Upstreams

MAX_URI = 2_048
TEMPLATE_SECONDS = 0.05
"""Seconds of processor time for matching one URI against the templates of all servers."""
_NOT_HERE = (INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND)
MAX_KNOWN = 10_000
_Listed = tuple[frozenset[str], list[Any]]
"""The URIs of a server's resources, and its templates."""


class GatewayResources:
    def __init__(self, upstreams: Upstreams, relay: Relay, limits: GatewayLimits) -> None:
        self._upstreams = upstreams
        self._relay = relay
        self._limits = limits
        self._known: dict[str, str] = {}

    async def request_resource(self, request: ClientRequest) -> dict[str, Any]:
        uri = request.params.get("uri")
        if self._upstreams.names.single:
            return await self._relay.send(request, self._upstreams.only, request.params)
        if not isinstance(uri, str):
            raise MCPError(INVALID_PARAMS, f"{request.method} needs the URI of a resource")
        owner = self._upstreams.names.uri_owner(uri)
        if owner is None:
            return await self._search(request, uri)
        server, own = owner
        if isinstance(request.client, ClientSession) and request.method == "resources/subscribe":
            request.client.resource_uris[owner] = uri
        result = await self._relay.send(request, self._upstreams[server], {**request.params, "uri": own})
        contents: Any = result.get("contents")
        if not isinstance(contents, list):
            return result
        shown = [
            {**one, "uri": uri} if as_object(one).get("uri") == own else one for one in cast("list[Any]", contents)
        ]
        return {**result, "contents": shown}

    async def _search(self, request: ClientRequest, uri: str) -> dict[str, Any]:
        """The result of the owner; a server that had the resource before is asked first, alone."""
        failure: Exception = MCPError(INVALID_PARAMS, f"no server has a resource {sendable(uri)}", {"uri": uri})
        known = self._known.get(uri)
        candidates = (await self.owners([uri]))[uri]
        while candidates:
            server = candidates.pop(0)
            try:
                result = await self._relay.send(request, self._upstreams[server], request.params)
            except MCPError as error:
                if error.code not in _NOT_HERE:
                    raise
                failure = error
            except (CallFailed, UpstreamUnavailable) as error:
                failure = error
            else:
                self._remember(uri, server)
                return result
            if server == known:
                del self._known[uri]
                candidates = [one for one in (await self.owners([uri]))[uri] if one != known]
        raise failure

    def linked(self, server: str, result: dict[str, Any]) -> dict[str, Any]:
        """A tool's result whose links lead to its own server, even if another server has a resource with that URI."""
        content: Any = result.get("content")
        if self._upstreams.names.single or not isinstance(content, list):
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
            return {**block, "uri": self._upstreams.names.uri_of(server, uri)}
        self._remember(uri, server)
        return block

    def _remember(self, uri: str, server: str) -> None:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[uri] = server

    async def get_prompt(self, request: ClientRequest) -> dict[str, Any]:
        name = request.params.get("name")
        owner = self._upstreams.names.owner(name) if isinstance(name, str) else None
        if owner is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {sendable(str(name))}")
        params = request.params if owner[1] == name else {**request.params, "name": owner[1]}
        return await self._relay.send(request, self._upstreams[owner[0]], params)

    async def complete(self, request: ClientRequest) -> dict[str, Any]:
        ref = as_object(request.params.get("ref"))
        name, uri = ref.get("name"), ref.get("uri")
        owner = self._upstreams.names.owner(name) if isinstance(name, str) else None
        if self._upstreams.names.single and (owner is None or owner[1] == name):
            return await self._relay.send(request, self._upstreams.only, request.params)
        if isinstance(name, str):
            if owner is None:
                raise MCPError(INVALID_PARAMS, f"Unknown prompt: {sendable(name)}")
            params = {**request.params, "ref": {**ref, "name": owner[1]}}
            return await self._relay.send(request, self._upstreams[owner[0]], params)
        found = (await self.owners([uri]))[uri] if isinstance(uri, str) else []
        if not found:
            raise MCPError(INVALID_PARAMS, "Unknown reference")
        return await self._relay.send(request, self._upstreams[found[0]], request.params)

    async def owners(self, uris: Iterable[str]) -> dict[str, list[str]]:
        """For each URI the servers that may have it, the most likely first."""
        wanted = list(uris)
        known = {uri: self._known[uri] for uri in wanted if self._known.get(uri) in self._upstreams}
        listed = {} if len(known) == len(wanted) else await self._list()
        return {uri: [known[uri]] if uri in known else _likeliest(listed, uri) for uri in wanted}

    async def _list(self) -> dict[str, _Listed]:
        """The lists of the servers, without those that do not answer soon."""
        found: dict[str, _Listed] = {}

        async def ask(server: str) -> None:
            upstream = self._upstreams[server]
            try:
                if "resources" in (await upstream.about()).capabilities:
                    listed = [as_object(one).get("uri") for one in await upstream.entries("resources")]
                    templates = await upstream.entries("resourceTemplates")
                    uris = frozenset(uri for uri in listed if isinstance(uri, str))
                    found[server] = uris, [as_object(one).get("uriTemplate") for one in templates]
            except UpstreamUnavailable:
                pass

        with anyio.move_on_after(self._limits.optional_seconds):
            async with anyio.create_task_group() as tasks:
                for server in self._upstreams.names.servers:
                    tasks.start_soon(ask, server)
        return {server: found[server] for server in self._upstreams.names.servers if server in found}


def _likeliest(listed: Mapping[str, _Listed], uri: str) -> list[str]:
    having = [server for server, (uris, _) in listed.items() if uri in uris]
    # One time limit for all templates together: a server can list any number.
    until = time.thread_time() + TEMPLATE_SECONDS
    fitting = [
        server
        for server, (_, templates) in listed.items()
        if any(fits(one, uri) for one in templates if time.thread_time() < until)
    ]
    return list(dict.fromkeys((*having, *fitting, *listed)))


def fits(template: Any, uri: str) -> bool:
    """True if a URI may come from a URI template, or is the template itself; false for a long one."""
    if not isinstance(template, str) or max(len(template), len(uri)) > MAX_URI:
        return False
    try:
        return template == uri or UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        return False
