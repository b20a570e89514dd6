"""Who hears that something changed, across both eras.

Owns: the listen streams of clients of the new era, and the subscriptions of clients of the old one at servers of the
new one. Does not know: tools. Invariant: the acknowledgement comes first; each word carries the client's own id of its
stream; what a client left is not listened to any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INVALID_PARAMS

from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.errors import PursuitError
from pursuit.server.errors import sendable
from pursuit.server.gateway.clients import ACKNOWLEDGED, ClientRequest, ClientSession
from pursuit.server.gateway.initialize import INFO
from pursuit.server.gateway.protocol_versions import as_object, enveloped, is_modern
from pursuit.server.gateway.resources import Resources
from pursuit.server.gateway.routing import ASIDE_SECONDS, Routing
from pursuit.server.gateway.upstreams import Upstreams
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.transport import ClientSide

# How a server is listened to, in the way of its era.
# Invariant: whoever stops listening leaves no subscription behind.

UPDATED = "notifications/resources/updated"
FLAGS: Mapping[str, str] = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
AGAIN = (1.0, 30.0)
Words = MemoryObjectSendStream[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class UpstreamListener:
    """Where the words of one server go; `shown` are the addresses that the client has for its resources."""

    words: Words
    shown: Mapping[str, str]

    def hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Takes what the server says."""
        uri = params.get("uri")
        known = self.shown.get(uri) if isinstance(uri, str) else None
        say(self.words, method, params if known is None else {**params, "uri": known})


async def relayed(
    upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: UpstreamListener, outcome: list[Exception]
) -> None:
    """The stream of the only server, to its end."""
    with ear.words:
        try:
            await _listened(upstream, side, wanted, ear)
        except UpstreamError as error:
            outcome.append(MCPError(error.code, error.message, error.data))
        except (CallFailed, PursuitError) as error:
            outcome.append(error)


async def followed(upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: UpstreamListener) -> None:
    """The stream of one server among several: begun again when it breaks."""
    pause = AGAIN[0]
    while True:
        try:
            await _listened(upstream, side, wanted, ear)
            pause = AGAIN[0]
        except UpstreamError:
            return
        except (CallFailed, PursuitError):
            pass
        await anyio.sleep(pause)
        pause = min(pause * 2, AGAIN[1])


async def _listened(upstream: McpUpstream, side: ClientSide, wanted: Mapping[str, Any], ear: UpstreamListener) -> None:
    async def heard(method: str, params: Mapping[str, Any]) -> None:
        ear.hear(method, params)

    async with upstream.leased(side) as talk:
        await talk.request("subscriptions/listen", {"notifications": wanted}, on_notify=heard)


async def overheard(
    upstream: McpUpstream, wanted: Mapping[str, Any], ear: UpstreamListener, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """What a server of the old era says on the connection that all share, and about resources on one of its own."""
    methods = {method for key, method in FLAGS.items() if wanted.get(key) is True}

    def heard(method: str, params: Mapping[str, Any]) -> None:
        if method in methods:
            ear.hear(method, params)

    def updated(method: str, params: Mapping[str, Any]) -> None:
        if method == UPDATED:
            ear.hear(method, params)

    stop = upstream.listen(heard)
    try:
        uris = cast("Sequence[str]", wanted.get("resourceSubscriptions") or ())
        if not uris:
            task_status.started()
            await anyio.sleep_forever()
        async with upstream.leased(ClientSide(heard=updated)) as talk:
            for uri in uris:
                try:
                    await talk.request("resources/subscribe", {"uri": uri})
                except (UpstreamError, CallFailed) as error:
                    reason = f"cannot listen to {sendable(uri)}: {error}"
                    raise MCPError(INVALID_PARAMS, reason, {"uri": uri}) from None
            task_status.started()
            await anyio.sleep_forever()
    finally:
        stop()


def say(words: Words, method: str, params: Mapping[str, Any]) -> None:
    """Puts a word where its client takes it from."""
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client has just left
        words.send_nowait((method, params))


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is asked of one server, and the client's addresses for its resources."""

    wanted: dict[str, Any]
    shown: dict[str, str] = field(default_factory=dict[str, str])


class Subscriptions:
    """The streams of all clients."""

    def __init__(
        self,
        roster: Upstreams,
        resources: Resources,
        lines: Routing,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._roster = roster
        self._resources = resources
        self._lines = lines
        self._tasks = tasks
        self._held: dict[tuple[ClientSession, str], anyio.CancelScope] = {}
        self._streams: dict[Words, Mapping[str, Any]] = {}

    async def listen(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `subscriptions/listen`: one stream until the client leaves it, or its only server ends it."""
        wanted = _wanted(visit.params)
        parts = await self._parts(wanted)
        send, receive = anyio.create_memory_object_stream[tuple[str, Mapping[str, Any]]](math.inf)
        outcome: list[Exception] = []
        async with anyio.create_task_group() as listening:
            if self._roster.names.single:
                refused: list[str] | None = await self._begin(visit, parts, send, outcome, listening)
            else:
                refused = await self._begin_all(visit, parts, send, listening)
            if outcome:
                send.close()
            elif refused is not None:
                await visit.tell(ACKNOWLEDGED, _stamped({"notifications": _without(wanted, refused)}, visit))
            self._streams[send] = wanted
            try:
                with send, receive:
                    async for method, params in receive:
                        if refused is None or method != ACKNOWLEDGED:
                            await visit.tell(method, _stamped(params, visit))
            finally:
                del self._streams[send]
            listening.cancel_scope.cancel()
        if outcome:
            raise outcome[0]
        return enveloped(visit.method, _stamped({}, visit), INFO)

    def changed(self) -> None:
        """Says that every list has changed."""
        for words, wanted in self._streams.items():
            for flag, method in FLAGS.items():
                if wanted.get(flag) is True:
                    say(words, method, {})

    def end(self) -> None:
        """Says that every list has changed and ends all streams: clients listen again, to what is there then."""
        self.changed()
        for words in tuple(self._streams):
            words.close()

    async def _begin(
        self,
        visit: ClientRequest,
        parts: Mapping[str, _Part],
        words: Words,
        outcome: list[Exception],
        listening: anyio.abc.TaskGroup,
    ) -> list[str] | None:
        """Starts to listen to the only server; None if it acknowledges itself."""
        ((server, part),) = parts.items()
        upstream, ear = self._roster[server], UpstreamListener(words, part.shown)
        if await _is_modern(upstream):
            side = ClientSide(capabilities=visit.guest.capabilities)
            listening.start_soon(relayed, upstream, side, part.wanted, ear, outcome)
            return None
        try:
            await listening.start(overheard, upstream, part.wanted, ear)
        except (MCPError, PursuitError) as error:
            outcome.append(error)
        return []

    async def _begin_all(
        self, visit: ClientRequest, parts: Mapping[str, _Part], words: Words, listening: anyio.abc.TaskGroup
    ) -> list[str]:
        """Starts to listen to several, side by side; returns the addresses that could not be listened to so far."""
        side = ClientSide(capabilities=visit.guest.capabilities)
        refused = {server: list(part.shown.values()) for server, part in parts.items()}

        async def begin(server: str, part: _Part, done: anyio.Event) -> None:
            upstream, ear = self._roster[server], UpstreamListener(words, part.shown)
            try:
                if await _is_modern(upstream):
                    listening.start_soon(followed, upstream, side, part.wanted, ear)
                else:
                    await listening.start(overheard, upstream, part.wanted, ear)
                refused[server] = []
            except (MCPError, PursuitError) as error:
                _log.warning("%s is not listened to: %s", server, error)
                flags = {key: value for key, value in part.wanted.items() if key in FLAGS}
                await listening.start(overheard, upstream, flags, ear)
            done.set()

        waiting = [anyio.Event() for _ in parts]
        for done, (server, part) in zip(waiting, parts.items(), strict=True):
            listening.start_soon(begin, server, part, done)
        with anyio.move_on_after(ASIDE_SECONDS):
            for done in waiting:
                await done.wait()
        return [uri for uris in refused.values() for uri in uris]

    async def _parts(self, wanted: Mapping[str, Any]) -> dict[str, _Part]:
        """What is asked of each server: every list, and its own resources."""
        names = self._roster.names
        if names.single:
            return {names.servers[0]: _Part(dict(wanted))}
        flags = {key: True for key in FLAGS if wanted.get(key) is True}
        parts = {server: _Part(dict(flags)) for server in names.servers}
        given = cast("Sequence[Any]", wanted.get("resourceSubscriptions") or ())
        uris = [uri for uri in given if isinstance(uri, str)]
        others = await self._resources.owners_of(uri for uri in uris if names.uri_owner(uri) is None)
        for uri in uris:
            owner = names.uri_owner(uri)
            for server, own in [owner] if owner is not None else [(server, uri) for server in others[uri][:1]]:
                parts[server].wanted.setdefault("resourceSubscriptions", []).append(own)
                parts[server].shown[own] = uri
        return {server: part for server, part in parts.items() if part.wanted}

    async def _owner(self, uri: str) -> list[tuple[str, str]]:
        known = self._roster.names.uri_owner(uri)
        if known is not None:
            return [known]
        return [(server, uri) for server in (await self._resources.owners(uri))[:1]]

    async def subscribe(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `resources/subscribe` of the old era, also at a server of the new one."""
        found = await self._modern_owner(visit)
        if found is None:
            return await self._resources.about_uri(visit)
        server, own = found
        uri, session = cast("str", visit.params["uri"]), visit.guest
        if isinstance(session, ClientSession) and (session, uri) not in self._held:
            self._held[session, uri] = anyio.CancelScope()
            self._tasks.start_soon(self._hold, session, uri, self._roster[server], own)
        return {}

    async def unsubscribe(self, visit: ClientRequest) -> dict[str, Any]:
        """Answers `resources/unsubscribe`."""
        session, uri = visit.guest, visit.params.get("uri")
        scope = self._held.get((session, uri)) if isinstance(session, ClientSession) and isinstance(uri, str) else None
        if scope is None:
            return {} if await self._modern_owner(visit) else await self._resources.about_uri(visit)
        scope.cancel()
        return {}

    async def _modern_owner(self, visit: ClientRequest) -> tuple[str, str] | None:
        """The server of the new era that a resource belongs to."""
        uri, session = visit.params.get("uri"), visit.guest
        if not isinstance(session, ClientSession) or not isinstance(uri, str):
            return None
        owners = [(self._roster.names.servers[0], uri)] if self._roster.names.single else await self._owner(uri)
        for server, own in owners:
            if is_modern((await self._lines.about(session, self._roster[server])).protocol_version):
                return server, own
        return None

    async def _hold(self, session: ClientSession, uri: str, upstream: McpUpstream, own: str) -> None:
        """Listens for a client of the old era, until it unsubscribes or goes."""
        send, receive = anyio.create_memory_object_stream[tuple[str, Mapping[str, Any]]](math.inf)
        side = ClientSide(capabilities=session.capabilities)
        try:
            with self._held[session, uri], send, receive:
                async with anyio.create_task_group() as holding:
                    ear = UpstreamListener(send, {own: uri})
                    holding.start_soon(followed, upstream, side, {"resourceSubscriptions": [own]}, ear)
                    holding.start_soon(_tell, session, receive)
                    await session.gone.wait()
                    holding.cancel_scope.cancel()
        finally:
            del self._held[session, uri]


async def _tell(session: ClientSession, words: MemoryObjectReceiveStream[tuple[str, Mapping[str, Any]]]) -> None:
    async for method, params in words:
        if method == UPDATED:
            session.tell(method, unstamped(params))


async def _is_modern(upstream: McpUpstream) -> bool:
    """One that cannot be reached is overheard: what it says when it is there comes that way in either era."""
    try:
        return is_modern((await upstream.about()).protocol_version)
    except PursuitError:
        return False


def _without(wanted: Mapping[str, Any], refused: Sequence[str]) -> dict[str, Any]:
    """What is listened to, without these addresses."""
    if not refused:
        return dict(wanted)
    uris = [uri for uri in wanted.get("resourceSubscriptions", ()) if uri not in refused]
    rest = {key: value for key, value in wanted.items() if key != "resourceSubscriptions"}
    return {**rest, "resourceSubscriptions": uris} if uris else rest


def _wanted(params: Mapping[str, Any]) -> dict[str, Any]:
    given: Any = params.get("notifications")
    if not isinstance(given, Mapping):
        raise MCPError(INVALID_PARAMS, "subscriptions/listen needs `notifications`")
    return {key: value for key, value in as_object(given).items() if value not in (None, False, [])}


def _stamped(params: Mapping[str, Any], visit: ClientRequest) -> dict[str, Any]:
    known = as_object(params.get("_meta"))
    return {**params, "_meta": {**known, SUBSCRIPTION_ID_META_KEY: visit.ctx.request_id}}


def unstamped(params: Mapping[str, Any]) -> dict[str, Any]:
    """The words without the id of a stream, which the old era does not have."""
    meta = as_object(params.get("_meta"))
    if SUBSCRIPTION_ID_META_KEY not in meta:
        return dict(params)
    rest = {key: one for key, one in meta.items() if key != SUBSCRIPTION_ID_META_KEY}
    body = {key: value for key, value in params.items() if key != "_meta"}
    return {**body, "_meta": rest} if rest else body
