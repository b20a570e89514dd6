"""Makes the client of a server from its configuration, or from a server object of the SDK.

Environment variables in a configuration are expanded at each connect. Their values go to the server and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from pursuit.config.servers import ServerConfig, expand, secrets_of
from pursuit.config.variables import SHORTEST_SECRET
from pursuit.errors import UpstreamUnavailable
from pursuit.policy.rules import NetworkRules, network_ruling
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import Era
from pursuit.upstream.http import ParamHeaders, StreamableHttpTransport, http_client, sse, url_secrets
from pursuit.upstream.listing import KNOWN_TRAITS, ToolTraits
from pursuit.upstream.pins import Pins
from pursuit.upstream.redaction import StderrTail
from pursuit.upstream.stdio import stdio
from pursuit.upstream.transport import DispatcherTransport, OpenTransport, Transport


def in_process(server: Server[Any] | MCPServer) -> OpenTransport:
    """Opens a server object of the SDK that lives in this process.

    A request runs in its caller's task, so that cancelling the caller cancels the handler. The lifespan of the server
    is left in the task that entered it.
    """

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, _tail: StderrTail) -> Transport:
        # The SDK's own client uses the same attribute; there is no public name for it yet.
        low_level = cast("Server[Any]", getattr(server, "_lowlevel_server", server))
        state = await stack.enter_async_context(low_level.lifespan(low_level))
        # Unlike on a network, an unexpected exception may be shown: it is the user's own process.
        client, peer = create_direct_dispatcher_pair(raise_handler_exceptions=True)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(peer.close)
        await tasks.start(peer.run, modern_on_request(low_level, state), _ignore)
        return DispatcherTransport(
            client,
            closed=closed,
            close_reason=lambda: "the server in this process was closed",
            progress_inline=True,
        )

    return open_transport


async def _ignore(_context: Any, _method: str, _params: Mapping[str, Any] | None) -> None:
    """A modern client sends no notifications."""


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
    """The upstream for a configuration or an SDK server object; None for anything else."""
    if isinstance(thing, ServerConfig):
        rules = network or NetworkRules()
        match thing.transport:
            case "stdio":
                return McpUpstream(thing, over_stdio(thing), tasks=tasks, era=era, pins=pins, traits=traits)
            case "http":
                return McpUpstream(thing, over_http(thing, rules), tasks=tasks, era=era, pins=pins, traits=traits)
            case "sse":
                # That transport is older than the modern era.
                return McpUpstream(thing, over_sse(thing, rules), tasks=tasks, era="legacy", pins=pins, traits=traits)
    if isinstance(thing, Server | MCPServer):
        # The user's own object: its annotations and methods count as the operator's configuration.
        config = ServerConfig(name=name, trust_annotations=True, methods=("*",), pin="off")
        return McpUpstream(config, in_process(cast("MCPServer", thing)), tasks=tasks)
    return None


def over_stdio(config: ServerConfig) -> OpenTransport:
    """Opens the stdio transport: starts the configured command."""

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, tail: StderrTail) -> Transport:
        process = await stack.enter_async_context(stdio(_expanded(config, tail), tail, closed))
        dispatcher = JSONRPCDispatcher(process.read_stream, process)
        return DispatcherTransport(dispatcher, closed=closed, close_reason=process.close_reason, can_hang=True)

    return open_transport


def over_http(config: ServerConfig, network: NetworkRules) -> OpenTransport:
    """Opens streamable HTTP."""
    params: ParamHeaders = {}

    async def open_transport(stack: AsyncExitStack, closed: anyio.Event, tail: StderrTail) -> Transport:
        ready, client = await _http(config, network, stack, tail)
        transport = StreamableHttpTransport(client, ready.url or "", closed, params, config.client)
        stack.push_async_callback(transport.aclose)
        return transport

    return open_transport


def over_sse(config: ServerConfig, network: NetworkRules) -> OpenTransport:
    """Opens HTTP+SSE, the transport before streamable HTTP."""

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
    long = (secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
    tail.secrets = tuple(sorted(long, key=lambda secret: (-len(secret), secret)))
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
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if host is None:
        raise UpstreamUnavailable("its url is malformed: it must be http:// or https:// with a host")
    if ruling == "ask":
        raise UpstreamUnavailable(
            f"the network rules ask before {host} is reached, and a mission file brings the server; "
            "to allow it, name it in policy.network.allow"
        )
    raise UpstreamUnavailable(f"the network rules deny {host}")
