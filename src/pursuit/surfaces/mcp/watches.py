"""Who is to be told of what, and the tasks that notice it.

Owns: one task for each mission that somebody wants to hear of, and one for the list of missions. Does not know who
listens: what it notices goes onto a bus. Invariant: a stream is watched from its first holder to its last, from the
moment `hold` begins, and a change is told at most once each `SPACING`, the last one always.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.abc
from mcp.server.subscriptions import ServerEvent, SubscriptionBus

from pursuit.core.state import STATUSES, TERMINAL
from pursuit.errors import LedgerUnavailable
from pursuit.ledger.contract import Bell, Ledger

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
