"""Which way to reach a server: from its configuration, or from the object itself, to an `McpUpstream`.

Owns: the choice of the transport, the child's environment, and the network rules at the moment of connecting. Does not
know: sessions or processes. Invariant: a variable is expanded at each connect, and its value goes to the server and
nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
from mcp.client.stdio import get_default_environment
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
from pursuit.upstream.connection import Era, Opener
from pursuit.upstream.http import HttpWire, ParamHeaders, http_client, sse, url_secrets
from pursuit.upstream.stdio import Launch, stdio
from pursuit.upstream.transport import DispatcherWire, StderrTail, Wire

# A `Server` or `MCPServer` object of the SDK, living in this process.
# Invariant: requests run in the caller's own task, so that cancelling the caller cancels the handler; the server's
# lifespan is left where it was entered.


def is_server(value: object) -> bool:
    """Whether this object can be connected to in process."""
    return isinstance(value, Server | MCPServer)


def in_process(server: Server[Any] | MCPServer) -> Opener:
    """An opener for a server object; it never ends by itself."""

    async def opened(stack: AsyncExitStack, over: anyio.Event, _tail: StderrTail) -> Wire:
        low_level = _low_level(server)
        state = await stack.enter_async_context(low_level.lifespan(low_level))
        # Unlike over a wire, an unexpected exception may be shown: it is the user's own process.
        client, peer = create_direct_dispatcher_pair(raise_handler_exceptions=True)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(peer.close)
        await tasks.start(peer.run, modern_on_request(low_level, state), _ignore)
        return DispatcherWire(
            client, over=over, ending=lambda: "the server in this process was closed", progress_inline=True
        )

    return opened


def _low_level(server: Server[Any] | MCPServer) -> Server[Any]:
    # The SDK's own client reaches for the same attribute; there is no public name for it yet.
    return cast("Server[Any]", getattr(server, "_lowlevel_server", server))


async def _ignore(_context: Any, _method: str, _params: Mapping[str, Any] | None) -> None:
    """The new era has no notifications from client to server."""


def mcp_upstream(
    name: str, thing: Any, tasks: anyio.abc.TaskGroup, *, era: Era = "auto", network: NetworkRules | None = None
) -> McpUpstream | None:
    """The upstream for a configuration or an SDK server object; None for anything else."""
    if isinstance(thing, ServerConfig):
        match thing.transport:
            case "stdio":
                return McpUpstream(thing, over_stdio(thing), tasks=tasks, era=era)
            case "http":
                return McpUpstream(thing, over_http(thing, network or NetworkRules()), tasks=tasks, era=era)
            case "sse":
                # That transport is older than the new era.
                return McpUpstream(thing, over_sse(thing, network or NetworkRules()), tasks=tasks, era="legacy")
    if is_server(thing):
        # The user's own object: its annotations are the operator's word.
        config = ServerConfig(name=name, trust_annotations=True)
        return McpUpstream(config, in_process(thing), tasks=tasks)
    return None


def over_stdio(config: ServerConfig) -> Opener:
    """An opener that starts the configured command."""

    async def opened(stack: AsyncExitStack, over: anyio.Event, tail: StderrTail) -> Wire:
        ready = _ready(config, tail, os.environ)
        launch = Launch(
            argv=(ready.command or "", *ready.args),
            env=get_default_environment() | dict(ready.env),
            cwd=ready.cwd,
        )
        line = await stack.enter_async_context(stdio(launch, tail=tail, over=over))
        dispatcher = JSONRPCDispatcher(line.inbox, line.outbox)
        return DispatcherWire(dispatcher, over=over, ending=line.ending, can_hang=True)

    return opened


def over_http(config: ServerConfig, network: NetworkRules) -> Opener:
    """An opener for streamable HTTP."""
    params: ParamHeaders = {}

    async def opened(stack: AsyncExitStack, over: anyio.Event, tail: StderrTail) -> Wire:
        ready = _ready(config, tail, os.environ)
        _permitted(ready, network)
        client = await stack.enter_async_context(http_client(ready))
        wire = HttpWire(client, ready.url or "", over, params)
        stack.push_async_callback(wire.aclose)
        return wire

    return opened


def over_sse(config: ServerConfig, network: NetworkRules) -> Opener:
    """An opener for the old transport with a stream of events."""

    async def opened(stack: AsyncExitStack, over: anyio.Event, tail: StderrTail) -> Wire:
        ready = _ready(config, tail, os.environ)
        _permitted(ready, network)
        client = await stack.enter_async_context(http_client(ready))
        line = await stack.enter_async_context(sse(client, ready.url or "", over))
        return DispatcherWire(JSONRPCDispatcher(line.inbox, line), over=over, ending=line.ending)

    return opened


def _ready(config: ServerConfig, tail: StderrTail, environ: Mapping[str, str]) -> ServerConfig:
    """The expanded configuration; what it holds of secrets is blanked from now on."""
    ready = expand(config, environ)
    headers = [part for value in ready.headers.values() for part in (value, value.rpartition(" ")[2])]
    secrets = {*secrets_of(config, ready, environ), *headers, *url_secrets(ready.url)}
    long = (secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
    tail.secrets = tuple(sorted(long, key=lambda secret: (-len(secret), secret)))
    return ready


def _permitted(config: ServerConfig, network: NetworkRules) -> None:
    url = config.url or ""
    ruling = network_ruling(network, url)
    # An operator's own server may be listed: policy asks before each call (`Pool.asked_first`).
    if ruling == "allow" or (ruling == "ask" and config.operators):
        return
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
