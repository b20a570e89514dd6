"""Tasks by the dozen: listed newest first, and cleared away when their time is over.

Owns: listing, expiry and pruning. Knows no work. Invariant: a running task is never removed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from pursuit.ledger.contract import StreamRow
from pursuit.model.tasks import TASK_ENDS, TaskStatus
from pursuit.tasks.limits import RUNNING
from pursuit.tasks.store import KIND, Ending, TaskStore

PAGE = 100
TIDY_EVERY = 30.0


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Rows of the listing, newest first; `next_cursor` is None on the last page."""

    rows: tuple[StreamRow, ...]
    next_cursor: str | None = None


class Shelf:
    """The tasks of a store, seen together."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._tidied = -math.inf
        self.removed: Callable[[str], Awaitable[None]] | None = None
        """Told of each task that was removed, to clear away what else there is of it."""

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
        await self.expire()
        await self.prune()

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
            expired = self._store.now() >= row.summary.get("expires_at", math.inf)
            count += 1
            if count > most or ended < oldest or expired:
                await self._store.forget(row.name)
                if self.removed is not None:
                    await self.removed(row.name)
                removed.append(row.name)
        return removed

    async def _out_of_time(self, row: StreamRow) -> None:
        why = "its time to live ended before the work did"
        await self._store.order_cancel(row.name, by="its time to live", settle=False)
        await self._store.settle(row.name, Ending(status="failed", message=why, error={"code": -32603, "message": why}))

    async def _rows(self, status: tuple[str, ...]) -> AsyncGenerator[StreamRow]:
        cursor: str | None = None
        while True:
            page = await self._store.ledger.streams(kind=KIND, status=status, cursor=cursor, limit=PAGE)
            for row in page.rows:
                yield row
            cursor = page.next_cursor
            if cursor is None:
                return
