"""An MCP server over HTTP written by hand on a socket, so that it can break in ways that no framework allows.

It speaks one era, says everything in its own JSON, and answers `tools/call` in the way that the tool's name asks for.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.abc

INPUT_SCHEMA = {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}}
TOOLS = [{"name": "place", "inputSchema": INPUT_SCHEMA}, {"name": "ok", "inputSchema": {}, "x-odd": None}]
CAPABILITIES = {"tools": {"listChanged": True}, "x-own": {"deep": [None]}}


@contextmanager
def kept_port() -> Iterator[int]:
    """A port at which nobody listens unless we do: nobody else gets it while it is ours."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


class Request:
    def __init__(self, verb: str, path: str, headers: dict[str, str], body: Any, wire: anyio.abc.SocketStream) -> None:
        self.verb = verb
        self.path = path
        self.headers = headers
        self.body = body
        self.wire = wire

    @property
    def method(self) -> str:
        return self.body.get("method", "") if isinstance(self.body, dict) else ""

    async def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        await self.head(status, {"Content-Length": str(len(data)), **kind, **headers})
        await self.wire.send(data)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} x", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
        await self.wire.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def stream(self, **headers: str) -> None:
        kind = {"Content-Type": headers.pop("Content_Type", "text/event-stream")}
        await self.head(200, {**kind, "Connection": "close", **headers})

    async def event(self, message: Any, ident: str = "") -> None:
        words = f"id: {ident}\n" if ident else ""
        data = "" if message is None else json.dumps({"jsonrpc": "2.0", **message})
        await self.wire.send(f"{words}data: {data}\n\n".encode())


class RawServer:
    """`requests` holds what came, `sessions` how many were opened; `who` is what it says to an unknown session."""

    def __init__(self, *, modern: bool) -> None:
        self.modern = modern
        self.requests: list[Request] = []
        self.sessions = 0
        self.session = ""
        self.who: tuple[int, Any] = (404, {"id": None, "error": {"code": -32600, "message": "who?"}})
        self.replied: dict[str, Any] = {}
        self.reply = anyio.Event()
        self.standing: list[Request] = []
        self.stood = anyio.Event()
        self.hung_up = anyio.Event()
        self.url = ""
        self.listens_in = "text/event-stream"
        """The content type of its answers to `subscriptions/listen`."""

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        listening = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        async with listening as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._connection)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            self.url = f"http://127.0.0.1:{port}/mcp"
            yield self.url
            tasks.cancel_scope.cancel()

    async def _connection(self, wire: anyio.abc.SocketStream) -> None:
        buffer = b""
        async with wire:
            while True:
                try:
                    while b"\r\n\r\n" not in buffer:
                        buffer += await wire.receive()
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    first, *lines = head.decode().split("\r\n")
                    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
                    size = int(headers.get("content-length", 0))
                    while len(buffer) < size:
                        buffer += await wire.receive()
                    body, buffer = buffer[:size], buffer[size:]
                    verb, path, _ = first.split(" ")
                    request = Request(verb, path, headers, json.loads(body) if body else None, wire)
                    self.requests.append(request)
                    if not await self._handle(request):
                        return
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    async def _handle(self, request: Request) -> bool:
        """Answers; False if the connection is to be closed."""
        if request.verb == "DELETE":
            await request.answer(200)
        elif request.path.startswith("/sse"):
            return await self._old_sse(request)
        elif request.path == "/elsewhere":
            await request.answer(307, Location="http://127.0.0.1:1/other")
        elif request.path == "/moved":
            await request.answer(307, Location="/mcp")
        elif request.verb == "GET":
            return await self._get(request)
        elif request.method in ("server/discover", "initialize"):
            await self._greet(request)
        elif not self.modern and request.headers.get("mcp-session-id") != self.session:
            status, body = self.who
            await request.answer(status, {"jsonrpc": "2.0", **body} if isinstance(body, dict) else body)
        elif "id" not in request.body:
            await request.answer(202)
        elif not request.method:
            self.replied = request.body
            self.reply.set()
            await request.answer(202)
        else:
            return await self._ask(request)
        return True

    async def _greet(self, request: Request) -> None:
        if self.modern and request.method == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "resultType": "complete"}
            await self._result(request, result)
        elif not self.modern and request.method == "initialize":
            self.sessions += 1
            self.session = f"session-{self.sessions}"
            info = {"name": "raw", "version": "1", "x-odd": None}
            result = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
            body = {"jsonrpc": "2.0", "id": request.body["id"], "result": result}
            await request.answer(200, body, Mcp_Session_Id=self.session)
        else:
            await request.answer(400)

    async def _result(self, request: Request, result: Any) -> None:
        await request.answer(200, {"jsonrpc": "2.0", "id": request.body["id"], "result": result})

    async def _get(self, request: Request) -> bool:
        if "last-event-id" in request.headers and request.headers["last-event-id"].startswith("call-"):
            await request.stream()
            ident = int(request.headers["last-event-id"].removeprefix("call-"))
            await request.event({"id": ident, "result": {"content": [], "resumed": True}})
            return False
        await request.stream()
        self.standing.append(request)
        self.stood.set()
        await self._until_gone(request)
        return False

    async def _old_sse(self, request: Request) -> bool:
        """The old transport: everything comes on one stream; a call is answered with its own arguments."""
        if request.verb == "GET":
            await request.stream()
            await request.wire.send(b"event: endpoint\ndata: /sse/post\n\n")
            self.standing.append(request)
            await self._until_gone(request)
            return False
        await request.answer(202)
        if "id" in request.body:
            info = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}}
            echo = {"content": [], "structuredContent": request.body["params"].get("arguments")}
            await self.standing[-1].event(
                {"id": request.body["id"], "result": info if request.method == "initialize" else echo}
            )
        return True

    async def _until_gone(self, request: Request) -> None:
        try:
            await request.wire.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.hung_up.set()

    async def _ask(self, request: Request) -> bool:
        params = request.body.get("params", {})
        if request.method == "tools/list":
            await self._result(request, {"tools": TOOLS})
        elif request.method == "subscriptions/listen":
            await request.stream(Content_Type=self.listens_in)
            meta = {"io.modelcontextprotocol/subscriptionId": request.body["id"]}
            params = {"notifications": params["notifications"], "_meta": meta}
            await request.event({"method": "notifications/subscriptions/acknowledged", "params": params})
            self.standing.append(request)
            self.stood.set()
            await self._until_gone(request)
            return False
        elif request.method == "tools/call":
            return await self._call(request, params["name"], params.get("arguments", {}))
        else:
            error = {"code": -32601, "message": "no such method", "data": {"method": request.method, "null": None}}
            await request.answer(404, {"jsonrpc": "2.0", "id": request.body["id"], "error": error})
        return True

    async def _call(self, request: Request, tool: str, arguments: dict[str, Any]) -> bool:
        """Answers a call; False if the connection is to be closed."""
        ident = request.body["id"]
        answer = {"jsonrpc": "2.0", "id": ident, "result": {"content": [], "arguments": arguments}}
        whole = {
            "page": ("text/html", b"<html>"),
            "no_json": ("application/json", b"<html>"),
            "wrong_id": ("application/json", json.dumps(answer | {"id": 987654}).encode()),
            "raw": ("application/json", json.dumps({"jsonrpc": "2.0", "id": ident, **arguments}).encode()),
        }
        if tool in whole:
            kind, data = whole[tool]
            await request.head(200, {"Content-Type": kind, "Content-Length": str(len(data))})
            await request.wire.send(data)
        elif tool == "busy":
            await request.answer(503)
        elif tool == "bad_request":
            error = {"code": -32602, "message": "no such session of yours"}
            await request.answer(400, {"jsonrpc": "2.0", "id": ident, "error": error})
        elif tool == "nothing":
            return False
        elif tool == "cut_json":
            await request.head(200, {"Content-Type": "application/json", "Content-Length": "100000"})
            await request.wire.send(b'{"jsonrpc": "2.0",')
            return False
        elif tool in ("cut", "resume", "tell", "ask", "hang"):
            await request.stream()
            await self._stream(request, tool, arguments, answer)
            return False
        else:
            await request.answer(200, answer)
        return True

    async def _stream(self, request: Request, tool: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:
        match tool:
            case "cut":
                await request.event({"method": "notifications/message", "params": {"data": "so far so good"}})
                await request.wire.send(b'data: {"jsonrpc": "2.0", "id"')
            case "resume":
                await request.wire.send(b"retry: 10\n\n")
                await request.event(None, ident=f"call-{answer['id']}")
            case "tell":
                for message in arguments["messages"]:
                    if message["method"] == "notifications/progress":
                        message["params"]["progressToken"] = request.body["params"]["_meta"]["progressToken"]
                    await request.event(message)
                await request.event(answer)
            case "ask":
                await request.event({"id": "q-1", **arguments})
                await self.reply.wait()
                self.reply = anyio.Event()
                await request.event(answer | {"result": {"content": [], "replied": self.replied}})
            case _:
                await request.event({"method": "notifications/message", "params": {"data": "begun"}})
                await self._until_gone(request)
