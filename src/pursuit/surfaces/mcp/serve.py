"""Serving: an open runtime, the server over it, and one way in.

Owns: the order in which they open and close. Knows no command line.
Invariant: however serving ends, every mission is left recorded and resumable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pursuit.app import Runtime
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.server import mission_server
from pursuit.surfaces.mcp.stdio import serve_stdio
from pursuit.surfaces.tokens import Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where HTTP clients come in, and which of them."""

    host: str
    port: int
    tokens: Tokens | None = None
    allowed_hosts: Sequence[str] = ()


async def serve(runtime: Runtime, door: Door | None = None, *, listening: Callable[[str], None] | None = None) -> None:
    """Serves over HTTP at a door until cancelled, or without one over standard input until that ends."""

    def tell(url: str) -> None:
        event(log, logging.INFO, "listening", url=url)
        if listening is not None:
            listening(url)

    async with runtime, mission_server(runtime) as server:
        if door is None:
            event(log, logging.INFO, "serving", transport="stdio")
            await serve_stdio(server)
            event(log, logging.INFO, "the client has gone")
            return
        from pursuit.surfaces.mcp.http import serve_http  # noqa: PLC0415 - a stdio server starts without a web stack

        await serve_http(
            server,
            host=door.host,
            port=door.port,
            tokens=door.tokens,
            allowed_hosts=door.allowed_hosts,
            listening=tell,
        )
