"""Notifies clients that a mission changed: `resources/subscribe` of 2025, `subscriptions/listen` of 2026-07-28.

Invariant: the ledger is watched only for what a client subscribed to, a connection that ends takes its subscriptions
along, and one that reads slowly holds up no other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionBus,
)
from mcp_types import (
    EmptyResult,
    ListResourcesResult,
    PaginatedRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from pursuit.core.state import STATUSES, TERMINAL
from pursuit.errors import Fault, InvalidArgument, LedgerUnavailable, PursuitError, SessionNotFound, ValidationFailed
from pursuit.ledger.contract import Bell, Ledger
from pursuit.server.errors import Context, caller_of, connection_of, is_modern, mcp_errors, resource_errors
from pursuit.server.missions.resources import find
from pursuit.service import Service
from pursuit.service.audit import Caller

_OPEN = tuple(status for status in STATUSES if status not in TERMINAL)
_PAGE = 1_000
LIST_CHANGED = ResourcesListChanged()
ListResources = Callable[[Context, PaginatedRequestParams | None], Awaitable[ListResourcesResult]]

logger = logging.getLogger(__name__)

Snapshot = tuple[str | None, frozenset[str]]
"""The newest mission, and those that have not ended: if neither changes, no mission has begun or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """How often changes are published, and how many resources one connection or listen stream may follow."""

    spacing: float = 0.1
    """Seconds between two notifications of the same change."""
    retry: float = 1.0
    """Seconds until a ledger that failed is read again."""
    most_uris: int = 1_000


class _Watch:
    """A stream (None: all of them), its bell, and the events that its holders want published."""

    def __init__(self, stream: str | None, bell: Bell, resources: ExitStack) -> None:
        self.stream = stream
        self.bell = bell
        self.resources = resources
        self.holders: Counter[ServerEvent] = Counter()
        self.scope = anyio.CancelScope()
        self.known: Snapshot | None = None


class Watches:
    """The streams that this process watches; the tasks live in the group that it is given.

    Invariant: a stream is watched from its first holder to its last, from the moment `hold` begins. A change is
    published at most once in `spacing` seconds, the last change always.
    """

    def __init__(
        self, ledger: Ledger, bus: SubscriptionBus, tasks: anyio.abc.TaskGroup, settings: SubscriptionSettings
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._bus = bus
        self._tasks = tasks
        self.watches: dict[str | None, _Watch] = {}

    async def hold(self, stream: str | None, event: ServerEvent) -> None:
        """From here on `event` is published whenever the stream grows (None: when a mission began or ended)."""
        watch = self.watches.get(stream) or self._begin(stream)
        watch.holders[event] += 1
        if stream is not None:
            return
        try:
            snapshot = await self._snapshot()
        except BaseException:
            self.release(stream, event)
            raise
        # Two holders may read at the same time. The first snapshot counts: what changed since is published to both.
        watch.known = watch.known or snapshot

    def release(self, stream: str | None, event: ServerEvent) -> None:
        """Removes a holder; with the last one the watch ends."""
        watch = self.watches.get(stream)
        if watch is None:  # closed: a connection may outlive us by a moment
            return
        watch.holders[event] -= 1
        watch.holders += Counter()  # drops the zeros
        if not watch.holders:
            self._end(watch)

    def close(self) -> None:
        """Ends all watches."""
        for watch in list(self.watches.values()):
            self._end(watch)

    def _begin(self, stream: str | None) -> _Watch:
        resources = ExitStack()
        watch = _Watch(stream, resources.enter_context(self._ledger.bell(stream)), resources)
        self.watches[stream] = watch
        self._tasks.start_soon(self._follow, watch)
        return watch

    def _end(self, watch: _Watch) -> None:
        del self.watches[watch.stream]
        watch.scope.cancel()
        watch.resources.close()

    async def _follow(self, watch: _Watch) -> None:
        rung = False
        with watch.scope:
            while True:
                try:
                    if not rung:
                        await watch.bell.wait()
                        rung = True
                    changed = watch.stream is not None or await self._list_changed(watch)
                except LedgerUnavailable as error:
                    logger.warning("updates of missions are late: %s", error.message)
                    await anyio.sleep(self._settings.retry)
                    continue
                rung = False
                for event in tuple(watch.holders) if changed else ():
                    await self._bus.publish(event)
                # The next wait returns at once if the bell rings meanwhile, so the last change is always published.
                await anyio.sleep(self._settings.spacing)

    async def _list_changed(self, watch: _Watch) -> bool:
        before, watch.known = watch.known, await self._snapshot()
        return before is not None and before != watch.known

    async def _snapshot(self) -> Snapshot:
        newest = (await self._ledger.streams(kind="mission", status=STATUSES, limit=1)).rows
        names: set[str] = set()
        cursor: str | None = None
        while True:
            page = await self._ledger.streams(kind="mission", status=_OPEN, cursor=cursor, limit=_PAGE)
            names.update(row.name for row in page.rows)
            cursor = page.next_cursor
            if cursor is None:
                return (newest[0].name if newest else None), frozenset(names)


class _Subscriber:
    """A 2025-era connection: what it subscribed to, and the notifications that are not sent yet."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.wanted: dict[ServerEvent, str | None] = {}
        self.scope = anyio.CancelScope()
        self._unsent: dict[ServerEvent, None] = {}
        self._pending = anyio.Event()

    def publish(self, event: ServerEvent) -> None:
        """Keeps an event to send, once, however slowly the connection reads."""
        if event in self.wanted:
            self._unsent[event] = None
            self._pending.set()

    async def send(self) -> None:
        """Sends notifications until the connection ends."""
        with self.scope:
            while True:
                await self._pending.wait()
                self._pending = anyio.Event()
                while self._unsent:
                    event = next(iter(self._unsent))
                    del self._unsent[event]
                    if isinstance(event, ResourceUpdated):
                        await self.session.send_resource_updated(event.uri)
                    else:
                        await self.session.send_resource_list_changed()


class Subscriptions:
    """The handlers of subscriptions; `close` it before the group that it is given ends."""

    def __init__(
        self, service: Service, tasks: anyio.abc.TaskGroup, settings: SubscriptionSettings | None = None
    ) -> None:
        self._service = service
        self._settings = settings or SubscriptionSettings()
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._subscribers: dict[Connection, _Subscriber] = {}
        self._tasks = tasks
        self._watches = Watches(service.ledger, self._bus, tasks, self._settings)

    def close(self) -> None:
        """Ends all streams and watches."""
        self._streams.close()
        self._watches.close()

    @property
    def watched(self) -> frozenset[str | None]:
        """The missions that a client follows now; None among them is the list of missions."""
        return frozenset(self._watches.watches)

    @property
    def connections(self) -> int:
        """How many 2025-era connections have a subscription."""
        return len(self._subscribers)

    async def subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        """2025: notifies this connection when the resource changes."""
        with resource_errors(ctx, params.uri):
            address, _ = await find(self._service, params.uri, caller_of(ctx))
        with mcp_errors():
            await self._want(ctx, address.mission_id, ResourceUpdated(params.uri))
        return EmptyResult()

    async def unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """2025: ends a subscription; one that does not exist is fine."""
        subscriber = self._subscribers.get(connection_of(ctx))
        event = ResourceUpdated(params.uri)
        if subscriber is not None and event in subscriber.wanted:
            self._watches.release(subscriber.wanted.pop(event), event)
        return EmptyResult()

    def with_list_changes(self, handler: ListResources) -> ListResources:
        """The handler of `resources/list`; a 2025-era connection that used it is notified when the list changes.

        In 2025 `listChanged` needs no subscription; watching begins with the first list that a client has seen.
        """

        async def listing(ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
            if not is_modern(ctx.protocol_version):
                with mcp_errors():
                    await self._want(ctx, None, LIST_CHANGED)
            return await handler(ctx, params)

        return listing

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """2026-07-28: one stream of what was asked for, until the client leaves it."""
        wanted = params.notifications
        with ExitStack() as held:
            with mcp_errors():
                targets = await self._targets(wanted.resource_subscriptions or (), caller_of(ctx))
                if wanted.resources_list_changed:
                    targets[LIST_CHANGED] = None
                for event, stream in targets.items():
                    await self._watches.hold(stream, event)
                    held.callback(self._watches.release, stream, event)
            return await self._streams(ctx, params)

    async def _targets(self, uris: Iterable[str], caller: Caller) -> dict[ServerEvent, str | None]:
        """The missions behind these URIs, or every fault in them."""
        targets: dict[ServerEvent, str | None] = {}
        faults: list[Fault] = []
        for place, uri in enumerate(uris):
            if place == self._settings.most_uris:
                raise self._too_many()
            try:
                address, _ = await find(self._service, uri, caller)
                targets[ResourceUpdated(uri)] = address.mission_id
            except (InvalidArgument, SessionNotFound) as error:
                faults.append(Fault(field=f"resourceSubscriptions[{place}]", reason=error.message))
        if faults:
            raise ValidationFailed(faults, "not every resource can be listened to; nothing was subscribed")
        return targets

    async def _want(self, ctx: Context, stream: str | None, event: ServerEvent) -> None:
        subscriber = self._subscriber(ctx)
        if event in subscriber.wanted:
            return
        if len(subscriber.wanted) >= self._settings.most_uris:
            raise self._too_many()
        subscriber.wanted[event] = stream
        try:
            await self._watches.hold(stream, event)
        except BaseException:
            subscriber.wanted.pop(event, None)
            raise

    def _subscriber(self, ctx: Context) -> _Subscriber:
        """The subscriptions of this connection, which end with it."""
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
        for event, stream in subscriber.wanted.items():
            self._watches.release(stream, event)

    def _too_many(self) -> PursuitError:
        most = self._settings.most_uris
        return InvalidArgument(f"one connection can follow {most} resources at most; unsubscribe from some")
