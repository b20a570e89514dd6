"""How many tasks there may be, and for how long.

Owns: the limits that the operator sets, and the count of running tasks. Knows no work.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pursuit.errors import Fault, TooManyTasks, ValidationFailed
from pursuit.ledger.contract import Ledger

DAY = 86_400.0
FRESH = 1.0
RUNNING = ("working", "input_required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the operator: tasks at once, seconds that one may be kept, and how many ended ones stay."""

    concurrent: int = 2_000
    concurrent_each: int = 1_000
    longest: float = 30 * DAY
    kept_seconds: float = 7 * DAY
    kept: int = 500

    def time_to_live(self, asked: float | None) -> float | None:
        """The time to live in force for one that was asked for, in seconds. Raises `ValidationFailed`."""
        if asked is None:
            return None
        if not math.isfinite(asked) or asked <= 0:
            raise ValidationFailed([Fault(field="ttl", reason="must be a positive number, or left out for no limit")])
        return min(asked, self.longest)


class Running:
    """Counts running tasks, those of other processes as they were at most a second ago."""

    def __init__(self, ledger: Ledger, kind: str) -> None:
        self._ledger = ledger
        self._kind = kind
        self._requestors: dict[str, str] = {}
        self._looked = -math.inf

    async def admit(self, requestor: str, limits: Limits) -> None:
        """Refuses one more task than there may be."""
        if time.monotonic() - self._looked > FRESH:
            await self._look()
        if len(self._requestors) >= limits.concurrent:
            raise TooManyTasks(
                f"{limits.concurrent} tasks are running, which is the limit; wait for one to end, cancel one, "
                "or raise [settings] tasks_at_once",
                limit=limits.concurrent,
            )
        mine = sum(1 for owner in self._requestors.values() if owner == requestor)
        if mine >= limits.concurrent_each:
            raise TooManyTasks(
                f"{requestor} has {mine} tasks running, which is the limit for one requestor; wait for one to end, "
                "cancel one, or raise [settings] tasks_each",
                limit=limits.concurrent_each,
            )

    def began(self, task_id: str, requestor: str) -> None:
        """Counts a task of this process at once."""
        self._requestors[task_id] = requestor

    def ended(self, task_id: str) -> None:
        """Counts it no more."""
        self._requestors.pop(task_id, None)

    async def _look(self) -> None:
        found: dict[str, str] = {}
        cursor: str | None = None
        while True:
            page = await self._ledger.streams(kind=self._kind, status=RUNNING, cursor=cursor, limit=1_000)
            found.update({row.name: str(row.summary.get("requestor")) for row in page.rows})
            cursor = page.next_cursor
            if cursor is None:
                break
        self._requestors, self._looked = found, time.monotonic()
