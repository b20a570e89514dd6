"""A client made of the SDK that we serve with, in either era; as a script it makes one call, to be killed in it.

    sdk_client.py ERA TARGET TOOL ARGUMENTS

TARGET is an URL, or a JSON object with the command, args, cwd and env of a server; ARGUMENTS is a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ERAS = ("legacy", "2026-07-28")


class SdkPort:
    """A client of the SDK as the journey wants it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, name: str, arguments: dict[str, Any], progress: list[Any] | None = None) -> tuple[bool, Any]:
        async def note(value: float, total: float | None, message: str | None) -> None:
            progress.append((value, total, message))

        told = None if progress is None else note
        result = await self._client.call_tool(name, arguments, progress_callback=told)
        return bool(result.is_error), result.structured_content

    async def call_and_cancel(self, name: str, arguments: dict[str, Any], when: Callable[[], Awaitable[None]]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._client.call_tool, name, arguments)
            await when()
            tasks.cancel_scope.cancel()


def client(target: str, era: str, **more: Any) -> Client:
    """A client of one era for an URL or a command."""
    where = target if target.startswith("http") else stdio_client(StdioServerParameters(**json.loads(target)))
    return Client(where, mode=era, **more)


async def main(era: str, target: str, tool: str, arguments: str) -> None:
    async with client(target, era) as connected:
        result = await connected.call_tool(tool, json.loads(arguments))
    print(json.dumps(result.structured_content))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
