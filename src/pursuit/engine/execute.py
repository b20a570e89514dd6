"""Executes an iteration: sends the admitted calls, runs its script, and settles the results.

Invariant: nothing is sent before its intent is durable. A call that was sent ends in exactly one settlement unless the
process dies; a settled call is never sent again.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio
import msgspec

from pursuit.config.process_environment import SESSION_VARIABLE
from pursuit.core.budgets import child_id, is_spawn, used_of
from pursuit.core.criteria import Check
from pursuit.core.events import (
    ISOLATION,
    CallSettled,
    Event,
    MissionWarned,
    Outcome,
    ScriptEnded,
    WaitBegan,
    decoded,
)
from pursuit.core.fold import MAX_NOTES, fold
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
from pursuit.engine.context import Deadline, Run
from pursuit.ledger.contract import FORGOTTEN, Ledger
from pursuit.proposers.contract import Performed
from pursuit.proposers.language import CHARACTERS
from pursuit.proposers.model.conversation import page, result_text
from pursuit.sandbox.values import Calls, Finished, ScriptCall, ScriptFailure, ScriptSpec
from pursuit.tasks.limits import RUNNING

PREVIEW = 2_000
MAX_ERROR = 4_000
LOOK_EVERY = 0.1
CHILD_PATIENCE = 15.0
"""Seconds that the end of a mission waits for its children; after that, all that a child was given counts as used."""


async def execute(run: Run, planned: Sequence[Planned], *, durable: bool = False) -> None:
    """Brings each planned call to an outcome, and continues where a dead driver left off.

    With `durable` each outcome is stored before this returns; without it, the next commit may include the last one.
    Raises `MustWait` before anything is sent if a person must be asked first, and afterwards if a call has become a
    task that still runs.
    """
    made = {} if run.state.open is None else run.state.open.calls
    todo = [call for call in planned if call.call_id not in made or not _is_settled(run.state, call)]
    if run.tools.listings:
        await run.tools.refresh([call.tool for call in todo])
    if run.tools.asking:
        await ask_first(run, todo)
    together = len(todo) == 1 or (len(todo) > 1 and all(_parallel_safe(run, call) for call in todo))
    for batch in [todo] if together else [[call] for call in todo]:
        if await _send(run, batch):
            await _wait_for_tasks(run, batch)
    if durable:
        await run.journal.flush()


def settle_lost(run: Run, *, repeatable_too: bool = False) -> None:
    """Settles the calls of a dead driver that will not be repeated as `unknown`."""
    iteration = run.state.open
    if iteration is None:
        return
    for call in iteration.calls.values():
        if call.outcome is None and call.task is None and (repeatable_too or not call.repeatable):
            why = "the process ended before the outcome was known; it was not sent again"
            run.journal.stage(settle(run, call, "unknown", error=why).event)


def _is_settled(state: MissionState, planned: Planned) -> bool:
    """True if a call has its outcome. A check that a stop cut off does not count: it is repeated if that is allowed."""
    call = state.call(planned.call_id)
    if call is None or call.outcome is None:
        return False
    return not (planned.purpose == "check" and call.outcome == "cancelled" and call.repeatable)


def _parallel_safe(run: Run, planned: Planned) -> bool:
    tool = tool_of(run, planned)
    if tool is None or not tool.traits.parallel_safe:
        return False
    # A call that needed approval runs in order, even after the approval.
    return not run.tools.asking or ruling_on(run, planned, tool).decision != "ask"


async def _send(run: Run, batch: Sequence[Planned]) -> bool:
    """Makes all intents durable in one commit, then sends the calls concurrently; returns whether one is a task.

    Each outcome is stored when it arrives. The last one is stored with the next commit, often the next call's intent.
    """
    wanted = [(planned, tool_of(run, planned)) for planned in batch]
    await run.journal.record(partial(_admitted, run, wanted))
    state = run.state
    if state.stopped:
        return False
    # A process suspended here for longer than its lease must not send: another process drives the mission now.
    if (claim := run.journal.claim) is not None and claim.expired:
        await claim.confirm()
    ready: list[tuple[CallRecord, Tool, float | None]] = []
    for planned, tool in wanted:
        if tool is not None and (call := _pending(state, planned.call_id)) is not None:
            ready.append((call, tool, planned.timeout))
    if len(ready) == 1:  # a task group costs more than the rest of a fast call
        call, tool, timeout = ready[0]
        settlement = await _perform_or_cancel(run, call, tool, timeout)
        if settlement is not None:
            run.journal.stage(settlement.event, settlement.blobs)
        return call.task is not None

    async def one(call: CallRecord, tool: Tool, timeout: float | None) -> None:
        settlement = await _perform_or_cancel(run, call, tool, timeout)
        if settlement is not None:
            run.journal.stage(settlement.event, settlement.blobs)
            if any(_pending(state, planned.call_id) for planned in batch):
                await run.journal.flush()

    async with anyio.create_task_group() as tasks:
        for call in ready:
            tasks.start_soon(one, *call)
    return any(call.task is not None for call, _tool, _timeout in ready)


def _admitted(run: Run, wanted: Sequence[tuple[Planned, Tool | None]], state: MissionState) -> list[Event]:
    """The intents of the calls that may run, and the refusals of the others."""
    if state.stopped:
        return []
    checks = wanted[0][0].purpose == "check" and all(planned.purpose == "check" for planned, _tool in wanted)
    admission = Admission(run, state, check=checks)
    events: list[Event] = []
    for planned, tool in wanted:
        before = state.call(planned.call_id)
        if before is not None and before.outcome is None and before.task is not None:
            continue  # its task runs already
        event = admission.admit(planned, tool, before)
        if event is None and before is not None:
            why = "the call was cut off before its outcome was known, and may not be repeated now"
            event = settle(run, before, "unknown", error=why).event
        if event is not None:
            events.append(event)
    return events


def _pending(state: MissionState, call_id: str) -> CallRecord | None:
    """The call if its intent is durable and it has no outcome yet."""
    call = state.call(call_id)
    return call if call is not None and call.outcome is None else None


class Settlement(msgspec.Struct, frozen=True):
    """A settlement, with the blob of a large result."""

    event: CallSettled
    blobs: dict[str, bytes]


async def _perform_or_cancel(run: Run, call: CallRecord, tool: Tool, timeout: float | None) -> Settlement | None:
    """Performs a call; if it is cancelled, that outcome is stored before the cancellation propagates.

    A call that is a task continues whatever happens here; None while it runs.
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
                error = None if end.outcome == "ok" else why  # a stop after the call's end changes nothing
                settlement = _settled_own(run, call, msgspec.structs.replace(end, error=error))
            cut = own and settlement.event.error is not None
            run.journal.stage(msgspec.structs.replace(settlement.event, cut=cut), settlement.blobs)
            await run.journal.flush()
        raise


async def _perform(run: Run, call: CallRecord, tool: Tool, timeout: float | None) -> Settlement:
    """Sends the call and waits; timeouts, failures and error results are outcomes, not exceptions."""
    began = run.clock.monotonic()
    if tool.qualified in run.state.facts.tools:
        return await _perform_own(run, call, tool)
    limit: Deadline | None = None
    try:
        if tool.local:  # it is answered at once, as a rule
            sent = run.tools.call(tool, call.args, call_id=call.call_id)
        else:
            limit = _deadline(run, tool, timeout)
            sent = _sent(run, call, tool, limit)
        if isinstance(sent, ToolResult):
            answer = sent
        else:
            limit = limit or _deadline(run, tool, timeout)
            answer = await limit.bound(sent)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), seconds=run.clock.monotonic() - began)
    seconds = run.clock.monotonic() - began
    if answer is None:
        return settle(run, call, "timed_out", error=limit and limit.why(), seconds=seconds)
    return _settled_as(run, call, answer, seconds=seconds)


def _deadline(run: Run, tool: Tool, timeout: float | None) -> Deadline:
    return run.deadline(timeout or tool.traits.timeout or run.settings.call_timeout)


def _sent(run: Run, call: CallRecord, tool: Tool, limit: Deadline) -> ToolResult | Awaitable[ToolResult]:
    if tool is COMMAND:
        return _run_command(run, call)
    if tool is OWN_TOOLS.get(tool.qualified):
        return own_result(run, call)
    return run.tools.call(tool, call.args, call_id=call.call_id, on_progress=limit.progressed)


async def _perform_own(run: Run, call: CallRecord, tool: Tool) -> Settlement:
    """Performs a call of the proposer's own tool. If its time runs out, its effect is unknown."""
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
    """Records warnings (texts with codes) that the mission does not have yet."""
    known = {one.message for one in run.state.raised}
    at, iteration = run.clock.now(), run.state.current_index
    for text, code in notes.items():
        is_new = text != run.state.isolation if code == ISOLATION else text not in known
        if text and is_new:
            run.journal.stage(MissionWarned(at=at, iteration=iteration, code=code, message=text))


async def leave_result(run: Run) -> None:
    """Lets the proposer leave its result; a failure is a warning."""
    try:
        notes = await run.proposer.completed(run.state)
    except Exception as error:  # noqa: BLE001 - another package's code may raise anything
        notes = {f"the proposer left no result: {type(error).__name__}: {error}": "no_result"}
    warn(run, notes)


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
    """Runs the command of a check. The ledger has its arguments; the operator's environment for it is looked up now."""
    around, cwd = run.environment_of(call.criterion_id), run.checked_folder(call.args["cwd"])
    ours = {SESSION_VARIABLE: run.mission_id}
    check = next((one for one in run.state.mission.criteria if one.criterion_id == call.criterion_id), None)
    rules = [one.rule(name) for name, one in check.metrics.items()] if isinstance(check, Check) else []
    result = await run_command(call.args["argv"], cwd, around=around, ours=ours, metrics=rules)
    return ToolResult(structured=result)


async def own_result(run: Run, call: CallRecord) -> ToolResult:
    """The result of our own tool: the fold keeps a note; a part of a long result comes from the ledger."""
    if call.tool == NOTE:
        full = len(run.state.conversation.notes) >= MAX_NOTES
        return _said(f"noted; {MAX_NOTES} notes are kept, so the oldest was dropped" if full else "noted")
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
        return _said(f"no result of a call {wanted!r}", is_error=True)
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
    """The settlement of a call that was answered, perhaps with an error."""
    result = answer.as_dict()
    if answer.is_error:
        said = text_of(result) or "the tool reported an error"
        return settle(run, call, "failed", result=result, error=said, seconds=seconds, used=used)
    return settle(run, call, "ok", result=result, seconds=seconds, used=used, log=log)


def _storable(value: Any) -> tuple[Any, bytes]:
    """The value as a replay will read it, and its bytes; values that JSON cannot represent become text."""
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
    """The settlement of a call, with its metrics and events extracted and a large result moved to a blob."""
    metrics: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    blob = preview = None
    error = None if error is None else _shown(error)[:MAX_ERROR]
    if result is None:
        full = digest_of(f"{outcome}:{error}".encode())
    else:
        answer, body = _storable(result)
        result = answer
        full = digest_of(body)
        metrics, events = lift(call.tool, answer, run.state.mission.observe, log)
        if "structuredContent" not in answer:  # values parsed from text may not fit JSON
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


# Calls whose results come later. Each is a task, and the mission waits for it in the ledger. The call's intent has the
# id of the task before the task begins, so a call is never made twice and its outcome is never lost, whichever process
# dies. Waiting holds no resources; the mission does not wait for a task that ends within `task_patience`.


async def _perform_task(run: Run, call: CallRecord, task_id: str, tool: Tool) -> Settlement | None:
    """Begins the call's task if it has not begun, and settles the call if the task has ended; None while it runs."""
    try:
        place = run.checking if call.purpose == "check" else None
        await run.tools.later.begin(tool, call.args, task_id=task_id, call_id=call.call_id, place=place)
        patience, left = run.settings.task_patience, run.wall_clock_left()
        if run.task_ended(task_id) is not None:
            patience = math.inf  # only its output is unread
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
    """How long a task ran, according to the ledger: from its first event to its end."""
    row = await run.ledger.row(task_id)
    return 0.0 if row is None else max(0.0, row.summary.get("ended_at", row.updated_at) - row.created_at)


async def worked_until(
    ledger: Ledger, state: MissionState, now: float, task_ended: Callable[[str], float | None]
) -> float:
    """The time when the last task that the mission waits for ended, recorded or not; now, while one still runs."""
    ends: list[float] = []
    for row in [await ledger.row(call.task or "") for call in running_tasks(state)]:
        if row is None:
            continue
        end = task_ended(row.name) if row.status in RUNNING else row.summary.get("ended_at", row.updated_at)
        ends.append(now if end is None else end)
    return min(now, max(ends, default=now))


async def _wait_for_tasks(run: Run, batch: Sequence[Planned]) -> None:
    """If one of these calls is a task that still runs, makes the mission wait and raises `MustWait`.

    The wall clock continues while they run, and ends them.
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
    """Stops the tasks of a mission that ends or is out of time; their calls count as cancelled."""
    calls = running_tasks(run.state)
    for call in calls:
        if call.task is not None:
            await run.tools.later.cancel(call.task, reason=reason)
    for call in calls:
        seconds = await _seconds_of(run, call.task or "")
        used = await _used_by(run, call)
        run.journal.stage(settle(run, call, "cancelled", error=reason, seconds=seconds, used=used).event)


async def _used_by(run: Run, call: CallRecord) -> Mapping[str, float] | None:
    """The usage of the child that a call started; None if there is no child, or while the usage is not final.

    A child's usage is final when it is closed: nothing reopens it, and only its driver wrote to it until then.
    """
    if call.task is None or not is_spawn(run.state, call.tool):
        return None
    child = child_id(call.task)
    with run.ledger.wakeup(child) as wakeup, anyio.move_on_after(CHILD_PATIENCE):
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
            with anyio.move_on_after(LOOK_EVERY):  # a child that was never made wakes nobody
                await wakeup.wait()
    return None


def running_tasks(state: MissionState) -> list[CallRecord]:
    """The calls of the open iteration that are running tasks."""
    iteration = state.open
    if iteration is None:
        return []
    return [call for call in iteration.calls.values() if call.task is not None and call.outcome is None]


# Scripts. After a crash a script starts again and gets the recorded answers of its settled calls until it has caught
# up.


class Diverged(Exception):
    """A replayed script made a different call than the first time."""


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
    """The script with its tools by server, each with its parameters from the start of the mission."""
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
                "or has other arguments; a script must depend only on state, results and random"
            )
    await execute(run, planned, durable=True)
    return {wanted.order: await _value(run, iteration.calls.get(wanted.call_id)) for wanted in planned}


async def _value(run: Run, record: CallRecord | None) -> Any:
    """The value for the script: the result of a successful call, an exception for any other."""
    if record is None:
        return ScriptFailure(message="the call was not made: the mission was stopped")
    if record.outcome != "ok":
        return ScriptFailure(message=f"{record.tool} {record.outcome}: {record.error}")
    result = await whole_result(run, record)
    return record.preview if result is None else value_of(result)


async def whole_result(run: Run, record: CallRecord) -> Mapping[str, Any] | None:
    """The result of a call, loaded from its blob if large; None if the blob is missing."""
    if record.blob is None:
        return record.result
    body = await run.ledger.blob(record.blob)
    return None if body is None else msgspec.json.decode(body)


NO_ANSWER = "a person must approve this call and has not answered yet; end your turn and try again in the next one"


class RunServices:
    """The services of a run for a proposer that performs calls itself: asking for permission and making calls."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reserved = (-1, -1)  # iteration and last order of a call in it: a held call is not recorded yet

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], *, unattended: bool, seconds: float) -> bool | None:
        """True if policy allows a step, or a person does within these seconds; None if nobody answered in time."""
        return await answer_question(self._run, tool, dict(arguments), unattended=unattended, seconds=seconds)

    async def call(self, tool: Tool, arguments: dict[str, Any], *, seconds: float) -> Mapping[str, Any]:
        """Makes a call of the mission within the current call, and returns its MCP result."""
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
        """The tools of the mission, except the proposer's own and those whose calls are tasks."""
        run = self._run
        found = {name: run.tools.get(name) for name in run.state.tools if name not in run.state.facts.tools}
        return {name: tool for name, tool in found.items() if tool is not None and not tool.long}


def _failed(text: str) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}
