"""A ledger that shows one mission, with its children and the tasks of its calls.

All code reads missions through a ledger, so code behind this ledger cannot see another mission.
Invariant: a stream of another mission looks as if it did not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from pursuit.core.tasks import TaskCreated, decode_task
from pursuit.engine.journal import unknown_mission
from pursuit.errors import InvalidArgument
from pursuit.ledger.contract import FORGOTTEN, FoundStream, Ledger, StoredEvent, StreamFilter, StreamPage, StreamRow

MISSION, TASK = "mission", "task"


class ScopedLedger:
    """A ledger that shows one mission and hides the others; appends are stored as by any ledger."""

    def __init__(self, ledger: Ledger, mission_id: str) -> None:
        self._ledger = ledger
        self._mission_id = mission_id
        self._known: dict[str, bool] = {mission_id: True}
        """Caches whether a stream is ours, which never changes."""
        # These need no check: an append follows a read, the digest of a blob is in an event that was read, a wakeup may
        # be spurious, and the root reveals nothing about the content of the ledger.
        self.append, self.blob, self.wakeup = ledger.append, ledger.blob, ledger.wakeup
        self.claim, self.is_claimed, self.holder = ledger.claim, ledger.is_claimed, ledger.holder
        self.root, self.verify, self.close = ledger.root, ledger.verify, ledger.close
        self.seal, self.stored = ledger.seal, ledger.stored

    async def require(self) -> None:
        """Raises `SessionNotFound` unless the mission exists, `InvalidArgument` if its parent drives it."""
        row = await self._ledger.row(self._mission_id)
        if row is None or row.status == FORGOTTEN or row.kind != MISSION:
            raise unknown_mission(self._mission_id)
        parent = row.summary.get("parent")
        if parent is not None:
            text = f"{self._mission_id} is a child of {parent}, which drives it; name the parent"
            raise InvalidArgument(text, session_id=self._mission_id, parent=parent)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        return await self._ledger.read(stream, after, limit) if await self._is_ours(stream) else []

    async def row(self, stream: str) -> StreamRow | None:
        return await self._ledger.row(stream) if await self._is_ours(stream) else None

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """The streams that are ours; the cursor is None unless the next page has streams."""
        first = await self._ledger.row(self._mission_id)
        wanted["since"] = max(wanted.get("since") or 0.0, 0.0 if first is None else first.created_at)
        found: tuple[StreamRow, ...] = ()
        behind: str | None = None
        while True:
            page = await self._ledger.streams(**wanted)
            rows = tuple([row for row in page.rows if await self._is_ours(row.name, row)])
            if found and rows:
                return StreamPage(found, behind)
            if rows:
                found, behind = rows, page.next_cursor
            if page.next_cursor is None:
                return StreamPage(found)
            wanted["cursor"] = page.next_cursor

    async def search(self, words: str, *, kind: str | None = None, limit: int = 10) -> list[FoundStream]:
        """Finds nothing: lessons come from other missions."""
        return []

    async def watch(self, stream: str, after: int = 0) -> AsyncIterator[StoredEvent]:
        if await self._is_ours(stream):
            async for stored in self._ledger.watch(stream, after):
                yield stored

    async def digests(self, stream: str) -> list[str]:
        return await self._ledger.digests(stream) if await self._is_ours(stream) else []

    async def forget(self, stream: str) -> None:
        if await self._is_ours(stream):
            await self._ledger.forget(stream)

    async def _is_ours(self, stream: str, row: StreamRow | None = None) -> bool:
        known = self._known.get(stream)
        if known is not None:
            return known
        row = row or await self._ledger.row(stream)
        if row is None or row.status == FORGOTTEN:
            return False  # the stream may be created later
        match row.kind:
            case "mission":
                parent = row.summary.get("parent")
                ours = parent is not None and await self._is_ours(parent)
            case "task":
                ours = await self._is_of_ours(stream)
            case _:
                ours = False
        self._known[stream] = ours
        return ours

    async def _is_of_ours(self, task_id: str) -> bool:
        """True if a task is a call or a run of this mission."""
        begun = await self._ledger.read(task_id, 0, 1)
        created = decode_task(begun[0].body) if begun else None
        if not isinstance(created, TaskCreated):
            return False
        origin = created.origin
        whose = origin.get("session_id") or str(origin.get("call_id", "")).partition(":")[0]
        return isinstance(whose, str) and whose.startswith(f"{MISSION}-") and await self._is_ours(whose)
