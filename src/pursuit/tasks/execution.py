"""What the worker of a task uses, in the serving process or in another: progress, questions, cancellation, end.

Invariant: work that ends is settled, whatever ended it; what it reports after the end changes nothing.

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
from dataclasses import replace
from typing import Any, Self, cast

import anyio

from pursuit.core.tasks import TaskProgressed, TaskState
from pursuit.errors import Conflict, PursuitError, TaskTerminal
from pursuit.ledger.contract import Claim, Ledger
from pursuit.tasks.command import GRACE
from pursuit.tasks.record import finite
from pursuit.tasks.store import Ending, TaskRecords

# Work that is stopped before its end. The first order decides the status: a person's order makes it `cancelled`, a
# deadline makes it `failed`; message, status and result agree.

TIME_TO_LIVE = "its time to live"
"""Who orders a task stopped whose time to live is over."""

OUT_OF_TIME = "its time to live ended before the work did"
GRACE_KEY = "grace"
"""Where a task's origin keeps how many seconds its command has to leave, if it is not the usual time."""

USUAL_GRACE = GRACE
MARGIN = 5.0
"""Seconds that it takes at most to see that the last of a killed command's processes is gone."""


def stopping_time(state: TaskState) -> float:
    """Seconds within which a task that was ordered to stop has stopped."""
    grace = state.origin.get(GRACE_KEY)
    return (float(grace) if isinstance(grace, int | float) else USUAL_GRACE) + MARGIN


def stopped_by(ending: Ending, state: TaskState, by: str, why: str) -> Ending:
    """The ending as it is, or a failure for that reason if it was this one who ordered the work stopped first."""
    if ending.status != "cancelled" or state.cancel is None or state.cancel.by != by:
        return ending
    return cut_short(ending, why)


def cut_short(ending: Ending, why: str) -> Ending:
    """The ending of stopped work as a failure for that reason, in every part of it."""
    before = ending.message or ""
    after = before.removeprefix("cancelled").strip() if before.startswith("cancelled") else ""
    message = f"{why}, {after}" if after else why
    result = dict(ending.result or {})
    texts = cast("list[Mapping[str, Any]]", result.get("content") or [{"type": "text", "text": message}])
    content = [_reworded(part, before, message) for part in texts]
    structured = result.get("structuredContent")
    if isinstance(structured, Mapping):
        said = cast("Mapping[str, Any]", structured)
        result["structuredContent"] = {**said, "status": "failed", "reason": message}
    return replace(ending, status="failed", message=message, result={**result, "content": content, "isError": True})


def _reworded(part: Mapping[str, Any], before: str, after: str) -> Mapping[str, Any]:
    text = part.get("text")
    return {**part, "text": text.replace(before, after, 1)} if before and isinstance(text, str) else part


class Owner:
    """One process as the owner of work: alive for as long as its lock, which is the operating system's, is held."""

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
    """Whether that owner's process still runs."""
    if owner is None:
        return False
    claim = await ledger.claim(owner)  # not `is_claimed`: the release removes the lock file of a dead owner
    if claim is None:
        return True
    await claim.release()
    return False


LEAST_INTERVAL = 0.5
LONGEST_NAP = 60.0
"""Seconds after which a clock that was set is noticed."""
TRY_AGAIN = 1.0

log = logging.getLogger(__name__)


def log_fields(task_id: str | None, error: Exception) -> dict[str, Any]:
    """What a log line about a task and an error carries."""
    code, reason = (error.code, error.message) if isinstance(error, PursuitError) else ("internal", repr(error))
    return {"pursuit_fields": {"task": task_id, "code": code, "reason": reason}}


class TaskContext:
    """One task, as its worker sees it."""

    def __init__(self, store: TaskRecords, state: TaskState, *, interval: float = LEAST_INTERVAL) -> None:
        self.store = store
        self.task_id = state.task_id
        self.state = state
        self.ended = state.terminal
        self._interval = interval
        self._told = 0.0
        self._untold: dict[str, Any] = {}
        self._stop = anyio.Event()

    @property
    def cancelled(self) -> bool:
        """Whether a stop was ordered; what the work reports from then on is dropped."""
        return self._stop.is_set()

    async def wait_cancelled(self) -> None:
        """Returns once a stop was ordered."""
        await self._stop.wait()

    async def update_status(
        self,
        message: str | None = None,
        *,
        done: float | None = None,
        total: float | None = None,
        item: str | None = None,
    ) -> None:
        """Reports progress; of reports that come too often only the latest is stored, at the latest with the end."""
        said = {"message": message, "done": finite(done), "total": finite(total), "item": item}
        self._untold.update({key: value for key, value in said.items() if value is not None})
        await self._tell()

    async def remember(
        self, mark: Mapping[str, Any], *, message: str | None = None, done: float | None = None, item: str | None = None
    ) -> None:
        """Stores where the work resumes after a crash, with its progress and whatever is not stored yet."""
        said = {"message": message, "done": finite(done), "item": item, "mark": dict(mark)}
        self._untold.update({key: value for key, value in said.items() if value is not None})
        await self._tell(at_once=True)

    async def heartbeat(self, message: str) -> None:
        """Reports that the work is alive, without progress."""
        await self.store.progress(self.task_id, TaskProgressed(at=self.store.now(), message=message, alive=True))

    async def ask(self, requests: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Puts questions to the requestor and waits for every answer; the work before them is not done again."""
        await self.store.ask(self.task_id, requests)
        state = await self.store.wait(
            self.task_id, lambda now: now.terminal or all(key in now.answers for key in requests)
        )
        return {key: state.answers[key] for key in requests if key in state.answers}

    async def complete(self, result: Any = None, *, message: str | None = None) -> bool:
        """Ends it well; a result that is no tool's result becomes one. False if it had ended before."""
        return await self.settle(Ending(status="completed", message=message, result=as_tool_result(result)))

    async def fail(self, reason: str, *, error: Mapping[str, Any] | None = None) -> bool:
        """Ends it badly, with the reason. False if it had ended before."""
        failure = Ending.failure(reason)
        return await self.settle(failure if error is None else replace(failure, error=error))

    async def settle(self, ending: Ending) -> bool:
        """Ends it as it says, with whatever was not told yet. False if it had ended before."""
        self.ended = True
        if self._untold:
            await self._tell(at_once=True)
        return await self.store.settle(self.task_id, ending)

    async def listen(self) -> None:
        """Waits for the order to stop."""
        async for state in self.store.follow(self.task_id):
            self.state = state
            if state.cancel is not None or state.status == "cancelled":
                self._stop.set()
                return

    async def keep_time(self, *, winds_down: bool = False) -> None:
        """Ends it when its time to live is over; work that winds down is ordered to, and settles when it has."""
        until = self.state.expires_at
        while until is not None:
            left = until - self.store.now()
            if left > 0:
                await anyio.sleep(min(left, LONGEST_NAP))
                continue
            try:
                await self.store.order_cancel(
                    self.task_id, by=TIME_TO_LIVE, settle=not winds_down, ending=Ending.failure(OUT_OF_TIME)
                )
            except PursuitError as error:  # the work must not end for a ledger that cannot be written just now
                log.warning("a task cannot be ended in time", extra=log_fields(self.task_id, error))
                await anyio.sleep(TRY_AGAIN)
            else:
                return

    async def _tell(self, *, at_once: bool = False) -> None:
        now = self.store.now()
        if not at_once and 0 <= now - self._told < self._interval:
            return
        change, self._untold, self._told = TaskProgressed(at=now, **self._untold), {}, now
        await self.store.progress(self.task_id, change)


@asynccontextmanager
async def task_execution(task_id: str, store: TaskRecords) -> AsyncGenerator[TaskContext]:
    """Does the work of a task, in whichever process this is; an exception fails the task with its reason.

    Leaving without a word completes it. Raises `Conflict` if a living process works at it already, and `TaskTerminal`
    if it has ended.
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
                    await ctx.settle(Ending(status="cancelled", message="its worker was stopped"))
                raise
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group that would wrap it
                broken = error
                await ctx.fail(f"{type(error).__name__}: {error}")
            tasks.cancel_scope.cancel()
    if broken is not None:
        raise broken


async def _taken(store: TaskRecords, task_id: str, owner: str) -> TaskState:
    state = await store.get(task_id)
    if state.terminal:
        raise TaskTerminal(f"{task_id} has ended: {state.status}", task_id=task_id, status=state.status)
    if state.owner is not None and await is_alive(store.ledger, state.owner):
        raise Conflict(f"{task_id} is being worked at already", task_id=task_id)
    if not await store.adopt(task_id, owner, instead_of=state.owner):
        raise Conflict(f"{task_id} was taken by another worker", task_id=task_id)
    return await store.get(task_id)


def as_tool_result(value: Any) -> dict[str, Any]:
    """A tool's result for what work returned: as it is if it is one, else as structured content and as text."""
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
