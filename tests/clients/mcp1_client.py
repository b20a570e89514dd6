"""A client made of `mcp` 1.30: run it with the Python of `.venv-mcp1`, where neither Pursuit nor a newer SDK is.

    mcp1_client.py TARGET LOGS

TARGET is an URL, or a JSON object with the command, args, cwd and env of a server. It goes the whole journey, and
prints the tools that it saw and every answer as one JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from journey import journey
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


class Mcp1Port:
    """A session of the 1.x SDK as the journey wants it."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def call(self, name: str, arguments: dict[str, Any], progress: list[Any] | None = None) -> tuple[bool, Any]:
        async def note(value: float, total: float | None, message: str | None) -> None:
            progress.append((value, total, message))

        told = None if progress is None else note
        result = await self._session.call_tool(name, arguments, progress_callback=told)
        return result.isError, result.structuredContent

    async def call_and_cancel(self, name: str, arguments: dict[str, Any], when: Callable[[], Awaitable[None]]) -> None:
        number = self._session._request_id  # this SDK sends no cancellation by itself
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._session.call_tool, name, arguments)
            await when()
            params = types.CancelledNotificationParams(requestId=number, reason="changed my mind")
            await self._session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def connected(target: str, **able: Any) -> AsyncIterator[ClientSession]:
    if target.startswith("http"):
        async with streamable_http_client(target) as (read, write, _), ClientSession(read, write, **able) as session:
            yield session
    else:
        server = StdioServerParameters(**json.loads(target))
        async with stdio_client(server) as (read, write), ClientSession(read, write, **able) as session:
            yield session


async def main(target: str, logs: str) -> None:
    async with connected(target) as session:
        about = await session.initialize()
        listed = await session.list_tools()
        me = await journey(Mcp1Port(session), Path(logs))
    seen = {
        "protocol": about.protocolVersion,
        "tools": {tool.name: tool.outputSchema for tool in listed.tools},
        "answers": me.answers,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
