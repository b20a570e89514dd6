"""The floor of the front door: the smallest server that the SDK allows, with one tool that reads one row of SQLite.

Owns: that server, over the SDK's own standard input and output, or over HTTP. Knows nothing of Pursuit.

Run: python benchmarks/smallest_server.py FILE [--http]    (--http: the URL is the first line on standard output)
"""

from __future__ import annotations

import socket
import sqlite3
import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NAME = "row"
ANY: dict[str, Any] = {"type": "object"}


def make(path: str) -> None:
    """The file with its one row."""
    with sqlite3.connect(path) as database:
        database.execute("create table things (id text primary key, name text, number integer)")
        database.execute("insert into things values ('a', 'the only one', 1)")
    database.close()


def smallest(path: str) -> Server[Any]:
    database = sqlite3.connect(path)

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name=NAME, input_schema=ANY, output_schema=ANY)])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        wanted = (params.arguments or {})["id"]
        row = database.execute("select id, name, number from things where id = ?", (wanted,)).fetchone()
        answer = dict(zip(("id", "name", "number"), row, strict=True))
        return types.CallToolResult(content=[types.TextContent(text=row[1])], structured_content=answer)

    return Server("smallest", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def over_http(server: Server[Any]) -> None:
    import uvicorn

    door = socket.create_server(("127.0.0.1", 0))
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvicorn has it where it opens the port itself
    print(f"http://127.0.0.1:{door.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_config=None, http="h11", ws="none")
    await uvicorn.Server(config).serve(sockets=[door])


if __name__ == "__main__":
    anyio.run(over_http if "--http" in sys.argv else over_stdio, smallest(sys.argv[1]))
