"""Serves MCP over HTTP: one endpoint for both protocol eras, behind bearer tokens.

Handlers get the token of their request from `mcp.server.auth.middleware.auth_context.get_access_token()`, in both eras:
`client_id` is the token's name; None means that the server does not require tokens. Neither does a unix socket: the
kernel identifies the peer, and only the user who runs the server is admitted.
Invariant: cancelling `serve_http` cancels every request immediately, and no client delays the end beyond the grace; a
handler may shield final records for that time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, cast

import anyio
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pursuit import __version__
from pursuit.config.servers import LIMITS, MessageLimits
from pursuit.server.access import UPSTREAM, RequireScope, RequireToken, ScopeRules, replayed
from pursuit.server.bind import PAGE_PATH, PATH, HttpBinding, Listener, peer_uid
from pursuit.server.logs import event

GRACE_SECONDS: Final = 5.0
MAX_BYTES: Final = 4 * 1024 * 1024
"""The longest body that the SDK takes."""
_LAST_RESPONSE_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)


class CancellableRequests:
    """ASGI middleware that can end all requests together; each client still gets a complete HTTP response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[anyio.CancelScope] = set()
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _Response(send)
        with anyio.CancelScope() as work:
            self._open.add(work)
            if self._ended:
                work.cancel()
            try:
                await anyio.lowlevel.checkpoint_if_cancelled()
                await self._app(scope, receive, response.send)
            finally:
                self._open.discard(work)
        if work.cancelled_caught:
            with anyio.move_on_after(_LAST_RESPONSE_SECONDS):  # a client may have stopped reading
                await response.finish(scope, receive)

    def end(self) -> None:
        self._ended = True
        for work in self._open:
            work.cancel()


class _Response:
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

    async def finish(self, scope: Scope, receive: Receive) -> None:
        """Ends the response: with 503 if it has not begun, with the last chunk of a stream; others are cut."""
        if not self._started:
            gone = PlainTextResponse("The server is shutting down.", status_code=503, headers={"Connection": "close"})
            await gone(scope, receive, self._send)
        elif self._more and not self._sized:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _TooMuchUnread(Exception):
    """The unread requests together exceed the limit."""


class WholeRequests:
    """ASGI middleware that passes on a POST when it is complete, and ends it if it does not arrive in time.

    Incomplete bodies are bounded together, so that many clients cannot fill the memory with partial requests.
    """

    def __init__(self, app: ASGIApp, limits: MessageLimits) -> None:
        self._app = app
        self._limits = limits
        self._unread = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, seconds = bytearray(), self._limits.request_seconds
        refusal: tuple[int, str] | None = None
        try:
            with anyio.fail_after(seconds):
                if not await self._read(receive, body):
                    return
        except TimeoutError:
            refusal = 408, f"The request was not complete within {seconds:g} s (limit `request_seconds`)."
        except _TooMuchUnread:
            most = self._limits.unread >> 20
            refusal = 503, f"Incomplete requests exceed {most} MiB (limit `unread`). Try again."
        finally:
            self._unread -= len(body)
        if refusal is not None:
            event(_log, logging.WARNING, "a request was refused", why=refusal[1])
            refused = PlainTextResponse(refusal[1], status_code=refusal[0], headers={"Connection": "close"})
            await refused(scope, receive, send)
            return
        whole = {"type": "http.request", "body": bytes(body), "more_body": len(body) > MAX_BYTES}
        await self._app(scope, replayed(whole, receive), send)

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """Reads at most one byte more than the SDK accepts; False if the client has disconnected.

        A request that arrives in one piece is never refused because of other requests.
        """
        while True:
            message = await receive()
            if message["type"] != "http.request":
                event(_log, logging.DEBUG, "a client disconnected before its request was complete")
                return False
            part: bytes = message.get("body", b"")
            body += part
            self._unread += len(part)
            if not message.get("more_body", False) or len(body) > MAX_BYTES:
                return True
            if self._unread > self._limits.unread:
                raise _TooMuchUnread


async def serve_http(
    server: Server[Any] | None,
    door: HttpBinding,
    bound: Listener | None = None,
    *,
    routes: Sequence[Route] = (),
    rules: ScopeRules = UPSTREAM,
    grace_seconds: float = GRACE_SECONDS,
    limits: MessageLimits = LIMITS,
    listening: Callable[[str], None] | None = None,
) -> None:
    """Serves until it is cancelled; `listening` gets the URL as soon as the server accepts connections.

    `routes` have separate paths beside the endpoint; they get only requests with a known Host and Origin, and check
    tokens themselves.
    `rules` define the scope that a request needs. Without a `server`, only the routes are served.
    `bound` is the listener of `door`, which the caller closes; without it, `door` is bound here.
    """

    def accepting() -> None:
        where = {} if door.unix_socket is None else {"socket": str(door.unix_socket)}
        event(_log, logging.INFO, "listening", url=listener.url, **where)
        if door.tokens is None and door.unix_socket is None:
            opened = "every user and every program of this machine can use this server as you"
            event(_log, logging.WARNING, "no token is required", opens=opened)
        if listening is not None:
            listening(listener.url)

    with closing(await anyio.to_thread.run_sync(door.listen)) if bound is None else nullcontext(bound) as listener:
        known = listener.known
        if server is None:
            requests = CancellableRequests(_KnownHosts(Router(routes, redirect_slashes=False), known))
            await _serve(Starlette(), requests, listener.sock, accepting, grace_seconds=grace_seconds, limits=limits)
            return
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=known)
        open_routes = [_front_page(routes), *routes]
        endpoint: ASGIApp = WholeRequests(app, limits)
        if door.tokens is not None:
            if door.oauth is not None:
                door.oauth.serve_at(listener.url)
                open_routes.append(door.oauth.route(rules))
            # A body is read only for a request with a token.
            endpoint = WholeRequests(RequireScope(app, rules, door.oauth), limits)
            endpoint = RequireToken(endpoint, rules, door.tokens, door.oauth)
        router = Router(open_routes, redirect_slashes=False, default=endpoint)
        requests = CancellableRequests(_KnownHosts(router, known))
        await _serve(app, requests, listener.sock, accepting, grace_seconds=grace_seconds, limits=limits)


def _front_page(routes: Sequence[Route]) -> Route:
    """Describes the server at `/`, for a person who opens the address in a browser."""
    has_page = any(route.path.startswith(PAGE_PATH) for route in routes)

    async def say(request: Request) -> PlainTextResponse:
        url = str(request.base_url).rstrip("/") + PATH
        return PlainTextResponse(
            f"Pursuit {__version__} serves MCP here, over streamable HTTP. Its endpoint is {url}.\n"
            f"To look at it: npx @modelcontextprotocol/inspector --cli {url} --method tools/list "
            '--header "Authorization: Bearer TOKEN"\n'
            + (f"The operator's page is {str(request.base_url).rstrip('/')}{PAGE_PATH}.\n" if has_page else "")
        )

    return Route("/", endpoint=say, methods=["GET"])


class _KnownHosts:
    """ASGI middleware that passes on only requests with a known Host and Origin, like the MCP endpoint."""

    def __init__(self, app: ASGIApp, known: TransportSecuritySettings) -> None:
        self._app = app
        self._security = TransportSecurityMiddleware(known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._security.validate_request(Request(scope, receive))
        await (refusal or self._app)(scope, receive, send)


async def _serve(
    app: Starlette,
    requests: CancellableRequests,
    listener: socket.socket,
    accepting: Callable[[], None],
    *,
    grace_seconds: float,
    limits: MessageLimits,
) -> None:
    stop = anyio.Event()
    held: list[anyio.CancelScope] = []
    config = uvicorn.Config(
        requests,
        http=partial(_TimedHttp, head_seconds=limits.request_seconds),  # pyright: ignore[reportArgumentType]
        ws="none",
        lifespan="off",  # `_hold_sessions` runs it: uvicorn would exit the process when it fails
        log_config=None,
        proxy_headers=False,
        server_header=False,
    )
    async with anyio.create_task_group() as tasks:
        try:
            held.append(await tasks.start(_hold_sessions, app, stop))
            uvicorn_server = _UvicornServer(config)
            held.append(await tasks.start(_listen, uvicorn_server, listener, stop))
            try:
                accepting()
                await anyio.sleep_forever()
            finally:
                uvicorn_server.should_exit = True
        finally:
            # Both eras end at the same time: `_hold_sessions` cancels sessions, `requests` single requests.
            stop.set()
            requests.end()
            for scope in held:
                scope.deadline = anyio.current_time() + grace_seconds


async def _hold_sessions(
    app: Starlette, stop: anyio.Event, *, task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Holds the server's lifespan and its sessions open; leaving cancels the handlers of all sessions."""
    with anyio.CancelScope() as scope:
        async with app.router.lifespan_context(app):
            scope.shield = True  # only `stop` ends it from here on
            task_status.started(scope)
            await stop.wait()


async def _listen(
    server: _UvicornServer,
    listener: socket.socket,
    stop: anyio.Event,
    *,
    task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.CancelScope(shield=True) as scope:
        server.accepting = lambda: task_status.started(scope)
        try:
            await server.serve(sockets=[listener])
        finally:
            server.abort_connections()
    if not stop.is_set():
        raise RuntimeError("the HTTP listener ended by itself")


class _TimedHttp(H11Protocol):
    """Closes a connection with an incomplete request head, for which uvicorn would wait forever.

    Connections of other users to a unix socket are closed before anything is read.
    """

    def __init__(self, *given: Any, head_seconds: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_seconds = head_seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection: socket.socket = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX and (uid := peer_uid(connection)) != os.getuid():
            event(_log, logging.WARNING, "a connection was refused", why="it belongs to another user", uid=uid)
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self._answers():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._head_seconds, self._too_late)

    def _answers(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if not self._answers() and not self.transport.is_closing():
            why = f"the head of a request did not arrive within {self._head_seconds:g} s (limit `request_seconds`)"
            event(_log, logging.WARNING, "a connection was closed", why=why)
            self.transport.close()


class _UvicornServer(uvicorn.Server):
    """Uvicorn without signal handlers, with a callback when it accepts connections."""

    accepting: Callable[[], None]

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting()

    def abort_connections(self) -> None:
        """Drops the connections that are still open when the grace is over."""
        for server in getattr(self, "servers", []):
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if left := len(self.server_state.tasks):
            event(_log, logging.WARNING, "requests did not end in time", requests=left)
