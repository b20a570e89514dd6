"""Calls one tool as a task of the first generation, with `mcp` 1.30: run it with the Python of `.venv-mcp1`.

    mcp1_tasks.py TARGET TOOL ARGUMENTS GATE

It begins the task over one connection, goes, and finds, follows and reads it over another one. What it was told first
is told before the file GATE is there, for which the tool waits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp1_client import connected


async def main(target: str, tool: str, arguments: str, gate: str) -> None:
    seen: dict[str, Any] = {}
    async with connected(target) as session:
        about = await session.initialize()
        seen["protocol"], seen["declared"] = about.protocolVersion, about.capabilities.tasks is not None
        made = await session.experimental.call_tool_as_task(tool, json.loads(arguments), ttl=60_000)
        seen["created"] = made.model_dump(mode="json", by_alias=True)
    task_id = made.task.taskId
    async with connected(target) as session:
        await session.initialize()
        listed = await session.experimental.list_tasks()
        seen["listed"] = task_id in [task.taskId for task in listed.tasks]
        seen["statuses"] = []
        async for status in session.experimental.poll_task(task_id):
            seen["statuses"].append(status.status)
            Path(gate).touch()
        result = await session.experimental.get_task_result(task_id, types.CallToolResult)
        seen["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
