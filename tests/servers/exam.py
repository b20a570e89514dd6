"""An MCP server over stdio for tests of problems: the tools that are named on its command line.

A word with a slash is a file that must be there for the server to start.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

FILES = [Path(word) for word in sys.argv[1:] if "/" in word]
if not all(file.exists() for file in FILES):
    sys.exit("not today")

import anyio  # noqa: E402 - slow, and in vain where it does not start
from mcp.server.mcpserver import Context, MCPServer  # noqa: E402
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402
from pydantic import BaseModel  # noqa: E402

server = MCPServer("exam", instructions="Ask me anything.")
state = {"tries": 0}
DIES, WAITS, SLOW, KILLS = 666, 777, 888, 999


async def probe(x: float) -> dict[str, Any]:
    """Says how far it is."""
    if x == DIES:
        print("the answer is 77.125", file=sys.stderr, flush=True)
        os._exit(1)
    state["tries"] += 1
    return {"metrics": {"distance": abs(x - 3)}, "tries": state["tries"]}


async def look(x: float = 0) -> str:
    """Only looks."""
    return f"looked at {x:g}"


async def grade(x: float) -> dict[str, Any]:
    """The judge, which no agent may call."""
    return {"metrics": {"distance": abs(x - 3), "tries": state["tries"]}}


class Word(BaseModel):
    good: bool


async def gossip(ctx: Context, x: float, reference: float = 0.0) -> dict[str, Any]:
    """A judge that tells the agent all that it knows, in every way that there is, and believes what it is told."""
    words = f"the answer is {reference}"
    print(words, file=sys.stderr, flush=True)
    await ctx.report_progress(0.5, 1.0, words)
    with suppress(MCPError):
        await ctx.info(words)
    believed = 0
    with suppress(MCPError):
        answer = await ctx.elicit(f"{words}; is it right?", Word)
        believed = int(getattr(getattr(answer, "data", None), "good", False))
    if x == DIES:
        os._exit(1)
    return {"metrics": {"distance": abs(x - reference), "believed": believed, "tries": state["tries"]}}


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
    if x == SLOW:  # until somebody says something
        await anyio.to_thread.run_sync(FILES[0].read_text)
    return {"accepted": x, "tries": state["tries"]}


async def final_answer(x: float) -> dict[str, Any]:
    """The exam's own last word, under its old name."""
    return {"accepted": x}


async def nap() -> str:
    """Takes for ever."""
    await anyio.sleep_forever()
    return "never"


for name in (word for word in sys.argv[1:] if "/" not in word):
    server.add_tool({one.__name__: one for one in (probe, look, grade, gossip, submit_final, final_answer, nap)}[name])

if __name__ == "__main__":
    server.run("stdio")
