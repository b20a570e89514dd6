"""The operator's limits on tasks, and the count of running ones."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from pursuit.errors import Fault, TooManyTasks, ValidationFailed, advice
from pursuit.ledger.contract import Ledger, every_stream

DAY = 86_400.0
RUNNING = ("working", "input_required")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The operator's settings: concurrent tasks, their maximum time to live, and the number of ended tasks to keep."""

    concurrent: int = 2_000
    concurrent_each: int = 1_000
    longest: float = 30 * DAY
    kept_seconds: float = 7 * DAY
    kept: int = 500
    count_every: float = 1.0
    """Seconds after which the running tasks of other processes are counted again."""
    of_requestor: Callable[[str], int | None] = lambda _: None
    """A limit of `[limits]` for one requestor."""

    def time_to_live(self, asked: float | None) -> float | None:
        """The effective time to live for a requested one, in seconds. Raises `ValidationFailed`."""
        if asked is None:
            return None
        if not math.isfinite(asked) or asked <= 0:
            raise ValidationFailed([Fault(field="ttl", reason="must be a positive number; omit it for no limit")])
        return min(asked, self.longest)


class RunningTasks:
    """Counts running tasks; the count of other processes' tasks is at most a second old.

    A place is taken before the task is stored, in the same step as the count: concurrent requests over the limit are
    refused.
    """

    def __init__(self, ledger: Ledger, kind: str) -> None:
        self._ledger = ledger
        self._kind = kind
        self._requestors: dict[str, str] = {}
        self._looked = -math.inf
        self._looking = anyio.Lock()
        self._storing: set[str] = set()
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    @asynccontextmanager
    async def place(self, task_id: str, requestor: str, limits: TaskLimits) -> AsyncGenerator[None]:
        """Takes a place while a task is stored; a stored task keeps it. Raises `TooManyTasks`."""
        async with self._looking:
            if time.monotonic() - self._looked > limits.count_every:
                await self._look()
        # No await from here until the place is taken, or two tasks would pass the same count.
        if task_id in self._requestors:  # it is already stored and has its place
            yield
            return
        self._refuse(requestor, limits)
        self._requestors[task_id] = requestor
        self._storing.add(task_id)
        try:
            yield
            self._begun.add(task_id)
        except BaseException:
            self._requestors.pop(task_id, None)
            raise
        finally:
            self._storing.discard(task_id)

    def ended(self, task_id: str) -> None:
        self._requestors.pop(task_id, None)
        if self._looking.locked():
            self._ended.add(task_id)

    def _refuse(self, requestor: str, limits: TaskLimits) -> None:
        if len(self._requestors) >= limits.concurrent:
            raise TooManyTasks(
                f"{limits.concurrent} tasks are running, which is the limit; wait for one to end, cancel one, "
                f"or raise the limit: {advice('`tasks_at_once = {}` in `[settings]`', 2 * limits.concurrent)}",
                limit=limits.concurrent,
            )
        mine, most = sum(1 for owner in self._requestors.values() if owner == requestor), limits.of_requestor(requestor)
        if most is not None and mine >= most:
            raise TooManyTasks(
                f"{mine} of your tasks are running, and [limits] tasks_at_once = {most}; try again when one ends or is "
                "cancelled",
                limit=most,
            )
        if mine >= limits.concurrent_each:
            raise TooManyTasks(
                f"{requestor} has {mine} tasks running, which is the limit for one requestor; wait for one to end, "
                "cancel one, or raise the limit: "
                + advice("`tasks_each = {}` in `[settings]`", 2 * limits.concurrent_each),
                limit=limits.concurrent_each,
            )

    async def _look(self) -> None:
        """Counts again. Tasks that begin or end here during the count may be missing on the pages, or outdated."""
        self._begun, self._ended = set(), set()
        rows = every_stream(self._ledger, kind=self._kind, status=RUNNING)
        found = {row.name: str(row.summary.get("requestor")) async for row in rows}
        ours = {name: self._requestors[name] for name in self._storing | self._begun if name in self._requestors}
        counted = {**found, **ours}
        self._requestors = {name: requestor for name, requestor in counted.items() if name not in self._ended}
        self._looked = time.monotonic()
