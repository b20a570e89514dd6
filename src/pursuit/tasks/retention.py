"""Tasks by the dozen: listed newest first, and cleared away when their time is over.

Owns: listing, expiry and pruning. Knows no work. Invariant: a running task is never removed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from pursuit.core.tasks import TASK_ENDS, TaskKind, TaskState, TaskStatus
from pursuit.errors import TaskNotFound
from pursuit.ledger.contract import StreamRow
from pursuit.tasks.execution import TIME_TO_LIVE, out_of_time
from pursuit.tasks.limits import RUNNING
from pursuit.tasks.store import KIND, TaskStore

PAGE = 100
TIDY_EVERY = 30.0
LEAST_KEPT = 60.0
"""Seconds that an ended task is there in any case of its time to live: whoever polls is to see how it ended."""

Cleared = Callable[[str], Awaitable[bool]]
Needed = Callable[[TaskState], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Rows of the listing, newest first; `next_cursor` is None on the last page."""

    rows: tuple[StreamRow, ...]
    next_cursor: str | None = None


class Retention:
    """The tasks of a store, seen together."""

    def __init__(self, store: TaskStore, *, winding: frozenset[TaskKind] = frozenset({"process"})) -> None:
        """`winding` are the kinds whose owner settles them when they have stopped."""
        self._store = store
        self._winding = winding
        self._tidied = -math.inf
        self.clear: Cleared | None = None
        """Clears away what else there is of a task; False if it must stay for now, and the task with it."""
        self.needed: Needed | None = None
        """Whether somebody still waits for what an ended task came to."""

    async def list(
        self,
        *,
        requestor: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> TaskPage:
        """A page of about `limit` tasks, of one requestor if one is named. A bogus cursor is `InvalidArgument`."""
        wanted = (status,) if status is not None else (*RUNNING, *TASK_ENDS)
        rows: list[StreamRow] = []
        while True:
            page = await self._store.ledger.streams(kind=KIND, status=wanted, cursor=cursor, limit=limit)
            rows.extend(row for row in page.rows if requestor in (None, row.summary.get("requestor")))
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return TaskPage(tuple(rows), cursor)

    async def running(self) -> AsyncGenerator[StreamRow]:
        """Every task that has not ended."""
        async for row in self._rows(RUNNING):
            yield row

    async def tidy(self, *, now: bool = False) -> None:
        """Ends tasks whose time to live is over, and removes ended ones that were kept long enough."""
        moment = self._store.now()
        if not now and 0 <= moment - self._tidied < TIDY_EVERY:
            return
        self._tidied = moment
        await self.prune()
        await self.expire()  # what ends by this is to be seen before it goes

    async def expire(self) -> None:
        """Ends tasks whose time to live is over."""
        moment = self._store.now()
        async for row in self._rows(RUNNING):
            if moment >= row.summary.get("expires_at", math.inf):
                await self._out_of_time(row)

    async def prune(self, *, keep: int | None = None, older_than: float | None = None) -> list[str]:
        """Removes ended tasks: those over their time to live, those too old, and the oldest of too many."""
        limits = self._store.limits
        most = limits.kept if keep is None else keep
        oldest = self._store.now() - (limits.kept_seconds if older_than is None else older_than)
        removed: list[str] = []
        count = 0
        async for row in self._rows(TASK_ENDS):
            ended = row.summary.get("ended_at", row.updated_at)
            expired = self._store.now() >= max(row.summary.get("expires_at", math.inf), ended + LEAST_KEPT)
            count += 1
            if (count > most or ended < oldest or expired) and await self._remove(row.name, ended):
                removed.append(row.name)
        return removed

    async def _remove(self, task_id: str, ended: float) -> bool:
        """Removes one unless it is needed, which nobody can for longer than a task may live; whether it is gone."""
        try:
            state = await self._store.get(task_id)
        except TaskNotFound:
            return False  # another process was faster
        waited_for = self._store.now() - ended < self._store.limits.longest
        if not state.terminal or (waited_for and self.needed is not None and await self.needed(state)):
            return False
        if self.clear is not None and not await self.clear(task_id) and waited_for:
            return False
        await self._store.forget(task_id)
        return True

    async def _out_of_time(self, row: StreamRow) -> None:
        """Ends one, but for work that somebody sees to its end: that has not ended before it has stopped."""
        winds_down = row.summary.get("task_kind") in self._winding and row.summary.get("owner") is not None
        try:
            await self._store.order_cancel(row.name, by=TIME_TO_LIVE, settle=not winds_down, ending=out_of_time())
        except TaskNotFound:
            return

    async def _rows(self, status: tuple[str, ...]) -> AsyncGenerator[StreamRow]:
        cursor: str | None = None
        while True:
            page = await self._store.ledger.streams(kind=KIND, status=status, cursor=cursor, limit=PAGE)
            for row in page.rows:
                yield row
            cursor = page.next_cursor
            if cursor is None:
                return
