"""Makes the call of one check: a tool of the mission, or a command of the operator's.

Owns: the intent and the settlement of a check. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from pursuit.engine.commands import run_command
from pursuit.engine.execute import Planned, execute
from pursuit.engine.perform import settle
from pursuit.engine.run import Run
from pursuit.model.criteria import Check
from pursuit.model.events import CallIntended, CallRefused, Event
from pursuit.model.records import CallRecord
from pursuit.model.state import MissionState
from pursuit.tools.contract import CallFailed

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
