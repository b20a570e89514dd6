"""The old HTTP transport with two addresses: one stream for everything that comes, POSTs for everything that goes.

Owns: that stream and those POSTs, as the pair of streams that the SDK's dispatcher takes. Does not know: what the
messages mean. Invariant: messages go only to the origin that the operator configured, whatever the server names; a
POST that fails costs its own message, the end of the stream ends the connection.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

import anyio
import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from pursuit.tools.http_client import status_words, streamed
from pursuit.tools.wire import LONGEST_MESSAGE, CallBroken, HttpRefused, read_message, unwritable, write_message

_POST_HEADERS = {"content-type": "application/json"}
_GET_HEADERS = {"accept": "text/event-stream", "cache-control": "no-store"}


class SseLine:
    """`over` is set when the stream has ended; `outbox` is what the dispatcher writes to."""

    def __init__(self, client: httpx2.AsyncClient, url: str, over: anyio.Event) -> None:
        self._client = client
        self._url = url
        self._over = over
        self._send, self.inbox = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._post_to = anyio.Event()
        self._address = ""
        self._why = "it closed its stream"

    async def open(self) -> None:
        """Waits until the server has said where to post; raises `CallBroken`."""
        await self._post_to.wait()
        if not self._address:
            raise CallBroken(self._why)

    async def read(self) -> None:
        """Receives until the stream ends, and then says so."""
        try:
            async with streamed(self._client, "GET", self._url, headers=_GET_HEADERS) as response:
                if response.status_code >= 400:
                    raise CallBroken(status_words(response))
                async for event in httpx2.EventSource(response, max_event_size=LONGEST_MESSAGE):
                    self._took(event)
        except CallBroken as error:
            self._why = str(error)
        finally:
            self._over.set()
            self._post_to.set()
            self._send.close()

    def _took(self, event: httpx2.ServerSentEvent) -> None:
        if event.event == "endpoint":
            base = httpx2.URL(self._url)
            address = base.join(event.data)
            if (address.scheme, address.host, address.port) != (base.scheme, base.host, base.port):
                raise CallBroken("it wants its messages posted to another place, which is refused")
            self._address = str(address)
            self._post_to.set()
        elif event.event == "message" and event.data:
            # What is no JSON-RPC is dropped, as on a stray line of stdout.
            with suppress(ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._send.send_nowait(SessionMessage(read_message(event.data)))

    async def send(self, item: SessionMessage, /) -> None:
        """Posts one message; raises `CallBroken` to whoever sent a request. What nobody waits for is dropped."""
        if self._over.is_set():
            raise unwritable(item)
        body = write_message(item.message)
        try:
            await self._post(body)
        except CallBroken:
            if isinstance(item.message, JSONRPCRequest):
                raise

    async def _post(self, body: bytes) -> None:
        async with streamed(self._client, "POST", self._address, headers=_POST_HEADERS, content=body) as response:
            if response.status_code >= 400:
                raise HttpRefused(status_words(response), response.status_code)

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        return self._why

    async def aclose(self) -> None:
        """Nothing to close: the stream ends with the task that reads it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Nothing to close: the stream ends with the task that reads it."""


@asynccontextmanager
async def sse(client: httpx2.AsyncClient, url: str, over: anyio.Event) -> AsyncGenerator[SseLine]:
    """An open line for as long as the block; raises `CallBroken` if it cannot be opened."""
    line = SseLine(client, url, over)
    with line.inbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.read)
            try:
                await line.open()
                yield line
            finally:
                tasks.cancel_scope.cancel()
