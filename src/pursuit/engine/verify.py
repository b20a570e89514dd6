"""Asks the sandbox and runs the checks, so that the criteria can be decided.

Owns: which checks are due and what their results must satisfy. Decides no criterion itself.
Invariant: a check is a recorded call like any other: intent, settlement, timeout, budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec

from pursuit.core.criteria import Check, Predicate
from pursuit.core.evaluate import Answer, evaluate
from pursuit.core.events import CallIntended, CallRefused, Event, Source
from pursuit.core.observe import text_of, value_of
from pursuit.core.patterns import Unfinished, count, find
from pursuit.core.series import COMPARE
from pursuit.core.state import CallRecord, MissionState, observation_view
from pursuit.core.tools import CallFailed
from pursuit.engine.commands import run_command
from pursuit.engine.context import Run
from pursuit.engine.execute import Planned, execute, settle

# Makes the call of one check: a tool of the mission, or a command of the operator's.

COMMAND_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """A check with its command filled in from the operator's configuration."""

    check: Check
    call_id: str
    argv: Sequence[str] | None = None
    cwd: str | None = None
    timeout: float | None = None
    missing: str | None = None


def plan_check(run: Run, check: Check) -> CheckPlan:
    """Resolves a named check; a name that is gone from the configuration is said, not raised."""
    index = run.state.open.index if run.state.open is not None else run.state.iteration_count
    call_id = f"{run.mission_id}:{index}:check:{check.criterion_id}"
    if check.tool_name is not None:
        return CheckPlan(check=check, call_id=call_id)
    if check.command is not None:
        return CheckPlan(check=check, call_id=call_id, argv=check.command, cwd=check.cwd, timeout=check.timeout)
    named = run.checks.get(check.check or "")
    if named is None:
        return CheckPlan(
            check=check, call_id=call_id, argv=(), missing=f"no [checks.{check.check}] in the configuration"
        )
    return CheckPlan(
        check=check,
        call_id=call_id,
        argv=named["command"],
        cwd=named.get("cwd"),
        timeout=min((limit for limit in (check.timeout, named.get("timeout")) if limit is not None), default=None),
    )


async def run_check(run: Run, plan: CheckPlan) -> CallRecord | None:
    """The record of the check's call, made now unless an earlier driver has made it."""
    order = len(run.state.open.calls) if run.state.open is not None else 0
    if plan.argv is None:
        planned = Planned(
            call_id=plan.call_id,
            tool=plan.check.tool_name or "",
            args=dict(plan.check.args),
            order=order,
            purpose="check",
            repeatable=plan.check.idempotent,
            timeout=plan.check.timeout,
            criterion_id=plan.check.criterion_id,
        )
        await execute(run, [planned], durable=True)
    else:
        await _command(run, plan, plan.argv, order)
    return run.state.open.calls.get(plan.call_id) if run.state.open is not None else None


async def _command(run: Run, plan: CheckPlan, argv: Sequence[str], order: int) -> None:
    before = run.state.open.calls.get(plan.call_id) if run.state.open is not None else None
    # One that was stopped has looked at nothing yet.
    again = before is not None and before.outcome == "cancelled" and plan.check.idempotent
    if before is not None and before.outcome is not None and not again:
        return
    tool = f"check:{plan.check.criterion_id}"

    def intend(state: MissionState) -> Sequence[Event]:
        if state.stopped or state.open is None:
            return ()
        args: dict[str, Any] = {"argv": list(argv), "cwd": plan.cwd}
        cap = state.cap("max_tool_calls")
        left = run.wall_clock_left()
        reason = plan.missing
        if before is None and cap is not None and state.tool_calls + state.lent.get("max_tool_calls", 0) >= cap:
            reason = "max_tool_calls is used up"
        elif left is not None and left <= 0:
            reason = "max_wall_clock_seconds is used up"
        common: Mapping[str, Any] = {
            "at": run.clock.now(),
            "call_id": plan.call_id,
            "iteration": state.open.index,
            "tool": tool,
            "args": args,
            "purpose": "check",
            "order": order,
        }
        if reason is not None:
            return [CallRefused(**common, outcome="skipped", reason=reason)]
        attempt = 1 if before is None else before.attempt + 1
        repeatable, criterion_id = plan.check.idempotent, plan.check.criterion_id
        return [CallIntended(**common, repeatable=repeatable, attempt=attempt, criterion_id=criterion_id)]

    await run.journal.record(intend)
    call = run.state.open.calls.get(plan.call_id) if run.state.open is not None else None
    if call is None or call.outcome is not None:
        return
    try:
        await _perform_command(run, plan, call, argv)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            run.journal.stage(settle(run, call, "cancelled", error="stopped while the check ran").event)
            await run.journal.flush()
        raise
    await run.journal.flush()


async def _perform_command(run: Run, plan: CheckPlan, call: CallRecord, argv: Sequence[str]) -> None:
    began = run.clock.monotonic()
    with run.deadline(plan.timeout or COMMAND_TIMEOUT) as limit:
        try:
            result: dict[str, Any] = {"content": [], "structuredContent": await run_command(argv, plan.cwd)}
        except CallFailed as error:
            run.journal.stage(settle(run, call, error.outcome, error=str(error)).event)
            return
        seconds = run.clock.monotonic() - began
        settlement = settle(run, call, "ok", result=result, seconds=seconds)
        run.journal.stage(settlement.event, settlement.blobs)
    if limit.ran_out:
        seconds = run.clock.monotonic() - began
        run.journal.stage(settle(run, call, "timed_out", error=limit.why(), seconds=seconds).event)


async def answers_for(run: Run) -> dict[str, Answer]:
    """What the sandbox says of each predicate, and each check that is due its result."""
    criteria = run.state.mission.criteria
    answers = await _predicates(run, [criterion for criterion in criteria if isinstance(criterion, Predicate)])
    checks = [criterion for criterion in criteria if isinstance(criterion, Check) and _has_something(run, criterion)]
    for check in checks:
        if check.when == "checkpoint":
            answers[check.criterion_id] = await _checked(run, check)
    late = [check for check in checks if check.when == "met"]
    if late and _rest_is_met(run, answers):
        for check in late:
            answers[check.criterion_id] = await _checked(run, check)
    return answers


def _has_something(run: Run, check: Check) -> bool:
    """Whether there is something to look at: its tool was called now or succeeded before, or it owes an answer."""
    if check.after is None or run.state.succeeded.get(check.after, 0) > 0:
        return True
    before = run.state.results.get(check.criterion_id)
    calls = () if run.state.open is None else run.state.open.calls.values()
    return any(call.tool == check.after for call in calls) or (before is not None and "error" in before.evidence)


async def _predicates(run: Run, predicates: Sequence[Predicate]) -> dict[str, Answer]:
    if not predicates:
        return {}
    await run.journal.flush()
    values = await run.sandbox.evaluate([p.expression for p in predicates], {"obs": observation_view(run.state)})
    return {
        predicate.criterion_id: Answer(value=value.value, error=value.error)
        for predicate, value in zip(predicates, values, strict=True)
    }


def _rest_is_met(run: Run, answers: Mapping[str, Answer]) -> bool:
    """Whether every required criterion but the checks that wait for the others is met."""
    status = {result.criterion_id: result.status for result in evaluate(run.state, answers)}
    return all(
        status[criterion.criterion_id] == "met"
        for criterion in run.state.mission.criteria
        if criterion.required and not (isinstance(criterion, Check) and criterion.when == "met")
    )


async def _checked(run: Run, check: Check) -> Answer:
    plan = plan_check(run, check)
    record = await run_check(run, plan)
    if record is None:
        return Answer(error="the mission was stopped before the check ran")
    source = Source(tool=record.tool, call_id=record.call_id, iteration=record.iteration)
    if record.outcome not in ("ok", "failed") or (record.result is None and record.blob is None):
        return Answer(error=f"{record.outcome}: {record.error}", source=source)
    return await _judge(run, plan, record, source)


async def _judge(run: Run, plan: CheckPlan, record: CallRecord, source: Source) -> Answer:
    """Whether everything that the check expects of its result holds."""
    result = await _whole_result(run, record)
    value = value_of(result)
    text = _text(result, value)
    expect = plan.check.expect
    verdicts: dict[str, Any] = {}
    if plan.argv is not None:
        wanted = expect.exit_code if expect.exit_code is not None else 0
        verdicts["exit_code"] = {"value": value["exit_code"], "met": value["exit_code"] == wanted}
    else:
        verdicts["succeeded"] = {"met": record.outcome == "ok"}
    try:
        if expect.text is not None:
            verdicts["text"] = {"pattern": expect.text, "met": find(expect.text, text) is not None}
        if expect.count is not None:
            number = count(expect.count.pattern, text)
            verdicts["count"] = {"value": number, "met": COMPARE[expect.count.op](number, expect.count.target)}
    except Unfinished as error:
        return Answer(error=str(error), source=source)
    if expect.file is not None:
        verdicts["file"] = {"path": expect.file, "met": _exists(Path(plan.cwd or ".") / expect.file)}
    if expect.predicate is not None:
        (answer,) = await run.sandbox.evaluate([expect.predicate], {"result": value})
        if answer.error is not None or not isinstance(answer.value, bool):
            return Answer(error=answer.error or "expect.predicate must give True or False", source=source)
        verdicts["predicate"] = {"met": answer.value}
    met = all(verdict["met"] for verdict in verdicts.values())
    never = {"never": True} if plan.argv is not None and value["exit_code"] in expect.never_exit_codes else {}
    return Answer(value={"met": met, **never, **verdicts}, source=source)


def _exists(path: Path) -> bool:
    """Whether a file can be seen there; a name that no file can have is none."""
    try:
        return path.exists()
    except OSError:
        return False


async def _whole_result(run: Run, record: CallRecord) -> Mapping[str, Any]:
    if record.blob is None:
        return record.result
    body = await run.ledger.blob(record.blob)
    return msgspec.json.decode(body) if body is not None else {}


def _text(result: Mapping[str, Any], value: Any) -> str:
    if isinstance(value, Mapping) and "stdout" in value:
        return f"{value['stdout']}\n{value['stderr']}"
    return text_of(result) or msgspec.json.encode(value).decode()
