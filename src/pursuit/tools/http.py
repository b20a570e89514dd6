"""Streamable HTTP, in both eras of the protocol.

Owns: one POST for each message, the reading of its answer (JSON or a stream of events), the session and the standing
stream of the old era, and resumption. Does not know: what a method means. Invariant: each request lives in its
caller's task and has its own HTTP exchange, so that a broken one costs that request alone; whatever comes on it belongs
to it. Cancelling the caller closes the exchange, which is the signal of the new era; the old one is told in words.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import anyio
import anyio.abc
import httpx2
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, PROTOCOL_VERSION_META_KEY

from pursuit.core.tools import UpstreamError
from pursuit.tools.http_answers import EventReader, ParamHeaders, error_of, json_answer, learn_headers, whole
from pursuit.tools.http_client import status_words, streamed
from pursuit.tools.wire import (
    Asked,
    CallBroken,
    ConnectionLost,
    Heard,
    HttpRefused,
    NotReached,
    SessionGone,
    read_json,
    write_json,
)

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
