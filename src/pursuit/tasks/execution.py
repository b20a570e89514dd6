"""The interface of a task's work, in any process: progress, requests for input, cancellation, end.

Invariant: work that ends is settled, whatever its cause; reports after the end change nothing.

    async with task_execution(task_id, store) as ctx:
        await ctx.update_status("half way", done=5, total=10)
        await ctx.complete({"answer": 42})
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import anyio
import msgspec

from pursuit.core.tasks import TaskProgressed, TaskState
from pursuit.errors import Conflict, PursuitError, TaskTerminal
from pursuit.ledger.contract import Claim, Ledger
from pursuit.tasks.command import GRACE
from pursuit.tasks.record import finite
from pursuit.tasks.store import Ending, TaskRecords

# The requestor of a cancellation at the end of a task's time. The first request decides the status: a person's makes it
# `cancelled`, a deadline makes it `failed`.

TIME_TO_LIVE = "its time to live"
ITS_TIMEOUT = "its timeout"
DEADLINES = (TIME_TO_LIVE, ITS_TIMEOUT)

OUT_OF_TIME = "its time to live ended before the work did"
GRACE_KEY = "grace"
"""The key of the command's grace period in a task's origin, if it is not the default."""

MARGIN = 5.0
"""Maximum seconds until the end of the last process of a killed command is noticed."""


def stopping_time(state: TaskState) -> float:
    """Maximum seconds from a cancellation request until a task has stopped."""
    grace = state.origin.get(GRACE_KEY)
    return (float(grace) if isinstance(grace, int | float) else GRACE) + MARGIN


async def out_of_time(store: TaskRecords, task_id: str, *, winds_down: bool) -> None:
    """Ends a task whose time to live is over. With `winds_down`, only requests cancellation; its owner settles it."""
    ending = Ending.failure(OUT_OF_TIME)
    await store.order_cancel(task_id, by=TIME_TO_LIVE, reason=OUT_OF_TIME, settle=not winds_down, ending=ending)


class Owner:
    """One process as the owner of work: alive while its operating-system lock is held."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._claim: Claim | None = None
        self.name = f"owner-{secrets.token_hex(8)}"

    async def __aenter__(self) -> Self:
        self._claim = await self._ledger.claim(self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._claim is not None:
            await self._claim.release()


async def is_alive(ledger: Ledger, owner: str | None) -> bool:
    if owner is None:
        return False
    claim = await ledger.claim(owner)  # not `is_claimed`: the release removes the lock file of a dead owner
    if claim is None:
        return True
    await claim.release()
    return False


LEAST_INTERVAL = 0.5
MAX_NAP = 60.0
"""Seconds after which a change of the system clock is noticed."""
TRY_AGAIN = 1.0

log = logging.getLogger(__name__)


def log_fields(task_id: str | None, error: Exception) -> dict[str, Any]:
    code, reason = (error.code, error.message) if isinstance(error, PursuitError) else ("internal", repr(error))
    return {"pursuit_fields": {"task": task_id, "code": code, "reason": reason}}


class TaskContext:
    """The task as its work sees it: reports progress, asks for input, and ends the task."""

    def __init__(self, store: TaskRecords, state: TaskState) -> None:
        self.store = store
        self.task_id = state.task_id
        self.state = state
        self.ended = state.terminal
        self._told = 0.0
        self._untold: dict[str, Any] = {}
        self._stop = anyio.Event()

    @property
    def cancelled(self) -> bool:
        """True if cancellation was requested; later reports of the work are dropped."""
        return self._stop.is_set()

    async def wait_cancelled(self) -> None:
        """Returns once cancellation was requested."""
        await self._stop.wait()

    async def update_status(
        self,
        message: str | None = None,
        *,
        done: float | None = None,
        total: float | None = None,
        item: str | None = None,
    ) -> None:
        """Reports progress; of frequent reports only the latest is stored, at the latest with the end."""
        said = {"message": message, "done": finite(done), "total": finite(total), "item": item}
        self._untold.update({key: value for key, value in said.items() if value is not None})
        await self._tell()

    async def remember(
        self, mark: Mapping[str, Any], *, message: str | None = None, done: float | None = None, item: str | None = None
    ) -> None:
        """Stores the point where the work resumes after a crash, with its progress and pending reports."""
        said = {"message": message, "done": finite(done), "item": item, "mark": dict(mark)}
        self._untold.update({key: value for key, value in said.items() if value is not None})
        await self._tell(at_once=True)

    async def heartbeat(self, message: str) -> None:
        """Reports that the work is alive, without progress."""
        await self.store.progress(self.task_id, TaskProgressed(at=self.store.now(), message=message, alive=True))

    async def ask(self, requests: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Waits for the answers to MCP input requests; returns them by name, without those that came too late."""
        await self.store.ask(self.task_id, requests)
        state = await self.store.wait(
            self.task_id, lambda now: now.terminal or all(key in now.answers for key in requests)
        )
        return {key: state.answers[key] for key in requests if key in state.answers}

    async def complete(self, result: Any = None, *, message: str | None = None) -> bool:
        """Completes the task; converts `result` to a tool result. False if it had ended before."""
        return await self.settle(Ending(status="completed", message=message, result=as_tool_result(result)))

    async def fail(self, reason: str, *, error: Mapping[str, Any] | None = None) -> bool:
        """Fails the task with the reason. False if it had ended before."""
        failure = Ending.failure(reason)
        return await self.settle(failure if error is None else msgspec.structs.replace(failure, error=dict(error)))

    async def settle(self, ending: Ending) -> bool:
        """Ends the task with pending reports. False if it had ended before."""
        self.ended = True
        if self._untold:
            await self._tell(at_once=True)
        return await self.store.settle(self.task_id, ending)

    async def listen(self) -> None:
        """Follows the task until cancellation is requested."""
        async for state in self.store.follow(self.task_id):
            self.state = state
            if state.cancel is not None or state.status == "cancelled":
                self._stop.set()
                return

    async def keep_time(self, *, winds_down: bool = False) -> None:
        """Ends the task at the end of its time to live; work that winds down is asked to stop, and settles then."""
        until = self.state.expires_at
        while until is not None:
            left = until - self.store.now()
            if left > 0:
                await anyio.sleep(min(left, MAX_NAP))
                continue
            try:
                await out_of_time(self.store, self.task_id, winds_down=winds_down)
            except PursuitError as error:  # a ledger that is briefly not writable must not end the work
                log.warning("a task cannot be ended in time", extra=log_fields(self.task_id, error))
                await anyio.sleep(TRY_AGAIN)
            else:
                return

    async def _tell(self, *, at_once: bool = False) -> None:
        now = self.store.now()
        if not at_once and 0 <= now - self._told < LEAST_INTERVAL:
            return
        change, self._untold, self._told = TaskProgressed(at=now, **self._untold), {}, now
        await self.store.progress(self.task_id, change)


@asynccontextmanager
async def task_execution(task_id: str, store: TaskRecords, *, reraise: bool = False) -> AsyncGenerator[TaskContext]:
    """Runs the block as the work of a task, in any process; the end of the block completes the task.

    An exception fails the task with its reason and is suppressed, unless `reraise`. Raises `Conflict` if a living
    process runs the task, and `TaskTerminal` if it has ended.
    """
    broken: Exception | None = None
    async with Owner(store.ledger) as owner:
        ctx = TaskContext(store, await _taken(store, task_id, owner.name))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ctx.listen)
            tasks.start_soon(ctx.keep_time)
            try:
                yield ctx
                if not ctx.ended:
                    await ctx.complete()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await ctx.settle(Ending(status="cancelled", message="its process was stopped"))
                raise
            except Exception as error:  # noqa: BLE001 - stored; raised below, outside of the group that would wrap it
                broken = error
                await ctx.fail(f"{type(error).__name__}: {error}")
            tasks.cancel_scope.cancel()
    if broken is not None and reraise:
        raise broken


async def _taken(store: TaskRecords, task_id: str, owner: str) -> TaskState:
    state = await store.get(task_id)
    if state.terminal:
        raise TaskTerminal(f"{task_id} has ended: {state.status}", task_id=task_id, status=state.status)
    if state.owner is not None and await is_alive(store.ledger, state.owner):
        raise Conflict(f"another process runs {task_id}", task_id=task_id)
    if not await store.adopt(task_id, owner, instead_of=state.owner):
        raise Conflict(f"{task_id} was taken by another process", task_id=task_id)
    return await store.get(task_id)


def as_tool_result(value: Any) -> dict[str, Any]:
    """Converts a value to a tool result: a tool result as it is, else as structured content and as text."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if isinstance(given.get("content"), list):
            return dict(given)
    if value is None:
        return {"content": []}
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    text = json.dumps(value, ensure_ascii=False, default=str)
    structured = json.loads(text)
    body: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    return {**body, "structuredContent": structured if isinstance(structured, dict) else {"result": structured}}
