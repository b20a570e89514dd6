"""Sends clients the notifications that they subscribed to, across both generations of the protocol.

A modern client opens a stream with `subscriptions/listen`. A legacy client gets list changes without asking and
subscribes to single resources; at a modern server the gateway listens for it.

Invariant: the acknowledgement is the first notification of a stream; each notification carries the client's own id of
the stream; when a client leaves, its subscriptions at the servers end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
from pursuit.server.errors import as_object, is_modern, sendable
from pursuit.server.gateway.clients import ACKNOWLEDGED, ClientRequest, ClientSession
from pursuit.server.gateway.protocol_versions import modern_result
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
"""The first and the longest pause before a server is tried again."""

Stream = NotificationQueue
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a client wants of one server: the filter for that server, and the client's URIs of its resources."""

    wanted: dict[str, Any]
    shown: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class UpstreamListener:
    """Listens to one server for one client's stream."""

    upstream: McpUpstream
    part: _Part
    stream: Stream

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        """Puts a notification into the stream, with the client's URI."""
        uri = params.get("uri")
        shown = self.part.shown.get(uri) if isinstance(uri, str) else None
        self.stream.put(method, params if shown is None else {**params, "uri": shown})

    async def relay(self, side: ClientFeatures, outcome: list[Exception]) -> None:
        """Relays the stream of the only server, to its end."""
        try:
            await self._listen(side)
        except UpstreamError as error:
            outcome.append(MCPError(error.code, error.message, error.data))
        except (CallFailed, PursuitError) as error:
            outcome.append(error)
        finally:
            self.stream.close()

    async def follow(self, side: ClientFeatures) -> None:
        """Relays the stream of one of several servers, and opens it again when it breaks."""
        pause = RETRY_SECONDS[0]
        while True:
            try:
                await self._listen(side)
                pause = RETRY_SECONDS[0]
            except UpstreamError:
                return
            except (CallFailed, PursuitError):
                pass
            await anyio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS[1])

    async def _listen(self, side: ClientFeatures) -> None:
        async def on_notify(method: str, params: Mapping[str, Any]) -> None:
            self.notified(method, params)

        async with self.upstream.lease(side) as channel:
            await channel.request("subscriptions/listen", {"notifications": self.part.wanted}, on_notify=on_notify)

    async def listen_to_legacy(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Takes list changes from the shared connection, and resource updates from it if its client is the only one."""
        methods = {method for key, method in FLAGS.items() if self.part.wanted.get(key) is True}
        uris = cast("Sequence[str]", self.part.wanted.get("resourceSubscriptions") or ())
        alone = self.upstream.features.answer is not None

        def shared(method: str, params: Mapping[str, Any]) -> None:
            if method in methods or (alone and method == UPDATED and params.get("uri") in uris):
                self.notified(method, params)

        def updated(method: str, params: Mapping[str, Any]) -> None:
            if method == UPDATED:
                self.notified(method, params)

        stop = self.upstream.listen(shared)
        try:
            if not uris:
                task_status.started()
                await anyio.sleep_forever()
            own = nullcontext(self.upstream) if alone else self.upstream.lease(ClientFeatures(heard=updated))
            async with own as channel:
                for uri in uris:
                    try:
                        await channel.request("resources/subscribe", {"uri": uri})
                    except (UpstreamError, CallFailed) as error:
                        reason = f"cannot listen to {sendable(uri)}: {error}"
                        raise MCPError(INVALID_PARAMS, reason, {"uri": uri}) from None
                task_status.started()
                await anyio.sleep_forever()
        finally:
            stop()


@dataclass(slots=True, eq=False, kw_only=True)
class GatewaySubscriptions:
    """The streams of all clients."""

    upstreams: Upstreams
    resources: GatewayResources
    relay: Relay
    routing: Routing
    tasks: anyio.abc.TaskGroup
    limits: GatewayLimits
    _held: dict[tuple[ClientSession, str], anyio.CancelScope] = field(
        init=False, default_factory=dict[tuple[ClientSession, str], anyio.CancelScope]
    )
    _streams: dict[Stream, Mapping[str, Any]] = field(init=False, default_factory=dict[Stream, Mapping[str, Any]])

    async def listen(self, request: ClientRequest) -> dict[str, Any]:
        """Answers `subscriptions/listen`: a stream until the client leaves it, or its only server ends it."""
        given: Any = request.params.get("notifications")
        if not isinstance(given, Mapping):
            raise MCPError(INVALID_PARAMS, "subscriptions/listen needs `notifications`")
        wanted = {key: value for key, value in as_object(given).items() if value not in (None, False, [])}
        parts = await self._parts(wanted)
        for server, part in parts.items():
            uris: Any = part.wanted.get("resourceSubscriptions") or ()
            for uri in cast("Sequence[Any]", uris) if isinstance(uris, list | tuple) else [uris]:
                await self.relay.require(request, server, {"uri": uri}, "resources/subscribe")
        send = NotificationQueue(LIMITS.queued)
        outcome: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            if self.upstreams.names.single:
                refused: list[str] | None = await self._start(request, parts, send, outcome, tasks)
            else:
                refused = await self._start_all(request, parts, send, tasks)
            if outcome:
                send.close()
            elif refused is not None:
                await request.notify(ACKNOWLEDGED, _with_id({"notifications": _without(wanted, refused)}, request))
            self._streams[send] = wanted
            try:
                async for method, params in send:
                    if refused is None or method != ACKNOWLEDGED:
                        await request.notify(method, _with_id(params, request))
                    if send.dropped:  # a stream with a hole is worse than none: the client listens again
                        reason = too_large(
                            "the stream was ended: its unread notifications are", "queued", LIMITS.queued
                        )
                        outcome.append(MCPError(INTERNAL_ERROR, reason))
                        break
            finally:
                send.close()
                del self._streams[send]
            tasks.cancel_scope.cancel()
        if outcome:
            raise outcome[0]
        return modern_result(request.method, _with_id({}, request), INFO)

    def changed(self) -> None:
        """Notifies all streams that every list has changed."""
        for stream, wanted in self._streams.items():
            for flag, method in FLAGS.items():
                if wanted.get(flag) is True:
                    stream.put(method, {})

    def end(self) -> None:
        """Notifies all streams that every list has changed and ends them: clients listen again."""
        self.changed()
        for stream in tuple(self._streams):
            stream.close()

    async def _start(
        self,
        request: ClientRequest,
        parts: Mapping[str, _Part],
        stream: Stream,
        outcome: list[Exception],
        tasks: anyio.abc.TaskGroup,
    ) -> list[str] | None:
        """Starts to listen to the only server; None if that server sends the acknowledgement."""
        ((server, part),) = parts.items()
        listener = UpstreamListener(self.upstreams[server], part, stream)
        if await _is_modern(listener.upstream):
            tasks.start_soon(listener.relay, ClientFeatures(capabilities=request.client.capabilities), outcome)
            return None
        try:
            await tasks.start(listener.listen_to_legacy)
        except (MCPError, PursuitError) as error:
            outcome.append(error)
        return []

    async def _start_all(
        self, request: ClientRequest, parts: Mapping[str, _Part], stream: Stream, tasks: anyio.abc.TaskGroup
    ) -> list[str]:
        """Starts to listen to several servers; returns the URIs that are not listened to so far."""
        side = ClientFeatures(capabilities=request.client.capabilities)
        refused = {server: list(part.shown.values()) for server, part in parts.items()}

        async def start(server: str, part: _Part, done: anyio.Event) -> None:
            listener = UpstreamListener(self.upstreams[server], part, stream)
            try:
                if await _is_modern(listener.upstream):
                    tasks.start_soon(listener.follow, side)
                else:
                    await tasks.start(listener.listen_to_legacy)
                refused[server] = []
            except (MCPError, PursuitError) as error:
                _log.warning("%s is not listened to: %s", server, error)
                flags = {key: value for key, value in part.wanted.items() if key in FLAGS}
                await tasks.start(UpstreamListener(listener.upstream, _Part(flags), stream).listen_to_legacy)
            done.set()

        waiting = [anyio.Event() for _ in parts]
        for done, (server, part) in zip(waiting, parts.items(), strict=True):
            tasks.start_soon(start, server, part, done)
        with anyio.move_on_after(self.limits.optional_seconds):
            for done in waiting:
                await done.wait()
        return [uri for uris in refused.values() for uri in uris]

    async def _parts(self, wanted: Mapping[str, Any]) -> dict[str, _Part]:
        """What a client wants of each server: all list changes, and updates of the server's own resources."""
        names = self.upstreams.names
        if names.single:
            return {names.servers[0]: _Part(dict(wanted))}
        flags = {key: True for key in FLAGS if wanted.get(key) is True}
        parts = {server: _Part(dict(flags)) for server in names.servers}
        given = cast("Sequence[Any]", wanted.get("resourceSubscriptions") or ())
        uris = [uri for uri in given if isinstance(uri, str)]
        for uri, owner in (await self._owners(uris)).items():
            if owner is not None:
                server, own = owner
                parts[server].wanted.setdefault("resourceSubscriptions", []).append(own)
                parts[server].shown[own] = uri
        return {server: part for server, part in parts.items() if part.wanted}

    async def _owners(self, uris: Sequence[str]) -> dict[str, tuple[str, str] | None]:
        """For each URI the server that it belongs to, and that server's own URI."""
        names = self.upstreams.names
        found = await self.resources.owners(uri for uri in uris if names.uri_owner(uri) is None)
        owners = {uri: [(server, uri) for server in servers] for uri, servers in found.items()}
        return {uri: names.uri_owner(uri) or next(iter(owners[uri]), None) for uri in uris}

    async def subscribe(self, request: ClientRequest) -> dict[str, Any]:
        """Answers `resources/subscribe` of a legacy client, also at a modern server."""
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
        """Answers `resources/unsubscribe`."""
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
        """Listens for a legacy client, until it unsubscribes or goes."""
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
                    tasks.start_soon(listener.follow, side)
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


def _without(wanted: Mapping[str, Any], refused: Sequence[str]) -> dict[str, Any]:
    """The filter without these URIs."""
    if not refused:
        return dict(wanted)
    uris = [uri for uri in wanted.get("resourceSubscriptions", ()) if uri not in refused]
    rest = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
    return {**rest, "resourceSubscriptions": uris} if uris else rest


def _with_id(params: Mapping[str, Any], request: ClientRequest) -> dict[str, Any]:
    meta = as_object(params.get("_meta"))
    return {**params, "_meta": {**meta, SUBSCRIPTION_ID_META_KEY: request.ctx.request_id}}
