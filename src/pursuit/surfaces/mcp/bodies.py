"""Bodies of HTTP requests that are JSON, and that the SDK cannot read in the old era: with half a pair of surrogates.

Owns: their mending, in front of the endpoint. Knows no message. Invariant: any other body arrives as it came, and none
is held that is longer than the SDK takes.
"""

from __future__ import annotations

import json
import re
from typing import Final

from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.surfaces.mcp.halves import whole

MOST_BYTES: Final = 4 * 1024 * 1024
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def _mended(body: bytes) -> bytes:
    try:
        from_json(body)
    except ValueError:
        try:
            return to_json(whole(json.loads(body)))
        except (ValueError, RecursionError):
            pass  # it is no JSON at all, and whoever reads it says so
    return body


class WholeBodies:
    """An ASGI application around another one that gets bodies which it can read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        plain = scope["type"] != "http" or scope["method"] != "POST"
        # The new era is read in another way, which takes halves as they are.
        if plain or Headers(scope=scope).get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS:
            await self._app(scope, receive, send)
        else:
            await self._app(scope, _Body(receive).receive, send)


class _Body:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = False

    async def receive(self) -> Message:
        if self._read:
            return await self._receive()
        self._read = True
        body, more = b"", True
        while more and len(body) <= MOST_BYTES:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if not more and _HALF.search(body):
            body = _mended(body)
        return {"type": "http.request", "body": body, "more_body": more}
