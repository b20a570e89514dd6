"""Lets our own tools, resources and prompts stand in for the suite's fixtures.

Owns: a relay on loopback that changes a fixture's name into ours on the way in, and nothing on the way out. Does not
know: what the suite checks. Invariant: what the suite judges is what the server answered, byte for byte.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

# Headers that belong to one connection and not to the message.
_OF_THE_CONNECTION = {"host", "connection", "content-length", "transfer-encoding", "keep-alive"}

StandIns = Mapping[str, Mapping[str, Any]]


@asynccontextmanager
async def relaying(url: str, stand_ins: StandIns) -> AsyncIterator[str]:
    """The address of a server that is the one at `url`, with `stand_ins` for what the suite asks by name."""
    async with httpx2.AsyncClient(timeout=240) as client:

        async def relay(request: Request) -> StreamingResponse:
            headers = {name: value for name, value in request.headers.items() if name not in _OF_THE_CONNECTION}
            body = _renamed(await request.body(), headers, stand_ins)
            sent = client.build_request(request.method, url, headers=headers, content=body)
            got = await client.send(sent, stream=True)
            kept = {name: value for name, value in got.headers.items() if name not in _OF_THE_CONNECTION}
            return StreamingResponse(got.aiter_raw(), got.status_code, kept, background=BackgroundTask(got.aclose))

        app = Starlette(routes=[Route("/mcp", relay, methods=["GET", "POST", "DELETE"])])
        with socket.create_server(("127.0.0.1", 0)) as listening:
            config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listening])
                yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
                server.should_exit = True


def _renamed(body: bytes, headers: dict[str, str], stand_ins: StandIns) -> bytes:
    """The message with our name and arguments in place of a fixture's; any other message as it came."""
    message = json.loads(body) if body else {}
    params = message.get("params") or {}
    for key in ("name", "uri"):
        if params.get(key) in stand_ins:
            params |= stand_ins[params[key]]
            if "mcp-name" in headers:
                headers["mcp-name"] = params[key]
            return json.dumps(message).encode()
    return body
