"""Executes calls: policy, loop guard and budget first, then a durable intent, then the effect.

Owns: the order of a batch and what may run side by side. Knows no proposer.
Invariant: nothing is sent whose intent is not durable; a settled call is never sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import anyio
import msgspec

from pursuit.core.approvals import approval_id, is_granted
from pursuit.core.budgets import RemainingBudget, child_id, is_spawn, used_of
from pursuit.core.child_admission import Refused, Spawns
from pursuit.core.events import (
    ApprovalAsked,
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    Event,
    Outcome,
    Purpose,
    WaitBegan,
    decode,
)
from pursuit.core.fold import fold
from pursuit.core.observe import lift, text_of
from pursuit.core.state import TERMINAL, CallRecord, MissionState, fingerprint
from pursuit.core.tools import CallFailed, Tool, ToolResult
from pursuit.engine.context import Run
from pursuit.engine.journal import Build
from pursuit.ledger.contract import FORGOTTEN
from pursuit.policy.traits import tool_approval_description
from pursuit.tasks.limits import RUNNING
from pursuit.tasks.record import new_task_id

# Sends one call and turns whatever happens into its settlement.
# Invariant: a call that was sent ends in exactly one settlement, or the process died.

PREVIEW = 2_000
MOST_ERROR = 4_000


class Settlement(msgspec.Struct, frozen=True):
    """A settlement, with the blob of a result that is too large for it."""

    event: CallSettled
    blobs: dict[str, bytes]


async def perform(run: Run, call: CallRecord, tool: Tool, timeout: float | None = None) -> Settlement:
    """Sends the call and waits; a timeout, a failure and an error result are outcomes, not exceptions."""
    began = run.clock.monotonic()
    limit = run.deadline(timeout or tool.traits.timeout or run.settings.call_timeout)
    try:
        sent = run.tools.call(tool, call.args, call_id=call.call_id, on_progress=limit.progressed)
        answer = sent if isinstance(sent, ToolResult) else await limit.bound(sent)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), seconds=run.clock.monotonic() - began)
    seconds = run.clock.monotonic() - began
    if answer is None:
        return settle(run, call, "timed_out", error=limit.why(), seconds=seconds)
    return settled_as(run, call, answer, seconds=seconds)


def settled_as(
    run: Run, call: CallRecord, answer: ToolResult, *, seconds: float = 0.0, used: Mapping[str, float] | None = None
) -> Settlement:
    """The settlement of a call that was answered, be it with an error."""
    result = answer.as_dict()
    if answer.is_error:
        said = text_of(result) or "the tool reported an error"
        return settle(run, call, "failed", result=result, error=said, seconds=seconds, used=used)
    return settle(run, call, "ok", result=result, seconds=seconds, used=used)


def _storable(value: Any) -> tuple[Any, bytes]:
    """The value as a replay will read it, and its bytes; what JSON cannot hold is shown as text."""
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        body = msgspec.json.encode(_shown(value))
    return msgspec.json.decode(body), body


def _shown(value: Any, depth: int = 50) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping) and depth:
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_shown(str(key)): _shown(item, depth - 1) for key, item in pairs}
    if isinstance(value, list | tuple) and depth:
        return [_shown(item, depth - 1) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    return _shown(repr(cast("object", value)))


def settle(
    run: Run,
    call: CallRecord,
    outcome: Outcome,
    *,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
    seconds: float = 0.0,
    used: Mapping[str, float] | None = None,
) -> Settlement:
    """The settlement of a call, with metrics and events lifted and a large result set aside."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    blob = preview = None
    error = None if error is None else _shown(error)[:MOST_ERROR]
    if result is None:
        full = hashlib.sha256(f"{outcome}:{error}".encode()).hexdigest()
    else:
        answer, body = _storable(result)
        result = answer
        full = hashlib.sha256(body).hexdigest()
        metrics, events = lift(call.tool, answer, run.state.mission.observe)
        if "structuredContent" not in answer:  # what was parsed out of text may hold what JSON cannot
            metrics, events = _storable((metrics, events))[0]
        if len(body) > run.settings.inline_result:
            blob, preview = full, body[:PREVIEW].decode(errors="replace")
            blobs[full] = body
            result = None
    event = CallSettled(
        at=run.clock.now(),
        call_id=call.call_id,
        iteration=call.iteration,
        outcome=outcome,
        result=result,
        blob=blob,
        preview=preview,
        digest=full[:16],
        error=error,
        metrics=metrics,
        events=events,
        seconds=int(seconds * 1e6) / 1e6,
        elapsed=run.elapsed(),
        used=None if used is None else dict(used),
    )
    return Settlement(event, blobs)


# Asks a person before a call that policy does not allow by itself.
# Invariant: a question is durable before anybody is told of it, waiting for it holds nothing, and silence is a no.

Wanted = tuple[str, str, Mapping[str, Any]]
"""A call: its id, its tool, its arguments."""


class MustWait(Exception):
    """The iteration stays open until a person has answered; the mission waits in the ledger."""


async def ask_first(run: Run, calls: Sequence[Wanted]) -> None:
    """Asks about all of these calls that policy wants asked about, in one commit; raises `MustWait` until answered."""
    asking = [question for call in calls if (question := _question(run, call)) is not None]
    if not asking:
        return
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        if state.stopped or state.open is None:
            return ()
        now = run.clock.now()
        events: list[Event] = []
        until: list[float] = []
        for asked in asking:
            known = state.approvals.get(asked.approval_id)
            if is_granted(state.granted, known, asked.tool, asked.args) or (known is not None and known.answer):
                continue
            if known is None:
                events.append(asked)
                until.append(asked.until)
            elif now >= known.until:
                events.append(ApprovalExpired(at=now, approval_id=known.approval_id))
            else:
                until.append(known.until)
        if until:
            waits = True
            wait = WaitBegan(
                at=now, waiting_for="approval", detail=asking[0].tool, until=min(until), elapsed=run.elapsed()
            )
            events.append(wait)
        return events

    await run.journal.record(build)
    if waits:
        raise MustWait


def refusal(state: MissionState, call_id: str, tool: str, args: Mapping[str, Any]) -> str | None:
    """Why a call that a person was asked about may not be made, or None if it may."""
    known = state.approvals.get(approval_id(call_id))
    if is_granted(state.granted, known, tool, args):
        return None
    if known is None or known.answer is None:
        return "a person must approve it, and nobody was asked"
    if known.answer == "expired":
        return "nobody approved it in time"
    return f"denied by {known.by}" + (f": {known.why}" if known.why else "")


def _question(run: Run, call: Wanted) -> ApprovalAsked | None:
    call_id, name, args = call
    tool = run.tools.get(name)
    if tool is None:
        return None
    ruling = run.tools.rule(tool, args)
    if ruling.decision != "ask":
        return None
    now = run.clock.now()
    iteration = run.state.open
    return ApprovalAsked(
        at=now,
        approval_id=approval_id(call_id),
        call_id=call_id,
        iteration=iteration.index if iteration is not None else run.state.iteration_count,
        tool=name,
        args=dict(args),
        description=tool_approval_description(tool, args, ruling.reason),
        reason=ruling.reason,
        until=now + run.settings.approval_timeout,
    )


# Calls whose answers come later: each is a task, and the mission waits for it in the ledger.
# Invariant: the task's id is in the call's intent before the task begins, so a call is never made twice and its
# outcome is never lost, whoever dies. Waiting for it holds nothing; only one that ends within `task_patience` is not
# worth a wait.

LOOK_EVERY = 0.1
CHILD_PATIENCE = 15.0
"""Seconds that the end of a mission waits for its children to end; what one is given counts as used after that."""


async def perform_later(run: Run, call: CallRecord, task_id: str, tool: Tool) -> Settlement | None:
    """Begins the call's task if it has not begun, and settles the call if the task has ended; None while it works."""
    try:
        await run.tools.begin(tool, call.args, task_id=task_id, call_id=call.call_id)
        answer = await run.tools.outcome(task_id, within=run.settings.task_patience)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), used=await used_by(run, call))
    return None if answer is None else settled_as(run, call, answer, used=await used_by(run, call))


async def wait_for_tasks(run: Run, calls: Sequence[str]) -> None:
    """Makes the mission wait if one of these calls is a task that works still; raises `MustWait` then."""
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        task_id = next((call.task for call in at_work(state) if call.call_id in calls), None)
        if task_id is None or state.stopped:
            return ()
        waits = True
        return [WaitBegan(at=run.clock.now(), waiting_for="task", detail=task_id, elapsed=run.elapsed())]

    await run.journal.record(build)
    if waits:
        raise MustWait


async def cancel_tasks(run: Run, *, reason: str) -> None:
    """Stops the tasks of a mission that is being ended; their calls count as cancelled."""
    for call in at_work(run.state):
        if call.task is not None:
            await run.tools.cancel(call.task, reason=reason)
    for call in at_work(run.state):
        run.journal.stage(settle(run, call, "cancelled", error=reason, used=await used_by(run, call)).event)


async def used_by(run: Run, call: CallRecord) -> Mapping[str, float] | None:
    """What the child that a call started has used; None if the call started none, or nobody can say for good.

    A child's use is final when it is closed: nothing reopens it, and only its driver wrote to it until then.
    """
    if call.task is None or not is_spawn(run.state, call.tool):
        return None
    child = child_id(call.task)
    with run.ledger.bell(child) as bell, anyio.move_on_after(CHILD_PATIENCE):
        while True:
            row = await run.ledger.row(child)
            if row is not None and row.status == FORGOTTEN:
                return None
            if row is None and not await _works(run, call.task):
                return {}
            events = await run.ledger.read(child) if row is not None and row.status in TERMINAL else []
            state = fold(decode(one.type, one.body) for one in events)
            if state is not None and state.closed:
                return used_of(state)
            with anyio.move_on_after(LOOK_EVERY):  # one that was never made rings no bell
                await bell.wait()
    return None


async def _works(run: Run, task_id: str) -> bool:
    row = await run.ledger.row(task_id)
    return row is not None and row.status in RUNNING


def at_work(state: MissionState) -> list[CallRecord]:
    """The calls of the open iteration that are tasks without an end."""
    iteration = state.open
    if iteration is None:
        return []
    return [call for call in iteration.calls.values() if call.task is not None and call.outcome is None]


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
        desk = _BatchAdmission(run, state)
        return [desk.admission(planned, tools[planned.call_id]) for planned in batch if not _is_task(state, planned)]

    return build


class _BatchAdmission:
    """Admits the calls of one batch: it counts what the batch itself uses up."""

    def __init__(self, run: Run, state: MissionState) -> None:
        self._run = run
        self._state = state
        self._purse = RemainingBudget(state)
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
