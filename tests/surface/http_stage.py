"""What the tests of the HTTP server share: a small MCP server of their own behind the real front door."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.lowlevel import Server

from pursuit.server.bind import HttpBinding
from pursuit.server.http import serve_http
from pursuit.server.tokens import Tokens

ERAS = ("legacy", "2026-07-28")
LARGE = 30_000_000
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Stage:
    """A server with three tools: whose request it is, one that waits until it is cancelled, and a large answer."""

    def __init__(self, record_seconds: float = 0.0, **options: Any) -> None:
        self.options = options
        self.waiting = anyio.Event()
        self.recorded: list[str] = []
        self.record_seconds = record_seconds
        self.left = False
        self.server: Server[Any] = Server(
            "stage", on_list_tools=self._list, on_call_tool=self._call, lifespan=self._lifespan
        )
        self.url = ""

    @asynccontextmanager
    async def _lifespan(self, _server: object) -> AsyncIterator[None]:
        yield
        self.left = True

    async def _list(self, _ctx: Any, _params: Any) -> types.ListToolsResult:
        tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in ("whoami", "wait", "large")]
        return types.ListToolsResult(tools=tools)

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "wait":
            self.waiting.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(self.record_seconds)
                    self.recorded.append(str(ctx.protocol_version))
        if params.name == "large":
            return types.CallToolResult(content=[types.TextContent(text="x" * LARGE)])
        token = get_access_token()
        return types.CallToolResult(content=[types.TextContent(text=token.client_id if token else "nobody")])

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        return int(self.netloc.rpartition(":")[2])

    @asynccontextmanager
    async def serving(self, tokens: Tokens | None = None, **options: Any) -> AsyncIterator[anyio.CancelScope]:
        """Serves on a free port of this machine; leaving, or cancelling what it yields, shuts down."""
        told = anyio.Event()

        def listening(url: str) -> None:
            self.url = url
            told.set()

        async def serve(scope: anyio.CancelScope) -> None:
            with scope:
                given = {"host": "127.0.0.1", "port": 0, **self.options, **options}
                names = given.keys() & {"host", "port", "allowed_hosts", "unix_socket"}
                door = HttpBinding(tokens=tokens, **{name: given.pop(name) for name in names})
                await serve_http(self.server, door, **given, listening=listening)

        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(serve, scope)
            with anyio.fail_after(60):
                await told.wait()
            yield scope
            scope.cancel()

    def raw(self, *lines: str) -> str:
        """What the server answers to these bytes, for what a proper HTTP client would not send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as wire:
            wire.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while chunk := wire.recv(65_536):
                answer += chunk
        return answer.decode()


def http(token: str | None = None) -> httpx2.AsyncClient:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False, verify=False)


@asynccontextmanager
async def client(url: str, era: str, token: str | None = None) -> AsyncIterator[Client]:
    async with http(token) as wire, Client(streamable_http_client(url, http_client=wire), mode=era) as session:
        yield session


async def whoami(session: Client) -> str:
    result = await session.call_tool("whoami", {})
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text
