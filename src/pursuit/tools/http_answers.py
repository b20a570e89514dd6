"""What comes back over HTTP: bodies, streams of events, and the JSON-RPC messages in them.

Owns: their bounds and their reading. Does not know: sessions or eras. Invariant: nothing longer than
`LONGEST_MESSAGE` is ever held, and a message that answers another request answers nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, cast

import anyio
import httpx2
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header, x_mcp_header_map

from pursuit.core.tools import UpstreamError
from pursuit.tools.wire import LONGEST_MESSAGE, CallBroken, read_json

_LONGEST_RETRY = 30.0
_REST_SECONDS = 0.05

# For each tool of the new era, which of its arguments are repeated in a header.
ParamHeaders = MutableMapping[str, Mapping[tuple[str, ...], str]]


class EventReader:
    """Reads a stream of events up to the answer to one request; remembers where to go on if it breaks."""

    def __init__(
        self, ident: str | int | None, inbound: Callable[[Mapping[str, Any]], None], *, drain: bool = False
    ) -> None:
        self._ident = ident
        self._inbound = inbound
        self._drain = drain
        self.last_id = ""
        self.retry = 1.0
        self.held_open = False

    async def read(self, response: httpx2.Response) -> dict[str, Any] | None:
        """The answer, or None if the stream ended without it; a stream that is cut has ended too."""
        answer: dict[str, Any] | None = None
        events = aiter(httpx2.EventSource(response, max_event_size=LONGEST_MESSAGE))
        try:
            async for event in events:
                answer = self._took(event)
                if answer is not None:
                    break
            if answer is not None and self._drain:
                await self._rest(events)
        except httpx2.SSEError:
            if answer is None:
                raise CallBroken("its stream of events is malformed, or one of them is too long") from None
        except httpx2.TransportError:
            pass
        return answer

    def _took(self, event: httpx2.ServerSentEvent) -> dict[str, Any] | None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.retry = min(max(event.retry, 0) / 1000, _LONGEST_RETRY)
        if event.event != "message" or not event.data:
            return None
        message = _parsed(event.data)
        answer = None if self._ident is None else answer_of(message, self._ident)
        if answer is None and isinstance(message, Mapping):
            self._inbound(cast("Mapping[str, Any]", message))
        return answer

    async def _rest(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> None:
        """Reads on to the end, which is near: a connection whose answer was read whole can be used again."""
        with anyio.move_on_after(_REST_SECONDS) as scope, suppress(CallBroken):
            async for event in events:
                self._took(event)
        self.held_open = scope.cancelled_caught


async def whole(response: httpx2.Response) -> bytes:
    """The body, if it is not too long."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LONGEST_MESSAGE:
            raise CallBroken(f"its answer is longer than {LONGEST_MESSAGE >> 20} MiB")
    return b"".join(parts)


async def json_answer(response: httpx2.Response, ident: str | int) -> dict[str, Any]:
    """The answer in a body."""
    answer = answer_of(_parsed(await whole(response)), ident)
    if answer is None:
        raise CallBroken("its answer is no JSON-RPC answer to the request")
    return answer


def _parsed(data: str | bytes) -> Any:
    try:
        return read_json(data)
    except ValueError:
        raise CallBroken("its answer is no JSON") from None


def answer_of(message: Any, ident: str | int) -> dict[str, Any] | None:
    """The message, if it is the answer to this request; a server that could not read the id says null."""
    if not isinstance(message, dict):
        return None
    body = cast("dict[str, Any]", message)
    if "method" in body or not ("result" in body or "error" in body):
        return None
    said = body.get("id")
    return body if str(said) == str(ident) or (said is None and "error" in body) else None


def error_of(message: Any) -> UpstreamError | None:
    """The JSON-RPC error in a message."""
    error = cast("dict[str, Any]", message).get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict):
        return None
    body = cast("dict[str, Any]", error)
    code, words = body.get("code"), body.get("message")
    if not isinstance(code, int) or not isinstance(words, str):
        return None
    return UpstreamError(code, words, body.get("data"))


def learn_headers(known: ParamHeaders, tools: object) -> None:
    """Notes which arguments of these tools the new era repeats in headers."""
    for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
        if not isinstance(tool, Mapping):
            continue
        entry = cast("Mapping[str, Any]", tool)
        name, schema = entry.get("name"), entry.get("inputSchema")
        if not isinstance(name, str):
            continue
        known.pop(name, None)
        # Few tools have any, and the walk through a schema is not free.
        if X_MCP_HEADER_KEY in str(schema) and find_invalid_x_mcp_header(schema) is None:
            known[name] = x_mcp_header_map(schema)
