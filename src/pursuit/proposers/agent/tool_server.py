"""The tools of the mission as an MCP server for its agent, so that its calls are calls of the mission.

Each call passes policy, approvals and the budget, is recorded before it is sent, and its metrics count. The agent
starts `mcp_bridge.py`, which connects its standard streams with a Unix socket of this process. Calls are made only
while a turn runs: the end of the turn cancels them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import anyio
import msgspec
from anyio.abc import SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from pursuit.config.process_environment import REAL_PYTHON
from pursuit.core.tools import Tool, as_object
from pursuit.proposers.contract import Services

BRIDGE = Path(__file__).with_name("mcp_bridge.py")
MAX_LINE = 4 * 1024 * 1024
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
NO_METHOD = -32601

Table = Mapping[str, Any]


class ToolServer:
    """Serves tools over a Unix socket."""

    def __init__(self, tools: Mapping[str, Tool], services: Services, seconds: float, path: Path) -> None:
        self._tools = {name.replace(".", "__"): tool for name, tool in tools.items()}
        self._services = services
        self._seconds = seconds
        self._turn: TaskGroup | None = None
        self.folder = path.parent
        """The files that the agent must read: the socket, and the bridge to it."""
        words = {"command": REAL_PYTHON, "args": ["-I", "-S", str(self.folder / BRIDGE.name), str(path)]}
        self.described: Table = {"name": "pursuit", **words, "env": []}
        """The server, in the form for a session of the agent."""

    @classmethod
    @asynccontextmanager
    async def serving(cls, tools: Mapping[str, Tool], services: Services, seconds: float) -> AsyncGenerator[Self]:
        """Serves while the block runs. A question waits up to these seconds."""
        folder = Path(
            tempfile.mkdtemp(prefix="pursuit-")
        )  # private, and short: the path of a socket has at most 107 bytes
        shutil.copy(BRIDGE, folder)
        server = cls(tools, services, seconds, folder / "mcp")
        try:
            async with anyio.create_task_group() as tasks, await anyio.create_unix_listener(folder / "mcp") as listener:
                tasks.start_soon(listener.serve, server._serve)
                yield server
                tasks.cancel_scope.cancel()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Calls are made during the block, and its end cancels them."""
        async with anyio.create_task_group() as tasks:
            self._turn = tasks
            try:
                yield
            finally:
                self._turn = None
                tasks.cancel_scope.cancel()

    async def _serve(self, stream: SocketStream) -> None:
        """One connection: requests are answered one after another."""
        reading = BufferedByteReceiveStream(stream)
        async with stream:
            while True:
                try:
                    line = await reading.receive_until(b"\n", MAX_LINE)
                    message: Any = json.loads(line)
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.DelimiterNotFound, anyio.IncompleteRead):
                    return
                except (ValueError, RecursionError):
                    continue
                if not isinstance(message, dict) or "method" not in message or "id" not in message:
                    continue
                request = cast("dict[str, Any]", message)
                answer = await self._answer(str(request["method"]), as_object(request.get("params")))
                body = {"jsonrpc": "2.0", "id": request["id"], **answer}
                try:
                    await stream.send(msgspec.json.encode(body) + b"\n")
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return

    async def _answer(self, method: str, params: Table) -> Table:
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                version = wanted if wanted in VERSIONS else VERSIONS[0]
                info = {"name": "pursuit", "version": "1"}
                return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
            case "ping":
                return {"result": {}}
            case "tools/list":
                listed = [
                    {"name": name, "description": tool.description, "inputSchema": tool.input_schema}
                    for name, tool in self._tools.items()
                ]
                return {"result": {"tools": listed}}
            case "tools/call":
                tool = self._tools.get(str(params.get("name")))
                if tool is None:
                    return {"result": _failed(f"there is no tool {params.get('name')!r}")}
                return {"result": await self._called(tool, dict(as_object(params.get("arguments"))))}
            case _:
                return {"error": {"code": NO_METHOD, "message": f"{method} is not supported"}}

    async def _called(self, tool: Tool, arguments: dict[str, Any]) -> Table:
        """Makes the call within the current turn, which may cancel it."""
        turn, done, found = self._turn, anyio.Event(), list[Table]()
        if turn is None:
            return _failed("no turn runs now")

        async def make() -> None:
            try:
                found.append(await self._services.call(tool, arguments, seconds=self._seconds))
            finally:
                done.set()

        turn.start_soon(make)
        await done.wait()
        return found[0] if found else _failed("the turn ended before the call did")


def _failed(text: str) -> Table:
    return {"content": [{"type": "text", "text": text}], "isError": True}
