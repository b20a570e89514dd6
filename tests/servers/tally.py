"""An MCP server over stdio that writes every execution into a file and measures what it was told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer

TALLY = Path(os.environ["TALLY"])
server = MCPServer("tally")


@server.tool()
async def step(key: str, number: float = 0, ms: float = 5) -> dict[str, Any]:
    """Changes the world: never to be repeated."""
    descriptor = os.open(TALLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{key}\n".encode())
    finally:
        os.close(descriptor)
    await anyio.sleep(ms / 1000)
    return {"metrics": {"number": number}, "key": key}


if __name__ == "__main__":
    server.run("stdio")
