"""Runs tasks in this process, adopts those of dead processes, and removes old ones.

Each kind of task has its own way to resume. Invariant: a task whose id was returned is in the ledger and ends there,
even if this process dies; a running task is never removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Self, Unpack, cast

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from pursuit.core.tasks import TASK_ENDS, TaskKind, TaskState, TaskStatus
from pursuit.core.tools import UpstreamError
from pursuit.errors import INVALID_PARAMS, PursuitError, TaskNotFound
from pursuit.ledger.contract import StreamPage, StreamRow, every_stream
from pursuit.tasks.execution import Owner, TaskContext, is_alive, log_fields, out_of_time
from pursuit.tasks.limits import RUNNING
from pursuit.tasks.store import KIND, Ending, NewTask, TaskRecords

PAGE = 100
TIDY_EVERY = 30.0
LEAST_KEPT = 60.0
"""Seconds that an ended task stays after its time to live, for clients that still poll."""
WINDING: frozenset[TaskKind] = frozenset({"process", "child"})
"""Kinds that wait for `ctx.wait_cancelled()` and settle when they have stopped; others are cancelled immediately."""


class Retention:
    def __init__(self, store: TaskRecords) -> None:
        self._store = store
        self._tidied = -math.inf
        self.clear: Callable[[str], Awaitable[bool]] | None = None
        """Deletes the other data of a task; False if they, and the task, must stay for now."""
        self.needed: Callable[[TaskState], Awaitable[bool]] | None = None
        """True if a mission still waits for the result of an ended task."""

    async def list(
        self,
        *,
        requestor: str | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> StreamPage:
        """A page of about `limit` tasks, optionally of one requestor. Raises `InvalidArgument` for a bad cursor."""
        wanted = (status,) if status is not None else (*RUNNING, *TASK_ENDS)
        rows: list[StreamRow] = []
        while True:
            page = await self._store.ledger.streams(kind=KIND, status=wanted, cursor=cursor, limit=limit)
            rows.extend(row for row in page.rows if requestor in (None, row.summary.get("requestor")))
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return StreamPage(tuple(rows), cursor)

    def running(self) -> AsyncGenerator[StreamRow]:
        return every_stream(self._store.ledger, kind=KIND, status=RUNNING)

    async def tidy(self, *, now: bool = False) -> None:
        """Ends tasks whose time to live is over, and removes ended tasks after their retention time."""
        moment = self._store.now()
        if not now and 0 <= moment - self._tidied < TIDY_EVERY:
            return
        self._tidied = moment
        await self.prune()
        await self.expire()  # after `prune`: clients must be able to see a task that expires now

    async def expire(self) -> None:
        moment = self._store.now()
        async for row in self.running():
            if moment >= row.summary.get("expires_at", math.inf):
                winds_down = row.summary.get("task_kind") in WINDING and row.summary.get("owner") is not None
                with suppress(TaskNotFound):
                    await out_of_time(self._store, row.name, winds_down=winds_down)

    async def prune(self, *, keep: int | None = None, older_than: float | None = None) -> list[str]:
        """Removes ended tasks: those over their time to live, those too old, and the oldest beyond the limit."""
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
        """Removes a task unless it is still needed, at most for its maximum life; returns whether it was removed."""
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


LOOK_EVERY = 1.0
SHARED_LOOK_EVERY = 10.0
"""`LOOK_EVERY` for a ledger on a database, which other processes use too."""
MACHINE = "machine"
"""The key of the machine's name in the origin of a task that is bound to its machine."""
MACHINE_WAIT = 3_600.0

Work = Callable[[TaskContext], Awaitable[Ending]]
"""Runs a task to its end. A cancellation request cancels it, unless it was started with `winds_down`."""

Resume = Callable[[TaskState], Work | None]
"""Gives the work that resumes a task of one kind after its process died; None if it cannot resume."""

log = logging.getLogger(__name__)


class TaskHost:
    """Runs tasks. `resume` has for each kind the function that resumes an orphan."""

    def __init__(
        self,
        store: TaskRecords,
        *,
        resume: Mapping[TaskKind, Resume] | None = None,
        machine: str | None = None,
        machine_wait: float = MACHINE_WAIT,
    ) -> None:
        """On a ledger that machines share, `machine` is the name of this machine.

        A command of another machine whose process died is left to that machine for `machine_wait` seconds; after that
        its outcome is unknown.
        """
        self.store = store
        self._machine = machine
        self._machine_wait = machine_wait
        self._left_behind: dict[str, float] = {}
        self.retention = Retention(store)
        self._resume = dict(resume or {})
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
        """Adopts the tasks of dead processes and removes old ones while this host is open."""
        self._tasks.start_soon(self._look_out)

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            # Exits without the caller's exception, which a group would wrap.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._owner.__aexit__(None, None, None)

    async def begin(self, work: Work, **parts: Unpack[NewTask]) -> TaskState:
        """Makes a task durable and begins its work; returns without waiting for it."""
        if self._machine is not None and parts["kind"] == "process":
            parts["origin"] = {**(parts.get("origin") or {}), MACHINE: self._machine}
        state = await self.store.create(owner=self._owner.name, **parts)
        self._start(state, work)
        return state

    async def cancel(
        self, task_id: str, *, requestor: str | None = None, by: str = "operator", reason: str | None = None
    ) -> TaskState:
        """Requests cancellation. A task that stops by itself may still be `working` on return: wait for its end."""
        state = await self.store.get(task_id, requestor=requestor)
        state = await self.store.order_cancel(task_id, by=by, reason=reason, settle=state.kind not in WINDING)
        if not state.terminal and state.task_id not in self._mine:
            await self.take_up(state)  # its owner may be dead
        return state

    async def finish_calls(self) -> None:
        while calls := [ctx.task_id for ctx in self._mine.values() if ctx.state.kind == "call"]:
            await self.store.wait(calls[0])
            await anyio.lowlevel.checkpoint()  # until this process no longer runs it

    async def take_up(self, state: TaskState) -> bool:
        """Resumes a task whose owner died, or fails it with the reason; False if its owner lives."""
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
        except Exception as error:  # noqa: BLE001 - the boundary: this process owns the task from here on, and must end it
            await self.store.settle(state.task_id, _broken(error))
            return True
        if work is None:
            why = "the process that ran it ended; its effect until then is not known"
            await self.store.settle(state.task_id, Ending.failure(why, unknown=True))
        else:
            self._start(state, work)
        return True

    async def _give_up(self, state: TaskState, home: str) -> bool:
        """Ends a command of a machine without recent activity; only that machine could find the command again."""
        since = self._left_behind.setdefault(state.task_id, anyio.current_time())
        if anyio.current_time() - since < self._machine_wait:
            return False
        why = f"it ran on {home}, which has been silent for {self._machine_wait:g} s; its effect is not known"
        return await self.store.settle(state.task_id, Ending.failure(why, unknown=True))

    async def take_up_all(self) -> int:
        """Searches once for tasks of dead processes; returns the number of adopted tasks."""
        count = 0
        async for row in self.retention.running():
            try:
                count += await self.take_up(await self.store.get(row.name))
            except TaskNotFound:
                continue
            except Exception as error:  # noqa: BLE001 - the boundary: an error of one task must not stop the others
                if row.name not in self._odd:
                    self._odd.add(row.name)
                    log.warning("a task cannot be adopted", extra=log_fields(row.name, error))
        return count

    def _start(self, state: TaskState, work: Work) -> None:
        ctx = TaskContext(self.store, state)
        self._mine[state.task_id] = ctx
        self._tasks.start_soon(self._run, ctx, state.kind in WINDING, work)

    async def _run(self, ctx: TaskContext, winds_down: bool, work: Work) -> None:
        ending: Ending | None = None
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._listen, ctx, None if winds_down else both.cancel_scope)
                both.start_soon(partial(ctx.keep_time, winds_down=winds_down))
                ending = await work(ctx)
                both.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the boundary: an error ends only this task
            ending = _broken(error)
        try:
            if ending is not None:
                await self._settle(ctx, ending)
        finally:
            self._mine.pop(ctx.task_id, None)

    @staticmethod
    async def _settle(ctx: TaskContext, ending: Ending) -> None:
        """Stores the end, or that it could not be stored; an error here must not stop the other tasks."""
        try:
            await ctx.settle(ending)
        except Exception as error:  # noqa: BLE001 - the boundary: see above
            log.warning("a task's end could not be stored", extra=log_fields(ctx.task_id, error))
            if isinstance(error, PursuitError):  # the ledger is not writable now
                return
            try:
                why = (
                    f"it ended as {ending.status}, but its result could not be stored: {type(error).__name__}: {error}"
                )
                await ctx.store.settle(
                    ctx.task_id, msgspec.structs.replace(Ending.failure(why, unknown=True), exit_code=ending.exit_code)
                )
            except Exception as again:  # noqa: BLE001 - the same boundary
                log.warning("a task's end is not recorded", extra=log_fields(ctx.task_id, again))

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
                log.warning("cannot maintain tasks", extra=log_fields(None, error))
            await anyio.sleep(LOOK_EVERY if self._machine is None else min(SHARED_LOOK_EVERY, self._machine_wait))


def _broken(error: Exception) -> Ending:
    while isinstance(error, ExceptionGroup):  # errors of concurrent work come in groups
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return Ending.failure(f"{type(error).__name__}: {error}", unknown=True)


class InvalidTask(UpstreamError):
    """A request that names an unknown or an ended task; its `code` is JSON-RPC's -32602 (invalid params)."""


async def cancel_task(store: TaskRecords, task_id: str, *, reason: str | None = None) -> TaskState:
    """Cancels a task; a process or a child mission is `working` until it has stopped. Raises `InvalidTask`."""
    try:
        state = await store.get(task_id)
    except TaskNotFound as error:
        raise InvalidTask(INVALID_PARAMS, error.message) from None
    if not state.terminal:
        state = await store.order_cancel(task_id, by="operator", reason=reason, settle=state.kind not in WINDING)
        if not state.terminal or state.status == "cancelled":
            return state
    raise InvalidTask(INVALID_PARAMS, f"task {task_id} has ended: {state.status}")
