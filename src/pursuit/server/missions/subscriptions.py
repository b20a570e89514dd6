"""Notifies clients that a mission changed: `resources/subscribe` of 2025, `subscriptions/listen` of 2026-07-28.

Invariant: the ledger is watched only for subscribed missions, subscriptions end with their connection, and a slow
connection does not delay others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ServerEvent
from mcp_types import (
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from pursuit.errors import Fault, InvalidArgument, LedgerUnavailable, PursuitError, SessionNotFound, ValidationFailed
from pursuit.ledger.contract import Wakeup
from pursuit.server.errors import Context, caller_of, connection_of, mcp_errors, resource_errors
from pursuit.server.missions.resources import find
from pursuit.service.audit import Caller
from pursuit.service.service import Service

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    spacing: float = 0.1
    """Seconds between two notifications of the same change."""
    retry: float = 1.0
    """Seconds until a ledger that failed is read again."""
    most_uris: int = 1_000


@dataclass(slots=True, eq=False)
class _Watch:
    """A watched mission; closing `resources` ends the watch. `holders` counts the subscriptions to each URI."""

    wakeup: Wakeup
    resources: ExitStack
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    holders: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True, eq=False)
class _Subscriber:
    """A 2025-era connection: its subscribed URIs with their missions, and the URIs with an unsent update."""

    session: ServerSession
    wanted: dict[str, str] = field(default_factory=dict[str, str])
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _unsent: dict[str, None] = field(default_factory=dict[str, None])
    _pending: anyio.Event = field(default_factory=anyio.Event)

    def publish(self, event: ServerEvent) -> None:
        """Queues an update once, however slowly the connection reads."""
        if isinstance(event, ResourceUpdated) and event.uri in self.wanted:
            self._unsent[event.uri] = None
            self._pending.set()

    async def send(self) -> None:
        with self.scope:
            while True:
                await self._pending.wait()
                self._pending = anyio.Event()
                while self._unsent:
                    uri = next(iter(self._unsent))
                    del self._unsent[uri]
                    await self.session.send_resource_updated(uri)


class Subscriptions:
    """The handlers of subscriptions; call `close` before the task group ends.

    A mission is watched while it has subscriptions, from the moment `_hold` begins. Changes are published at most once
    in `spacing` seconds; the last change is always published.
    """

    def __init__(
        self, service: Service, tasks: anyio.abc.TaskGroup, settings: SubscriptionSettings | None = None
    ) -> None:
        self._service = service
        self._settings = settings or SubscriptionSettings()
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._subscribers: dict[Connection, _Subscriber] = {}
        self._watches: dict[str, _Watch] = {}
        self._tasks = tasks

    def close(self) -> None:
        self._streams.close()
        for mission_id in tuple(self._watches):
            self._end(mission_id)

    @property
    def watched(self) -> frozenset[str]:
        return frozenset(self._watches)

    @property
    def connections(self) -> int:
        """The number of 2025-era connections with a subscription."""
        return len(self._subscribers)

    async def subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        """2025: notifies this connection when the resource changes."""
        with resource_errors(ctx, params.uri):
            address, _ = await find(self._service, params.uri, caller_of(ctx))
        subscriber = self._subscriber(ctx)
        if params.uri not in subscriber.wanted:
            with mcp_errors():
                if len(subscriber.wanted) >= self._settings.most_uris:
                    raise self._too_many()
                self._hold(address.mission_id, params.uri)
            subscriber.wanted[params.uri] = address.mission_id
        return EmptyResult()

    async def unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """2025: ends a subscription, if it exists."""
        subscriber = self._subscribers.get(connection_of(ctx))
        if subscriber is not None and params.uri in subscriber.wanted:
            self._release(subscriber.wanted.pop(params.uri), params.uri)
        return EmptyResult()

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """2026-07-28: a stream of the requested updates, until the client closes it."""
        with ExitStack() as held:
            with mcp_errors():
                uris = params.notifications.resource_subscriptions or ()
                for uri, mission_id in (await self._missions(uris, caller_of(ctx))).items():
                    self._hold(mission_id, uri)
                    held.callback(self._release, mission_id, uri)
            return await self._streams(ctx, params)

    async def _missions(self, uris: Iterable[str], caller: Caller) -> dict[str, str]:
        """Returns the missions of these URIs; raises with every fault."""
        found: dict[str, str] = {}
        faults: list[Fault] = []
        for place, uri in enumerate(uris):
            if place == self._settings.most_uris:
                raise self._too_many()
            try:
                found[uri] = (await find(self._service, uri, caller))[0].mission_id
            except (InvalidArgument, SessionNotFound) as error:
                faults.append(Fault(field=f"resourceSubscriptions[{place}]", reason=error.message))
        if faults:
            raise ValidationFailed(faults, "some of these resources cannot be followed; nothing was subscribed")
        return found

    def _subscriber(self, ctx: Context) -> _Subscriber:
        """The subscriptions of this connection; they end with it."""
        connection = connection_of(ctx)
        found = self._subscribers.get(connection)
        if found is None:
            found = self._subscribers[connection] = _Subscriber(ctx.session)
            unsubscribe = self._bus.subscribe(found.publish)
            connection.exit_stack.callback(self._forget, connection, unsubscribe)
            self._tasks.start_soon(found.send)
        return found

    def _forget(self, connection: Connection, unsubscribe: Callable[[], None]) -> None:
        subscriber = self._subscribers.pop(connection)
        unsubscribe()
        subscriber.scope.cancel()
        for uri, mission_id in subscriber.wanted.items():
            self._release(mission_id, uri)

    def _too_many(self) -> PursuitError:
        most = self._settings.most_uris
        return InvalidArgument(f"a connection can follow at most {most} resources; unsubscribe from some")

    def _hold(self, mission_id: str, uri: str) -> None:
        """Starts to publish an update of `uri` whenever the mission changes."""
        watch = self._watches.get(mission_id)
        if watch is None:
            resources = ExitStack()
            wakeup = resources.enter_context(self._service.ledger.wakeup(mission_id))
            watch = self._watches[mission_id] = _Watch(wakeup, resources)
            self._tasks.start_soon(self._follow, watch)
        watch.holders[uri] += 1

    def _release(self, mission_id: str, uri: str) -> None:
        watch = self._watches.get(mission_id)
        if watch is None:  # closed: a connection may outlive us by a moment
            return
        watch.holders[uri] -= 1
        watch.holders += Counter()  # drops the zeros
        if not watch.holders:
            self._end(mission_id)

    def _end(self, mission_id: str) -> None:
        watch = self._watches.pop(mission_id)
        watch.scope.cancel()
        watch.resources.close()

    async def _follow(self, watch: _Watch) -> None:
        with watch.scope:
            while True:
                try:
                    await watch.wakeup.wait()
                except LedgerUnavailable as error:
                    logger.warning("updates of missions are late: %s", error.message)
                    await anyio.sleep(self._settings.retry)
                    continue
                for uri in tuple(watch.holders):
                    await self._bus.publish(ResourceUpdated(uri))
                # The next wait returns immediately if a change came first, so the last change is always published.
                await anyio.sleep(self._settings.spacing)
