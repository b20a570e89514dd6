"""An MCP server of the SDK with well- and ill-behaved tools, over stdio or as an object in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

RUNNING = {"now": 0, "most": 0}
TOOLS = ["echo", "fail", "refuse", "slow", "hang", "crash", "spawn", "ask", "environment", "crowd"]
EXTRA = {
    "echo": {"annotations": {"readOnlyHint": True}, "description": "Gives back what it got."},
    "slow": {"title": "Slow", "_meta": {"com.example/kept": [1, None]}},
}
PER_PAGE = 2


async def list_tools(
    ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    start = int((params.cursor if params else None) or 0)
    stop = start + PER_PAGE
    schema = {"type": "object"}
    tools = [{"name": name, "inputSchema": schema, **EXTRA.get(name, {})} for name in TOOLS[start:stop]]
    return types.ListToolsResult(
        tools=[types.Tool.model_validate(one) for one in tools],
        next_cursor=str(stop) if stop < len(TOOLS) else None,
    )


def text(message: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], **more)


async def hang(path: Path) -> types.CallToolResult:
    path.write_text("started")
    try:
        await anyio.sleep_forever()
    finally:
        path.write_text("cancelled")


async def crowd(most: int) -> types.CallToolResult:
    """Stays until so many were here at once, and then long enough for one more to come."""
    RUNNING["now"] += 1
    RUNNING["most"] = max(RUNNING.values())
    while RUNNING["most"] < most:
        await anyio.sleep(0.001)
    await anyio.sleep(0.02)
    RUNNING["now"] -= 1
    return text(str(RUNNING["most"]))


async def ask(ctx: ServerRequestContext[Any, Any]) -> Any:
    if ctx.protocol_version.startswith("2026"):
        return types.InputRequiredResult(request_state="waiting")
    await ctx.session.elicit_form("who are you?", {"type": "object", "properties": {}})
    raise AssertionError("nobody can answer")


async def call_tool(ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> Any:
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return text("echoed", structured_content={"arguments": arguments, "meta": dict(ctx.meta or {})})
        case "fail":
            return text("it did not work", is_error=True)
        case "refuse":
            raise MCPError(code=-32050, message="no such luck")
        case "slow":
            for step in range(3):
                await ctx.session.report_progress(step, 3, f"step {step}")
            return text("done")
        case "hang":
            return await hang(Path(arguments["path"]))
        case "crash":
            print("about to fall over, token=hunter2-secret", file=sys.stderr, flush=True)
            os._exit(3)
        case "spawn":
            # The child keeps our pipes open, as a careless server's children do.
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            return text(str(child.pid), structured_content={"pid": child.pid, "server": os.getpid()})
        case "ask":
            return await ask(ctx)
        case "crowd":
            return await crowd(arguments["most"])
        case "environment":
            return text("", structured_content={"names": sorted(os.environ), "cwd": str(Path.cwd())})
    raise MCPError(code=types.INVALID_PARAMS, message=f"no tool {params.name}")


def build() -> Server[Any]:
    return Server("fixture", on_list_tools=list_tools, on_call_tool=call_tool)  # pyright: ignore


async def main() -> None:
    print("print debugging, as people do it", flush=True)
    server = build()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
