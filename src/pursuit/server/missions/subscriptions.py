"""Who hears that a mission moved on, in both eras of the protocol.

Owns: the subscriptions of 2025-era connections and the listen streams of 2026-07-28. What there is to hear comes from
`watches`. Invariant: nothing is watched that nobody listens to, a connection that is gone is forgotten with all its
subscriptions, and one that reads slowly holds up nobody else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import ExitStack
from typing import Any, Self

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
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.core.state import STATUSES, TERMINAL
from pursuit.errors import Fault, InvalidArgument, LedgerUnavailable, PursuitError, SessionNotFound, ValidationFailed
from pursuit.ledger.contract import Bell, Ledger
from pursuit.server.errors import Context, about, on_the_wire
from pursuit.server.missions.resources import find
from pursuit.service import Service

# Who is to be told of what, and the tasks that notice it.
# Invariant: a stream is watched from its first holder to its last, from the moment `hold` begins, and a change is
# told at most once each `SPACING`, the last one always.

SPACING = 0.1
RETRY = 1.0
_OPEN = tuple(status for status in STATUSES if status not in TERMINAL)
_PAGE = 1_000

logger = logging.getLogger(__name__)

Look = tuple[str | None, frozenset[str]]
"""The newest mission, and those that have not ended: if neither changes, nothing has begun or ended."""


class _Watch:
    """A stream (None: all of them), its bell, and what its holders want to be told."""

    def __init__(self, stream: str | None, bell: Bell, hung: ExitStack) -> None:
        self.stream = stream
        self.bell = bell
        self.hung = hung
        self.holders: Counter[ServerEvent] = Counter()
        self.scope = anyio.CancelScope()
        self.known: Look | None = None


class Watches:
    """Everything that is watched in one process; its tasks live in the group that it is given."""

    def __init__(self, ledger: Ledger, bus: SubscriptionBus, tasks: anyio.abc.TaskGroup) -> None:
        self._ledger = ledger
        self._bus = bus
        self._tasks = tasks
        self._watches: dict[str | None, _Watch] = {}

    @property
    def watched(self) -> frozenset[str | None]:
        """The missions that are watched now; None among them is the list."""
        return frozenset(self._watches)

    async def hold(self, stream: str | None, event: ServerEvent) -> None:
        """From here on `event` is published whenever the stream grows (None: when a mission began or ended)."""
        watch = self._watches.get(stream) or self._begin(stream)
        watch.holders[event] += 1
        if stream is not None:
            return
        try:
            look = await self._look()
        except BaseException:
            self.release(stream, event)
            raise
        # Whoever looked first counts: what changed since then is told to everybody.
        watch.known = watch.known or look

    def release(self, stream: str | None, event: ServerEvent) -> None:
        """One holder less; with the last one the watching ends."""
        watch = self._watches[stream]
        watch.holders[event] -= 1
        watch.holders += Counter()  # drops what nobody holds
        if not watch.holders:
            self._end(watch)

    def run(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task of somebody who is told; it ends with the group at the latest."""
        self._tasks.start_soon(task)

    def close(self) -> None:
        """Ends all watching."""
        for watch in list(self._watches.values()):
            self._end(watch)

    def _begin(self, stream: str | None) -> _Watch:
        hung = ExitStack()
        watch = _Watch(stream, hung.enter_context(self._ledger.bell(stream)), hung)
        self._watches[stream] = watch
        self._tasks.start_soon(self._follow, watch)
        return watch

    def _end(self, watch: _Watch) -> None:
        del self._watches[watch.stream]
        watch.scope.cancel()
        watch.hung.close()

    async def _follow(self, watch: _Watch) -> None:
        heard = False
        with watch.scope:
            while True:
                try:
                    if not heard:
                        await watch.bell.wait()
                        heard = True
                    changed = watch.stream is not None or await self._list_changed(watch)
                except LedgerUnavailable as error:
                    logger.warning("updates of missions are late: %s", error.message)
                    await anyio.sleep(RETRY)
                    continue
                heard = False
                for event in tuple(watch.holders) if changed else ():
                    await self._bus.publish(event)
                # What rings meanwhile is heard by the next wait, so the last change is always told.
                await anyio.sleep(SPACING)

    async def _list_changed(self, watch: _Watch) -> bool:
        look = await self._look()
        before, watch.known = watch.known, look
        return before is not None and before != look

    async def _look(self) -> Look:
        newest = (await self._ledger.streams(kind="mission", status=STATUSES, limit=1)).rows
        names: set[str] = set()
        cursor: str | None = None
        while True:
            page = await self._ledger.streams(kind="mission", status=_OPEN, cursor=cursor, limit=_PAGE)
            names.update(row.name for row in page.rows)
            cursor = page.next_cursor
            if cursor is None:
                return (newest[0].name if newest else None), frozenset(names)


MOST_URIS = 1_000
"""How many resources one connection, or one listen stream, may follow."""

LIST_CHANGED = ResourcesListChanged()
ListResources = Callable[[Context, PaginatedRequestParams | None], Awaitable[ListResourcesResult]]


class _Subscriber:
    """A 2025-era connection: what it wants to hear of, and what it has not been told yet."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.wanted: dict[ServerEvent, str | None] = {}
        self.scope = anyio.CancelScope()
        self._untold: dict[ServerEvent, None] = {}
        self._stirred = anyio.Event()

    def hear(self, event: ServerEvent) -> None:
        """Remembers what to tell, once, however slowly the connection takes it."""
        if event in self.wanted:
            self._untold[event] = None
            self._stirred.set()

    async def tell(self) -> None:
        """Tells the connection, for as long as it is there."""
        with self.scope:
            while True:
                await self._stirred.wait()
                self._stirred = anyio.Event()
                while self._untold:
                    event = next(iter(self._untold))
                    del self._untold[event]
                    if isinstance(event, ResourceUpdated):
                        await self.session.send_resource_updated(event.uri)
                    else:
                        await self.session.send_resource_list_changed()


class Updates:
    """An async context manager; it is entered before, and left after, the server that has its handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._subscribers: dict[Connection, _Subscriber] = {}
        self._open: Watches | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._open = Watches(self._service.ledger, self._bus, self._tasks)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._streams.close()
        self._watches.close()
        self._open = None
        self._tasks.cancel_scope.cancel()
        # Left without the caller's exception, which would come out wrapped in a group.
        await self._tasks.__aexit__(None, None, None)

    @property
    def watched(self) -> frozenset[str | None]:
        """The missions that somebody listens to now; None among them is the list of missions."""
        return self._open.watched if self._open is not None else frozenset()

    @property
    def connections(self) -> int:
        """How many 2025-era connections are to be told something."""
        return len(self._subscribers)

    async def subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        """2025: this connection is told when the resource changes."""
        with about(ctx, params.uri):
            address, _ = await find(self._service, params.uri)
        with on_the_wire():
            await self._want(ctx, address.mission_id, ResourceUpdated(params.uri))
        return EmptyResult()

    async def unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """2025: no longer; what was never subscribed to, or is gone, is fine."""
        subscriber = self._subscribers.get(_connection(ctx))
        event = ResourceUpdated(params.uri)
        if subscriber is not None and event in subscriber.wanted:
            self._watches.release(subscriber.wanted.pop(event), event)
        return EmptyResult()

    def with_list_changes(self, handler: ListResources) -> ListResources:
        """The handler of `resources/list`; 2025-era connections that used it are told when the list changes.

        For servers that declare `listChanged` of resources.
        """

        async def listing(ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                with on_the_wire():
                    await self._want(ctx, None, LIST_CHANGED)
            return await handler(ctx, params)

        return listing

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """2026-07-28: one stream of what was asked for, until the client leaves it."""
        wanted = params.notifications
        with ExitStack() as held:
            with on_the_wire():
                targets = await self._targets(wanted.resource_subscriptions or ())
                if wanted.resources_list_changed:
                    targets[LIST_CHANGED] = None
                for event, stream in targets.items():
                    await self._watches.hold(stream, event)
                    held.callback(self._let_go, stream, event)
            return await self._streams(ctx, params)

    @property
    def _watches(self) -> Watches:
        if self._open is None:
            raise RuntimeError("Updates is used outside of its `async with`")
        return self._open

    async def _targets(self, uris: Iterable[str]) -> dict[ServerEvent, str | None]:
        """The missions behind these URIs, or every fault in them."""
        targets: dict[ServerEvent, str | None] = {}
        faults: list[Fault] = []
        for place, uri in enumerate(uris):
            if place == MOST_URIS:
                raise _too_many()
            try:
                address, _ = await find(self._service, uri)
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
        if len(subscriber.wanted) >= MOST_URIS:
            raise _too_many()
        subscriber.wanted[event] = stream
        try:
            await self._watches.hold(stream, event)
        except BaseException:
            subscriber.wanted.pop(event, None)
            raise

    def _subscriber(self, ctx: Context) -> _Subscriber:
        """What is known of this connection; with its end all of it goes."""
        connection = _connection(ctx)
        found = self._subscribers.get(connection)
        if found is None:
            found = self._subscribers[connection] = _Subscriber(ctx.session)
            unsubscribe = self._bus.subscribe(found.hear)
            connection.exit_stack.callback(self._forget, connection, unsubscribe)
            self._watches.run(found.tell)
        return found

    def _forget(self, connection: Connection, unsubscribe: Callable[[], None]) -> None:
        subscriber = self._subscribers.pop(connection)
        unsubscribe()
        subscriber.scope.cancel()
        for event, stream in subscriber.wanted.items():
            self._let_go(stream, event)

    def _let_go(self, stream: str | None, event: ServerEvent) -> None:
        # A connection may outlive us by a moment; then nothing is watched any more.
        if self._open is not None:
            self._open.release(stream, event)


def _too_many() -> PursuitError:
    return InvalidArgument(f"one connection can follow {MOST_URIS} resources at most; unsubscribe from some")


def _connection(ctx: Context) -> Connection:
    # A handler is given no other way to the connection: what ends with it, and by what to know it again.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]
