"""An MCP server over stdio for tests of problems: the tools that are named on its command line."""

from __future__ import annotations

import sys
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("exam", instructions="Ask me anything.")
state = {"tries": 0}


async def probe(x: float) -> dict[str, Any]:
    """Says how far it is."""
    state["tries"] += 1
    return {"metrics": {"distance": abs(x - 3)}, "tries": state["tries"]}


async def look(x: float = 0) -> str:
    """Only looks."""
    return f"looked at {x:g}"


async def grade(x: float) -> dict[str, Any]:
    """The judge, which no agent may call."""
    return {"metrics": {"distance": abs(x - 3), "tries": state["tries"]}}


async def submit_final(x: float) -> dict[str, Any]:
    """The exam's own last word."""
    if x < 0:
        raise ToolError("not below zero")
    return {"accepted": x, "tries": state["tries"]}


async def final_answer(x: float) -> dict[str, Any]:
    """The exam's own last word, under its old name."""
    return {"accepted": x}


async def nap() -> str:
    """Takes for ever."""
    await anyio.sleep_forever()
    return "never"


for name in sys.argv[1:]:
    server.add_tool({one.__name__: one for one in (probe, look, grade, submit_final, final_answer, nap)}[name])

if __name__ == "__main__":
    server.run("stdio")
