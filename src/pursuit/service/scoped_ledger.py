"""A ledger that shows one mission, with its children and the tasks of its calls.

Everything reads missions through a ledger, so nothing behind this one sees another mission.
Invariant: a stream of another mission is as unknown as one that never was.
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
    """A ledger that shows one mission and hides the others; what is appended, it stores like any other."""

    def __init__(self, ledger: Ledger, mission_id: str) -> None:
        self._ledger = ledger
        self._mission_id = mission_id
        self._known: dict[str, bool] = {mission_id: True}
        """Whether a stream is ours; that never changes."""
        # What needs no check: an append follows a read, the digest of a blob stands in an event that was read, a bell
        # may ring without cause, and the root tells nothing of what is in the ledger.
        self.append, self.blob, self.bell = ledger.append, ledger.blob, ledger.bell
        self.claim, self.is_claimed, self.holder = ledger.claim, ledger.is_claimed, ledger.holder
        self.root, self.verify, self.close = ledger.root, ledger.verify, ledger.close

    async def require(self) -> None:
        """Raises `SessionNotFound` unless the mission is there, `InvalidArgument` if it is driven with another one."""
        row = await self._ledger.row(self._mission_id)
        if row is None or row.status == FORGOTTEN or row.kind != MISSION:
            raise unknown_mission(self._mission_id)
        parent = row.summary.get("parent")
        if parent is not None:
            text = f"{self._mission_id} is a child of {parent}, which drives it; name that one"
            raise InvalidArgument(text, session_id=self._mission_id, parent=parent)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """The events of a stream that is ours; others are empty."""
        return await self._ledger.read(stream, after, limit) if await self._is_ours(stream) else []

    async def row(self, stream: str) -> StreamRow | None:
        """What the listing says of a stream that is ours, or None."""
        return await self._ledger.row(stream) if await self._is_ours(stream) else None

    async def streams(self, **wanted: Unpack[StreamFilter]) -> StreamPage:
        """The streams that are ours; there is a next page only if there is something on it."""
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
        """Nothing: what is found by its words was learned by other missions."""
        return []

    async def watch(self, stream: str, after: int = 0) -> AsyncIterator[StoredEvent]:
        """Every event of a stream that is ours; of others there is none."""
        if await self._is_ours(stream):
            async for stored in self._ledger.watch(stream, after):
                yield stored

    async def digests(self, stream: str) -> list[str]:
        """The digests of a stream that is ours."""
        return await self._ledger.digests(stream) if await self._is_ours(stream) else []

    async def forget(self, stream: str) -> None:
        """Forgets a stream that is ours."""
        if await self._is_ours(stream):
            await self._ledger.forget(stream)

    async def _is_ours(self, stream: str, row: StreamRow | None = None) -> bool:
        known = self._known.get(stream)
        if known is not None:
            return known
        row = row or await self._ledger.row(stream)
        if row is None or row.status == FORGOTTEN:
            return False  # it may come to be
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
        """Whether a task is a call of ours, or a run."""
        begun = await self._ledger.read(task_id, 0, 1)
        created = decode_task(begun[0].body) if begun else None
        if not isinstance(created, TaskCreated):
            return False
        origin = created.origin
        whose = origin.get("session_id") or str(origin.get("call_id", "")).partition(":")[0]
        return isinstance(whose, str) and whose.startswith(f"{MISSION}-") and await self._is_ours(whose)
