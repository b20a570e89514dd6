"""The MCP server over HTTP: one endpoint for both protocol eras, bearer tokens in front of it.

Owns: the life of the listener, from the bound socket to the last answer. Knows no tool: the server is handed in.
A handler learns whose request it answers by `mcp.server.auth.middleware.auth_context.get_access_token()`, in both eras:
its `client_id` is the token's name; None means that no tokens are asked for.
Invariant: when `serve_http` is cancelled every request is cancelled at once, and no client can delay the end by more
than 5 seconds; a handler may shield what it must still record, for no longer than that.
"""

from __future__ import annotations

import logging
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
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pursuit.errors import PursuitError
from pursuit.surfaces.logs import REDACTED, event
from pursuit.surfaces.mcp.bodies import WholeBodies
from pursuit.surfaces.mcp.doors import PATH, admit, bind, check_bind, guard, resolve
from pursuit.surfaces.mcp.requests import Requests
from pursuit.surfaces.tokens import Tokens, fingerprint

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
