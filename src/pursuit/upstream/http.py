"""The HTTP transports: streamable HTTP in both protocol eras, and the older HTTP+SSE.

`mcp` 2.3 has transports for both. They are not used because one broken response ends their task group, and with it all
other requests (python-sdk issue 3522). Here each request runs in its caller's task and has its own HTTP exchange: a
broken exchange affects only its request, and its messages belong to that request. Cancelling the caller closes the
exchange, which cancels in the modern era; a legacy server also gets `notifications/cancelled`.

Errors and log lines never contain addresses or headers. Certificates are always checked. Redirects are followed only
within the same origin, so that headers never reach another server.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Unpack, cast
from urllib.parse import unquote, urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    X_MCP_HEADER_KEY,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, PROTOCOL_VERSION_META_KEY, JSONRPCRequest

from pursuit.config.servers import ClientSettings, ServerConfig, is_loopback
from pursuit.core.tools import UpstreamError, as_object
from pursuit.upstream.transport import (
    CallBroken,
    ConnectionLost,
    DispatcherStream,
    HttpRefused,
    OnNotification,
    OnRequest,
    RequestOptions,
    SessionGone,
    Started,
    TooDeep,
    Transport,
    closed_stream_error,
    read_json,
    read_message,
    too_large,
    write_json,
    write_message,
)

_POST_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_SSE_POST_HEADERS = {"content-type": "application/json"}
_GET_HEADERS = {"accept": "text/event-stream", "cache-control": "no-store"}
_SESSION = "mcp-session-id"
_LAST_EVENT = "last-event-id"
# The tasks extension adds methods whose subject is repeated in the `Mcp-Name` header.
_NAMED = {**NAME_BEARING_METHODS, **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # only Linux has it
_MAX_REDIRECTS = 5
_MAX_RESUMES = 3
_DELETE_SECONDS = 2.0
_CANCEL_SECONDS = 5.0
# The meaning of the HTTP client's errors; the first match applies.
_REASONS: tuple[tuple[type[httpx2.HTTPError], str], ...] = (
    (httpx2.ConnectTimeout, "it did not accept the connection in time"),
    (httpx2.ConnectError, "the connection failed"),
    (httpx2.ProxyError, "the proxy refused the connection"),
    (httpx2.UnsupportedProtocol, "its url is neither http nor https"),
    (httpx2.TimeoutException, "it stopped answering"),
    (httpx2.SSEError, "its stream of events is malformed"),
    (httpx2.HTTPError, "the HTTP connection broke"),
)
# The longest pause that a server may ask for with `retry:`.
_MAX_RETRY = 30.0
# The time that a stream may stay open after the response before we close it.
_DRAIN_SECONDS = 0.05

# For each tool of a modern server, which of its arguments are repeated in a header.
ParamHeaders = MutableMapping[str, Mapping[tuple[str, ...], str]]


@dataclass(slots=True, eq=False)
class EventReader:
    """Reads a stream of events up to the response to a request; remembers where to resume if it breaks."""

    ident: str | int | None
    inbound: Callable[[Mapping[str, Any]], None]
    longest: int
    drain: bool = False
    last_id: str = field(init=False, default="")
    retry: float = field(init=False, default=1.0)
    held_open: bool = field(init=False, default=False)

    async def read(self, response: httpx2.Response) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = None
        events = aiter(httpx2.EventSource(response, max_event_size=self.longest))
        try:
            async for event in events:
                answer = self._take(event)
                if answer is not None:
                    break
            if answer is not None and self.drain:
                await self._drain_rest(events)
        except httpx2.SSEError:
            if answer is None:
                large = too_large("one of them has", "result", self.longest)
                raise CallBroken(f"its stream of events is malformed, or {large}") from None
        except httpx2.TransportError:
            pass
        return answer

    def _take(self, event: httpx2.ServerSentEvent) -> dict[str, Any] | None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.retry = min(max(event.retry, 0) / 1000, _MAX_RETRY)
        if event.event != "message" or not event.data:
            return None
        message = _parsed(event.data)
        answer = None if self.ident is None else _answer_of(message, self.ident)
        if answer is None and isinstance(message, Mapping):
            self.inbound(cast("Mapping[str, Any]", message))
        return answer

    async def _drain_rest(self, events: AsyncIterator[httpx2.ServerSentEvent]) -> None:
        """Reads to the end of the stream: an HTTP connection can be reused only after that."""
        with anyio.move_on_after(_DRAIN_SECONDS) as scope, suppress(CallBroken):
            async for event in events:
                self._take(event)
        self.held_open = scope.cancelled_caught


async def read_body(response: httpx2.Response, longest: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > longest:
            raise CallBroken(too_large("its answer has", "result", longest))
    return b"".join(parts)


def _parsed(data: str | bytes) -> Any:
    try:
        return read_json(data)
    except TooDeep as error:
        raise CallBroken(f"its answer {error}") from None
    except ValueError:
        raise CallBroken("its response is not valid JSON") from None


def _answer_of(message: Any, ident: str | int) -> dict[str, Any] | None:
    """The message, if it responds to this request; a server that could not read the id sends null."""
    if not isinstance(message, dict):
        return None
    body = cast("dict[str, Any]", message)
    if "method" in body or not ("result" in body or "error" in body):
        return None
    said = body.get("id")
    return body if str(said) == str(ident) or (said is None and "error" in body) else None


def _error_of(message: Any) -> UpstreamError | None:
    body = as_object(as_object(message).get("error"))
    code, text = body.get("code"), body.get("message")
    if not isinstance(code, int) or not isinstance(text, str):
        return None
    return UpstreamError(code, text, body.get("data"))


def _learn_headers(known: ParamHeaders, tools: object) -> None:
    """Records which arguments of these tools are repeated in headers (modern era)."""
    for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
        entry = as_object(tool)
        name, schema = entry.get("name"), entry.get("inputSchema")
        if not isinstance(name, str):
            continue
        known.pop(name, None)
        # Few tools have any, and walking a schema takes time.
        if X_MCP_HEADER_KEY in str(schema) and find_invalid_x_mcp_header(schema) is None:
            known[name] = x_mcp_header_map(schema)


_upstream_addresses: set[tuple[str, int | None]] = set()


def _names_no_upstream(record: logging.LogRecord) -> bool:
    """Keeps upstream addresses out of the HTTP client's log of requests."""
    values = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(one, httpx2.URL) and (one.host, one.port) in _upstream_addresses for one in values)


logging.getLogger("httpx2").addFilter(_names_no_upstream)


def http_client(config: ServerConfig) -> httpx2.AsyncClient:
    """An HTTP client for an expanded configuration, without a timeout for responses: the caller cancels."""
    url = httpx2.URL(config.url or "")
    _upstream_addresses.add((url.host, url.port))
    return httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(config.timeouts.connect, read=None, pool=None, write=config.timeouts.read),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        follow_redirects=False,
        # A proxy from the environment is for other machines.
        trust_env=not is_loopback(url.host),
        # Reading the system's certificates takes 30 ms, and redirects stay within the origin.
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.scheme == "http" and is_loopback(url.host) else True,
    )


@asynccontextmanager
async def streamed(
    client: httpx2.AsyncClient, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None = None
) -> AsyncGenerator[httpx2.Response]:
    """Sends a request and yields its unread response; raises `CallBroken` with a text without addresses."""
    try:
        request = client.build_request(method, url, headers=dict(headers), content=content)
        for _ in range(_MAX_REDIRECTS):
            response = await client.send(request, stream=True)
            _quick_ack(response)
            try:
                if response.next_request is None:
                    yield response
                    return
                request = _redirected(response)
            finally:
                await response.aclose()
    except httpx2.InvalidURL:
        raise CallBroken("its url is malformed", sent=False) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        raise CallBroken(_reason(error), sent=False) from None
    except httpx2.HTTPError as error:
        raise CallBroken(_reason(error)) from None
    raise CallBroken("it redirects endlessly", sent=False)


def _quick_ack(response: httpx2.Response) -> None:
    """Acknowledges the head immediately: a server that writes in pieces waits for it (Nagle's algorithm).

    By default the kernel delays the acknowledgement by 40 ms on a reused connection.
    """
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None and _QUICKACK is not None:
        with suppress(OSError):  # a broken connection raises when it is read
            connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def _redirected(response: httpx2.Response) -> httpx2.Request:
    """The next request of a redirect within the same origin; raises `CallBroken` for any other."""
    request, target = response.request, response.next_request
    if target is not None:
        new_user = target.url.userinfo and target.url.userinfo != request.url.userinfo
        method_kept = request.method == "GET" or response.status_code in (307, 308)
        if _origin(target.url) == _origin(request.url) and not new_user and method_kept:
            return target
    reason = "it redirects to another address, which is not followed; configure that address instead"
    raise CallBroken(reason, sent=False)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _reason(error: httpx2.HTTPError) -> str:
    """The reason of an error, without the address that the client's text may contain."""
    if isinstance(error, httpx2.ConnectError) and "CERTIFICATE" in str(error):
        return "its certificate was not accepted"
    return next(text for kind, text in _REASONS if isinstance(error, kind))


def _status_reason(response: httpx2.Response) -> str:
    code = response.status_code
    check = {401: "headers", 403: "headers", 404: "url"}.get(code)
    return f"it answered with HTTP {code}" + (f"; check the {check} in its configuration" if check else "")


def url_secrets(url: str | None) -> tuple[str, ...]:
    """The parts of an address that errors must not show: the whole, its user, its query."""
    if not url:
        return ()
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    password = user.partition(":")[2]
    # As written, as decoded by the server, and as sent in the header.
    basic = b64encode(unquote(user).encode()).decode()
    values = (one.partition("=")[2] for one in parts.query.split("&"))
    said = [part for value in (user, password, parts.query, *values) for part in (value, unquote(value))]
    return tuple(part for part in (url, basic, *said) if part)


class StreamableHttpTransport(Transport):
    """A `Transport` over streamable HTTP; sets `closed` when the server has lost our session."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        closed: anyio.Event,
        params: ParamHeaders,
        settings: ClientSettings,
    ) -> None:
        super().__init__(closed)
        self._client = client
        self._url = url
        self._params = params
        self._settings = settings
        self.receives_notifications = False
        self._ids = count(1)
        self._session: str | None = None
        self._version: str | None = None
        self._modern = False
        self._on_request: OnRequest | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._open: set[anyio.CancelScope] = set()
        self._close_reason = "it is closed"
        self._session_in_doubt = False
        self._drain = True

    async def run(self, on_notification: OnNotification, on_request: OnRequest, *, task_status: Started) -> None:
        self._on_notification, self._on_request = on_notification, on_request
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await self._closed.wait()
            tasks.cancel_scope.cancel()

    def set_protocol_version(self, version: str, *, modern: bool) -> None:
        self._version, self._modern = version, modern

    def close_reason(self) -> str:
        return self._close_reason

    async def aclose(self) -> None:
        """Ends the requests in progress and deletes the session, within `_DELETE_SECONDS`."""
        self._closed.set()
        for scope in tuple(self._open):
            scope.cancel()
        if self._session is not None:
            # An unreachable server is gone together with the session.
            with anyio.move_on_after(_DELETE_SECONDS, shield=True), suppress(CallBroken):
                async with streamed(self._client, "DELETE", self._url, headers=self._headers({})):
                    pass

    async def request(
        self, method: str, params: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        if self._closed.is_set():
            raise ConnectionLost(sent=False)
        sent = False
        ident: str | int = options.get("request_id") or next(self._ids)
        on_notification = options.get("on_notification", self._on_notification)
        body = write_json({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})
        headers = self._headers(_POST_HEADERS) | self._request_headers(method, params)
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                if self._session_in_doubt and len(self._open) == 1:
                    raise self._session_lost()  # another process may answer now, without our session
                sent = True
                return await self._exchange(ident, method, body, headers, on_notification)
            except anyio.get_cancelled_exc_class():
                if options.get("cancellable", True) and not self._modern and not self._closed.is_set():
                    self._cancel(ident)
                raise
            finally:
                self._open.discard(scope)
        raise ConnectionLost(sent=sent)

    def _cancel(self, ident: str | int) -> None:
        async def notify() -> None:
            with anyio.move_on_after(_CANCEL_SECONDS):
                await self.notify("notifications/cancelled", {"requestId": ident, "reason": "the caller gave up"})

        if self._tasks is not None:
            self._tasks.start_soon(notify)

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Posts a notification; opens the standalone stream after the last notification of the handshake."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        await self._post(message if params is None else message | {"params": params})
        if method == "notifications/initialized" and self._session is not None and self._tasks is not None:
            self._tasks.start_soon(self._standalone_stream)

    async def _post(self, message: Mapping[str, Any]) -> None:
        """Posts a message without a response; drops it if it cannot be delivered."""
        headers, content = self._headers(_POST_HEADERS), write_json(message)
        with suppress(CallBroken):
            async with streamed(self._client, "POST", self._url, headers=headers, content=content):
                pass

    def _headers(self, own: Mapping[str, str]) -> dict[str, str]:
        headers = dict(own)
        if self._session is not None:
            headers[_SESSION] = self._session
        if self._version is not None:
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        return headers

    def _request_headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        version = as_object(params.get("_meta")).get(PROTOCOL_VERSION_META_KEY)
        if not isinstance(version, str):
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
        name = params.get(_NAMED.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            arguments = params.get("arguments")
            if method == "tools/call" and name in self._params and isinstance(arguments, Mapping):
                headers |= mcp_param_headers(self._params[name], cast("Mapping[str, Any]", arguments))
        return headers

    async def _exchange(
        self, ident: str | int, method: str, body: bytes, headers: Mapping[str, str], on_notification: OnNotification
    ) -> dict[str, Any]:
        longest = self._settings.limits.result
        stream = EventReader(ident, self._inbound(on_notification), longest=longest, drain=self._drain)
        try:
            async with streamed(self._client, "POST", self._url, headers=headers, content=body) as response:
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if response.status_code >= 400:
                    await self._refused(response, kind)
                if method == "initialize":
                    self._session = response.headers.get(_SESSION)
                if kind == "application/json":
                    answer = _answer_of(_parsed(await read_body(response, longest)), ident)
                    if answer is None:
                        raise CallBroken("it did not return a JSON-RPC response to the request")
                elif kind == "text/event-stream":
                    answer = await stream.read(response)
                    # A server that keeps its streams open after the response would cost a wait each time.
                    self._drain = self._drain and not stream.held_open
                else:
                    status = f"HTTP {response.status_code}"
                    raise CallBroken(f"its answer is neither JSON nor a stream of events ({status})")
        except CallBroken as error:
            self._session_in_doubt |= not (error.sent or self._session is None or isinstance(error, HttpRefused))
            raise
        return self._read(method, await self._resume(stream) if answer is None else answer)

    async def _refused(self, response: httpx2.Response, kind: str) -> None:
        """Raises the error that an HTTP error means; raises a JSON-RPC error in its body unchanged."""
        body, message = b"", cast("Any", None)
        if kind == "application/json" or response.status_code == 400:
            body = await read_body(response, self._settings.limits.result)
        if kind == "application/json":
            with suppress(ValueError):
                message = read_json(body)
        error = _error_of(message)
        # Some answer an unknown session with HTTP 400; an answer with the id of the request is never about the session.
        unanswered = response.status_code == 400 and (error is None or message.get("id") is None)
        forgotten = self._session is not None and (response.status_code == 404 or unanswered)
        if error is not None and (not forgotten or error.code == METHOD_NOT_FOUND):
            raise error
        if forgotten:
            raise self._session_lost()
        raise HttpRefused(_status_reason(response), response.status_code)

    def _session_lost(self) -> SessionGone:
        self._close_reason = "it no longer knows our session"
        self._session = None
        self._closed.set()
        return SessionGone()

    async def _resume(self, stream: EventReader) -> dict[str, Any]:
        """Resumes a broken stream and returns its response, if a legacy server gave its events ids (Resumability)."""
        for _ in range(_MAX_RESUMES):
            if self._modern or not stream.last_id:
                break
            await anyio.sleep(stream.retry)
            try:
                async with self._events(stream.last_id) as response:
                    answer = await stream.read(response)
            except SessionGone:
                break
            except CallBroken:
                continue
            if answer is not None:
                return answer
        raise CallBroken("its response ended prematurely")

    @asynccontextmanager
    async def _events(self, last_id: str) -> AsyncGenerator[httpx2.Response]:
        headers = self._headers(_GET_HEADERS)
        if last_id:
            headers[_LAST_EVENT] = last_id
        async with streamed(self._client, "GET", self._url, headers=headers) as response:
            if response.status_code >= 400:
                await self._refused(response, "")
            yield response

    async def _standalone_stream(self) -> None:
        stream = EventReader(None, self._inbound(self._on_notification), longest=self._settings.limits.result)
        shortest, longest = self._settings.reopen_pauses
        pause = shortest
        while True:
            try:
                async with self._events(stream.last_id) as response:
                    self.receives_notifications, pause = True, shortest
                    await stream.read(response)
            except (SessionGone, HttpRefused):
                # The session is lost, or the server does not offer the optional stream.
                return
            except CallBroken:
                pass
            finally:
                self.receives_notifications = False
            await anyio.sleep(max(pause, stream.retry))
            pause = min(pause * 2, longest)

    def _inbound(self, on_notification: OnNotification) -> Callable[[Mapping[str, Any]], None]:
        """Handles messages that are not responses: notifications, and requests, which another POST answers."""

        def take(message: Mapping[str, Any]) -> None:
            method, params = message.get("method"), message.get("params")
            if not isinstance(method, str):
                return
            body = as_object(params)
            if "id" not in message:
                on_notification(method, body)
            elif self._tasks is not None and not self._modern:
                self._tasks.start_soon(self._reply, message["id"], method, body)

        return take

    async def _reply(self, ident: Any, method: str, params: Mapping[str, Any]) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": ident}
        try:
            message["result"] = await self._on_request(method, params) if self._on_request is not None else {}
        except UpstreamError as error:
            message["error"] = {"code": error.code, "message": error.message}
            if error.data is not None:
                message["error"]["data"] = error.data
        except Exception as error:  # noqa: BLE001 - the boundary to the handler; the server must get a response
            message["error"] = {"code": INTERNAL_ERROR, "message": type(error).__name__}
        await self._post(message)

    def _read(self, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        error = _error_of(answer)
        if error is not None:
            raise error
        result = answer.get("result")
        if not isinstance(result, dict):
            raise CallBroken("its response does not contain a result")
        found = cast("dict[str, Any]", result)
        if method == "tools/list" and self._modern:
            _learn_headers(self._params, found.get("tools"))
        return found


class SseStreams(DispatcherStream):
    """The two streams for the SDK's dispatcher, over HTTP+SSE.

    Messages arrive on one GET stream, whose end ends the connection. Each outgoing message is a separate POST; a
    failure affects only that message. Messages go only to the configured origin, whatever address the server names.
    """

    def __init__(self, client: httpx2.AsyncClient, url: str, closed: anyio.Event, longest: int) -> None:
        self._client = client
        self._url = url
        self._closed = closed
        self._longest = longest
        self._send, self.read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._endpoint_known = anyio.Event()
        self._endpoint = ""
        self._close_reason = "it closed its stream"

    async def open(self) -> None:
        """Waits for the address to post to; raises `CallBroken`."""
        await self._endpoint_known.wait()
        if not self._endpoint:
            raise CallBroken(self._close_reason)

    async def read(self) -> None:
        try:
            async with streamed(self._client, "GET", self._url, headers=_GET_HEADERS) as response:
                if response.status_code >= 400:
                    raise CallBroken(_status_reason(response))
                async for event in httpx2.EventSource(response, max_event_size=self._longest):
                    self._take(event)
        except CallBroken as error:
            self._close_reason = str(error)
        finally:
            self._closed.set()
            self._endpoint_known.set()
            self._send.close()

    def _take(self, event: httpx2.ServerSentEvent) -> None:
        if event.event == "endpoint":
            base = httpx2.URL(self._url)
            address = base.join(event.data)
            if _origin(address) != _origin(base):
                raise CallBroken("it names another origin to post messages to, which is refused")
            self._endpoint = str(address)
            self._endpoint_known.set()
        elif event.event == "message" and event.data:
            # Messages that are not JSON-RPC are dropped, like stray lines on stdout.
            with suppress(ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._send.send_nowait(SessionMessage(read_message(event.data)))

    async def send(self, item: SessionMessage, /) -> None:
        """Posts one message; raises `CallBroken` for a request, and drops anything else that fails."""
        if self._closed.is_set():
            raise closed_stream_error(item)
        content = write_message(item.message)
        try:
            async with streamed(
                self._client, "POST", self._endpoint, headers=_SSE_POST_HEADERS, content=content
            ) as response:
                if response.status_code >= 400:
                    raise HttpRefused(_status_reason(response), response.status_code)
        except CallBroken:
            if isinstance(item.message, JSONRPCRequest):
                raise

    def close_reason(self) -> str:
        return self._close_reason


@asynccontextmanager
async def sse(
    client: httpx2.AsyncClient, url: str, closed: anyio.Event, settings: ClientSettings
) -> AsyncGenerator[SseStreams]:
    """Opens the streams for the block; raises `CallBroken` if that fails."""
    streams = SseStreams(client, url, closed, settings.limits.result)
    with streams.read_stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(streams.read)
            try:
                await streams.open()
                yield streams
            finally:
                tasks.cancel_scope.cancel()
