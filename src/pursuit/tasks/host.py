"""Runs tasks in this process, adopts those that a dead process left, and removes old ones.

Each kind of task brings its own way to resume. Invariant: a task whose id was given out is in the ledger and ends
there, also if this process dies; a running task is never removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from pursuit.core.tasks import TASK_ENDS, TaskKind, TaskState, TaskStatus
from pursuit.errors import PursuitError, TaskNotFound
from pursuit.ledger.contract import StreamPage, StreamRow, every_stream
from pursuit.tasks.execution import OUT_OF_TIME, TIME_TO_LIVE, Owner, TaskContext, is_alive, log_fields, stopped_by
from pursuit.tasks.limits import RUNNING
from pursuit.tasks.store import KIND, Ending, TaskRecords

PAGE = 100
TIDY_EVERY = 30.0
LEAST_KEPT = 60.0
"""Seconds that an ended task stays after its time to live, so that a polling client sees how it ended."""


class Retention:
    """Lists the tasks of a store, and removes them when their time is over."""

    def __init__(self, store: TaskRecords, *, winding: frozenset[TaskKind] = frozenset({"process"})) -> None:
        """`winding` are the kinds whose owner settles them when they have stopped."""
        self._store = store
        self._winding = winding
        self._tidied = -math.inf
        self.clear: Callable[[str], Awaitable[bool]] | None = None
        """Clears away what else there is of a task; False if it must stay for now, and the task with it."""
        self.needed: Callable[[TaskState], Awaitable[bool]] | None = None
        """Whether a mission still waits for the result of an ended task."""

    async def list(
        self,
        *,
        requestor: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> StreamPage:
        """A page of about `limit` tasks, of one requestor if one is named. A bogus cursor is `InvalidArgument`."""
        wanted = (status,) if status is not None else (*RUNNING, *TASK_ENDS)
        rows: list[StreamRow] = []
        while True:
            page = await self._store.ledger.streams(kind=KIND, status=wanted, cursor=cursor, limit=limit)
            rows.extend(row for row in page.rows if requestor in (None, row.summary.get("requestor")))
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return StreamPage(tuple(rows), cursor)

    def running(self) -> AsyncGenerator[StreamRow]:
        """Every task that has not ended."""
        return every_stream(self._store.ledger, kind=KIND, status=RUNNING)

    async def tidy(self, *, now: bool = False) -> None:
        """Ends tasks whose time to live is over, and removes ended ones that were kept long enough."""
        moment = self._store.now()
        if not now and 0 <= moment - self._tidied < TIDY_EVERY:
            return
        self._tidied = moment
        await self.prune()
        await self.expire()  # after `prune`: what expires now must be seen before it goes

    async def expire(self) -> None:
        """Ends tasks whose time to live is over."""
        moment = self._store.now()
        async for row in self.running():
            if moment >= row.summary.get("expires_at", math.inf):
                await self._out_of_time(row)

    async def prune(self, *, keep: int | None = None, older_than: float | None = None) -> list[str]:
        """Removes ended tasks: those over their time to live, those too old, and the oldest of too many."""
        limits = self._store.limits
        most = limits.kept if keep is None else keep
        oldest = self._store.now() - (limits.kept_seconds if older_than is None else older_than)
        removed: list[str] = []
        count = 0
        async for row in every_stream(self._store.ledger, kind=KIND, status=TASK_ENDS):
            ended = row.summary.get("ended_at", row.updated_at)
            expired = self._store.now() >= max(row.summary.get("expires_at", math.inf), ended + LEAST_KEPT)
            count += 1
            if (count > most or ended < oldest or expired) and await self._remove(row.name, ended):
                removed.append(row.name)
        return removed

    async def _remove(self, task_id: str, ended: float) -> bool:
        """Removes one unless it is needed, for at most as long as a task may live; whether it is gone."""
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
        """Ends one. Work that winds down and has an owner is only ordered to stop; its owner settles it."""
        winds_down = row.summary.get("task_kind") in self._winding and row.summary.get("owner") is not None
        try:
            await self._store.order_cancel(
                row.name, by=TIME_TO_LIVE, settle=not winds_down, ending=Ending.failure(OUT_OF_TIME)
            )
        except TaskNotFound:
            return


LOOK_EVERY = 1.0
SHARED_LOOK_EVERY = 10.0
"""The same on a database, which other processes need, too."""
MACHINE = "machine"
"""Where the origin of a task that stays on its machine keeps the machine's name."""
MACHINE_WAIT = 3_600.0

Work = Callable[[TaskContext], Awaitable[Ending]]
"""Does a task to its end. On a cancel it is cancelled, unless it was begun with `winds_down`."""

Resume = Callable[[TaskState], Work | None]
"""How a task of one kind goes on after its process died; None if it cannot."""

log = logging.getLogger(__name__)


class TaskHost:
    """Runs tasks. `resume` says for each kind how an orphan goes on; `winding` are kinds that stop themselves.

    A kind in `winding` hears of a cancel by `ctx.wait_cancelled()` and settles when it has stopped; the others count as
    cancelled at once and are cut.
    """

    def __init__(
        self,
        store: TaskRecords,
        *,
        resume: Mapping[TaskKind, Resume] | None = None,
        winding: frozenset[TaskKind] = frozenset({"process", "child"}),
        machine: str | None = None,
        machine_wait: float = MACHINE_WAIT,
    ) -> None:
        """On a ledger that machines share, `machine` is the name of this one.

        A command of another machine whose process died is left to that machine for `machine_wait` seconds; then its
        outcome is unknown.
        """
        self.store = store
        self._machine = machine
        self._machine_wait = machine_wait
        self._left_behind: dict[str, float] = {}
        self.retention = Retention(store, winding=winding)
        self._resume = dict(resume or {})
        self._winding = winding
        self._owner = Owner(store.ledger)
        self._mine: dict[str, TaskContext] = {}
        self._odd: set[str] = set()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        await self._owner.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    def maintain(self) -> None:
        """Adopts the tasks of dead processes and removes old ones, for as long as this host is open."""
        self._tasks.start_soon(self._look_out)

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            # Left without the caller's exception, which would come out wrapped in a group.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._owner.__aexit__(None, None, None)

    async def begin(
        self,
        work: Work,
        *,
        kind: TaskKind,
        title: str,
        requestor: str,
        by: str = "operator",
        ttl: float | None = None,
        total: float | None = None,
        origin: Mapping[str, Any] | None = None,
        task_id: str | None = None,
    ) -> TaskState:
        """Makes a task durable and begins its work; returns at once."""
        if self._machine is not None and kind == "process":
            origin = {**(origin or {}), MACHINE: self._machine}
        state = await self.store.create(
            kind=kind,
            title=title,
            requestor=requestor,
            by=by,
            owner=self._owner.name,
            ttl=ttl,
            total=total,
            origin=origin,
            task_id=task_id,
        )
        self._start(state, work)
        return state

    async def cancel(
        self, task_id: str, *, requestor: str | None = None, by: str = "operator", reason: str | None = None
    ) -> TaskState:
        """Orders a task stopped. One that stops by itself is still `working` when this returns: wait for its end."""
        state = await self.store.get(task_id, requestor=requestor)
        state = await self.store.order_cancel(task_id, by=by, reason=reason, settle=state.kind not in self._winding)
        if not state.terminal and state.task_id not in self._mine:
            await self.take_up(state)  # its owner may be dead
        return state

    async def finish_calls(self) -> None:
        """Returns once no call of a tool is under way here: its answer would be lost with this process."""
        while calls := [ctx.task_id for ctx in self._mine.values() if ctx.state.kind == "call"]:
            await self.store.wait(calls[0])
            await anyio.lowlevel.checkpoint()  # until it is no longer ours

    async def take_up(self, state: TaskState) -> bool:
        """Resumes a task whose owner is gone, or fails it with the reason; False if its owner lives."""
        if state.terminal or state.task_id in self._mine or state.owner is None:
            return False
        if state.kind == "mission" and state.kind not in self._resume:
            return False  # a process that serves missions resumes it
        if await is_alive(self.store.ledger, state.owner):
            self._left_behind.pop(state.task_id, None)
            return False
        if (home := state.origin.get(MACHINE)) not in (None, self._machine):
            return await self._give_up(state, home)
        if not await self.store.adopt(state.task_id, self._owner.name, instead_of=state.owner):
            return False
        state = await self.store.get(state.task_id)
        resume = self._resume.get(state.kind)
        try:
            work = resume(state) if resume is not None else None
        except Exception as error:  # noqa: BLE001 - the boundary: from here on it is ours, and must end
            await self.store.settle(state.task_id, _broken(error))
            return True
        if work is None:
            why = "the process that worked at it ended; what it had done by then is not known"
            await self.store.settle(state.task_id, Ending.failure(why, unknown=True))
        else:
            self._start(state, work)
        return True

    async def _give_up(self, state: TaskState, home: str) -> bool:
        """Ends a command of another machine that was not heard of for too long; only that machine can find it again."""
        since = self._left_behind.setdefault(state.task_id, anyio.current_time())
        if anyio.current_time() - since < self._machine_wait:
            return False
        why = f"it ran on {home}, which has not been heard of for {self._machine_wait:g} s; what it did is not known"
        return await self.store.settle(state.task_id, Ending.failure(why, unknown=True))

    async def take_up_all(self) -> int:
        """Looks once for tasks that a dead process left; returns how many were taken up."""
        count = 0
        async for row in self.retention.running():
            try:
                count += await self.take_up(await self.store.get(row.name))
            except TaskNotFound:
                continue
            except Exception as error:  # noqa: BLE001 - the boundary: what is wrong with one task harms no other one
                if row.name not in self._odd:
                    self._odd.add(row.name)
                    log.warning("a task cannot be looked after", extra=log_fields(row.name, error))
        return count

    def _start(self, state: TaskState, work: Work) -> None:
        ctx = TaskContext(self.store, state)
        self._mine[state.task_id] = ctx
        self._tasks.start_soon(self._run, ctx, state.kind in self._winding, work)

    async def _run(self, ctx: TaskContext, winds_down: bool, work: Work) -> None:
        ending: Ending | None = None
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._listen, ctx, None if winds_down else both.cancel_scope)
                both.start_soon(partial(ctx.keep_time, winds_down=winds_down))
                ending = await work(ctx)
                both.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the boundary: a fault ends this task alone
            ending = _broken(error)
        try:
            if ending is not None:
                await self._settle(ctx, stopped_by(ending, ctx.state, TIME_TO_LIVE, OUT_OF_TIME))
        finally:
            self._mine.pop(ctx.task_id, None)

    @staticmethod
    async def _settle(ctx: TaskContext, ending: Ending) -> None:
        """Stores the end, or else that it could not be stored; a fault here must not stop the other tasks."""
        try:
            await ctx.settle(ending)
        except Exception as error:  # noqa: BLE001 - the boundary: see above
            log.warning("a task's end could not be stored", extra=log_fields(ctx.task_id, error))
            if isinstance(error, PursuitError):  # the ledger cannot be written now
                return
            try:
                why = (
                    f"it ended as {ending.status}, but its result could not be stored: {type(error).__name__}: {error}"
                )
                await ctx.store.settle(
                    ctx.task_id, replace(Ending.failure(why, unknown=True), exit_code=ending.exit_code)
                )
            except Exception as again:  # noqa: BLE001 - the same boundary
                log.warning("a task has no end on record", extra=log_fields(ctx.task_id, again))

    @staticmethod
    async def _listen(ctx: TaskContext, scope: anyio.CancelScope | None) -> None:
        await ctx.listen()
        if scope is not None and ctx.cancelled:
            scope.cancel()

    async def _look_out(self) -> None:
        while True:
            try:
                await self.take_up_all()
                await self.retention.tidy()
            except Exception as error:  # noqa: BLE001 - the same boundary
                log.warning("cannot look after tasks", extra=log_fields(None, error))
            await anyio.sleep(LOOK_EVERY if self._machine is None else min(SHARED_LOOK_EVERY, self._machine_wait))


def _broken(error: Exception) -> Ending:
    while isinstance(error, ExceptionGroup):  # what ran side by side comes in groups
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return Ending.failure(f"{type(error).__name__}: {error}", unknown=True)
