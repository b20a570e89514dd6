"""From a directive to a mission that is shown before anybody runs it.

Owns: the draft: what is kept, what is refused and why. Knows no file, no ledger and no provider.
Invariant: a draft is a valid mission by the same parser as any other, each of its criteria can come out both ways as
far as can be told, and making it starts nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from pursuit.drafting.asking import forbidden, question, sketched
from pursuit.drafting.objections import clashes, objection
from pursuit.drafting.page import criterion_lines, mission_page
from pursuit.drafting.templates import Sketch, read
from pursuit.drafting.trials import constant, trial
from pursuit.errors import Fault, ModelUnavailable, ValidationFailed
from pursuit.model.criteria import AnyCriterion, Check, Predicate, describe
from pursuit.model.events import ModelAnswer
from pursuit.model.mission import Mission, parse_mission
from pursuit.proposers.language import LanguageModel, ModelRequest, NoAnswer, NoAnswerYet
from pursuit.sandbox import Sandbox

BUDGET = {"max_iterations": 50, "max_wall_clock_seconds": 3600}
TRIES = 3
TIMEOUT = 600.0
_STAND_IN = {"criterion_id": "x", "kind": "event", "event_name": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A criterion that was drafted and is not used."""

    row: dict[str, Any]
    reason: str

    def __str__(self) -> str:
        return f"{self.row.get('criterion_id', 'a criterion')}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A mission that nobody has started: `toml` is it as a file."""

    mission: Mission
    toml: str
    by: str
    refused: tuple[Refused, ...] = ()
    tokens: int = 0
    cost_usd: float | None = None
    trouble: str | None = None
    """What went wrong after these criteria had been drafted and paid for."""

    def as_json(self) -> dict[str, Any]:
        """Everything about it."""
        return {
            "by": self.by,
            "mission": tomllib.loads(self.toml),
            "criteria": [
                {"criterion_id": one.criterion_id, "kind": one.kind, "description": describe(one)}
                for one in self.mission.criteria
            ],
            "refused": [{"criterion": one.row, "reason": one.reason} for one in self.refused],
            "toml": self.toml,
            "used": {"tokens": self.tokens, "cost_usd": self.cost_usd},
            "trouble": self.trouble,
        }


@dataclass(frozen=True, slots=True)
class _Checked:
    kept: Sequence[tuple[AnyCriterion, Sketch]]
    refused: Sequence[Refused]


@dataclass(slots=True)
class _Spent:
    """What asking used; a cost that is not known of one answer is not known of all."""

    tokens: int = 0
    cost: float | None = 0.0

    def add(self, answer: ModelAnswer) -> None:
        self.tokens += answer.input_tokens + answer.output_tokens
        self.cost = None if self.cost is None or answer.cost_usd is None else self.cost + answer.cost_usd

    def __str__(self) -> str:
        cost = "at a price that is not known" if self.cost is None else f"for ${self.cost:.4g}"
        return f"{self.tokens} tokens {cost}"


async def draft_by_templates(directive: str) -> Draft:
    """Reads criteria off a directive by known phrases. Raises `ValidationFailed` if none is left."""
    directive = _stripped(directive)
    reading = read(directive)
    async with Sandbox() as sandbox:
        checked = await _check(sandbox, reading.sketches)
    doubts = [Refused(row={"criterion_id": doubt.said}, reason=doubt.reason) for doubt in reading.doubts]
    checked = _Checked(checked.kept, [*checked.refused, *doubts])
    if not checked.kept:
        raise _nothing(checked.refused)
    return _draft(directive, checked, by="templates", proposer=None)


async def draft_by_model(
    directive: str, model: LanguageModel, *, proposer: str | None = None, timeout: float = TIMEOUT
) -> Draft:
    """Asks a model for criteria, again with the reasons while any is refused; each time for so many seconds at most.

    What was drafted before it stopped answering is kept, with the `trouble`. Raises `ModelUnavailable` if there is
    nothing to keep, and `ValidationFailed` if nothing that it drafts can be used.
    """
    directive = _stripped(directive)
    reasons: list[str] = []
    best, spent = _Checked((), ()), _Spent()
    trouble: str | None = None
    async with Sandbox() as sandbox:
        for attempt in range(TRIES):
            try:
                answer = await _in_time(model, question(directive, reasons, attempt), timeout)
            except (NoAnswer, NoAnswerYet) as error:
                trouble = f"{model.name} did not answer: {error}"
                if not best.kept:
                    raise ModelUnavailable(_with_cost(trouble, spent, reasons)) from error
                break
            spent.add(answer)
            rows, reasons = sketched(answer)
            checked = await _check(sandbox, rows, models=True)
            reasons += [str(one) for one in checked.refused]
            if checked.kept and not any(criterion.required for criterion, _ in checked.kept):
                reasons.append("no criterion is required, so the mission would be done at once")
                continue
            if len(checked.kept) >= len(best.kept):
                best = checked
            if not reasons:
                break
    if not best.kept:
        raise _nothing(best.refused, reasons, spent)
    return _draft(directive, best, by=model.name, proposer=proposer, spent=spent, trouble=trouble)


async def _in_time(model: LanguageModel, request: ModelRequest, timeout: float) -> ModelAnswer:
    """What the model says, if it says it in time; raises `NoAnswer`, too."""
    with anyio.move_on_after(timeout):
        return await model.answer(request)
    raise NoAnswer(f"no answer within {timeout:g} s")


def _with_cost(trouble: str, spent: _Spent, reasons: Sequence[str]) -> str:
    """What went wrong, with what was used up before it and for what."""
    if not spent.tokens:
        return trouble
    return f"{trouble}; asking before had used {spent}, and gave nothing to use: {'; '.join(reasons)}"


def _draft(
    directive: str,
    checked: _Checked,
    *,
    by: str,
    proposer: str | None,
    spent: _Spent | None = None,
    trouble: str | None = None,
) -> Draft:
    criteria = [criterion_lines(criterion, _remarks(sketch)) for criterion, sketch in checked.kept]
    text = mission_page(directive, criteria, budget=BUDGET, proposer=proposer, by=by)
    mission = parse_mission(tomllib.loads(text))
    spent = spent or _Spent(cost=None)
    return Draft(
        mission=mission,
        toml=text,
        by=by,
        refused=tuple(checked.refused),
        tokens=spent.tokens,
        cost_usd=spent.cost,
        trouble=trouble,
    )


def _remarks(sketch: Sketch) -> list[str]:
    told = [f"from: {sketch.said}"] if sketch.said else []
    return [*told, *([sketch.hint] if sketch.hint else [])]


async def _check(sandbox: Sandbox, rows: Sequence[Sketch], *, models: bool = False) -> _Checked:
    """Sorts rows into what can be used and what cannot."""
    refused: list[Refused] = []
    kept: list[tuple[AnyCriterion, Sketch]] = []
    for sketch in rows:
        why = forbidden(sketch.row) if models else None
        criterion = None
        if why is None:
            criterion, why = _parsed(sketch.row)
        if criterion is not None:
            why = objection(criterion) or await _tried(sandbox, criterion)
        if why is None and any(criterion.criterion_id == one.criterion_id for one, _ in kept if criterion is not None):
            why = "the same criterion_id is given twice"
        if criterion is None or why is not None:
            refused.append(Refused(row=sketch.row, reason=why or "it is no criterion"))
        else:
            kept.append((criterion, sketch))
    clashing = clashes([criterion for criterion, _ in kept])
    refused += [Refused(row=s.row, reason=clashing[c.criterion_id]) for c, s in kept if c.criterion_id in clashing]
    return _Checked([pair for pair in kept if pair[0].criterion_id not in clashing], refused)


def _parsed(row: dict[str, Any]) -> tuple[AnyCriterion | None, str | None]:
    """The criterion by the parser of missions, or every fault of it."""
    frame = {"directive": "x", "budget": BUDGET, "allow_all_tools": True}
    try:
        return parse_mission({**frame, "criteria": [row]}).criteria[0], None
    except ValidationFailed as failed:
        faults = [f"{fault.field.removeprefix('criteria[0]').lstrip('.')} {fault.reason}" for fault in failed.faults]
        return None, "; ".join(fault.strip() for fault in faults)


async def _tried(sandbox: Sandbox, criterion: AnyCriterion) -> str | None:
    if isinstance(criterion, Predicate):
        return await trial(sandbox, criterion.expression)
    if isinstance(criterion, Check) and criterion.expect.predicate is not None:
        return constant(criterion.expect.predicate, "result")
    return None


def _stripped(directive: str) -> str:
    """The directive as a mission takes it, or its faults."""
    frame = {"directive": directive, "budget": BUDGET, "allow_all_tools": True}
    return parse_mission({**frame, "criteria": [_STAND_IN]}).directive


def _nothing(refused: Sequence[Refused], reasons: Sequence[str] = (), spent: _Spent | None = None) -> ValidationFailed:
    told = list(dict.fromkeys(str(one) for one in refused)) or list(dict.fromkeys(reasons))
    if told:
        faults = [Fault(field="directive", reason=why) for why in told]
        used = "" if spent is None or not spent.tokens else f"; asking used {spent}"
        return ValidationFailed(faults, f"nothing that could be drafted from this can be used{used}")
    why = (
        "no criterion can be read off these words; say a number (“p95 latency under 200 ms”), what must pass or exist "
        "(“until the tests pass”, “report.md exists”), or let a model draft it (--model provider:name)"
    )
    return ValidationFailed([Fault(field="directive", reason=why)], "nothing could be drafted")
