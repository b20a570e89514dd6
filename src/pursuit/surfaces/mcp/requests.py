"""The HTTP requests under way, so that all of them can be ended at once.

Owns: a cancel scope for each request, and what a client is told when its request is cut off. Knows neither MCP nor
missions. Invariant: after `end` no request goes on and none begins; each client still gets a whole HTTP answer.
"""

from __future__ import annotations

from typing import Final

import anyio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LAST_WORDS_SECONDS: Final = 1.0


class Requests:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[anyio.CancelScope] = set()
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, until its end or ours."""
        answer = _Answer(send)
        with anyio.CancelScope() as work:
            self._open.add(work)
            if self._ended:
                work.cancel()
            try:
                await anyio.lowlevel.checkpoint_if_cancelled()
                await self._app(scope, receive, answer.send)
            finally:
                self._open.discard(work)
        if work.cancelled_caught:
            # A client that does not read must not hold us.
            with anyio.move_on_after(_LAST_WORDS_SECONDS):
                await answer.break_off(scope, receive)

    def end(self) -> None:
        """Cancels every request; handlers see it as any other cancellation."""
        self._ended = True
        for work in self._open:
            work.cancel()


class _Answer:
    """Remembers how far the answer to a request has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False
        self._more = True
        self._sized = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self._sized = any(key.lower() == b"content-length" for key, _ in message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._more = message.get("more_body", False)
        await self._send(message)

    async def break_off(self, scope: Scope, receive: Receive) -> None:
        """Ends the answer as well as it still can be ended."""
        if not self._started:
            gone = PlainTextResponse("The server is shutting down.", status_code=503, headers={"Connection": "close"})
            await gone(scope, receive, self._send)
        elif self._more and not self._sized:  # a stream; an answer of a promised length can only be cut
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
