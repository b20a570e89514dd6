"""Serves an SDK server on a free port of this machine, over streamable HTTP or the older SSE transport."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.routing import Mount, Route


def sse_app(server: Server[Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    class Connect:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())

    routes = [Route("/sse", endpoint=Connect()), Mount("/messages/", app=transport.handle_post_message)]
    return Starlette(routes=routes)


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """The address of a running ASGI application."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.serve(sockets=[listener]))
            with anyio.fail_after(120):
                while not server.started:
                    await anyio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True
