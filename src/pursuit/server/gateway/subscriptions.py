"""Sends clients the notifications that they subscribed to, in either protocol generation.

A modern client opens a stream with `subscriptions/listen`. A legacy client gets list changes without a request and
subscribes to single resources; at a modern server the gateway listens for it.

Invariant: the acknowledgement is the first notification of a stream; each notification has the client's own id of the
stream; when a client disconnects, its subscriptions at the servers end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.abc
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from pursuit.config.servers import LIMITS
from pursuit.core.tools import CallFailed, UpstreamError, without_meta
from pursuit.errors import PursuitError
from pursuit.server.errors import as_object, is_modern, modern_result, sendable
from pursuit.server.gateway.clients import ACKNOWLEDGED, ClientRequest, ClientSession
from pursuit.server.gateway.relay import Relay
from pursuit.server.gateway.resources import GatewayResources
from pursuit.server.gateway.routing import Routing
from pursuit.server.gateway.upstreams import INFO, GatewayLimits, Upstreams
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.connection import LIST_CHANGES
from pursuit.upstream.transport import ClientFeatures, NotificationQueue, too_large

UPDATED = "notifications/resources/updated"
FLAGS: Mapping[str, str] = {flag: f"notifications/{kind}/list_changed" for kind, flag in LIST_CHANGES.items()}
RETRY_SECONDS = (1.0, 30.0)
"""The first and the longest pause in seconds before another attempt to reach a server."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """A client's subscriptions at one server: the filter, and the client's URIs of the server's resources."""

    wanted: dict[str, Any]
    shown: dict[str, str] = field(default_factory=dict[str, str])

    def uri_for_client(self, uri: Any) -> Any:
        """The client's URI of a resource; with a single server both use the same URIs."""
        return self.shown.get(uri, uri) if isinstance(uri, str) else uri


@dataclass(slots=True, eq=False)
class UpstreamListener:
    """Listens to one server for one client's stream; `accepted` holds the client's URIs with updates."""

    upstream: McpUpstream
    part: _Part
    stream: NotificationQueue
    begun: anyio.Event = field(default_factory=anyio.Event)
    accepted: list[str] = field(default_factory=list[str])

    async def listen(self, side: ClientFeatures) -> None:
        try:
            if await _is_modern(self.upstream):
                await self._listen_to_modern(side)
            else:
                await self._listen_to_legacy()
        except UpstreamError as error:
            _log.warning("cannot follow changes of %s: %s", self.upstream.name, error)
        finally:
            self.begun.set()

    def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        self.stream.put(
            method, {**params, "uri": self.part.uri_for_client(params["uri"])} if "uri" in params else params
        )

    async def _listen_to_modern(self, side: ClientFeatures) -> None:
        """Relays the server's stream, and reopens it after a break."""
        pause = RETRY_SECONDS[0]

        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            nonlocal pause
            if method != ACKNOWLEDGED:
                self._notified(method, params)
                return
            uris: Any = as_object(params.get("notifications")).get("resourceSubscriptions")
            self.accepted = [self.part.uri_for_client(uri) for uri in _texts(uris) or ()]
            self.begun.set()
            pause = RETRY_SECONDS[0]

        while True:
            with suppress(CallFailed, PursuitError):
                async with self.upstream.lease(side) as channel:
                    wanted = {"notifications": self.part.wanted}
                    await channel.request("subscriptions/listen", wanted, on_notify=on_notify)
            await anyio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS[1])

    async def _listen_to_legacy(self) -> None:
        """Receives list changes over the shared connection; resource updates only if its client is the only one."""
        methods = {method for key, method in FLAGS.items() if self.part.wanted.get(key) is True}
        uris: Sequence[str] = self.part.wanted.get("resourceSubscriptions", ())
        alone = self.upstream.features.answer is not None

        def shared(method: str, params: Mapping[str, Any]) -> None:
            if method in methods or (alone and method == UPDATED and params.get("uri") in uris):
                self._notified(method, params)

        def updated(method: str, params: Mapping[str, Any]) -> None:
            if method == UPDATED:
                self._notified(method, params)

        stop = self.upstream.listen(shared)
        own = nullcontext(self.upstream) if alone or not uris else self.upstream.lease(ClientFeatures(heard=updated))
        try:
            async with own as channel:
                for uri in uris:
                    try:
                        await channel.request("resources/subscribe", {"uri": uri})
                        self.accepted.append(self.part.uri_for_client(uri))
                    except (UpstreamError, CallFailed) as error:
                        _log.warning("%s: cannot listen to %s: %s", self.upstream.name, sendable(uri), error)
                self.begun.set()
                await anyio.sleep_forever()
        except PursuitError as error:
            _log.warning("%s: cannot listen to resources: %s", self.upstream.name, error)
            self.begun.set()
            await anyio.sleep_forever()  # its lists may have changed when it returns
        finally:
            stop()


@dataclass(slots=True, eq=False, kw_only=True)
class GatewaySubscriptions:
    upstreams: Upstreams
    resources: GatewayResources
    relay: Relay
    routing: Routing
    tasks: anyio.abc.TaskGroup
    limits: GatewayLimits
    _held: dict[tuple[ClientSession, str], anyio.CancelScope] = field(
        init=False, default_factory=dict[tuple[ClientSession, str], anyio.CancelScope]
    )
    _streams: dict[NotificationQueue, Mapping[str, Any]] = field(
        init=False, default_factory=dict[NotificationQueue, Mapping[str, Any]]
    )

    async def listen(self, request: ClientRequest) -> dict[str, Any]:
        given: Any = request.params.get("notifications")
        if not isinstance(given, Mapping):
            raise MCPError(INVALID_PARAMS, "subscriptions/listen needs `notifications`")
        wanted = {key: value for key, value in as_object(given).items() if value not in (None, False, [])}
        uris = _texts(wanted.get("resourceSubscriptions", []))
        if uris is None:
            raise MCPError(INVALID_PARAMS, "`resourceSubscriptions` must be a list of URIs")
        parts = await self._parts(wanted, uris)
        for server, part in parts.items():
            for uri in part.wanted.get("resourceSubscriptions", ()):
                await self.relay.require(request, server, {"uri": uri}, "resources/subscribe")
        stream, side = NotificationQueue(LIMITS.queued), ClientFeatures(capabilities=request.client.capabilities)
        listeners = [UpstreamListener(self.upstreams[server], part, stream) for server, part in parts.items()]
        async with anyio.create_task_group() as tasks:
            for listener in listeners:
                tasks.start_soon(listener.listen, side)
            with anyio.move_on_after(self.limits.optional_seconds):
                for listener in listeners:
                    await listener.begun.wait()
            accepted = [uri for listener in listeners for uri in listener.accepted]
            await request.notify(ACKNOWLEDGED, _with_id({"notifications": _only(wanted, accepted)}, request))
            self._streams[stream] = wanted
            try:
                async for method, params in stream:
                    await request.notify(method, _with_id(params, request))
                    if stream.dropped:  # a stream that lacks notifications must end: the client listens again
                        break
            finally:
                stream.close()
                del self._streams[stream]
            tasks.cancel_scope.cancel()
        if stream.dropped:
            reason = too_large("the stream was ended: its unread notifications are", "queued", LIMITS.queued)
            raise MCPError(INTERNAL_ERROR, reason)
        return modern_result(request.method, _with_id({}, request), INFO)

    def changed(self) -> None:
        for stream, wanted in self._streams.items():
            for flag, method in FLAGS.items():
                if wanted.get(flag) is True:
                    stream.put(method, {})

    def end(self) -> None:
        """Notifies all streams that every list has changed and ends them; clients then listen again."""
        self.changed()
        for stream in tuple(self._streams):
            stream.close()

    async def _parts(self, wanted: Mapping[str, Any], uris: Sequence[str]) -> dict[str, _Part]:
        """A client's subscriptions at each server: all list changes, and updates of the server's own resources."""
        names = self.upstreams.names
        if names.single:
            return {names.servers[0]: _Part(dict(wanted))}
        flags = {key: True for key in FLAGS if wanted.get(key) is True}
        parts = {server: _Part(dict(flags)) for server in names.servers}
        for uri, owner in (await self._owners(uris)).items():
            if owner is not None:
                server, own = owner
                parts[server].wanted.setdefault("resourceSubscriptions", []).append(own)
                parts[server].shown[own] = uri
        return {server: part for server, part in parts.items() if part.wanted}

    async def _owners(self, uris: Sequence[str]) -> dict[str, tuple[str, str] | None]:
        """The server of each URI, and that server's own URI."""
        names = self.upstreams.names
        found = await self.resources.owners(uri for uri in uris if names.uri_owner(uri) is None)
        owners = {uri: [(server, uri) for server in servers] for uri, servers in found.items()}
        return {uri: names.uri_owner(uri) or next(iter(owners[uri]), None) for uri in uris}

    async def subscribe(self, request: ClientRequest) -> dict[str, Any]:
        found = await self._modern_owner(request)
        if found is None:
            return await self.resources.request_resource(request)
        server, own = found
        await self.relay.require(request, server, {"uri": own})
        uri, session = cast("str", request.params["uri"]), request.client
        if isinstance(session, ClientSession) and (session, uri) not in self._held:
            self._held[session, uri] = anyio.CancelScope()
            self.tasks.start_soon(self._hold, session, uri, self.upstreams[server], own)
        return {}

    async def unsubscribe(self, request: ClientRequest) -> dict[str, Any]:
        session, uri = request.client, request.params.get("uri")
        scope = self._held.get((session, uri)) if isinstance(session, ClientSession) and isinstance(uri, str) else None
        if scope is None:
            return {} if await self._modern_owner(request) else await self.resources.request_resource(request)
        scope.cancel()
        return {}

    async def _modern_owner(self, request: ClientRequest) -> tuple[str, str] | None:
        """The modern server that a resource belongs to, and its own URI."""
        uri, session = request.params.get("uri"), request.client
        if not isinstance(session, ClientSession) or not isinstance(uri, str):
            return None
        names = self.upstreams.names
        owner = (names.servers[0], uri) if names.single else (await self._owners([uri]))[uri]
        if owner is None:
            return None
        about = await self.routing.about(session, self.upstreams[owner[0]])
        return owner if is_modern(about.protocol_version) else None

    async def _hold(self, session: ClientSession, uri: str, upstream: McpUpstream, own: str) -> None:
        """Listens for a legacy client, until it unsubscribes or disconnects."""
        send = NotificationQueue(LIMITS.queued)
        side = ClientFeatures(capabilities=session.capabilities)
        listener = UpstreamListener(upstream, _Part({"resourceSubscriptions": [own]}, {own: uri}), send)

        async def notify() -> None:
            async for method, params in send:
                if method == UPDATED:
                    session.notify(method, without_meta(params, SUBSCRIPTION_ID_META_KEY))

        try:
            with self._held[session, uri]:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(listener.listen, side)
                    tasks.start_soon(notify)
                    await session.closed.wait()
                    tasks.cancel_scope.cancel()
        finally:
            send.close()
            del self._held[session, uri]


async def _is_modern(upstream: McpUpstream) -> bool:
    """False for a server that cannot be reached: its notifications come over the shared connection later."""
    try:
        return is_modern((await upstream.about()).protocol_version)
    except PursuitError:
        return False


def _texts(value: Any) -> list[str] | None:
    found = cast("list[Any]", value) if isinstance(value, list) else None
    return found if found is not None and all(isinstance(one, str) for one in found) else None


def _only(wanted: Mapping[str, Any], accepted: Sequence[str]) -> dict[str, Any]:
    uris = [uri for uri in wanted.get("resourceSubscriptions", ()) if uri in accepted]
    rest = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
    return {**rest, "resourceSubscriptions": uris} if uris else rest


def _with_id(params: Mapping[str, Any], request: ClientRequest) -> dict[str, Any]:
    meta = as_object(params.get("_meta"))
    return {**params, "_meta": {**meta, SUBSCRIPTION_ID_META_KEY: request.ctx.request_id}}
