"""Executes calls: policy, loop guard and budget first, then a durable intent, then the effect.

Owns: the order of a batch and what may run side by side. Knows no proposer.
Invariant: nothing is sent whose intent is not durable; a settled call is never sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import anyio
import msgspec

from pursuit.engine.approvals import ask_first, refusal
from pursuit.engine.journal import Build
from pursuit.engine.later import perform_later, wait_for_tasks
from pursuit.engine.perform import Settlement, perform, settle
from pursuit.engine.run import Run
from pursuit.model.events import CallIntended, CallRefused, Event, Purpose
from pursuit.model.lending import Purse, child_id, is_spawn
from pursuit.model.records import CallRecord, fingerprint
from pursuit.model.spawning import Refused, Spawns
from pursuit.model.state import MissionState
from pursuit.tasks.record import new_task_id
from pursuit.tools.contract import Tool

GUARD = 2
ONE_CALL = {"max_tool_calls": 1.0}
Refusal = Literal["denied", "skipped", "failed"]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is wanted."""

    call_id: str
    tool: str
    args: dict[str, Any]
    order: int
    purpose: Purpose = "proposal"
    guarded: bool = False
    repeatable: bool = False
    timeout: float | None = None
    criterion_id: str | None = None


async def execute(run: Run, planned: Sequence[Planned], *, durable: bool = False) -> None:
    """Brings every planned call to an outcome, resuming where a dead driver left off.

    With `durable` each outcome is stored before this returns; without it, the last one may ride in the
    commit that follows. Raises `MustWait` before anything is sent if a person is to be asked first, and when all is
    done but what has become a task that works still.
    """
    todo = [call for call in planned if not _has_outcome(run.state, call.call_id)]
    if run.tools.asking:
        await ask_first(run, [(call.call_id, call.tool, call.args) for call in todo])
    if len(todo) > 1 and all(_parallel_safe(run, call) for call in todo):
        await _together(run, todo)
        await _wait(run, todo)
    else:
        for call in todo:
            await _alone(run, call)
            if _is_task(run.state, call):
                await _wait(run, [call])
    if durable:
        await run.journal.flush()


async def _wait(run: Run, batch: Sequence[Planned]) -> None:
    """Waits in the ledger for what has become a task and works still."""
    tasks = [planned.call_id for planned in batch if _is_task(run.state, planned)]
    if tasks:
        await wait_for_tasks(run, tasks)


def _is_task(state: MissionState, planned: Planned) -> bool:
    call = _pending(state, planned.call_id)
    return call is not None and call.task is not None


def settle_lost(run: Run, *, repeatable_too: bool = False) -> None:
    """Marks the calls of a dead driver that will not be sent again as `unknown`."""
    iteration = run.state.open
    if iteration is None:
        return
    for call in iteration.calls.values():
        if call.outcome is None and call.task is None and (repeatable_too or not call.repeatable):
            why = "the process ended before the outcome was known; it was not sent again"
            run.journal.stage(settle(run, call, "unknown", error=why).event)


async def _alone(run: Run, planned: Planned) -> None:
    """One call: its intent carries the outcome of the one before."""
    tool = run.tools.get(planned.tool)
    await run.journal.record(_admission(run, [planned], {planned.call_id: tool}))
    call = _pending(run.state, planned.call_id)
    if call is None or tool is None or run.state.stopped:
        return
    settlement = await _perform_or_cancel(run, call, tool, planned.timeout)
    if settlement is not None:
        run.journal.stage(settlement.event, settlement.blobs)


async def _together(run: Run, batch: Sequence[Planned]) -> None:
    """Calls side by side: all intents in one commit, each outcome stored as it comes."""
    tools = {planned.call_id: run.tools.get(planned.tool) for planned in batch}
    await run.journal.record(_admission(run, batch, tools))

    async def one(call: CallRecord, tool: Tool) -> None:
        settlement = await _perform_or_cancel(run, call, tool)
        if settlement is None:
            return
        run.journal.stage(settlement.event, settlement.blobs)
        if any(_pending(run.state, planned.call_id) for planned in batch):
            await run.journal.flush()

    async with anyio.create_task_group() as tasks:
        for planned in batch:
            call, tool = _pending(run.state, planned.call_id), tools[planned.call_id]
            if call is not None and tool is not None and not run.state.stopped:
                tasks.start_soon(one, call, tool)


def _admission(run: Run, batch: Sequence[Planned], tools: Mapping[str, Tool | None]) -> Build:
    """The intents of the calls that may run, to be made durable, and why the others may not."""

    def build(state: MissionState) -> list[Event]:
        if state.stopped:
            return []
        desk = _Desk(run, state)
        return [desk.admission(planned, tools[planned.call_id]) for planned in batch if not _is_task(state, planned)]

    return build


class _Desk:
    """Admits the calls of one batch: it counts what the batch itself uses up."""

    def __init__(self, run: Run, state: MissionState) -> None:
        self._run = run
        self._state = state
        self._purse = Purse(state)
        self._spawns: Spawns | None = None
        self._guard_key, self._guard_count = state.guard_key, state.guard_count

    def admission(self, planned: Planned, tool: Tool | None) -> Event:
        """The durable intent of a call that may run, or why it may not."""
        before = _pending(self._state, planned.call_id)
        if before is not None:
            return self._again(planned, tool, before)
        if tool is None:
            return self._refuse(planned, "failed", self._run.tools.missing(planned.tool))
        if (reason := self._denied(planned, tool)) is not None:
            return self._refuse(planned, "denied", reason)
        if self._purse.lacks(ONE_CALL) is not None:
            return self._refuse(planned, "skipped", "max_tool_calls is used up")
        left = self._run.wall_clock_left()
        if left is not None and left <= 0:
            return self._refuse(planned, "skipped", "max_wall_clock_seconds is used up")
        self._purse.take(ONE_CALL)
        if is_spawn(self._state, planned.tool):
            return self._spawn(planned, tool)
        return self._intent(planned, tool, attempt=1)

    def _spawn(self, planned: Planned, tool: Tool) -> Event:
        """The intent to start a child, with what is set aside for it."""
        self._spawns = self._spawns or Spawns(self._state, self._purse, self._mutates)
        intent = self._intent(planned, tool, attempt=1)
        try:
            reserved = self._spawns.admit(planned.args, child_id(intent.task or ""))
        except Refused as refused:
            self._purse.take({name: -amount for name, amount in ONE_CALL.items()})
            return self._refuse(planned, refused.outcome, str(refused))
        return msgspec.structs.replace(intent, reserved=reserved)

    def _mutates(self, name: str) -> bool:
        tool = self._run.tools.get(name)
        return tool is None or not tool.traits.read_only

    def _again(self, planned: Planned, tool: Tool | None, before: CallRecord) -> Event:
        """A call that a dead driver may have sent: it was reserved then, and was never refused."""
        if tool is None or self._denied(planned, tool) is not None:
            why = "the process ended before the outcome was known, and it may not be sent again now"
            return settle(self._run, before, "unknown", error=why).event
        return self._intent(planned, tool, attempt=before.attempt + 1)

    def _intent(self, planned: Planned, tool: Tool, *, attempt: int) -> CallIntended:
        return CallIntended(
            at=self._run.clock.now(),
            call_id=planned.call_id,
            iteration=_index(self._state),
            tool=planned.tool,
            args=planned.args,
            purpose=planned.purpose,
            order=planned.order,
            attempt=attempt,
            criterion_id=planned.criterion_id,
            repeatable=planned.repeatable or tool.traits.repeatable,
            task=new_task_id() if tool.long else None,
        )

    def _denied(self, planned: Planned, tool: Tool) -> str | None:
        """Why policy, the schema or the loop guard refuses a call, or None."""
        ruling = self._run.tools.rule(tool, planned.args)
        if ruling.decision == "deny":
            return ruling.reason
        if ruling.decision == "ask" and (refused := refusal(self._state, planned.call_id, planned.tool, planned.args)):
            return refused
        if planned.purpose == "script" and (faults := self._run.tools.check(planned.tool, planned.args)):
            return "the arguments do not fit the tool's schema: " + "; ".join(faults)
        if planned.guarded and self._loops(planned):
            return "the same call was made twice in a row and nothing changed; try other arguments or another tool"
        return None

    def _loops(self, planned: Planned) -> bool:
        key = fingerprint([planned.tool, planned.args])
        same = key == self._guard_key
        if same and self._guard_count >= GUARD:
            return True
        self._guard_key, self._guard_count = key, self._guard_count + 1 if same else 1
        return False

    def _refuse(self, planned: Planned, outcome: Refusal, reason: str) -> CallRefused:
        return CallRefused(
            at=self._run.clock.now(),
            call_id=planned.call_id,
            iteration=_index(self._state),
            tool=planned.tool,
            args=planned.args,
            outcome=outcome,
            reason=reason,
            purpose=planned.purpose,
            order=planned.order,
        )


async def _perform_or_cancel(run: Run, call: CallRecord, tool: Tool, timeout: float | None = None) -> Settlement | None:
    """Performs a call; if it is cancelled under way, that outcome is stored before the cancellation goes on.

    One that is a task goes on whatever happens here; None while it does.
    """
    if call.task is not None:
        return await perform_later(run, call, call.task, tool)
    try:
        return await perform(run, call, tool, timeout)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            why = "stopped by the operator" if run.stop_heard else "the driver was stopped"
            run.journal.stage(settle(run, call, "cancelled", error=why).event)
            await run.journal.flush()
        raise


def _parallel_safe(run: Run, planned: Planned) -> bool:
    tool = run.tools.get(planned.tool)
    if tool is None or not tool.traits.parallel_safe:
        return False
    # What a person was asked about runs in order, also after the yes.
    return not run.tools.asking or run.tools.rule(tool, planned.args).decision != "ask"


def _pending(state: MissionState, call_id: str) -> CallRecord | None:
    """The call if it has been intended and has no outcome yet."""
    call = state.open.calls.get(call_id) if state.open is not None else None
    return call if call is not None and call.outcome is None else None


def _has_outcome(state: MissionState, call_id: str) -> bool:
    call = state.open.calls.get(call_id) if state.open is not None else None
    return call is not None and call.outcome is not None


def _index(state: MissionState) -> int:
    return state.open.index if state.open is not None else state.iteration_count
