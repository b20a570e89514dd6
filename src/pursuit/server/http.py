"""The MCP server over HTTP: one endpoint for both protocol eras, bearer tokens in front of it.

Owns: the life of the listener, from the bound socket to the last answer. Knows no tool: the server is handed in.
A handler learns whose request it answers by `mcp.server.auth.middleware.auth_context.get_access_token()`, in both eras:
its `client_id` is the token's name; None means that no tokens are asked for.
Invariant: when `serve_http` is cancelled every request is cancelled at once, and no client can delay the end by more
than 5 seconds; a handler may shield what it must still record, for no longer than that.
"""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import anyio
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pursuit.errors import PursuitError
from pursuit.server.bind import PATH, admit, bind, check_bind, guard, resolve
from pursuit.server.errors import whole
from pursuit.server.logs import REDACTED, event
from pursuit.server.tokens import Tokens, fingerprint

# The HTTP requests under way, so that all of them can be ended at once.
# Invariant: after `end` no request goes on and none begins; each client still gets a whole HTTP answer.

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


# Bodies of HTTP requests that are JSON, and that the SDK cannot read in the old era: with half a pair of surrogates.
# Invariant: any other body arrives as it came, and none is held that is longer than the SDK takes.

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


__all__ = ["GRACE_SECONDS", "check_bind", "serve_http"]

GRACE_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


async def serve_http(
    server: Server[Any],
    *,
    host: str,
    port: int,
    tokens: Tokens | None,
    allowed_hosts: Sequence[str] = (),
    routes: Sequence[Route] = (),
    any_text: bool = False,
    listening: Callable[[str], None],
) -> None:
    """Serves until it is cancelled; `listening` is told the URL as soon as clients can come.

    With `any_text` what JSON can say and Unicode cannot comes in, too.

    `routes`, one for a path, stand beside the endpoint: they get what names this server in Host and Origin, and ask for
    tokens themselves.
    """
    address = await anyio.to_thread.run_sync(resolve, host)
    with closing(bind(admit(address, tokens), port)) as door:
        bound: int = door.getsockname()[1]
        known = guard(address, bound, allowed_hosts)
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=known)
        reads = WholeBodies(app) if any_text else app
        endpoint = reads if tokens is None else _behind_tokens(reads, tokens)
        requests = Requests(_beside(endpoint, routes, known) if routes else endpoint)
        await _serve(app, requests, door, lambda: listening(address.url(bound)))


def _beside(endpoint: ASGIApp, routes: Sequence[Route], known: TransportSecuritySettings) -> ASGIApp:
    """The routes for their own paths, and the endpoint for every other one."""
    checked = [Route(route.path, endpoint=_Checked(route, known)) for route in routes]
    return Router(checked, redirect_slashes=False, default=endpoint)


class _Checked:
    """A route that only sees the Host and Origin values which the MCP endpoint lets through, too."""

    def __init__(self, route: Route, known: TransportSecuritySettings) -> None:
        self._route = route
        self._security = TransportSecurityMiddleware(known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._security.validate_request(Request(scope, receive))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._route.handle(scope, receive, send)


def _behind_tokens(app: ASGIApp, tokens: Tokens) -> ASGIApp:
    """The same application for those who show a token; a request without one ends here with 401."""
    asking = AuthContextMiddleware(RequireAuthMiddleware(app, required_scopes=[]))
    return AuthenticationMiddleware(asking, backend=BearerAuthBackend(_Verifier(tokens)))


class _Verifier:
    """Tells the SDK whose a token is."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            name = self._tokens.owner(token)
        except PursuitError as error:
            event(_log, logging.ERROR, "no token can be checked, so nobody is let in", why=error.message)
            return None
        if name is None:
            return None
        # The subject ties a session to this very token: a later one of the same name is somebody else.
        return AccessToken(token=REDACTED, client_id=name, scopes=[], subject=fingerprint(token))


async def _serve(app: Starlette, requests: Requests, door: socket.socket, accepting: Callable[[], None]) -> None:
    stop = anyio.Event()
    held: list[anyio.CancelScope] = []
    config = uvicorn.Config(
        requests,
        http="h11",
        ws="none",
        lifespan="off",  # we hold it ourselves: what goes wrong in it is then an error of ours and not an exit
        log_config=None,
        proxy_headers=False,
        server_header=False,
    )
    async with anyio.create_task_group() as tasks:
        try:
            held.append(await tasks.start(_hold_sessions, app, stop))
            listener = _Listener(config)
            held.append(await tasks.start(_listen, listener, door, stop))
            try:
                accepting()
                await anyio.sleep_forever()
            finally:
                listener.should_exit = True
        finally:
            # Both eras are cancelled in the same moment: sessions by their holder, single requests here.
            stop.set()
            requests.end()
            for scope in held:
                scope.deadline = anyio.current_time() + GRACE_SECONDS


async def _hold_sessions(
    app: Starlette, stop: anyio.Event, *, task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Keeps the server's own lifespan and its sessions; leaving cancels the handlers of all sessions."""
    with anyio.CancelScope() as scope:
        async with app.router.lifespan_context(app):
            scope.shield = True  # from here on `stop` ends it, in order
            task_status.started(scope)
            await stop.wait()


async def _listen(
    listener: _Listener,
    door: socket.socket,
    stop: anyio.Event,
    *,
    task_status: TaskStatus[anyio.CancelScope] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.CancelScope(shield=True) as scope:
        listener.accepting = lambda: task_status.started(scope)
        try:
            await listener.serve(sockets=[door])
        finally:
            listener.hang_up()
    if not stop.is_set():
        raise RuntimeError("the HTTP listener ended by itself")


class _Listener(uvicorn.Server):
    """Uvicorn without signal handlers, which says when it accepts."""

    accepting: Callable[[], None]

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting()

    def hang_up(self) -> None:
        """Drops whoever is still there when the time is over."""
        for server in getattr(self, "servers", []):
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if left := len(self.server_state.tasks):
            event(_log, logging.WARNING, "requests did not end in time", requests=left)
