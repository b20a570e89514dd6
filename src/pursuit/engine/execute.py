"""Executes an iteration: sends the calls that are admitted, runs its script, and settles what comes back.

Invariant: nothing is sent whose intent is not durable. A call that was sent ends in exactly one settlement, or the
process died; a settled call is never sent again.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import anyio
import msgspec

from pursuit.config.surroundings import SESSION_VARIABLE
from pursuit.core.budgets import child_id, is_spawn, used_of
from pursuit.core.events import CallSettled, Event, MissionWarned, Outcome, ScriptEnded, WaitBegan
from pursuit.core.fold import MOST_NOTES, fold
from pursuit.core.history import decoded
from pursuit.core.mission import NOTE
from pursuit.core.observe import lift, source_matches, text_of, value_of
from pursuit.core.state import TERMINAL, CallRecord, IterationRecord, MissionState, digest_of
from pursuit.core.tools import OWN_TOOLS, CallFailed, Tool, ToolResult
from pursuit.engine.call_admission import (
    COMMAND,
    Admission,
    MustWait,
    Planned,
    answer_question,
    ask_first,
    hold_call,
    ruling_on,
    tool_of,
)
from pursuit.engine.commands import run_command
from pursuit.engine.context import Run
from pursuit.engine.journal import Build
from pursuit.ledger.contract import FORGOTTEN, Ledger
from pursuit.proposers.contract import Performed
from pursuit.proposers.language import CHARACTERS
from pursuit.proposers.model.conversation import page, result_text
from pursuit.sandbox import Calls, Finished, ScriptCall, ScriptFailure, ScriptSpec
from pursuit.tasks.limits import RUNNING

PREVIEW = 2_000
MOST_ERROR = 4_000
LOOK_EVERY = 0.1
CHILD_PATIENCE = 15.0
"""Seconds that the end of a mission waits for its children to end; what one is given counts as used after that."""


async def execute(run: Run, planned: Sequence[Planned], *, durable: bool = False) -> None:
    """Brings each planned call to an outcome, and continues where a dead driver left off.

    With `durable` each outcome is stored before this returns; without it, the last one may ride in the commit that
    follows. Raises `MustWait` before anything is sent if a person must be asked first, and afterwards if a call has
    become a task that still runs.
    """
    todo = [call for call in planned if not _is_settled(run.state, call)]
    await run.tools.refresh(call.tool for call in todo)
    if run.tools.asking:
        await ask_first(run, todo)
    together = len(todo) > 1 and all(_parallel_safe(run, call) for call in todo)
    for batch in [todo] if together else [[call] for call in todo]:
        await _send(run, batch)
        await _wait_for_tasks(run, batch)
    if durable:
        await run.journal.flush()


def settle_lost(run: Run, *, repeatable_too: bool = False) -> None:
    """Marks the calls of a dead driver that will not be sent again as `unknown`."""
    iteration = run.state.open
    if iteration is None:
        return
    for call in iteration.calls.values():
        if call.outcome is None and call.task is None and (repeatable_too or not call.repeatable):
            why = "the process ended before the outcome was known; it was not sent again"
            run.journal.stage(settle(run, call, "unknown", error=why).event)


def _is_settled(state: MissionState, planned: Planned) -> bool:
    """Whether a call has its outcome. A check that a stop cut off has not: it runs again if it may be repeated."""
    call = state.call(planned.call_id)
    if call is None or call.outcome is None:
        return False
    return not (planned.purpose == "check" and call.outcome == "cancelled" and call.repeatable)


def _parallel_safe(run: Run, planned: Planned) -> bool:
    tool = tool_of(run, planned)
    if tool is None or not tool.traits.parallel_safe:
        return False
    # A call that a person was asked about runs in order, also after the yes.
    return not run.tools.asking or ruling_on(run, planned, tool).decision != "ask"


async def _send(run: Run, batch: Sequence[Planned]) -> None:
    """Makes all intents durable in one commit, then sends the calls side by side.

    Each outcome is stored as it comes. The last one rides in the next commit: often the intent of the call after it.
    """
    tools = {planned.call_id: tool_of(run, planned) for planned in batch}
    await run.journal.record(_admission(run, batch, tools))
    if run.state.stopped:
        return
    # A process that was stopped here for longer than its lease must not send: another one drives the mission now.
    if (claim := run.journal.claim) is not None and claim.expired:
        await claim.confirm()

    async def one(call: CallRecord, tool: Tool, timeout: float | None) -> None:
        settlement = await _perform_or_cancel(run, call, tool, timeout)
        if settlement is None:
            return
        run.journal.stage(settlement.event, settlement.blobs)
        if len(batch) > 1 and any(_pending(run.state, planned.call_id) for planned in batch):
            await run.journal.flush()

    ready = [
        (call, tool, planned.timeout)
        for planned in batch
        if (call := _pending(run.state, planned.call_id)) and (tool := tools[planned.call_id])
    ]
    if len(ready) == 1:  # a task group costs more than the rest of a call that is answered at once
        await one(*ready[0])
        return
    async with anyio.create_task_group() as tasks:
        for call in ready:
            tasks.start_soon(one, *call)


def _admission(run: Run, batch: Sequence[Planned], tools: Mapping[str, Tool | None]) -> Build:
    """The intents of the calls that may run, and why the others may not."""

    def build(state: MissionState) -> list[Event]:
        if state.stopped:
            return []
        admission = Admission(run, state, check=all(planned.purpose == "check" for planned in batch))
        events: list[Event] = []
        for planned in batch:
            before = state.call(planned.call_id)
            if before is not None and before.outcome is None and before.task is not None:
                continue  # its task runs already
            event = admission.admit(planned, tools[planned.call_id])
            if event is None and before is not None:
                why = "the call was cut off before its outcome was known, and it may not be sent again now"
                event = settle(run, before, "unknown", error=why).event
            if event is not None:
                events.append(event)
        return events

    return build


def _pending(state: MissionState, call_id: str) -> CallRecord | None:
    """The call if its intent is durable and it has no outcome yet."""
    call = state.call(call_id)
    return call if call is not None and call.outcome is None else None


class Settlement(msgspec.Struct, frozen=True):
    """A settlement, with the blob of a result that is too large for it."""

    event: CallSettled
    blobs: dict[str, bytes]


async def _perform_or_cancel(run: Run, call: CallRecord, tool: Tool, timeout: float | None) -> Settlement | None:
    """Performs a call; if it is cancelled meanwhile, that outcome is stored before the cancellation goes on.

    A call that is a task goes on whatever happens here; None while it does.
    """
    if call.task is not None:
        return await _perform_task(run, call, call.task, tool)
    try:
        return await _perform(run, call, tool, timeout)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            why = "stopped by the operator" if run.stop_ordered else "the driver was stopped"
            settlement = settle(run, call, "cancelled", error=why)
            own = tool.qualified in run.state.facts.tools
            if own and (end := run.proposer.interrupted()) is not None:
                error = None if end.outcome == "ok" else why  # a stop that comes after the call's end changes nothing
                settlement = _settled_own(run, call, msgspec.structs.replace(end, error=error))
            cut = own and settlement.event.error is not None
            run.journal.stage(msgspec.structs.replace(settlement.event, cut=cut), settlement.blobs)
            await run.journal.flush()
        raise


async def _perform(run: Run, call: CallRecord, tool: Tool, timeout: float | None) -> Settlement:
    """Sends the call and waits; a timeout, a failure and an error result are outcomes, not exceptions."""
    began = run.clock.monotonic()
    if tool.qualified in run.state.facts.tools:
        return await _perform_own(run, call, tool)
    limit = run.deadline(timeout or tool.traits.timeout or run.settings.call_timeout)
    try:
        if tool is COMMAND:
            sent = _run_command(run, call)
        elif tool is OWN_TOOLS.get(tool.qualified):
            sent = own_result(run, call)
        else:
            sent = run.tools.call(tool, call.args, call_id=call.call_id, on_progress=limit.progressed)
        answer = sent if isinstance(sent, ToolResult) else await limit.bound(sent)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), seconds=run.clock.monotonic() - began)
    seconds = run.clock.monotonic() - began
    if answer is None:
        return settle(run, call, "timed_out", error=limit.why(), seconds=seconds)
    return _settled_as(run, call, answer, seconds=seconds)


async def _perform_own(run: Run, call: CallRecord, tool: Tool) -> Settlement:
    """A call that the proposer performs itself. If its time runs out, what it did is not known."""
    began = run.clock.monotonic()
    limit = run.deadline(tool.traits.timeout or run.settings.call_timeout)
    end = await limit.bound(run.proposer.perform(call, run.services))
    if end is None:
        end = msgspec.structs.replace(run.proposer.interrupted() or Performed(outcome="unknown"), error=limit.why())
    return _settled_own(run, call, end, seconds=run.clock.monotonic() - began)


def _settled_own(run: Run, call: CallRecord, end: Performed, *, seconds: float = 0.0) -> Settlement:
    warn(run, run.proposer.notes())
    result = ToolResult(structured=end.said).as_dict() if end.said else None
    found = settle(run, call, end.outcome, result=result, error=end.error, seconds=seconds, used=end.used)
    return Settlement(msgspec.structs.replace(found.event, change=end.change), {**found.blobs, **end.blobs})


def warn(run: Run, notes: Mapping[str, str]) -> None:
    """Records the warnings that the mission does not have yet, by their texts with their codes."""
    known = {one.message for one in run.state.raised}
    at, iteration = run.clock.now(), run.state.current_index
    for text, code in notes.items():
        if text not in known:
            run.journal.stage(MissionWarned(at=at, iteration=iteration, code=code, message=text))


async def recover_own(run: Run) -> None:
    """Settles the calls of the proposer's own tools that a dead driver left."""
    iteration = run.state.open
    calls = () if iteration is None or not run.state.facts.tools else list(iteration.calls.values())
    for call in calls:
        if call.tool not in run.state.facts.tools or call.outcome is not None:
            continue
        if (end := await run.proposer.recover(call)) is not None:
            settlement = _settled_own(run, call, end)
            run.journal.stage(msgspec.structs.replace(settlement.event, cut=True), settlement.blobs)


async def _run_command(run: Run, call: CallRecord) -> ToolResult:
    """What the ledger has of the command is its words; its environment is the operator's, and is looked up now."""
    around = run.surroundings_of(call.criterion_id)
    around = replace(around, env={**around.env, SESSION_VARIABLE: run.mission_id})
    cwd = run.checked_folder(call.args["cwd"])
    return ToolResult(structured=await run_command(call.args["argv"], cwd, around=around))


async def own_result(run: Run, call: CallRecord) -> ToolResult:
    """The result of a tool of our own: a note is kept by the fold; a part of a long result comes from the ledger."""
    if call.tool == NOTE:
        full = len(run.state.conversation.notes) >= MOST_NOTES
        return _said(f"noted; {MOST_NOTES} notes are kept, so the oldest one is gone" if full else "noted")
    wanted, offset = str(call.args.get("call_id", "")), call.args.get("offset", 0)
    whole = wanted if wanted.startswith(f"{run.mission_id}:") else f"{run.mission_id}:{wanted}"
    settled = next(
        (
            event
            for _seq, event in await run.journal.past(0)
            if isinstance(event, CallSettled) and event.call_id == whole
        ),
        None,
    )
    if settled is None:
        return _said(f"there is no result of a call {wanted!r}", is_error=True)
    body = settled.result
    if settled.blob is not None:
        stored = await run.ledger.blob(settled.blob)
        body = None if stored is None else msgspec.json.decode(stored)
    if body is None:
        return _said(settled.error or f"the result of {wanted!r} is not in the ledger", is_error=True)
    most = run.state.mission.proposer.result_room * CHARACTERS * 9 // 10
    return _said(page(result_text(body)[0], max(offset, 0) if isinstance(offset, int) else 0, most))


def _said(text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(content=[{"type": "text", "text": text}], is_error=is_error)


def _settled_as(
    run: Run,
    call: CallRecord,
    answer: ToolResult,
    *,
    seconds: float = 0.0,
    used: Mapping[str, float] | None = None,
    log: str = "",
) -> Settlement:
    """The settlement of a call that was answered, be it with an error."""
    result = answer.as_dict()
    if answer.is_error:
        said = text_of(result) or "the tool reported an error"
        return settle(run, call, "failed", result=result, error=said, seconds=seconds, used=used)
    return settle(run, call, "ok", result=result, seconds=seconds, used=used, log=log)


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
    log: str = "",
) -> Settlement:
    """The settlement of a call, with metrics and events lifted and a large result set aside."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    blob = preview = None
    error = None if error is None else _shown(error)[:MOST_ERROR]
    if result is None:
        full = digest_of(f"{outcome}:{error}".encode())
    else:
        answer, body = _storable(result)
        result = answer
        full = digest_of(body)
        metrics, events = lift(call.tool, answer, run.state.mission.observe, log)
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


# Calls whose answers come later. Each is a task, and the mission waits for it in the ledger. The id of the task is in
# the intent of the call before the task begins, so a call is never made twice and its outcome is never lost, whichever
# process dies. Waiting holds nothing; a task that ends within `task_patience` needs no wait.


async def _perform_task(run: Run, call: CallRecord, task_id: str, tool: Tool) -> Settlement | None:
    """Begins the call's task if it has not begun, and settles the call if the task has ended; None while it runs."""
    try:
        folder = run.checked_folder if call.purpose == "check" else None
        await run.tools.later.begin(tool, call.args, task_id=task_id, call_id=call.call_id, folder=folder)
        patience, left = run.settings.task_patience, run.wall_clock_left()
        if run.task_ended(task_id) is not None:
            patience = math.inf  # what is missing is that somebody reads its output
        elif left is not None:
            patience = min(patience, left)
        answer = await run.tools.later.outcome(task_id, within=patience)
    except CallFailed as error:
        seconds = await _seconds_of(run, task_id)
        return settle(run, call, error.outcome, error=str(error), seconds=seconds, used=await _used_by(run, call))
    if answer is None:
        return None
    observed = any(source_matches(rule.tool, call.tool) for rule in run.state.mission.observe)
    log = await run.tools.later.log(task_id) if observed and not answer.is_error else ""
    seconds = await _seconds_of(run, task_id)
    return _settled_as(run, call, answer, seconds=seconds, used=await _used_by(run, call), log=log)


async def _seconds_of(run: Run, task_id: str) -> float:
    """How long a task ran, by the ledger: from its first event to its end."""
    row = await run.ledger.row(task_id)
    return 0.0 if row is None else max(0.0, row.summary.get("ended_at", row.updated_at) - row.created_at)


async def worked_until(
    ledger: Ledger, state: MissionState, now: float, task_ended: Callable[[str], float | None]
) -> float:
    """When the last of the tasks ended that a mission waits for, recorded or not; now, while one of them runs."""
    ends: list[float] = []
    for row in [await ledger.row(call.task or "") for call in running_tasks(state)]:
        if row is None:
            continue
        end = task_ended(row.name) if row.status in RUNNING else row.summary.get("ended_at", row.updated_at)
        ends.append(now if end is None else end)
    return min(now, max(ends, default=now))


async def _wait_for_tasks(run: Run, batch: Sequence[Planned]) -> None:
    """Makes the mission wait if one of these calls is a task that still runs; raises `MustWait` then.

    The wall clock runs on while they work, and ends them.
    """

    def running(state: MissionState) -> str | None:
        calls = [_pending(state, planned.call_id) for planned in batch]
        return next((call.task for call in calls if call is not None and call.task is not None), None)

    if running(run.state) is None:
        return
    left = run.wall_clock_left()
    if left is not None and left <= 0:
        await cancel_tasks(run, reason="max_wall_clock_seconds is used up")

    def build(state: MissionState) -> Sequence[Event]:
        task_id = running(state)
        if task_id is None or state.stopped:
            return ()
        now, left = run.clock.now(), run.wall_clock_left()
        until = None if left is None else now + left
        return [WaitBegan(at=now, waiting_for="task", detail=task_id, until=until, elapsed=run.elapsed())]

    if running(run.state) is not None and await run.journal.record(build):
        raise MustWait


async def cancel_tasks(run: Run, *, reason: str) -> None:
    """Stops the tasks of a mission that is being ended, or has no time left; their calls count as cancelled."""
    calls = running_tasks(run.state)
    for call in calls:
        if call.task is not None:
            await run.tools.later.cancel(call.task, reason=reason)
    for call in calls:
        seconds = await _seconds_of(run, call.task or "")
        used = await _used_by(run, call)
        run.journal.stage(settle(run, call, "cancelled", error=reason, seconds=seconds, used=used).event)


async def _used_by(run: Run, call: CallRecord) -> Mapping[str, float] | None:
    """What the child that a call started has used; None if the call started none, or if that is not final.

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
            if row is None:
                task = await run.ledger.row(call.task)
                if task is None or task.status not in RUNNING:
                    return {}  # the task ended before it made the child
            events = await run.ledger.read(child) if row is not None and row.status in TERMINAL else []
            state = fold(decoded(events))
            if state is not None and state.closed:
                return used_of(state)
            with anyio.move_on_after(LOOK_EVERY):  # a child that was never made rings no bell
                await bell.wait()
    return None


def running_tasks(state: MissionState) -> list[CallRecord]:
    """The calls of the open iteration that are tasks without an end."""
    iteration = state.open
    if iteration is None:
        return []
    return [call for call in iteration.calls.values() if call.task is not None and call.outcome is None]


# Scripts. After a crash a script starts again and is answered from the ledger until it is where it was; a call that
# was settled is answered from its record.


class Diverged(Exception):
    """A replayed script makes another call than the first time."""


async def run_script(run: Run, iteration: IterationRecord, source: str) -> None:
    """Runs the script of an iteration to its end, or to the operator's stop."""
    own = iteration.proposed.own_script
    async with run.sandbox.script(_spec(run, iteration, source)) as script:
        step = await script.start()
        while isinstance(step, Calls):
            try:
                answers = await _answer(run, iteration, step.calls)
            except Diverged as error:
                memory = run.state.memory
                step = Finished(memory=memory, observed=(), events=(), error=str(error), printed="")
                break
            if run.state.stopped:
                return
            step = await script.answer(answers)
    run.journal.stage(
        ScriptEnded(
            at=run.clock.now(),
            iteration=iteration.index,
            memory=step.memory,
            observed=dict(step.observed),
            events=[{**event["data"], "event_name": event["name"]} for event in step.events],
            error=step.error,
            printed=step.printed,
            claimed=not own,
        )
    )


def _spec(run: Run, iteration: IterationRecord, source: str) -> ScriptSpec:
    """The script with its tools by server, each with the parameters that it had when the mission began."""
    tools: dict[str, dict[str, Sequence[str]]] = {}
    for name in run.state.tools:
        server, _, tool_name = name.partition(".")
        tools.setdefault(server, {})[tool_name] = run.state.parameters.get(name, ())
    seed = hashlib.sha256(f"{run.mission_id}:{iteration.index}".encode()).digest()[:8]
    return ScriptSpec(
        source=source,
        tools=tools,
        state=iteration.view or {},
        seed=int.from_bytes(seed, "big"),
        now=datetime.datetime.fromtimestamp(iteration.started_at, tz=datetime.UTC),
    )


async def _answer(run: Run, iteration: IterationRecord, calls: Sequence[ScriptCall]) -> dict[int, Any]:
    planned = [
        Planned(
            call_id=f"{run.mission_id}:{iteration.index}:{call.index}",
            tool=call.tool,
            args=dict(call.arguments),
            order=call.index,
            purpose="script",
        )
        for call in calls
    ]
    for wanted in planned:
        record = iteration.calls.get(wanted.call_id)
        if record is not None and (record.tool, record.args) != (wanted.tool, wanted.args):
            raise Diverged(
                f"the script is not deterministic: call {wanted.order} was {record.tool} and is now {wanted.tool} "
                "or has other arguments; a script must depend on state, results and random only"
            )
    await execute(run, planned, durable=True)
    return {wanted.order: await _value(run, iteration.calls.get(wanted.call_id)) for wanted in planned}


async def _value(run: Run, record: CallRecord | None) -> Any:
    """What the script sees: the value of a call that succeeded, an exception for any other."""
    if record is None:
        return ScriptFailure(message="the call was not made: the mission was stopped")
    if record.outcome != "ok":
        return ScriptFailure(message=f"{record.tool} {record.outcome}: {record.error}")
    result = await whole_result(run, record)
    return record.preview if result is None else value_of(result)


async def whole_result(run: Run, record: CallRecord) -> Mapping[str, Any] | None:
    """The result of a call, a large one from its blob; None if that is gone."""
    if record.blob is None:
        return record.result
    body = await run.ledger.blob(record.blob)
    return None if body is None else msgspec.json.decode(body)


NO_ANSWER = "a person must approve this call, and has not answered yet; end your turn, and try again in the next one"


class RunServices:
    """What a run does for a proposer that performs calls itself: it asks for permission, and makes calls."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reserved = (-1, -1)  # an iteration, and the last place of a call in it: a held call is not recorded yet

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], *, unattended: bool, seconds: float) -> bool | None:
        """Whether policy, or a person within these seconds, allows a step; None if nobody answered in time."""
        return await answer_question(self._run, tool, dict(arguments), unattended=unattended, seconds=seconds)

    async def call(self, tool: Tool, arguments: dict[str, Any], *, seconds: float) -> Mapping[str, Any]:
        """Makes a call of the mission inside of the call that is performed now, and returns its MCP result."""
        run = self._run
        iteration = run.state.open
        if iteration is None or run.stop_ordered:
            return _failed("the mission was stopped")
        if faults := run.tools.check(tool.qualified, arguments):
            return _failed("; ".join(faults))
        places = [call.order for call in iteration.calls.values()]
        places += [self._reserved[1]] if self._reserved[0] == iteration.index else []
        order = max(places, default=-1) + 1
        self._reserved = (iteration.index, order)
        call_id = f"{run.mission_id}:{iteration.index}:{order}"
        planned = Planned(call_id=call_id, tool=tool.qualified, args=arguments, order=order)
        try:
            held = await hold_call(run, planned, seconds)
            if held is None:
                return _failed(NO_ANSWER)
            await execute(run, [held], durable=True)
        except MustWait:
            return _failed(NO_ANSWER)
        record = run.state.call(call_id)
        if record is None:
            return _failed("the mission was stopped")
        result = await whole_result(run, record)
        if result is None or record.outcome not in ("ok", "failed"):
            return _failed(f"{record.outcome}: {record.error}")
        return result

    def offered(self) -> Mapping[str, Tool]:
        """The tools of the mission, but for the proposer's own and those whose calls are tasks."""
        run = self._run
        found = {name: run.tools.get(name) for name in run.state.tools if name not in run.state.facts.tools}
        return {name: tool for name, tool in found.items() if tool is not None and not tool.long}


def _failed(text: str) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}
