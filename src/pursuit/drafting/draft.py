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

from pursuit.drafting.asking import forbidden, question, sketched
from pursuit.drafting.numbers import relative
from pursuit.drafting.objections import clashes, objection
from pursuit.drafting.page import criterion_lines, mission_page
from pursuit.drafting.templates import Sketch, sketches
from pursuit.drafting.trials import constant, trial
from pursuit.errors import Fault, ModelUnavailable, ValidationFailed
from pursuit.model.criteria import AnyCriterion, Check, Predicate, describe
from pursuit.model.mission import Mission, parse_mission
from pursuit.proposers.language import LanguageModel, NoAnswer, NoAnswerYet
from pursuit.sandbox import Sandbox

BUDGET = {"max_iterations": 50, "max_wall_clock_seconds": 3600}
TRIES = 3
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

    def as_json(self) -> dict[str, Any]:
        """Everything about it."""
        return {
            "by": self.by,
            "mission": self.mission.model_dump(mode="json", exclude_defaults=True),
            "criteria": [
                {"criterion_id": one.criterion_id, "kind": one.kind, "description": describe(one)}
                for one in self.mission.criteria
            ],
            "refused": [{"criterion": one.row, "reason": one.reason} for one in self.refused],
            "toml": self.toml,
            "used": {"tokens": self.tokens, "cost_usd": self.cost_usd},
        }


@dataclass(frozen=True, slots=True)
class _Checked:
    kept: Sequence[tuple[AnyCriterion, Sketch]]
    refused: Sequence[Refused]


async def draft_by_templates(directive: str) -> Draft:
    """Reads criteria off a directive by known phrases. Raises `ValidationFailed` if none is left."""
    directive = _stripped(directive)
    async with Sandbox() as sandbox:
        checked = await _check(sandbox, sketches(directive))
    why = "it is relative to a value that is not known here; say the number that it should come to"
    refused = [*checked.refused, *(Refused(row={"criterion_id": said}, reason=why) for said in relative(directive))]
    checked = _Checked(checked.kept, refused)
    if not checked.kept:
        raise _nothing(checked.refused)
    return _draft(directive, checked, by="templates", proposer=None)


async def draft_by_model(directive: str, model: LanguageModel, *, proposer: str | None = None) -> Draft:
    """Asks a model for criteria, again with the reasons while any is refused.

    Raises `ModelUnavailable` if it does not answer, and `ValidationFailed` if nothing that it drafts can be used.
    """
    directive = _stripped(directive)
    reasons: list[str] = []
    best = _Checked((), ())
    tokens, cost = 0, 0.0
    async with Sandbox() as sandbox:
        for attempt in range(TRIES):
            try:
                answer = await model.answer(question(directive, reasons, attempt))
            except (NoAnswer, NoAnswerYet) as error:
                raise ModelUnavailable(f"{model.name} did not answer: {error}") from error
            tokens += answer.input_tokens + answer.output_tokens
            cost += answer.cost_usd or 0.0
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
        raise _nothing(best.refused, reasons)
    return _draft(directive, best, by=model.name, proposer=proposer, tokens=tokens, cost=cost)


def _draft(
    directive: str, checked: _Checked, *, by: str, proposer: str | None, tokens: int = 0, cost: float | None = None
) -> Draft:
    criteria = [criterion_lines(criterion, _remarks(sketch)) for criterion, sketch in checked.kept]
    text = mission_page(directive, criteria, budget=BUDGET, proposer=proposer, by=by)
    mission = parse_mission(tomllib.loads(text))
    return Draft(mission=mission, toml=text, by=by, refused=tuple(checked.refused), tokens=tokens, cost_usd=cost)


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


def _nothing(refused: Sequence[Refused], reasons: Sequence[str] = ()) -> ValidationFailed:
    told = [str(one) for one in refused] or list(dict.fromkeys(reasons))
    if told:
        faults = [Fault(field="directive", reason=why) for why in told]
        return ValidationFailed(faults, "every criterion that could be drafted was refused")
    why = (
        "no criterion can be read off these words; say a number (“p95 latency under 200 ms”), what must pass or exist "
        "(“until the tests pass”, “report.md exists”), or let a model draft it (--model provider:name)"
    )
    return ValidationFailed([Fault(field="directive", reason=why)], "nothing could be drafted")
