"""Streamable HTTP, in both eras of the protocol.

Owns: one POST for each message, the reading of its answer (JSON or a stream of events), the session and the standing
stream of the old era, and resumption. Does not know: what a method means. Invariant: each request lives in its
caller's task and has its own HTTP exchange, so that a broken one costs that request alone; whatever comes on it belongs
to it. Cancelling the caller closes the exchange, which is the signal of the new era; the old one is told in words.
"""

from __future__ import annotations

import logging
import math
import re
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from itertools import count
from types import TracebackType
from typing import Any, Self, cast
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

from pursuit.config.servers import ServerConfig
from pursuit.core.tools import UpstreamError
from pursuit.upstream.transport import (
    LONGEST_MESSAGE,
    Asked,
    CallBroken,
    ConnectionLost,
    Heard,
    HttpRefused,
    NotReached,
    SessionGone,
    read_json,
    read_message,
    unwritable,
    write_json,
    write_message,
)

# What comes back over HTTP: bodies, streams of events, and the JSON-RPC messages in them.
# Invariant: nothing longer than `LONGEST_MESSAGE` is ever held, and a message that answers another request answers
# nobody.

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


# The HTTP client that reaches one upstream.
# Invariant: no address and no header is ever part of an error or of a log line; certificates are always checked; a
# redirect is followed only within the same origin, so that headers go nowhere else.

_MOST_REDIRECTS = 5
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_KEEPING_METHOD = (307, 308)


class _Hush(logging.Filter):
    """Keeps the addresses of upstreams out of the HTTP client's own log, which states every one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[tuple[str, int | None]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        words = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(word, httpx2.URL) and (word.host, word.port) in self.places for word in words)


_hush = _Hush()
logging.getLogger("httpx2").addFilter(_hush)


def http_client(config: ServerConfig) -> httpx2.AsyncClient:
    """A client for an expanded configuration. How long an answer may take is the caller's to decide."""
    url = httpx2.URL(config.url or "")
    _hush.places.add((url.host, url.port))
    return httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(config.timeouts.connect, read=None, pool=None, write=config.timeouts.read),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        follow_redirects=False,
        # A proxy from the environment is for other machines.
        trust_env=not is_loopback(url.host),
    )


def is_loopback(host: str) -> bool:
    """Whether this is our own machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")


@asynccontextmanager
async def streamed(
    client: httpx2.AsyncClient, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None = None
) -> AsyncGenerator[httpx2.Response]:
    """One request and its answer, still to be read; raises `CallBroken` with words that give nothing away."""
    try:
        request = client.build_request(method, url, headers=dict(headers), content=content)
        for _ in range(_MOST_REDIRECTS):
            response = await client.send(request, stream=True)
            _acknowledge(response)
            try:
                if response.next_request is None:
                    yield response
                    return
                request = _followed(response)
            finally:
                await response.aclose()
    except httpx2.InvalidURL:
        raise CallBroken("its url is malformed", sent=False) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise NotReached(words(error)) from None
    except (httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
        raise CallBroken(words(error), sent=False) from None
    except httpx2.HTTPError as error:
        raise CallBroken(words(error)) from None
    raise CallBroken("it redirects without end", sent=False)


def _acknowledge(response: httpx2.Response) -> None:
    """Says at once that the head has come: a server that writes in pieces may wait for it with the rest (Nagle).

    Else our system takes 40 ms for it on a connection that is used again.
    """
    stream = response.extensions.get("network_stream")
    wire = None if stream is None else stream.get_extra_info("socket")
    if wire is not None and _QUICKACK is not None:
        with suppress(OSError):  # a connection that broke just now says so when it is read
            wire.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def _followed(response: httpx2.Response) -> httpx2.Request:
    request, target = response.request, response.next_request
    same = target is not None and _origin(target.url) == _origin(request.url) and not _brings_user(request, target)
    if target is None or not same or (request.method != "GET" and response.status_code not in _KEEPING_METHOD):
        said = "it redirects to another place, which is not followed; configure that place instead"
        raise CallBroken(said, sent=False)
    return target


def _brings_user(request: httpx2.Request, target: httpx2.Request) -> bool:
    return bool(target.url.userinfo) and target.url.userinfo != request.url.userinfo


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def words(error: httpx2.HTTPError) -> str:
    """What went wrong, without the address that the client's own words may hold."""
    match error:
        case httpx2.ConnectTimeout():
            return "it did not take the connection in time"
        case httpx2.ConnectError():
            return "its certificate was not accepted" if "CERTIFICATE" in str(error) else "it cannot be connected to"
        case httpx2.ProxyError():
            return "the proxy refused the connection"
        case httpx2.UnsupportedProtocol():
            return "its url is neither http nor https"
        case httpx2.TimeoutException():
            return "it stopped answering"
        case httpx2.SSEError():
            return "its stream of events is malformed"
        case _:
            return "the HTTP connection broke"


def status_words(response: httpx2.Response) -> str:
    """What an HTTP status means for whoever configured the server."""
    code = response.status_code
    hint = {
        401: "; check the headers in its configuration",
        403: "; check the headers in its configuration",
        404: "; check the url in its configuration",
    }
    return f"it answered with HTTP {code}{hint.get(code, '')}"


def url_secrets(url: str | None) -> tuple[str, ...]:
    """The parts of an address that nobody shall read in an error of the server: all of it, its user, its query."""
    if not url:
        return ()
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    password = user.partition(":")[2]
    # As it stands there, as the server reads it, and as it travels in the header.
    basic = b64encode(unquote(user).encode()).decode()
    values = (one.partition("=")[2] for one in parts.query.split("&"))
    said = [part for value in (user, password, parts.query, *values) for part in (value, unquote(value))]
    return tuple(part for part in (url, basic, *said) if part)


_POST_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_GET_HEADERS = {"accept": "text/event-stream", "cache-control": "no-store"}
_SESSION = "mcp-session-id"
_LAST_EVENT = "last-event-id"
_RESUMES = 3
_RETRY = (1.0, 30.0)
_GOODBYE_SECONDS = 2.0
_CANCEL_SECONDS = 5.0
# What servers say with HTTP 400 about a session that they do not know, where the protocol asks for 404.
_NO_SESSION = re.compile(rb"session|not initialized", re.IGNORECASE)
# The tasks extension adds to the methods whose subject stands in a header, too.
_NAMED = {**NAME_BEARING_METHODS, **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}


class HttpWire:
    """A `Wire` over HTTP; `over` is set when the server has forgotten our session."""

    def __init__(self, client: httpx2.AsyncClient, url: str, over: anyio.Event, params: ParamHeaders) -> None:
        self._client = client
        self._url = url
        self._over = over
        self._params = params
        self._ids = count(1)
        self._session: str | None = None
        self._version: str | None = None
        self._modern = False
        self._heard: Heard | None = None
        self._asked: Asked | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._open: set[anyio.CancelScope] = set()
        self._ending = "it is closed"
        self._doubt = False
        self._drain = True
        self.can_hang = False
        self.hears = False

    async def run(
        self, heard: Heard, asked: Asked, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keeps what goes on beside the requests: the standing stream, and answers to the server."""
        self._heard, self._asked = heard, asked
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await self._over.wait()
            tasks.cancel_scope.cancel()

    def adopt(self, version: str, *, modern: bool) -> None:
        """Takes note of the version, which each further message names in a header."""
        self._version, self._modern = version, modern

    def ending(self) -> str:
        """Why it is over, as the end of a sentence."""
        return self._ending

    async def aclose(self) -> None:
        """Ends the requests under way and says goodbye to the session; within `_GOODBYE_SECONDS`."""
        self._over.set()
        for scope in tuple(self._open):
            scope.cancel()
        if self._session is not None:
            with anyio.move_on_after(_GOODBYE_SECONDS, shield=True):
                try:
                    async with streamed(self._client, "DELETE", self._url, headers=self._headers({})):
                        pass
                except CallBroken:
                    # It is gone already, which is what was wanted.
                    pass

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        request_id: str | None = None,
        cancellable: bool = True,
        heard: Heard | None = None,
    ) -> dict[str, Any]:
        """Sends a request and reads its answer."""
        if self._over.is_set():
            raise ConnectionLost(sent=False)
        sent = False
        ident: str | int = request_id or next(self._ids)
        body = write_json({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})
        headers = self._headers(_POST_HEADERS) | self._stamps(method, params)
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                await self._reassured()
                sent = True
                return await self._exchange(ident, method, body, headers, heard or self._on_heard)
            except anyio.get_cancelled_exc_class():
                if cancellable and not self._modern and not self._over.is_set():
                    self._cancel(ident)
                raise
            finally:
                self._open.discard(scope)
        raise ConnectionLost(sent=sent)

    async def _reassured(self) -> None:
        """Whoever was away may be another one now: it is asked for our session before anything is sent."""
        if self._session is None or not self._doubt:
            return
        ident = next(self._ids)
        body = write_json({"jsonrpc": "2.0", "id": ident, "method": "ping"})
        try:
            await self._exchange(ident, "ping", body, self._headers(_POST_HEADERS), self._on_heard)
        except (UpstreamError, HttpRefused) as error:
            if not (isinstance(error, UpstreamError) and error.code == METHOD_NOT_FOUND):
                self._forgotten()
                raise SessionGone from None
        except CallBroken as error:  # it is the ping that broke, and not the request
            raise CallBroken(str(error), sent=False) from None
        self._doubt = False

    def _cancel(self, ident: str | int) -> None:
        async def tell() -> None:
            with anyio.move_on_after(_CANCEL_SECONDS):
                await self.notify("notifications/cancelled", {"requestId": ident, "reason": "the caller gave up"})

        if self._tasks is not None:
            self._tasks.start_soon(tell)

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Posts a notification; the standing stream of the old era is opened after the handshake's last one."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        await self._post(message if params is None else message | {"params": params})
        if method == "notifications/initialized" and self._session is not None and self._tasks is not None:
            self._tasks.start_soon(self._stand)

    async def _post(self, message: Mapping[str, Any]) -> None:
        try:
            async with streamed(
                self._client, "POST", self._url, headers=self._headers(_POST_HEADERS), content=write_json(message)
            ):
                pass
        except CallBroken:
            # What nobody waits for can only be dropped.
            pass

    def _headers(self, own: Mapping[str, str]) -> dict[str, str]:
        headers = dict(own)
        if self._session is not None:
            headers[_SESSION] = self._session
        if self._version is not None:
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        return headers

    def _stamps(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """What a request of the new era repeats in headers."""
        version = cast("Mapping[str, Any]", params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
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
        self, ident: str | int, method: str, body: bytes, headers: Mapping[str, str], heard: Heard
    ) -> dict[str, Any]:
        try:
            return await self._posted(ident, method, body, headers, heard)
        except NotReached:
            self._doubt = True
            raise

    async def _posted(
        self, ident: str | int, method: str, body: bytes, headers: Mapping[str, str], heard: Heard
    ) -> dict[str, Any]:
        async with streamed(self._client, "POST", self._url, headers=headers, content=body) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code >= 400:
                await self._refused(response, kind)
            if method == "initialize":
                self._session = response.headers.get(_SESSION)
            if kind == "application/json":
                return self._read(method, await json_answer(response, ident))
            if kind != "text/event-stream":
                raise CallBroken(f"its answer is neither JSON nor a stream of events (HTTP {response.status_code})")
            stream = EventReader(ident, self._inbound(heard), drain=self._drain)
            answer = await stream.read(response)
            # One that leaves its streams open after the answer would cost a wait each time.
            self._drain = self._drain and not stream.held_open
        if answer is None:
            answer = await self._resumed(stream)
        return self._read(method, answer)

    async def _refused(self, response: httpx2.Response, kind: str) -> None:
        """Raises what an HTTP error means; a JSON-RPC error in its body is the server's own word."""
        body = await whole(response) if kind == "application/json" or response.status_code == 400 else b""
        try:
            message: Any = read_json(body) if kind == "application/json" else None
        except ValueError:
            message = None
        error = error_of(message)
        # An answer to the request itself is never about the session.
        unanswered = error is None or message.get("id") is None
        said = response.status_code == 400 and unanswered and _NO_SESSION.search(body) is not None
        forgotten = self._session is not None and (response.status_code == 404 or said)
        if error is not None and (not forgotten or error.code == METHOD_NOT_FOUND):
            raise error
        if forgotten:
            self._forgotten()
            raise SessionGone
        raise HttpRefused(status_words(response), response.status_code)

    def _forgotten(self) -> None:
        self._ending = "it has forgotten our session"
        self._session = None
        self._over.set()

    async def _resumed(self, stream: EventReader) -> dict[str, Any]:
        """The rest of an answer whose stream broke; only where the server gave its events ids, and in the old era."""
        for _ in range(_RESUMES):
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
        raise CallBroken("its answer broke off in the middle")

    @asynccontextmanager
    async def _events(self, last_id: str) -> AsyncGenerator[httpx2.Response]:
        headers = self._headers(_GET_HEADERS)
        if last_id:
            headers[_LAST_EVENT] = last_id
        async with streamed(self._client, "GET", self._url, headers=headers) as response:
            if response.status_code >= 400:
                await self._refused(response, "")
            yield response

    async def _stand(self) -> None:
        """The standing stream: what the server says outside of any request."""
        stream = EventReader(None, self._inbound(self._on_heard))
        pause = _RETRY[0]
        while True:
            try:
                async with self._events(stream.last_id) as response:
                    self.hears, pause = True, _RETRY[0]
                    await stream.read(response)
            except SessionGone:
                return
            except HttpRefused:
                # It has no such stream, which it need not have.
                return
            except CallBroken:
                pass
            finally:
                self.hears = False
            await anyio.sleep(max(pause, stream.retry))
            pause = min(pause * 2, _RETRY[1])

    def _on_heard(self, method: str, params: Mapping[str, Any]) -> None:
        if self._heard is not None:
            self._heard(method, params)

    def _inbound(self, heard: Heard) -> Callable[[Mapping[str, Any]], None]:
        """Takes a message that is no answer: a notification, or a request that is answered by another POST."""

        def took(message: Mapping[str, Any]) -> None:
            method, params = message.get("method"), message.get("params")
            if not isinstance(method, str):
                return
            body = cast("Mapping[str, Any]", params if isinstance(params, Mapping) else {})
            if "id" not in message:
                heard(method, body)
            elif self._tasks is not None and not self._modern:
                self._tasks.start_soon(self._reply, message["id"], method, body)

        return took

    async def _reply(self, ident: Any, method: str, params: Mapping[str, Any]) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": ident}
        try:
            message["result"] = await self._asked(method, params) if self._asked is not None else {}
        except UpstreamError as error:
            message["error"] = {"code": error.code, "message": error.message}
            if error.data is not None:
                message["error"]["data"] = error.data
        except Exception as error:  # noqa: BLE001 - the boundary to whoever answers; the server must hear something
            message["error"] = {"code": INTERNAL_ERROR, "message": type(error).__name__}
        await self._post(message)

    def _read(self, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        error = error_of(answer)
        if error is not None:
            raise error
        result = answer.get("result")
        if not isinstance(result, dict):
            raise CallBroken("its answer holds no result")
        found = cast("dict[str, Any]", result)
        if method == "tools/list" and self._modern:
            learn_headers(self._params, found.get("tools"))
        return found


# The old HTTP transport with two addresses: one stream for everything that comes, POSTs for everything that goes.
# Invariant: messages go only to the origin that the operator configured, whatever the server names; a POST that fails
# costs its own message, the end of the stream ends the connection.

_SSE_POST_HEADERS = {"content-type": "application/json"}


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
        async with streamed(self._client, "POST", self._address, headers=_SSE_POST_HEADERS, content=body) as response:
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
