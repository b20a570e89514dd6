"""Asks the sandbox and runs the checks, so that the criteria can be decided.

Owns: which checks are due and what their results must satisfy. Decides no criterion itself.
Invariant: a check is a recorded call like any other: intent, settlement, timeout, budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pursuit.engine.checks import CheckPlan, plan_check, run_check
from pursuit.engine.run import Run
from pursuit.model.criteria import Check, Predicate
from pursuit.model.evaluate import Answer, evaluate
from pursuit.model.events import Source
from pursuit.model.observe import text_of, value_of
from pursuit.model.records import CallRecord
from pursuit.model.thresholds import COMPARE
from pursuit.model.view import observation_view


async def answers_for(run: Run) -> dict[str, Answer]:
    """What the sandbox says of each predicate, and each check that is due its result."""
    answers = await _predicates(run)
    for check in _due(run, answers):
        answers[check.criterion_id] = await _checked(run, check)
    return answers


async def _predicates(run: Run) -> dict[str, Answer]:
    predicates = [c for c in run.state.mission.criteria if isinstance(c, Predicate)]
    if not predicates:
        return {}
    await run.journal.flush()
    values = await run.sandbox.evaluate([p.expression for p in predicates], {"obs": observation_view(run.state)})
    return {
        predicate.criterion_id: Answer(value=value.value, error=value.error)
        for predicate, value in zip(predicates, values, strict=True)
    }


def _due(run: Run, answers: Mapping[str, Answer]) -> Sequence[Check]:
    """The checks to run now: those for every checkpoint, and the others once all else is met."""
    checks = [c for c in run.state.mission.criteria if isinstance(c, Check)]
    if not checks:
        return ()
    late = {c.criterion_id for c in checks if c.when == "met"}
    results = {r.criterion_id: r.status for r in evaluate(run.state, answers)}
    early = {c.criterion_id for c in checks if c.when == "checkpoint"}
    others = [c for c in run.state.mission.criteria if c.required and c.criterion_id not in late | early]
    rest_met = all(results[c.criterion_id] == "met" for c in others)
    return [c for c in checks if c.when == "checkpoint" or rest_met]


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
    if expect.text is not None:
        verdicts["text"] = {"pattern": expect.text, "met": re.search(expect.text, text) is not None}
    if expect.count is not None:
        number = sum(1 for _ in re.finditer(expect.count.pattern, text))
        verdicts["count"] = {"value": number, "met": COMPARE[expect.count.op](number, expect.count.target)}
    if expect.file is not None:
        path = Path(plan.cwd or ".") / expect.file
        verdicts["file"] = {"path": expect.file, "met": path.exists()}
    if expect.predicate is not None:
        (answer,) = await run.sandbox.evaluate([expect.predicate], {"result": value})
        if answer.error is not None or not isinstance(answer.value, bool):
            return Answer(error=answer.error or "expect.predicate must give True or False", source=source)
        verdicts["predicate"] = {"met": answer.value}
    met = all(verdict["met"] for verdict in verdicts.values())
    return Answer(value={"met": met, **verdicts}, source=source)


async def _whole_result(run: Run, record: CallRecord) -> Mapping[str, Any]:
    if record.blob is None:
        return record.result
    body = await run.ledger.blob(record.blob)
    return msgspec.json.decode(body) if body is not None else {}


def _text(result: Mapping[str, Any], value: Any) -> str:
    if isinstance(value, Mapping) and "stdout" in value:
        return f"{value['stdout']}\n{value['stderr']}"
    return text_of(result) or msgspec.json.encode(value).decode()
