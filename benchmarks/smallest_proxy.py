"""The floor of the gateway: the smallest proxy that a person would write by hand with the SDK.

Owns: that proxy: one server behind it, whose tools are listed and called over one connection that stays open. It has no
policy, no record, no restarts, and relays neither progress nor logs nor questions. Knows nothing of Pursuit.

Run: python benchmarks/smallest_proxy.py ERA [--http] URL
     python benchmarks/smallest_proxy.py ERA [--http] COMMAND [WORD …]    (--http: its URL is the first line on stdout)
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientSession
from mcp.client.stdio import stdio_client
from mcp.server.lowlevel import Server
from smallest_server import over_http, over_stdio


def relaying(session: ClientSession) -> Server[Any]:
    async def list_tools(_context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        cursor = params.cursor if params else None
        return await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        # Not `session.call_tool`: that lists the tools behind the caller's back and checks each result.
        relayed = types.CallToolRequestParams(name=params.name, arguments=params.arguments)
        return await session.send_request(types.CallToolRequest(params=relayed), types.CallToolResult)

    def unchecked(_name: str) -> None:
        """Nothing to check headers by: else the SDK would list the tools, over the wire, before each call."""

    return Server("smallest proxy", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=unchecked)


async def main(era: str, words: list[str]) -> None:
    serve = over_http if "--http" in words else over_stdio
    command, *more = [word for word in words if word != "--http"]
    target: Any = command
    if not command.startswith("http"):
        target = stdio_client(StdioServerParameters(command=command, args=more))
    async with Client(target, mode=era, cache=None) as client:
        await serve(relaying(client.session))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
