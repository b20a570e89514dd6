"""The list of a requestor's tasks, page by page.

Owns: the cursor. Knows no generation. Invariant: a cursor is sealed and holds for the requestor that it was given to;
anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pursuit.core.tasks import TaskState
from pursuit.errors import InvalidArgument, TaskNotFound
from pursuit.surfaces.mcp.seal import Seal
from pursuit.tasks.host import TaskHost

PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A page, newest first."""

    tasks: Sequence[TaskState]
    cursor: str | None = None


class Listing:
    """Lists tasks; the seal is opened when it is first needed."""

    def __init__(self, host: TaskHost, seal: Callable[[], Seal]) -> None:
        self._host = host
        self._seal = seal

    async def page(self, requestor: str, cursor: object) -> Listed:
        """One page. Raises `InvalidArgument` for a cursor that we did not give to this requestor."""
        page = await self._host.shelf.list(requestor=requestor, cursor=self._opened(requestor, cursor), limit=PAGE)
        tasks: list[TaskState] = []
        for row in page.rows:
            try:
                tasks.append(await self._host.store.get(row.name, requestor=requestor))
            except TaskNotFound:  # removed at this moment
                continue
        following = None if page.next_cursor is None else self._closed(requestor, page.next_cursor)
        return Listed(tasks=tasks, cursor=following)

    def _closed(self, requestor: str, cursor: str) -> str:
        return self._seal().closed({"tasks_of": requestor, "after": cursor})

    def _opened(self, requestor: str, cursor: object) -> str | None:
        if cursor is None:
            return None
        said = self._seal().opened(cursor)
        if said is None or said.get("tasks_of") != requestor or not isinstance(said.get("after"), str):
            raise InvalidArgument("this cursor is of no list of tasks of yours; begin without one")
        return said["after"]
