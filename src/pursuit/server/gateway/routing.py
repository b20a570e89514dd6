"""Chooses the connection to a server for a client's request.

There are three: the connection that all clients share, the separate connection of a legacy client, and one that is
leased for a single call. A legacy server keeps a state for each connection (log level, subscriptions) and sends its
requests without naming the call. So a legacy client that declares an interactive capability, or sets such a state, has
a separate connection; a gateway with only one client (stdio) gives it the shared connection.

Invariant: a server's request reaches the client whose call it belongs to, or is refused.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from pursuit.core.tools import InitializeResult, UpstreamError
from pursuit.errors import UpstreamUnavailable
from pursuit.server.errors import NEEDED_CAPABILITY, is_modern, is_wanted, log_level
from pursuit.server.gateway.clients import ClientRequest, ClientSession
from pursuit.server.gateway.upstreams import GatewayLimits
from pursuit.upstream.client import McpClient, McpUpstream, SharedClient
from pursuit.upstream.transport import ClientFeatures

UpstreamChannel = McpClient | SharedClient
"""A connection to a server for raw messages."""

LOG_MESSAGE = "notifications/message"

_STATEFUL = frozenset({"resources/subscribe", "resources/unsubscribe", "logging/setLevel"})
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Route:
    """The connection of one legacy client to one server; `separate` if no other client uses it."""

    session: ClientSession
    server: str
    requests: list[ClientRequest] = field(default_factory=list[ClientRequest])
    channel: UpstreamChannel | None = None
    separate: bool = False
    opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends a server's request to the client, within the latest call on this connection if there is one."""
        needed = NEEDED_CAPABILITY.get(method)
        if needed is not None and not self.session.can(needed):
            raise UpstreamError(METHOD_NOT_FOUND, f"{method}: the client does not declare that capability")
        try:
            target = self.requests[-1] if self.requests else self.session
            return await target.ask(method, params)
        except UpstreamError:
            if method == "roots/list":
                return {"roots": []}
            raise

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        self.session.notify_from(self.server, method, params)


class Routing:
    """All connections of clients to servers; `alone` if there will be only one client."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, alone: bool, limits: GatewayLimits) -> None:
        self._tasks = tasks
        self._alone = alone
        self._limits = limits
        self._routes: dict[tuple[ClientSession, McpUpstream], Route] = {}
        self._under_way: dict[McpUpstream, list[ClientRequest]] = {}

    async def adopt(self, session: ClientSession, upstreams: Mapping[str, McpUpstream]) -> None:
        """Gives the shared connections to the only client, in its own protocol version if the servers support it."""
        if not self._alone:
            return
        waiting = [anyio.Event() for _ in upstreams]
        for done, (name, upstream) in zip(waiting, upstreams.items(), strict=True):
            route = self._routes[session, upstream] = Route(session, name, channel=upstream)
            self._tasks.start_soon(_adopt, route, upstream, done)
        # A hanging server does not delay the others; it is adopted once it answers.
        with anyio.move_on_after(self._limits.connect_seconds if len(upstreams) > 1 else None):
            for done in waiting:
                await done.wait()

    def forget(self, session: ClientSession) -> None:
        """Removes the routes of a disconnected client; `_hold` closes their connections."""
        for key in [key for key in self._routes if key[0] is session]:
            del self._routes[key]

    def has_own(self, session: ClientSession, upstream: McpUpstream) -> bool:
        route = self._routes.get((session, upstream))
        return route is not None and route.separate

    def routes_of(self, session: ClientSession) -> list[Route]:
        return [route for (owner, _), route in self._routes.items() if owner is session]

    def log_message(self, upstream: McpUpstream, params: Mapping[str, Any]) -> None:
        """Forwards a log message of a modern server that does not name its request (stdio).

        It belongs to a request with a log level. If several clients have such a request, the message is dropped: it may
        be about another client's call.
        """
        requests = [one for one in self._under_way.get(upstream, ()) if is_wanted(_level(one), params)]
        if not requests or (not self._alone and any(one.client is not requests[-1].client for one in requests)):
            _log.debug("a log message of %s belongs to no single client", upstream.name)
        elif isinstance(client := requests[-1].client, ClientSession):
            client.notify(LOG_MESSAGE, params)
        else:
            self._tasks.start_soon(requests[-1].notify, LOG_MESSAGE, params)

    @asynccontextmanager
    async def channel(self, request: ClientRequest, upstream: McpUpstream) -> AsyncGenerator[UpstreamChannel]:
        """The connection for a client's request. Raises `UpstreamUnavailable`."""
        client = request.client
        route = await self._route(client, upstream, request.method) if isinstance(client, ClientSession) else None
        channel = (None if route is None else route.channel) or upstream
        modern = is_modern((await channel.about()).protocol_version)
        # A modern server sends no requests over a connection, but its log messages must be distinguished.
        requests = self._under_way.setdefault(upstream, []) if route is None or modern else route.requests
        requests.append(request)
        try:
            if route is None and modern:
                capabilities = dict[str, Any]() if request.operator else client.capabilities
                async with upstream.lease(ClientFeatures(capabilities=capabilities)) as leased:
                    yield leased
            else:
                yield channel
        finally:
            requests.remove(request)

    async def about(self, session: ClientSession, upstream: McpUpstream) -> InitializeResult:
        route = await self._route(session, upstream, "initialize")
        return await ((route.channel if route is not None else None) or upstream).about()

    async def _route(self, session: ClientSession, upstream: McpUpstream, method: str) -> Route | None:
        route = self._routes.get((session, upstream))
        if route is None:
            if not session.interactive and method not in _STATEFUL:
                return None
            self._check_own_connections(upstream)
            route = self._routes[session, upstream] = Route(session, upstream.name)
        async with route.opening:
            if route.channel is None:
                side = ClientFeatures(capabilities=session.capabilities, answer=route.answer, heard=route.notified)
                channel: UpstreamChannel = await self._tasks.start(_hold, upstream, side, session.closed)
                route.separate = not is_modern((await channel.about()).protocol_version)
                route.channel = channel
        return route

    def _check_own_connections(self, upstream: McpUpstream) -> None:
        own = [
            route
            for (_, one), route in self._routes.items()
            if one is upstream and (route.separate or not route.channel)
        ]
        most = self._limits.own_connections
        if upstream.config.command is not None and len(own) >= most:
            reason = f"{most} clients already have their own process of it, which is the limit; try again later"
            raise UpstreamUnavailable(f"server {upstream.name!r}: {reason}", server=upstream.name)


async def _hold(
    upstream: McpUpstream,
    features: ClientFeatures,
    closed: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[UpstreamChannel],
) -> None:
    async with upstream.lease(features, legacy=True) as channel:
        task_status.started(channel)
        await closed.wait()


async def _adopt(route: Route, upstream: McpUpstream, done: anyio.Event) -> None:
    side = ClientFeatures(capabilities=route.session.capabilities, answer=route.answer)
    try:
        await upstream.set_client_features(side, era="legacy")
        await upstream.about()
    except UpstreamUnavailable:
        await upstream.set_client_features(side)
    finally:
        done.set()


def _level(request: ClientRequest) -> str | None:
    return log_level(request.params) if request.client.modern else request.client.level


def needs_own_connection(request: ClientRequest) -> bool:
    """True if a modern client's call needs a separate connection to a legacy server."""
    return request.client.interactive or log_level(request.params) is not None


class _LegacySession:
    """The shared connection of the only client: its calls that use it now."""

    def __init__(self) -> None:
        self.sides: list[ClientFeatures] = []

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Asks within the latest call whose client declares the capability."""
        needed = {**NEEDED_CAPABILITY, "roots/list": "roots"}.get(method)
        for side in reversed(self.sides):
            if side.answer is not None and (needed is None or side.capabilities.get(needed) is not None):
                return await side.answer(method, params)
        if method == "roots/list":
            return {"roots": []}
        raise UpstreamError(INVALID_REQUEST, f"{method}: no call is in progress that it could belong to")

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        if self.sides and (heard := self.sides[-1].heard) is not None:
            heard(method, params)


class LegacySessions:
    """The connections to legacy servers for calls of modern clients.

    Invariants: over HTTP one call at a time uses a connection, so a server's request belongs to that call; the next
    call finds the server's state of the connection (a browser, a train of thought). The only client, over stdio, has
    the shared connection, which its calls use concurrently.
    """

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._turns: dict[McpUpstream, anyio.Semaphore] = {}
        self._only: dict[McpUpstream, _LegacySession] = {}
        self._first: Mapping[str, Any] = {}

    async def adopt(self, capabilities: Mapping[str, Any], upstreams: Iterable[McpUpstream]) -> None:
        """Gives the shared connections to the only client, with the capabilities of its first request."""
        self._first = self._first if self._only else capabilities
        for upstream in upstreams:
            if upstream not in self._only:
                session = self._only[upstream] = _LegacySession()
                upstream.listen(session.notified)
                await upstream.set_client_features(ClientFeatures(capabilities=self._first, answer=session.answer))

    @asynccontextmanager
    async def channel(self, upstream: McpUpstream, side: ClientFeatures) -> AsyncGenerator[UpstreamChannel]:
        """A connection for one call, which waits for its turn. Raises `UpstreamUnavailable`."""
        turns = self._turns.setdefault(upstream, anyio.Semaphore(self._limits.legacy_calls))
        async with turns:
            session = self._only.get(upstream)
            if session is None:
                async with upstream.lease(side) as leased:
                    yield leased
                return
            session.sides.append(side)
            try:
                yield upstream
            finally:
                session.sides.remove(side)
