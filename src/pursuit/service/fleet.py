"""Child missions: each is the work of a task that its parent waits for.

Invariant: a task has one child, whose id derives from the task's; the task ends when the child is finally closed, and
only then returns the budget that was reserved for the child.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from pursuit.core.budgets import child_id, under_way, used_of
from pursuit.core.child_admission import is_authored, summary_of, wanted_child
from pursuit.core.events import MissionResumed
from pursuit.core.mission import FIRST, FLEET, Fleet
from pursuit.core.state import MissionState
from pursuit.core.tasks import TaskState
from pursuit.core.tools import SPAWN_TOOL, CallFailed, CheckPlace, ProgressFn, Tool, ToolResult
from pursuit.engine.driver import RunOrder
from pursuit.errors import (
    Conflict,
    PursuitError,
    SessionNotFound,
    SessionPaused,
    SessionTerminal,
    ValidationFailed,
)
from pursuit.ledger.contract import Claim
from pursuit.service.audit import Caller
from pursuit.service.runner import Runner
from pursuit.service.service import ChildOf
from pursuit.tasks.calls import TaskJob
from pursuit.tasks.execution import TaskContext, as_tool_result
from pursuit.tasks.host import Work
from pursuit.tasks.store import Ending

POLL_SECONDS = 1.0
SHARED_POLL_SECONDS = 5.0
"""`POLL_SECONDS` for a ledger on a database, which other processes use too."""
SLOT_POLL_SECONDS = 0.1
CLOSE_SECONDS = 10.0
CANCELLED_REASON = "its parent was ended, or its task was cancelled"

Prepare = Callable[[str], Awaitable[None]]


class Children:
    """The children that this process drives, as the upstream `fleet`; `prepare` registers a mission's servers."""

    name = FLEET

    def __init__(self, service: Runner, prepare: Prepare) -> None:
        self._service = service
        self._prepare = prepare
        self._driving: set[anyio.CancelScope] = set()
        self._left = anyio.Event()
        self._closing = False

    async def tools(self) -> Sequence[Tool]:
        return [SPAWN_TOOL]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        raise CallFailed("only a mission starts children", sent=False)

    def job(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, place: CheckPlace | None = None) -> TaskJob:
        """The task that starts a child and drives it to its end; the parent defines the child."""
        return TaskJob(work=self._work(call_id), kind="child")

    def resume(self, state: TaskState) -> Work | None:
        return self._work(str(state.origin["call_id"]))

    async def aclose(self) -> None:
        """Stops driving all children while their servers still run; they are recorded and can be resumed."""
        self._closing = True
        for scope in self._driving:
            scope.cancel()
        # Shielded: a cancelled driver must still record how its calls ended.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            while self._driving:
                self._left = anyio.Event()
                await self._left.wait()

    def _work(self, call_id: str) -> Work:
        async def work(ctx: TaskContext) -> Ending:
            ending: Ending | None = None
            with anyio.CancelScope() as scope:
                self._driving.add(scope)
                try:
                    if not self._closing:
                        ending = await _ChildRun(self._service, self._prepare, ctx, call_id).end()
                finally:
                    self._driving.discard(scope)
                    self._left.set()
            while ending is None:  # this process stops; the next one continues
                await anyio.sleep_forever()
            return ending

        return work


class _ChildRun:
    def __init__(self, service: Runner, prepare: Prepare, ctx: TaskContext, call_id: str) -> None:
        self._service = service
        self._prepare = prepare
        self._ctx = ctx
        self._call_id = call_id
        self._parent = call_id.partition(":")[0]
        self._child = child_id(ctx.task_id)
        self._by = Caller(who=self._parent)
        self._restarts = int(ctx.state.mark.get("restarts", 0))

    async def end(self) -> Ending:
        ending: Ending | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_cancellation)
            try:
                ending = await self._run()
            except Exception as error:  # noqa: BLE001 - the boundary: whatever breaks here must not leave a child behind
                ending = await self._abandon(error)
            tasks.cancel_scope.cancel()
        assert ending is not None  # noqa: S101 - the group ends only with an ending
        return ending

    async def _run(self) -> Ending:
        fleet = (await self._service.state(self._parent)).mission.fleet or Fleet()
        slot = await self._acquire_slot(fleet.at_once)
        if slot is None:
            return await self._ended()
        try:
            await self._prepare(self._parent)
            await self._create()
            if await self._is_cancelled():  # cancelled before the child existed
                await self._abort(CANCELLED_REASON)
            await self._drive(fleet)
        finally:
            with anyio.CancelScope(shield=True):
                await slot.release()
        return await self._ended()

    async def _acquire_slot(self, at_once: int) -> Claim | None:
        """Acquires a slot: a lock, which a dead process cannot hold. None if the child is cancelled."""
        while not await self._is_cancelled():
            for place in range(at_once):
                claim = await self._service.ledger.claim(f"{self._parent}-seat-{place}")
                if claim is not None:
                    return claim
            with anyio.move_on_after(SLOT_POLL_SECONDS):
                await self._ctx.wait_cancelled()
        return None

    async def _create(self) -> None:
        if await self._service.ledger.row(self._child) is not None:
            return
        state = await self._service.state(self._parent)
        call = state.open.calls.get(self._call_id) if state.open is not None else None
        if call is None or call.outcome is not None or state.terminal or self._ctx.cancelled:
            return
        with suppress(Conflict):  # another process has just created it
            await self._service.start(
                wanted_child(state, call.args).model_copy(update={"share": state.mission.share}),
                file=None if state.file is None else Path(state.file),
                caller=replace(self._by, credential=state.credential, subject=state.owner),
                child_of=ChildOf(
                    session_id=self._child,
                    parent=self._parent,
                    models=frozenset(state.mission.proposer.models[:1]),
                    callers=(*state.callers, *state.drivers),
                ),
                operators_own=is_authored(state),
            )

    async def _drive(self, fleet: Fleet) -> None:
        with self._service.ledger.wakeup(self._child) as wakeup:
            while True:
                try:
                    state = await self._service.state(self._child)
                except SessionNotFound:  # it was never created, or is forgotten
                    return
                before, closed = state.seq, state.closed
                if closed or (state.terminal and await self._service.driver.close(self._child) is not None):
                    return
                if not await self._advance(state, fleet) or (await self._service.state(self._child)).seq == before:
                    shared = self._service.placement is not None
                    with anyio.move_on_after(SHARED_POLL_SECONDS if shared else POLL_SECONDS):
                        await wakeup.wait()

    async def _advance(self, state: MissionState, fleet: Fleet) -> bool:
        """Does one step of a child that has not ended; False if it can only wait."""
        if state.terminal:
            return False
        if state.status == "paused":
            return await self._resume_with_parent(state)
        asked = state.waiting_for in ("approval", "input", "proposal")
        # An approval that nobody answered in time has expired.
        if asked and (state.waiting_for != "approval" or state.wait_left(self._service.clock.now()) > 0):
            return False
        failed = state.failure.error if state.failure is not None and state.status == "failed" else None
        if failed is not None and not await self._may_restart(failed, fleet):
            return True
        if await self._service.is_for_workers(self._child):
            if failed is not None:
                await self._service.say(self._child, MissionResumed(at=self._service.clock.now(), by=self._parent))
            if not await self._service.ledger.is_claimed(self._child):
                await self._service.place(self._child)
            return False  # it continues on any machine with room, and wakes this process up
        try:
            await self._service.drive(RunOrder(self._child, resume=failed is not None))
        except Conflict:
            return False  # another process drives it
        except (SessionPaused, SessionTerminal):
            return True
        except PursuitError as error:
            return await self._may_restart(error.message, fleet) and False
        return True

    async def _resume_with_parent(self, state: MissionState) -> bool:
        """Resumes a child that was paused with its parent, once the parent runs; what a person paused stays paused."""
        if state.paused_by != self._parent or (await self._service.state(self._parent)).status == "paused":
            return False
        word = MissionResumed(at=self._service.clock.now(), by=self._parent, reason="its parent continues")
        with suppress(SessionTerminal):
            await self._service.say(self._child, word)
        return True

    async def _may_restart(self, why: str, fleet: Fleet) -> bool:
        if fleet.restart == "on_failure" and self._restarts < fleet.max_restarts:
            self._restarts += 1
            await self._ctx.remember({"restarts": self._restarts}, message=f"restart {self._restarts}: {why}"[:500])
            return True
        await self._abort(f"it failed: {why}")
        return False

    async def _watch_cancellation(self) -> None:
        async def watch_parent() -> None:
            with self._service.ledger.wakeup(self._parent) as wakeup:
                while not await self._is_cancelled():
                    await wakeup.wait()
            either.cancel_scope.cancel()

        async with anyio.create_task_group() as either:
            either.start_soon(watch_parent)
            await self._ctx.wait_cancelled()
            either.cancel_scope.cancel()
        await self._abort(CANCELLED_REASON)

    async def _is_cancelled(self) -> bool:
        if self._ctx.cancelled:
            return True
        try:
            parent = await self._service.state(self._parent)
        except SessionNotFound:
            return True
        return parent.terminal or await self._another_won(parent)

    async def _another_won(self, parent: MissionState) -> bool:
        if not _first_wins(parent):
            return False
        others = [await self._service.ledger.row(one) for one in parent.children if one != self._child]
        return any(row is not None and row.status == "completed" for row in others)

    async def _abort(self, reason: str) -> None:
        with suppress(SessionTerminal, SessionNotFound):
            await self._service.abort(self._child, reason=reason, caller=self._by)

    async def _abandon(self, error: Exception) -> Ending:
        why = error.message if isinstance(error, PursuitError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationFailed):
            why = "; ".join(f"{fault.field}: {fault.reason}" for fault in error.faults)
        await self._abort(why)
        return Ending.failure(f"{self._child}: {why}")

    async def _end_rivals(self, state: MissionState) -> None:
        parent = await self._service.state(self._parent)
        if state.status != "completed" or not _first_wins(parent):
            return
        for other in under_way(parent):
            if other != self._child:
                with suppress(SessionTerminal, SessionNotFound):
                    await self._service.abort(other, reason="another agent finished first", caller=self._by)

    async def _ended(self) -> Ending:
        try:
            state = await self._service.state(self._child)
        except SessionNotFound:
            return Ending(status="cancelled", message="cancelled before it began")
        await self._end_rivals(state)
        summary = summary_of(self._child, state, used_of(state))
        result = as_tool_result(summary)
        if state.stop is None:
            return Ending(status="completed", result=result)
        why = f"{self._child} was ended by {state.stop.by}: {state.stop.reason or state.verdict_reason}"
        result |= {"content": [{"type": "text", "text": why}], "isError": True}
        return Ending.failure(why, result=result)


def _first_wins(parent: MissionState) -> bool:
    return parent.mission.fleet is not None and parent.mission.fleet.pick == FIRST
