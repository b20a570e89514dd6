"""The server behind the proxies: the SDK's smallest one, whose tools say back what they are told.

Owns: that server, over the SDK's own standard input and output, or over HTTP. Knows nothing of proxies or of Pursuit.
`echo` and `write` do the same; a benchmark's configuration says that the first one only reads. `nap` takes its time.

Run: python benchmarks/echo_server.py [--http]    (--http: the URL is the first line on standard output)
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from smallest_server import over_http, over_stdio

READS, WRITES, SLEEPS = "echo", "write", "nap"
TOLD: dict[str, Any] = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}


def echoing() -> Server[Any]:
    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema=TOLD) for name in (READS, WRITES, SLEEPS)]
        )

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        told = params.arguments or {}
        if params.name == SLEEPS:
            await anyio.sleep(told["seconds"])
        return types.CallToolResult(content=[types.TextContent(text=told["token"])])

    return Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)


if __name__ == "__main__":
    anyio.run(over_http if "--http" in sys.argv else over_stdio, echoing())
