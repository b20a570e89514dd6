"""An MCP server over stdio for tests of problems: the tools that are named on its command line.

A word with a slash is a file that must be there for the server to start.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

FILES = [Path(word) for word in sys.argv[1:] if "/" in word]
if not all(file.exists() for file in FILES):
    sys.exit("not today")

import anyio  # noqa: E402 - slow, and in vain where it does not start
from mcp.server.mcpserver import MCPServer  # noqa: E402
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402

server = MCPServer("exam", instructions="Ask me anything.")
state = {"tries": 0}
DIES, WAITS, KILLS = 666, 777, 999


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
    if x == DIES:
        os._exit(1)
    if x == KILLS:
        os.kill(os.getppid(), signal.SIGKILL)
        await anyio.sleep_forever()
    if x == WAITS:
        for pipe in FILES:  # somebody at the other end waits for this moment
            pipe.write_text("begun", encoding="utf-8")
        await anyio.sleep_forever()
    return {"accepted": x, "tries": state["tries"]}


async def final_answer(x: float) -> dict[str, Any]:
    """The exam's own last word, under its old name."""
    return {"accepted": x}


async def nap() -> str:
    """Takes for ever."""
    await anyio.sleep_forever()
    return "never"


for name in (word for word in sys.argv[1:] if "/" not in word):
    server.add_tool({one.__name__: one for one in (probe, look, grade, submit_final, final_answer, nap)}[name])

if __name__ == "__main__":
    server.run("stdio")
