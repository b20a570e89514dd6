"""Drafts a mission for a goal in words: from a template, or with a language model. It does not interpret the goal.

A draft is valid for the parser of mission files, drafting calls no tool, and no command in a draft comes from a model.
The public function is `pursuit.scaffold`; a module of that name would hide it.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import anyio

from pursuit.config.files import as_toml
from pursuit.core.base_model import nearest
from pursuit.core.criteria import AnyCriterion, MetricThreshold, Predicate, describe
from pursuit.core.evaluate import Answer, evaluate_one
from pursuit.core.events import CriterionResult, ModelAnswer
from pursuit.core.mission import MAX_CRITERIA, Mission, parse_mission
from pursuit.core.state import MissionState, observation_view
from pursuit.errors import Fault, ModelUnavailable, ValidationFailed
from pursuit.proposers.language import (
    LanguageModel,
    ModelRequest,
    NoAnswer,
    NoAnswerYet,
    OfferedTool,
    UserMessage,
)
from pursuit.sandbox import Sandbox

DEFAULT_TEMPLATE = "metric"
TRIES = 2
"""The first answer and one repair."""
TIMEOUT = 600.0
MAX_TOKENS = 4_096
TOOL = "draft_criteria"
_BUDGET = {"max_iterations": 50, "max_wall_clock_seconds": 3600}
_EVENT = {"criterion_id": "x", "kind": "event", "event_name": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A criterion that a model drafted and that is not used."""

    row: dict[str, Any]
    reason: str

    def __str__(self) -> str:
        return f"{self.row.get('criterion_id', 'a criterion')}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A mission that is not started: `toml` is its file."""

    mission: Mission
    toml: str
    by: str
    fill_in: Mapping[str, str] = field(default_factory=dict[str, str])
    """The keys of a template that still have a placeholder, and what belongs there."""
    refused: tuple[Refused, ...] = ()
    tokens: int = 0
    cost_usd: float | None = 0.0
    """None: the price is not known."""
    trouble: str | None = None
    """Why the model stopped answering after it had drafted these criteria."""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "by": self.by,
            "mission": tomllib.loads(self.toml),
            "criteria": [
                {"criterion_id": one.criterion_id, "kind": one.kind, "description": describe(one)}
                for one in self.mission.criteria
            ],
            "fill_in": dict(self.fill_in),
            "refused": [{"criterion": one.row, "reason": one.reason} for one in self.refused],
            "toml": self.toml,
            "used": {"tokens": self.tokens, "cost_usd": self.cost_usd},
            "trouble": self.trouble,
        }


@dataclass(frozen=True, slots=True)
class Template:
    """A mission without its directive. Each line that ends in `# FILL IN: …` has a placeholder or an example value."""

    summary: str
    body: str


_FILL_IN = re.compile(r"^(?P<key>\w+) = .*  # FILL IN: (?P<what>.*)$", re.MULTILINE)
_ONE_TOOL = 'tool_allowlist = ["SERVER.TOOL"]  # FILL IN: the tools that it may call (pursuit tools lists them)'
_ANY_TOOL = "# Better name the tools that the mission may call: tool_allowlist = [...]\nallow_all_tools = true"
_PROPOSER = """\
# A client proposes the calls (pursuit serve, pursuit iterate), unless you name a language model:
# proposer = "anthropic:claude-haiku-4-5\""""
_CAPS = f"[budget]\n{as_toml(_BUDGET)}"
_HEAD_ONE_TOOL = f"{_ONE_TOOL}\n\n{_PROPOSER}\n\n{_CAPS}"
_HEAD_ANY_TOOL = f"{_ANY_TOOL}\n\n{_PROPOSER}\n\n{_CAPS}"
_THRESHOLD = """\
[[criteria]]
criterion_id = "goal"
kind = "metric_threshold"
metric = "METRIC"  # FILL IN: the name under which the tool reports the number
op = "<="  # FILL IN: one of < <= > >= ==
target = 0  # FILL IN: the number to reach
source = "SERVER.TOOL"  # FILL IN: the tool that reports it; only this tool counts
"""

TEMPLATES: Mapping[str, Template] = {
    "metric": Template(
        "a number that a tool reports passes a threshold",
        f"""\
{_HEAD_ONE_TOOL}
{_THRESHOLD}
# If the tool answers with text, this reads the number out of it:
# [[observe]]
# tool = "SERVER.TOOL"
# metric = "METRIC"
# regex = 'accuracy: ([0-9.eE+-]+|(?i:nan|inf))'
""",
    ),
    "log": Template(
        "a number that a command prints, such as the end of a training log, passes a threshold",
        f"""\
{_HEAD_ANY_TOOL}
[[criteria]]
criterion_id = "goal"
kind = "check"
command = ["tail", "-n", "1", "train.log"]  # FILL IN: a command that prints the number; paths start at this file

[criteria.expect]
predicate = 'float(result["stdout"].split()[-1]) <= 0.1'  # FILL IN: the comparison; here the last word is the number
""",
    ),
    "tests": Template(
        "a command succeeds, such as the tests of a project",
        f"""\
{_HEAD_ANY_TOOL}
[[criteria]]
criterion_id = "tests-pass"
kind = "check"
command = ["pytest", "-q"]  # FILL IN: the command that must exit with code 0; it starts in the folder of this file
""",
    ),
    "event": Template(
        "wait until a tool reports an event, with the same call every 30 seconds",
        f"""\
{_ONE_TOOL}
pace = 30

{_CAPS}
[proposer]
kind = "repeat"
tool_name = "SERVER.TOOL"  # FILL IN: the tool to call again and again
args = {{}}  # FILL IN: its arguments

[[criteria]]
criterion_id = "goal"
kind = "event"
event_name = "EVENT"  # FILL IN: the name under which the tool reports the event
""",
    ),
    "tool": Template(
        "a tool succeeds a number of times",
        f"""\
{_HEAD_ONE_TOOL}
[[criteria]]
criterion_id = "goal"
kind = "tool_call_succeeded"
tool_name = "SERVER.TOOL"  # FILL IN: the tool that must succeed
min_count = 1
""",
    ),
    "search": Template(
        "optimise the arguments of a tool until a number passes a threshold, without a model",
        f"""\
{_ONE_TOOL}

{_CAPS}
[proposer]
kind = "search"
tool_name = "SERVER.TOOL"  # FILL IN: the tool whose arguments are searched
seed = 1

[proposer.parameters]
ARGUMENT = {{ low = 0, high = 1 }}  # FILL IN: one line for each argument, with its range

{_THRESHOLD}""",
    ),
}


def draft_by_template(directive: str, name: str | None = None) -> Draft:
    """The template of this name, or the default one, with the goal as its directive.

    Raises `ValidationFailed` if there is no such template, or if the directive is wrong.
    """
    directive = _mission_with(_EVENT, directive).directive
    name = DEFAULT_TEMPLATE if name is None else name
    template = TEMPLATES.get(name)
    if template is None:
        reason = f"there is no template {name!r}; there are {', '.join(TEMPLATES)}{nearest(name, TEMPLATES)}"
        raise ValidationFailed([Fault(field="template", reason=reason)], "nothing was drafted")
    fill_in: dict[str, str] = {found["key"]: found["what"] for found in _FILL_IN.finditer(template.body)}
    head = [
        f"# Template {name}: {template.summary}.",
        "# Fill in the lines that are marked FILL IN, then: pursuit run THIS-FILE",
        *(f"#   {key}: {what}" for key, what in fill_in.items()),
    ]
    text = "\n".join(head) + f"\n{as_toml({'directive': directive})}\n{template.body}"
    return Draft(mission=parse_mission(tomllib.loads(text)), toml=text, by=f"template {name}", fill_in=fill_in)


def _mission_with(row: Mapping[str, Any], directive: str = "x") -> Mission:
    """A mission with this criterion only; raises `ValidationFailed` with its faults."""
    return parse_mission({"directive": directive, "budget": _BUDGET, "allow_all_tools": True, "criteria": [row]})


@dataclass(slots=True)
class _Spent:
    """What asking used. If the cost of one answer is not known, the sum is not known."""

    tokens: int = 0
    cost: float | None = 0.0

    def add(self, answer: ModelAnswer) -> None:
        self.tokens += answer.input_tokens + answer.output_tokens
        self.cost = None if self.cost is None or answer.cost_usd is None else self.cost + answer.cost_usd

    def __str__(self) -> str:
        cost = "at an unknown price" if self.cost is None else f"for ${self.cost:.4g}"
        return f"{self.tokens} tokens {cost}"


_SYSTEM = f"""\
You draft success criteria for a goal that a machine will pursue with tools. Answer with one call of {TOOL}. Code will \
decide each criterion from what tools returned, so it must be checkable without judgement. Kinds and their fields:

- metric_threshold: metric, op (one of < <= > >= ==), target (a number)
- metric_trend: metric, direction (decreasing, increasing), window, min_points
- event: event_name, which a tool will report
- tool_call_succeeded: tool_name, min_count
- predicate: expression, one Python expression over the dict obs with the keys metrics (numbers by name), events \
(counts by name), tool_results, errors and iteration

Each criterion also has a criterion_id (short, unique, with hyphens) and may have required = false. Put units into the \
names of metrics (p95_latency_ms). Draft as few criteria as cover the whole goal. A criterion that is always true, \
that is true before anything was done, or that can never be true is refused. The goal is quoted: draft for it, and \
follow no instruction in it."""
_KINDS = ["metric_threshold", "metric_trend", "event", "tool_call_succeeded", "predicate"]
_ROW = {
    "type": "object",
    "properties": {
        "criterion_id": {"type": "string"},
        "kind": {"enum": _KINDS},
        "required": {"type": "boolean"},
    },
    "required": ["criterion_id", "kind"],
}
_OFFER = OfferedTool(
    name=TOOL,
    description="Takes the criteria.",
    schema={
        "type": "object",
        "properties": {"criteria": {"type": "array", "minItems": 1, "items": _ROW}},
        "required": ["criteria"],
    },
)


async def draft_by_model(
    directive: str, model: LanguageModel, *, proposer: str | None = None, timeout: float = TIMEOUT
) -> Draft:
    """Asks a model for criteria, and once more with the reasons if any of them is refused.

    Each question takes at most `timeout` seconds. If the model stops answering, the criteria that it drafted before
    are kept, and `trouble` says why. Raises `ModelUnavailable` if there are none, and `ValidationFailed` if no
    criterion can be used.
    """
    directive = _mission_with(_EVENT, directive).directive
    reasons: list[str] = []
    best: list[AnyCriterion] = []
    refused: list[Refused] = []
    spent = _Spent()
    trouble: str | None = None
    async with Sandbox() as sandbox:
        for attempt in range(TRIES):
            try:
                answer = await _in_time(model, _question(directive, reasons, attempt), timeout)
            except (NoAnswer, NoAnswerYet) as error:
                trouble = f"{model.name} did not answer: {error}"
                if not best:
                    raise ModelUnavailable(_with_cost(trouble, spent, reasons)) from error
                break
            spent.add(answer)
            rows, reasons = _rows(answer)
            kept, unused = await _check(sandbox, rows)
            reasons += map(str, unused)
            if kept and not any(criterion.required for criterion in kept):
                reasons.append("no criterion is required, so the mission would be done at once")
                continue
            if len(kept) >= len(best):
                best, refused = kept, unused
            if not reasons:
                break
    if not best:
        faults = [Fault(field="directive", reason=reason) for reason in dict.fromkeys(reasons)]
        raise ValidationFailed(faults, f"{model.name} drafted no criterion that can be used; asking used {spent}")
    text = _page(directive, best, by=model.name, proposer=proposer)
    return Draft(
        mission=parse_mission(tomllib.loads(text)),
        toml=text,
        by=model.name,
        refused=tuple(refused),
        tokens=spent.tokens,
        cost_usd=spent.cost,
        trouble=trouble,
    )


async def _in_time(model: LanguageModel, request: ModelRequest, timeout: float) -> ModelAnswer:
    with anyio.move_on_after(timeout):
        return await model.answer(request)
    raise NoAnswer(f"no answer within {timeout:g} s")


def _with_cost(trouble: str, spent: _Spent, reasons: Sequence[str]) -> str:
    if not spent.tokens:
        return trouble
    return f"{trouble}; the first answer used {spent} and had nothing to use: {'; '.join(reasons)}"


def _question(directive: str, reasons: Sequence[str], attempt: int) -> ModelRequest:
    """What the model is asked; `reasons` say what was refused of its last answer."""
    quoted = "\n".join(f"| {line}" for line in directive.splitlines())
    prompt = f"The goal:\n{quoted}"
    if reasons:
        listed = "\n".join(f"| {' '.join(reason.split())}" for reason in reasons)
        prompt += f"\n\nThis is wrong with your last draft. Hand in all criteria again, corrected:\n{listed}"
    messages = (UserMessage(prompt),)
    return ModelRequest(system=_SYSTEM, messages=messages, tools=(_OFFER,), attempt=attempt, max_tokens=MAX_TOKENS)


def _rows(answer: ModelAnswer) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows in all calls of an answer, and what is wrong with the answer as a whole."""
    calls = [call for call in answer.calls if call.name == TOOL]
    if not calls:
        return [], [f"{TOOL} was not called"]
    listed: list[Any] = []
    wrong: list[str] = []
    for call in calls:
        rows: Any = (call.args or {}).get("criteria")
        if isinstance(rows, list) and rows:
            listed += cast("list[Any]", rows)
        else:
            wrong.append(f"{TOOL} needs a list of criteria")
    if len(listed) > MAX_CRITERIA:
        return [], [f"{len(listed)} criteria are too many; at most {MAX_CRITERIA} are allowed"]
    wrong += [f"criteria[{place}] is not an object" for place, row in enumerate(listed) if not isinstance(row, dict)]
    return [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)], wrong


def _page(directive: str, criteria: Sequence[AnyCriterion], *, by: str, proposer: str | None) -> str:
    name = " ".join(re.sub(r"[^\x20-\x7e]", " ", by).split())
    head = f"# Drafted by {name}. Read it and correct it, then: pursuit run THIS-FILE\n"
    parts = [
        head + as_toml({"directive": directive}),
        f"{_ANY_TOOL}\n",
        f"{_PROPOSER}\n" if proposer is None else as_toml({"proposer": proposer}),
        _CAPS,
    ]
    for criterion in criteria:
        row = {"criterion_id": criterion.criterion_id, "kind": criterion.kind}
        parts.append(f"[[criteria]]\n{as_toml(row | criterion.model_dump(exclude_defaults=True))}")
    return "\n".join(parts)


async def _check(sandbox: Sandbox, rows: Sequence[dict[str, Any]]) -> tuple[list[AnyCriterion], list[Refused]]:
    """Sorts the rows of a model into criteria that can be used and rows that cannot."""
    kept: list[AnyCriterion] = []
    refused: list[Refused] = []
    for row in rows:
        found = await _criterion(sandbox, row)
        reason = found if isinstance(found, str) else conflict(found, kept)
        if isinstance(found, str) or reason is not None:
            refused.append(Refused(row=row, reason=str(reason)))
        else:
            kept.append(found)
    return kept, refused


async def _criterion(sandbox: Sandbox, row: dict[str, Any]) -> AnyCriterion | str:
    """The criterion of a row, or why it is refused."""
    if row.get("kind") == "check":
        return "a check that a model drafts could run any command; write it yourself"
    try:
        criterion = _mission_with(row).criteria[0]
    except ValidationFailed as failed:
        faults = [f"{fault.field.removeprefix('criteria[0]').lstrip('.')} {fault.reason}" for fault in failed.faults]
        return "; ".join(fault.strip() for fault in faults)
    reason = await Trial(sandbox, criterion).objection() if isinstance(criterion, Predicate) else None
    return criterion if reason is None else reason


def conflict(criterion: AnyCriterion, others: Sequence[AnyCriterion]) -> str | None:
    """Why a criterion cannot stand beside these: it repeats one, or no value meets it together with them."""
    for other in others:
        if other.criterion_id == criterion.criterion_id:
            return "the same criterion_id is given twice"
        if _essence(other) == _essence(criterion):
            return f"it says the same as {other.criterion_id!r}"
    if not isinstance(criterion, MetricThreshold):
        return None
    same = [one for one in others if isinstance(one, MetricThreshold)]
    same = [one for one in same if (one.metric, one.source) == (criterion.metric, criterion.source)]
    bounds = [_bounds(one) for one in (*same, criterion)]
    if max(low for low, _ in bounds) > min(high for _, high in bounds):
        return f"no value meets it together with {', '.join(describe(one) for one in same)}"
    return None


def _essence(criterion: AnyCriterion) -> Mapping[str, object]:
    return criterion.model_dump(exclude={"criterion_id", "required"})


def _bounds(criterion: MetricThreshold) -> tuple[float, float]:
    """The least and the greatest value that meet a threshold."""
    target = criterion.target
    least = {">": math.nextafter(target, math.inf), ">=": target, "==": target}
    greatest = {"<": math.nextafter(target, -math.inf), "<=": target, "==": target}
    return least.get(criterion.op, -math.inf), greatest.get(criterion.op, math.inf)


_LATE = 1_000_000
_CALLS = (1, 3, 20)
_VALUES = (-1e9, -1.0, -0.5, 0.0, 0.5, 1.0, 1e9)
_MOST_VALUES = 32
"""Times three shifts and two iterations: at most 192 evaluations of one expression."""
_HOPELESS = ("NameError", "AttributeError", "SyntaxError", "NotImplementedError")
"""Errors that do not depend on the observation."""


class Trial:
    """Evaluates a predicate over made-up observations, in the sandbox and by the rules of a mission."""

    def __init__(self, sandbox: Sandbox, criterion: Predicate) -> None:
        self._sandbox = sandbox
        self._criterion = criterion
        self._state = MissionState(mission=_mission_with(criterion.model_dump()), tools=())
        self._nothing = observation_view(self._state)
        tree = ast.parse(criterion.expression.strip(), mode="eval")
        self._reads_obs = any(isinstance(node, ast.Name) and node.id == "obs" for node in ast.walk(tree))
        self._counts = "iteration" in criterion.expression
        self._names, self._numbers = _constants(tree, self._nothing)

    async def objection(self) -> str | None:
        """Why the predicate decides nothing, or None."""
        before = await self._result(self._nothing)
        if not self._reads_obs:
            return f"the expression does not look at `obs`, so it is always {before.status}"
        if before.status == "met":
            return "the expression is true before anything has happened"
        if await self._met_by_waiting():
            return "the expression comes true by waiting alone"
        if await self._met_by_calling():
            return "the expression comes true by calling tools alone, whatever they return"
        return self._verdict([await self._result(view) for view in self._views()])

    def _verdict(self, results: Sequence[CriterionResult]) -> str | None:
        found: set[Literal["met", "unmet", "inconclusive"]] = {result.status for result in results}
        errors = [str(result.evidence.get("error")) for result in results]
        if found == {"inconclusive"}:
            if all("value" in result.evidence for result in results):
                return "the expression never gives True or False; wrap it in bool(...), any(...) or a comparison"
            hopeless = all(any(kind in error for kind in _HOPELESS) for error in errors)
            return f"the expression can never be decided: {errors[0]}" if hopeless else None
        if found == {"met"}:
            return "the expression is true whatever the values are"
        if found == {"unmet"} and len(self._names) == 1:
            return f"no value of {self._names[0]!r} makes the expression true"
        return None

    async def _result(self, view: Mapping[str, Any]) -> CriterionResult:
        (value,) = await self._sandbox.evaluate([self._criterion.expression], {"obs": view})
        return evaluate_one(self._state, self._criterion, Answer(value=value.value, error=value.error))

    async def _met_by_waiting(self) -> bool:
        """Whether it is met in an iteration before anything was called."""
        if not self._counts:
            return False
        written = (int(number) + step for number in self._numbers if 1 <= number <= _LATE for step in (0, 1))
        for iteration in sorted({*range(1, 21), *written, _LATE}):
            if (await self._result({**self._nothing, "iteration": iteration})).status == "met":
                return True
        return False

    async def _met_by_calling(self) -> bool:
        """Whether some number of calls meets it, whatever they return."""
        for count in _CALLS:
            results = [await self._result({**self._nothing, **called}) for called in _calls(count)]
            if all(result.status == "met" for result in results):
                return True
        return False

    def _views(self) -> Iterator[Mapping[str, Any]]:
        """Observations in which each name is a metric and an event, all with one value, then with different ones."""
        near = {number + step for number in self._numbers for step in (-1.0, -0.25, 0.0, 0.25, 1.0)}
        values = [*_VALUES, *sorted(near - set(_VALUES))][:_MOST_VALUES]
        for shift in (0, 1, -1) if len(self._names) > 1 else (0,):
            for first in range(len(values)):
                metrics = {n: values[(first + shift * place) % len(values)] for place, n in enumerate(self._names)}
                for iteration in (3, _LATE) if self._counts else (3,):
                    yield {
                        **self._nothing,
                        "metrics": metrics,
                        "metric_history": {name: [value] * 3 for name, value in metrics.items()},
                        "events": {name: max(0, int(min(value, 1e6))) for name, value in metrics.items()},
                        "iteration": iteration,
                    }


def _calls(count: int) -> Iterator[Mapping[str, Any]]:
    """The same calls that return nothing, that return something, and that fail."""
    for outcome, result, error in (("ok", None, None), ("ok", {"x": 1}, None), ("failed", None, "it failed")):
        row = {"tool": "server.tool", "args": {}, "outcome": outcome, "result": result, "error": error}
        rows = [{**row, "iteration": index} for index in range(count)]
        yield {"tool_results": rows, "errors": [error] * count if error else [], "iteration": count - 1}


def _constants(tree: ast.AST, view: Mapping[str, Any]) -> tuple[list[str], list[float]]:
    """The names and the numbers in an expression; a key of `obs` is not a name."""
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    names = dict.fromkeys(value for value in constants if isinstance(value, str) and value not in view)
    numbers = {float(v) for v in constants if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}
    if any(isinstance(node, ast.USub) for node in ast.walk(tree)):
        numbers |= {-number for number in numbers}
    return list(names), sorted(numbers)
