"""Creates the client of a server from its configuration, or from an object of the program.

Environment variables in a configuration are expanded at each connect. Their values go only to the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair
from mcp.shared.dispatcher import DispatchContext, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.config.servers import ServerConfig, expand, secrets_of
from pursuit.config.variables import as_secrets
from pursuit.core.tools import CallFailed, Tool, Upstream, as_object
from pursuit.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, UpstreamUnavailable
from pursuit.policy.rules import NetworkRules, network_ruling
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import Era
from pursuit.upstream.http import ParamHeaders, StreamableHttpTransport, http_client, sse, url_secrets
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits
from pursuit.upstream.pins import Pins
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.stdio import stdio
from pursuit.upstream.transport import CallBroken, DispatcherTransport, OpenTransport, Transport

_COMPLETE: Mapping[str, Any] = {"resultType": "complete"}
_UNCACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}

Serving = Callable[[], AbstractAsyncContextManager[OnRequest]]
"""A context manager that yields the handler of a connection's requests."""


def in_process(serving: Serving) -> OpenTransport:
    """Opens an in-process server of the modern era.

    A request runs in its caller's task, so that cancelling the caller cancels the handler. The server's lifespan is
    exited by the task that entered it.
    """

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, _tail: StderrTail) -> Transport:
        answer = await stack.enter_async_context(serving())
        # Unlike on a network, unexpected exceptions may be shown: it is the user's own process.
        client, peer = create_direct_dispatcher_pair(raise_handler_exceptions=True)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(peer.close)
        await tasks.start(peer.run, answer, _ignore)
        return DispatcherTransport(
            client,
            closed=closed,
            close_reason=lambda: "the server in this process was closed",
            progress_inline=True,
        )

    return open_transport


async def _ignore(_context: Any, _method: str, _params: Mapping[str, Any] | None) -> None:
    """A modern client sends no notifications."""


def sdk_server(server: Server[Any] | MCPServer) -> Serving:
    """Serves a server object of the SDK."""
    # The SDK's own client uses the same attribute; there is no public name for it yet.
    low_level = cast("Server[Any]", getattr(server, "_lowlevel_server", server))

    @asynccontextmanager
    async def serving() -> AsyncGenerator[OnRequest]:
        async with low_level.lifespan(low_level) as state:
            yield modern_on_request(low_level, state)

    return serving


class InProcessUpstream(McpUpstream):
    """Functions or an upstream of a program as an MCP server, so that a gateway can reach them like any server.

    Tools are listed and answer as for a mission; the program sets their traits.
    """

    def __init__(self, inner: Upstream, *, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__(ServerConfig(name=inner.name), in_process(lambda: nullcontext(self._answer)), tasks=tasks)
        self.inner = inner

    async def tools(self) -> Sequence[Tool]:
        return await self.inner.tools()

    async def _answer(
        self, context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        match method:
            case "server/discover":
                versions = list(MODERN_PROTOCOL_VERSIONS)
                return {"supportedVersions": versions, "capabilities": {"tools": {}}, **_COMPLETE, **_UNCACHED}
            case "initialize":
                raise MCPError(UNSUPPORTED_PROTOCOL_VERSION, "this server uses the modern protocol")
            case "tools/list":
                return {"tools": [dict(tool.definition) for tool in await self._listed()], **_COMPLETE, **_UNCACHED}
            case "tools/call":
                return {**await self._call(context, params or {}), **_COMPLETE}
            case _:
                raise MCPError(METHOD_NOT_FOUND, f"Method not found: {method}")

    async def _listed(self) -> Sequence[Tool]:
        try:
            return await self.inner.tools()
        except UpstreamUnavailable as error:
            raise _broken(error.message) from None

    async def _call(self, context: DispatchContext[Any], params: Mapping[str, Any]) -> dict[str, Any]:
        name, said = params.get("name"), as_object(params.get("_meta"))
        if not any(tool.name == name for tool in await self._listed()):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}")
        try:
            result = await self.inner.call(
                str(name),
                as_object(params.get("arguments")),
                call_id=str(said.get("pursuit/callId", "")),
                on_progress=None if said.get("progressToken") is None else context.progress,
            )
        except CallFailed as error:
            if error.answered:
                raise MCPError(INTERNAL_ERROR, str(error)) from None
            raise _broken(str(error), sent=error.sent) from None
        body = result.as_dict()
        if not result.content and result.structured is not None:  # also as text, for clients that read only text
            body["content"] = [{"type": "text", "text": json.dumps(result.structured, ensure_ascii=False)}]
        return body


def _broken(reason: str, *, sent: bool = True) -> MCPError:
    return MCPError(0, reason, CallBroken(reason, sent=sent))


def mcp_upstream(
    name: str,
    thing: Any,
    tasks: anyio.abc.TaskGroup,
    *,
    era: Era = "auto",
    network: NetworkRules | None = None,
    pins: Pins | None = None,
    traits: ToolTraits = KNOWN_TRAITS,
) -> McpUpstream | None:
    """Returns the upstream for a configuration or an SDK server object; None for anything else."""
    if isinstance(thing, ServerConfig):
        rules = network or NetworkRules()
        match thing.transport:
            case "stdio":
                opening = over_stdio(thing)
            case "http":
                opening = over_http(thing, rules)
            case "sse":
                opening, era = over_sse(thing, rules), "legacy"  # that transport is older than the modern era
        return McpUpstream(thing, opening, tasks=tasks, era=era, pins=pins, traits=traits)
    if isinstance(thing, Server | MCPServer):
        # The user's own object: its annotations and methods count as the operator's configuration.
        config = ServerConfig(name=name, trust_annotations=True, methods=("*",), pin="off")
        return McpUpstream(config, in_process(sdk_server(cast("MCPServer", thing))), tasks=tasks)
    return None


def over_stdio(config: ServerConfig) -> OpenTransport:

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, tail: StderrTail) -> Transport:
        process = await stack.enter_async_context(stdio(_expanded(config, tail), tail, closed))
        dispatcher = JSONRPCDispatcher(process, process)
        return DispatcherTransport(dispatcher, closed=closed, close_reason=process.close_reason, can_hang=True)

    return open_transport


def over_http(config: ServerConfig, network: NetworkRules) -> OpenTransport:
    params: ParamHeaders = {}

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, tail: StderrTail) -> Transport:
        ready, client = await _http(config, network, stack, tail)
        transport = StreamableHttpTransport(client, ready.url or "", closed, params, config.client)
        stack.push_async_callback(transport.aclose)
        return transport

    return open_transport


def over_sse(config: ServerConfig, network: NetworkRules) -> OpenTransport:

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, tail: StderrTail) -> Transport:
        ready, client = await _http(config, network, stack, tail)
        streams = await stack.enter_async_context(sse(client, ready.url or "", closed, config.client))
        dispatcher = JSONRPCDispatcher(streams.read_stream, streams)
        return DispatcherTransport(dispatcher, closed=closed, close_reason=streams.close_reason)

    return open_transport


def _expanded(config: ServerConfig, tail: StderrTail) -> ServerConfig:
    """The expanded configuration; from now on its secrets are redacted."""
    ready = expand(config, os.environ)
    headers = [part for value in ready.headers.values() for part in (value, value.rpartition(" ")[2])]
    secrets = {*secrets_of(config, ready, os.environ), *headers, *url_secrets(ready.url)}
    tail.hide(as_secrets(secrets))
    return ready


async def _http(
    config: ServerConfig, network: NetworkRules, stack: AsyncExitStack, tail: StderrTail
) -> tuple[ServerConfig, httpx2.AsyncClient]:
    """The expanded configuration and an HTTP client; raises `UpstreamUnavailable` if the network rules forbid it."""
    ready = _expanded(config, tail)
    url = ready.url or ""
    ruling = network_ruling(network, url)
    # An operator's own server may be listed: policy asks before each call (`Pool.asked_first`).
    if ruling == "allow" or (ruling == "ask" and config.operators):
        return ready, await stack.enter_async_context(http_client(ready))
    host = urlsplit(url).hostname
    if ruling == "ask":
        raise UpstreamUnavailable(
            f"the network rules ask before {host} is reached, and a mission file brings the server; "
            "to allow it, name it in policy.network.allow"
        )
    raise UpstreamUnavailable(f"the network rules deny {host}")
