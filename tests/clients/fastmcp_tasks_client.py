"""Calls one tool as a task of the second generation, with FastMCP 4: run it with the Python of `.venv-fastmcp`.

    fastmcp_tasks_client.py URL TOOL ARGUMENTS GATE

The tool waits for the file GATE, which is there once the client was told that the task is at work. It holds the handle
and reads the result by it, and then calls the tool once more and never learns of the task.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from fastmcp import Client
from fastmcp_tasks import call_tool_task


async def main(url: str, tool: str, arguments: str, gate: str) -> None:
    seen: dict[str, Any] = {}
    given = json.loads(arguments)
    async with Client(url) as client:
        task = await call_tool_task(client, tool, given)
        seen["task_id"] = task.task_id
        seen["first"] = (await task.status()).status
        Path(gate).touch()
        seen["result"] = (await task.result()).structured_content
        seen["last"] = (await task.status()).status
        seen["again"] = (await client.call_tool(tool, given)).structured_content
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
