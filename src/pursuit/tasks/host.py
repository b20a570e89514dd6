"""The tasks at work in this process, and those that a dead one left.

Owns: their coroutines, who hears of a cancel, what becomes of orphans, and when old tasks go. Knows no kind of work:
each kind brings how its work is taken up again. Invariant: a task that somebody was told of is in the ledger, and ends
there, also if this process dies.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, cast

import anyio
from anyio.abc import TaskGroup

from pursuit.core.tasks import TaskKind, TaskState
from pursuit.errors import INTERNAL_ERROR, PursuitError, TaskNotFound
from pursuit.tasks.execution import OUT_OF_TIME, TIME_TO_LIVE, Owner, TaskContext, is_alive, stopped_by
from pursuit.tasks.retention import Retention
from pursuit.tasks.store import Ending, TaskStore

LOOK_EVERY = 1.0
UNKNOWN: Mapping[str, Any] = {"outcome": "unknown"}
"""The data of the error of a task whose work may have taken effect."""

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
        store: TaskStore,
        *,
        resume: Mapping[TaskKind, Resume] | None = None,
        winding: frozenset[TaskKind] = frozenset({"process", "child"}),
    ) -> None:
        self.store = store
        self.shelf = Retention(store, winding=winding)
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

    def tend(self) -> None:
        """Looks after the tasks of dead processes and clears old ones away, for as long as this host is there."""
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
            await self.take_up(state)  # nobody may be left to hear of it
        return state

    async def take_up(self, state: TaskState) -> bool:
        """Goes on with a task whose owner is gone, or fails it with the reason; False if it is in good hands."""
        if state.terminal or state.task_id in self._mine or state.owner is None:
            return False
        if state.kind == "mission" and state.kind not in self._resume:
            return False  # whoever serves missions goes on with it
        if await is_alive(self.store.ledger, state.owner):
            return False
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
            error = {"code": INTERNAL_ERROR, "message": why, "data": UNKNOWN}
            await self.store.settle(state.task_id, Ending(status="failed", message=why, error=error))
        else:
            self._start(state, work)
        return True

    async def take_up_all(self) -> int:
        """Looks once for tasks that a dead process left; returns how many were taken up."""
        count = 0
        async for row in self.shelf.running():
            try:
                count += await self.take_up(await self.store.get(row.name))
            except TaskNotFound:
                continue
            except Exception as error:  # noqa: BLE001 - the boundary: what is wrong with one task harms no other one
                if row.name not in self._odd:
                    self._odd.add(row.name)
                    log.warning("a task cannot be looked after", extra=_fields(row.name, error))
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
        except Exception as error:  # noqa: BLE001 - the boundary: one task's fault is its own end and nobody else's
            ending = _broken(error)
        try:
            if ending is not None:
                await self._settle(ctx, stopped_by(ending, ctx.state, TIME_TO_LIVE, OUT_OF_TIME))
        finally:
            self._mine.pop(ctx.task_id, None)

    @staticmethod
    async def _settle(ctx: TaskContext, ending: Ending) -> None:
        """Stores the end, or else that it could not be stored; nothing of it may harm the other tasks."""
        try:
            await ctx.settle(ending)
        except PursuitError as error:
            log.warning("a task's end could not be stored", extra=_fields(ctx.task_id, error))
        except Exception as error:  # noqa: BLE001 - the boundary: see above
            log.warning("a task's end could not be stored", extra=_fields(ctx.task_id, error))
            try:
                await ctx.store.settle(ctx.task_id, _unstorable(ending, error))
            except Exception as again:  # noqa: BLE001 - the same boundary
                log.warning("a task has no end on record", extra=_fields(ctx.task_id, again))

    @staticmethod
    async def _listen(ctx: TaskContext, scope: anyio.CancelScope | None) -> None:
        await ctx.listen()
        if scope is not None and ctx.cancelled:
            scope.cancel()

    async def _look_out(self) -> None:
        while True:
            try:
                await self.take_up_all()
                await self.shelf.tidy()
            except Exception as error:  # noqa: BLE001 - the same boundary
                log.warning("cannot look after tasks", extra=_fields(None, error))
            await anyio.sleep(LOOK_EVERY)


def _broken(error: Exception) -> Ending:
    while isinstance(error, ExceptionGroup):  # what ran side by side comes in groups
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    why = f"{type(error).__name__}: {error}"[:2_000]
    return Ending(status="failed", message=why, error={"code": INTERNAL_ERROR, "message": why, "data": UNKNOWN})


def _unstorable(ending: Ending, error: Exception) -> Ending:
    why = f"it ended as {ending.status}, but its result could not be stored: {type(error).__name__}: {error}"[:2_000]
    said = {"code": INTERNAL_ERROR, "message": why, "data": UNKNOWN}
    return Ending(status="failed", message=why, error=said, exit_code=ending.exit_code)


def _fields(task_id: str | None, error: Exception) -> dict[str, Any]:
    code, reason = (error.code, error.message) if isinstance(error, PursuitError) else ("internal", repr(error))
    return {"pursuit_fields": {"task": task_id, "code": code, "reason": reason}}
