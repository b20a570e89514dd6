"""Evaluates predicates and runs the checks, so that the criteria can be decided.

This module decides which checks are due and judges their results; `core.evaluate` decides the criteria. A check is a
recorded call like any other, with policy, intent, settlement, timeout and budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pursuit.core.criteria import Check, Expectation, Predicate
from pursuit.core.evaluate import Answer, evaluate
from pursuit.core.events import Source
from pursuit.core.observe import text_of, value_of
from pursuit.core.patterns import Unfinished, count, find
from pursuit.core.series import COMPARE
from pursuit.core.state import CallRecord, observation_view
from pursuit.engine.call_admission import Planned
from pursuit.engine.commands import KEPT
from pursuit.engine.context import Run
from pursuit.engine.execute import execute, running_tasks, whole_result
from pursuit.proposers.contract import ChecksImpossible


def plan_check(run: Run, check: Check, again: int = 0) -> Planned:
    """The call of a check: a tool, or a command with the operator's configuration for its name."""
    kind = f"recheck:{again}" if again else "check"
    planned = Planned(
        call_id=f"{run.mission_id}:{run.state.current_index}:{kind}:{check.criterion_id}",
        tool=check.tool_name or f"check:{check.criterion_id}",
        args=dict(check.args),
        order=len(run.state.open.calls) if run.state.open is not None else 0,
        purpose="check",
        repeatable=check.idempotent,
        timeout=check.timeout,
        criterion_id=check.criterion_id,
        command=check.tool_name is None,
    )
    if not planned.command:
        return planned
    argv, cwd, timeout, missing = check.command or (), check.cwd, check.timeout, None
    if check.check is not None:
        named = run.checks.get(check.check)
        if named is None:
            missing = f"no [checks.{check.check}] in the configuration"
        else:
            argv, cwd = named["command"], named.get("cwd")
            limits = [limit for limit in (timeout, named.get("timeout")) if limit is not None]
            timeout = min(limits, default=None)
    args = {"argv": list(argv), "cwd": cwd}
    return msgspec.structs.replace(planned, args=args, timeout=timeout, missing=missing)


async def answers_for(run: Run) -> dict[str, Answer]:
    """The value of each predicate, and the result of each check that is due."""
    mission = run.state.mission
    if run.state.picks:
        return {}  # its children were already checked
    if not any(isinstance(one, Check) for one in mission.criteria):
        return await _answers(run)
    try:
        async with run.proposer.before_checks(running=lambda: bool(running_tasks(run.state))) as run.checking:
            return await _answers(run)
    except ChecksImpossible as error:
        return {one.criterion_id: Answer(error=str(error)) for one in mission.criteria}
    finally:
        run.checking = None


async def _answers(run: Run) -> dict[str, Answer]:
    criteria = run.state.mission.criteria
    answers = await _predicates(run, [criterion for criterion in criteria if isinstance(criterion, Predicate)])
    checks = [criterion for criterion in criteria if isinstance(criterion, Check) and _can_look(run, criterion)]
    for check in checks:
        if check.when == "checkpoint" or check.metrics:
            answers[check.criterion_id] = await _checked(run, check)
    late = [check for check in checks if check.when == "met" and not check.metrics]
    if late and _rest_is_met(run, answers):
        for check in late:
            answers[check.criterion_id] = await _checked(run, check)
    return answers


def _can_look(run: Run, check: Check) -> bool:
    """True if the check can run: its `after` was called now or succeeded before, or its last try failed."""
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
    """True if every required criterion is met, except the checks that wait for the others."""
    status = {result.criterion_id: result.status for result in evaluate(run.state, answers)}
    return all(
        status[criterion.criterion_id] == "met"
        for criterion in run.state.mission.criteria
        if criterion.required
        and not (isinstance(criterion, Check) and criterion.when == "met" and not criterion.metrics)
    )


async def _checked(run: Run, check: Check) -> Answer:
    """The outcome of a check. With `confirm` it is repeated as often as required, until it is not met."""
    needed = run.state.confirmations_of(check)
    answer = await _checked_once(run, check)
    done = 0
    while done < needed and answer.error is None and answer.value["met"]:
        done += 1
        answer = await _checked_once(run, check, done)
    if not done or answer.error is not None:
        return answer
    met = answer.value["met"]
    confirmed = {"value": done - (not met), "needed": needed, "met": met}
    return replace(answer, value={**answer.value, "confirm": confirmed})


async def _checked_once(run: Run, check: Check, again: int = 0) -> Answer:
    planned = plan_check(run, check, again)
    await execute(run, [planned], durable=True)
    record = run.state.call(planned.call_id)
    if record is None:
        return Answer(error="the mission was stopped before the check ran")
    source = Source(tool=record.tool, call_id=record.call_id, iteration=record.iteration)
    if record.outcome not in ("ok", "failed") or (record.result is None and record.blob is None):
        return Answer(error=f"{record.outcome}: {record.error}", source=source)
    return await _judge(run, check.expect, planned, record, source)


async def _judge(run: Run, expect: Expectation, planned: Planned, record: CallRecord, source: Source) -> Answer:
    """Judges whether all expectations of the check hold for its result."""
    result = await whole_result(run, record) or {}
    value = value_of(result)
    text = _text(result, value)
    verdicts: dict[str, Any] = {}
    if planned.command:
        wanted = expect.exit_code if expect.exit_code is not None else 0
        verdicts["exit_code"] = {"value": value["exit_code"], "met": value["exit_code"] == wanted}
    else:
        verdicts["succeeded"] = {"met": record.outcome == "ok"}
    cut = _cut(value) if planned.command else None
    try:
        if expect.text is not None:
            verdicts["text"] = {"pattern": expect.text, "met": find(expect.text, text) is not None}
        if expect.count is not None:
            number = count(expect.count.pattern, text)
            verdicts["count"] = {"value": number, "met": COMPARE[expect.count.op](number, expect.count.target)}
    except Unfinished as error:
        return Answer(error=str(error), source=source)
    if cut is not None and (expect.count is not None or verdicts.get("text", {}).get("met") is False):
        return Answer(error=f"only the last {KEPT} bytes of {cut} are kept; the rest was not searched", source=source)
    if expect.file is not None:
        verdicts["file"] = {"path": expect.file, "met": _exists(_folder(run, planned) / expect.file)}
    if expect.predicate is not None:
        (answer,) = await run.sandbox.evaluate([expect.predicate], {"result": value})
        if answer.error is not None or not isinstance(answer.value, bool):
            return Answer(error=answer.error or "expect.predicate must return True or False", source=source)
        verdicts["predicate"] = {"met": answer.value}
    met = all(verdict["met"] for verdict in verdicts.values())
    never = {"never": True} if planned.command and value["exit_code"] in expect.never_exit_codes else {}
    return Answer(value={"met": met, **never, **verdicts}, source=source)


def _cut(value: Mapping[str, Any]) -> str | None:
    """The names of a command's incomplete outputs; None if all are complete."""
    return " and ".join(value["cut"]) if value.get("cut") else None


def _folder(run: Run, planned: Planned) -> Path:
    """The folder in which the command of a check, or of a command tool, ran."""
    if planned.command:
        return Path(run.checked_folder(planned.args["cwd"]))
    tool = run.tools.get(planned.tool)
    return Path() if tool is None or tool.cwd is None else Path(run.checked_folder(tool.cwd))


def _exists(path: Path) -> bool:
    """True if the file exists; an invalid file name is not an error."""
    try:
        return path.exists()
    except OSError:
        return False


def _text(result: Mapping[str, Any], value: Any) -> str:
    if isinstance(value, Mapping) and "stdout" in value:
        return f"{value['stdout']}\n{value['stderr']}"
    return text_of(result) or msgspec.json.encode(value).decode()
