"""The port to a transport, its failures, and what the transports share.

A transport carries raw JSON-RPC requests and notifications in both directions. It calls the notification handler
synchronously and in the order of arrival, before the response that followed, and returns a result as upstream's JSON,
unchanged.

The transports and the client above them are our own. The session of the MCP SDK (`mcp` 2.3) drops fields outside of
`_meta` that it does not know, refuses a whole list for one odd schema, and raises if a result does not match its output
schema; in its HTTP transport one broken response ends the task group of the whole connection (python-sdk issue 3522).
The SDK's dispatchers are used below stdio, SSE and in-process servers.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from pydantic_core import from_json, to_json

from pursuit.config.servers import MessageLimits
from pursuit.core.tools import AnswerFn, UpstreamError, as_object
from pursuit.upstream.redaction import StderrTail

_log = logging.getLogger(__name__)

# Takes a notification: its method and its raw parameters. It must not block.
OnNotification = Callable[[str, Mapping[str, Any]], None]
# Answers a request from the server with a result, or raises `UpstreamError`.
OnRequest = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
# Set by a transport once it receives.
Started = anyio.abc.TaskStatus[None]


class ConnectionLost(Exception):
    """The connection ended before the response came; `sent` is False if nothing of the request was written."""

    def __init__(self, *, sent: bool = True) -> None:
        super().__init__()
        self.sent = sent


class CallBroken(Exception):
    """The transport failed for this request; the connection still works. The text is the end of a sentence.

    `sent` is False if it is known that the server did not accept the request.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class HttpRefused(CallBroken):
    """The server answered with an HTTP error instead of JSON-RPC. A 4xx means that it did not accept the request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, sent=status >= 500)


class SessionGone(Exception):
    """The server no longer knows our session, and did not accept the request."""


class RequestOptions(TypedDict, total=False):
    """`cancellable` is true by default; `on_notification` is the transport's own by default."""

    request_id: str | None
    cancellable: bool
    on_notification: OnNotification


class Transport(ABC):
    """An open transport. `run` must be running before anything is sent."""

    def __init__(self, closed: anyio.Event, *, can_hang: bool = False) -> None:
        self._closed = closed
        self._on_notification: OnNotification = _drop
        self.can_hang = can_hang
        """True if one stuck request can block all others, so that only a new connection helps."""
        self.receives_notifications = True
        """True if notifications outside of any request can reach us now."""

    @abstractmethod
    async def run(self, on_notification: OnNotification, on_request: OnRequest, *, task_status: Started) -> None:
        """Receives until the connection ends."""

    def set_protocol_version(self, version: str, *, modern: bool) -> None:  # noqa: B027 - most have nothing to do
        """Receives the negotiated version of the protocol."""

    @abstractmethod
    async def request(
        self, method: str, params: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """Sends a request and returns the raw result.

        `on_notification` gets the notifications of this request, where the transport can tell. Raises `UpstreamError`,
        `ConnectionLost`, `CallBroken` or `SessionGone`. Cancelling the caller reaches the server if the request is
        `cancellable`.
        """

    @abstractmethod
    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Sends a notification; drops it if it cannot be delivered."""

    @abstractmethod
    def close_reason(self) -> str:
        """Why the connection ended, as the end of a sentence."""


def _drop(_method: str, _params: Mapping[str, Any]) -> None:
    """Takes notifications before `run`."""


# Opens a transport: enters what it needs onto the stack, and sets the event when the connection has ended.
OpenTransport = Callable[[AsyncExitStack, anyio.Event, StderrTail], Awaitable[Transport]]


class DispatcherTransport(Transport):
    """A transport over one of the SDK's dispatchers; `progress_inline` if that one sends no progress messages."""

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        *,
        closed: anyio.Event,
        close_reason: Callable[[], str],
        progress_inline: bool = False,
        can_hang: bool = False,
    ) -> None:
        super().__init__(closed, can_hang=can_hang)
        self._close_reason = close_reason
        self._dispatcher = dispatcher
        self._progress_inline = progress_inline

    def close_reason(self) -> str:
        return self._close_reason()

    async def run(self, on_notification: OnNotification, on_request: OnRequest, *, task_status: Started) -> None:
        self._on_notification = on_notification

        async def answer(
            _context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            try:
                return dict(await on_request(method, params or {}))
            except UpstreamError as error:
                raise MCPError(code=error.code, message=error.message, data=error.data) from None

        async def never_called(_context: DispatchContext[Any], _method: str, _params: Mapping[str, Any] | None) -> None:
            """`intercept` gets each notification synchronously, in the order of arrival."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            on_notification(method, params or {})
            return True

        await self._dispatcher.run(answer, never_called, intercept, task_status=task_status)

    async def request(
        self, method: str, params: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """Sends a request and returns the raw result, without telling to which request a notification belongs."""
        if self._closed.is_set():
            raise ConnectionLost(sent=False)
        call: CallOptions = {"cancel_on_abandon": options.get("cancellable", True)}
        if (request_id := options.get("request_id")) is not None:
            call["request_id"] = request_id
        if self._progress_inline:
            token = as_object(params.get("_meta")).get("progressToken")
            call["on_progress"] = self._progress_notifications(token)
        try:
            return await self._dispatcher.send_raw_request(method, params, call)
        except MCPError as error:
            if isinstance(error.error.data, CallBroken):  # an object of this stream: a server cannot send it
                raise error.error.data from None
            if error.code == CONNECTION_CLOSED and self._closed.is_set():
                raise ConnectionLost from None
            raise UpstreamError(error.code, error.error.message, error.error.data) from None

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        await self._dispatcher.notify(method, params)

    def _progress_notifications(self, token: Any) -> ProgressFnT:
        """Converts the progress that a handler in this process reports by a function call to notifications."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            params = {"progressToken": token, "progress": progress, "total": total, "message": message}
            known = {key: value for key, value in params.items() if value is not None}
            self._on_notification("notifications/progress", known)

        return on_progress


class DispatcherStream:
    """The further methods that the SDK's streams need; most streams close nothing, because their opener closes them."""

    async def aclose(self) -> None:
        """Does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


def closed_stream_error(item: SessionMessage) -> Exception:
    """The error of a closed write stream.

    The SDK's dispatcher raises the same error for a failed write and for a failed wait for the response;
    `ConnectionLost` tells the caller of a request that nothing was sent. The dispatcher drops an undeliverable
    notification only if the stream raises `BrokenResourceError`.
    """
    is_request = isinstance(item.message, JSONRPCRequest)
    return ConnectionLost(sent=False) if is_request else anyio.BrokenResourceError()


# Servers in other languages send lone surrogates, which JSON can express and UTF-8 cannot. The fast readers and writers
# refuse them; this module replaces them, so that no other module meets them.


class TooDeep(ValueError):
    """A message is nested deeper than `MessageLimits.depth`."""

    def __init__(self) -> None:
        super().__init__(f"is nested deeper than {MessageLimits.depth} levels (limit `depth`)")


def read_json(data: str | bytes) -> Any:
    try:
        return from_json(data)
    except ValueError as error:
        return from_json(_without_surrogates(data, error))


def _without_surrogates(data: str | bytes, error: ValueError) -> bytes:
    """The JSON that the fast reader refused with this error, perhaps because of lone surrogates."""
    if "recursion limit" in str(error):
        raise TooDeep from None
    try:
        return json.dumps(json.loads(data), ensure_ascii=False).encode(errors="replace")
    except RecursionError:
        raise TooDeep from None


def too_large(what: str, limit: str, size: int) -> str:
    """The end of a sentence about a server that exceeded a field of `MessageLimits`."""
    shown = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"
    return f"{what} more than {shown} (limit `{limit}`)"


_ITEM_BYTES = 500
"""Approximate bytes that a small notification takes in memory besides its text."""


class NotificationQueue:
    """Notifications that wait for one reader, up to a number of bytes; further ones are dropped.

    An empty queue accepts a notification of any size: a fast reader needs no measuring.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[tuple[str, Mapping[str, Any], int]] = deque()
        self._size = 0
        self._changed = anyio.Event()
        self.closed = False
        self.dropped = 0

    def put(self, method: str, params: Mapping[str, Any]) -> None:
        """Queues a notification, or counts it in `dropped`."""
        if self.closed:
            return
        size = len(write_json(params)) + _ITEM_BYTES if self._items else 0
        if self._size + size > self._most:
            self.dropped += 1
            if self.dropped == 1:
                _log.error("a client does not read: %s", too_large("its notifications are", "queued", self._most))
            return
        self._items.append((method, params, size))
        self._size += size
        self._changed.set()

    def take(self) -> tuple[str, Mapping[str, Any]] | None:
        """The next notification; None if there is none."""
        if not self._items:
            return None
        method, params, size = self._items.popleft()
        self._size -= size
        if not self._items:
            self.dropped = 0
        return method, params

    def close(self) -> None:
        """Ends the queue after its remaining notifications."""
        self.closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Mapping[str, Any]]:
        while True:
            found = self.take()
            if found is not None:
                return found
            if self.closed:
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()


def write_json(value: Any) -> bytes:
    try:
        return to_json(value)
    except ValueError as error:
        try:
            return json.dumps(value).encode()
        except TypeError:
            raise error from None


def read_message(data: str | bytes) -> JSONRPCMessage:
    """A message for the SDK's dispatcher; raises `ValueError`."""
    try:
        return jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError as error:
        return jsonrpc_message_adapter.validate_json(_without_surrogates(data, error), by_name=False)


def write_message(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError as error:
        try:
            return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()
        except TypeError:
            raise error from None


@dataclass(slots=True, kw_only=True)
class ClientFeatures:
    """The client features that a server sees: declared capabilities, and the handler of its requests.

    `heard` gets the notifications outside of requests on a separate connection; without it, all listeners get them.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: AnswerFn | None = None
    heard: OnNotification | None = None

    async def handle_request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a server's request; raises `UpstreamError`, so that each request gets a response."""
        if method == "ping":
            return {}
        if method == "roots/list" and ("roots" not in self.capabilities or self.answer is None):
            return {"roots": []}
        if self.answer is None:
            what = {"elicitation/create": "Elicitation", "sampling/createMessage": "Sampling"}.get(method, method)
            raise UpstreamError(METHOD_NOT_FOUND, f"{what} not supported", None)
        return await self.answer(method, params)
