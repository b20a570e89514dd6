"""A `Server` or `MCPServer` object of the SDK, living in this process.

Owns: the wiring of the SDK's direct dispatcher. Does not know: what the server offers. Invariant: requests run in the
caller's own task, so that cancelling the caller cancels the handler; the server's lifespan is left where it was
entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair

from pursuit.tools.connection import Opener
from pursuit.tools.stderr import StderrTail
from pursuit.tools.wire import DispatcherWire, Wire


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
