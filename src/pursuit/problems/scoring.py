"""Scores a submission with one of four kinds of judges: a function, a command, predicates, or a tool of the server.

Invariant: the result is always a score or `CannotScore`; if a server's tool judges, its recorded evidence gives the
same score again without the server.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

import anyio

from pursuit.config.process_environment import ProcessEnvironment, no_isolation
from pursuit.config.servers import PYTHON
from pursuit.core.attempts import AttemptScored, ScoreRow, SubmissionTaken
from pursuit.core.patterns import Unfinished
from pursuit.core.tools import CallFailed, ToolResult
from pursuit.core.validation import UnusableSchema, compiled
from pursuit.engine.commands import run_command
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.problems.manifest import Manifest, plain_number
from pursuit.problems.scorer import DEEPEST, Scorer, is_unicode, walk
from pursuit.sandbox.sandbox import PredicateValue, Sandbox


class CannotScore(Exception):
    """The judge did not give a score; the message says why."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row with a finite value for each metric of the manifest, in its order, and whether all targets are met.

    `evidence` is the server's answer that the score comes from. `isolated` tells whether submitted code was isolated
    from the judge; None without a repository.
    """

    rows: tuple[ScoreRow, ...]
    solved: bool
    evidence: dict[str, Any] | None = None
    isolated: bool | None = None

    def event(self, *, at: float, version: str) -> AttemptScored:
        return AttemptScored(
            at=at, rows=self.rows, solved=self.solved, evidence=self.evidence, judge=version, isolated=self.isolated
        )


def score_of(scorer: Scorer, said: Any) -> Judged:
    """The score in a judge's answer: a number, or a table of metrics and optionally `feasible`.

    Raises `CannotScore`.
    """
    numbers, feasible = _numbers(scorer, said)
    kept = all(numbers[name] <= scorer.tolerance for name in scorer.constraints)
    feasible = feasible and kept
    rows = tuple(
        ScoreRow(
            metric=metric.name,
            value=numbers[metric.name],
            unit=metric.unit,
            direction=metric.direction,
            feasible=feasible,
        )
        for metric in scorer.metrics
    )
    return Judged(rows, feasible and all(metric.met(numbers[metric.name]) for metric in scorer.metrics))


def _numbers(scorer: Scorer, said: Any) -> tuple[dict[str, float], bool]:
    if isinstance(said, bool | int | float):
        said = {scorer.metrics[0].name: said}
    if not isinstance(said, Mapping):
        raise CannotScore(f"the scorer answered with {type(said).__name__}; it must be a number or a table of metrics")
    table = cast("Mapping[str, Any]", said)
    inner = table.get("metrics")
    metrics = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else table
    feasible = table.get("feasible", True)
    if not isinstance(feasible, bool):
        raise CannotScore("feasible must be true or false")
    wanted = [*(metric.name for metric in scorer.metrics), *scorer.constraints]
    missing = [name for name in wanted if name not in metrics]
    if missing:
        raise CannotScore(f"the answer of the scorer lacks {', '.join(missing)}")
    return {name: _finite(name, metrics[name]) for name in wanted}, feasible


def _finite(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        raise CannotScore(f"{name} is too large for a score") from None
    raise CannotScore(f"{name} must be a finite number, not {value!r}"[:300])


FREE_KEYS = ("answer", "justification")
MAX_REASONS = 20
MAX_PLACE = 80
MAX_BITS = 13_000
"""Maximum bits of a whole number: about 4,000 digits, as many as Python reads and writes."""


def checked_submission(problem: Manifest, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a submission that fits the manifest's schema (or is text that is not blank) and can be stored exactly.

    Raises `ValidationFailed` with every fault; the submission then does not count.
    """
    reasons = _unkept(given)
    if not reasons:
        reasons = _free(given) if problem.submission is None else _typed(problem.submission, given)
    return _passed(given, reasons)


def kept_submission(given: Mapping[str, Any]) -> dict[str, Any]:
    return _passed(given, _unkept(given))


def kept_result(value: Any, depth: int = 0) -> Any:
    """A server's answer as the ledger can store it: values that are not finite or nested too deep become None."""
    if depth > DEEPEST:
        return None
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            named = cast("Mapping[str, Any]", value).items()
            return {kept_result(key): kept_result(one, depth + 1) for key, one in named}
        case list() | tuple():
            return [kept_result(one, depth + 1) for one in cast("list[Any]", value)]
        case _:
            return value


def _passed(given: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    if reasons:
        faults = [Fault(field="submission", reason=reason) for reason in reasons]
        raise ValidationFailed(faults, "this submission is not valid and does not count")
    return dict(given)


def _unkept(given: Mapping[str, Any]) -> list[str]:
    """Faults for values that JSON or UTF-8 cannot represent, and that could not be judged again."""
    found = ((place, _objection(value, depth)) for place, value, depth in walk(given))
    return list(islice((f"{place[-MAX_PLACE:]}: {why}" for place, why in found if why), MAX_REASONS))


def _objection(value: object, depth: int) -> str:
    match value:
        case str():
            return "" if is_unicode(value) else "contains half of a surrogate pair, which is not valid text"
        case float():
            return "" if math.isfinite(value) else f"{value} is not a JSON number; give a finite number"
        case int():
            return "is a whole number of more than 3,900 digits" if value.bit_length() > MAX_BITS else ""
        case Mapping() | list() if depth == DEEPEST and value:
            return f"is nested deeper than {DEEPEST} levels"
        case Mapping() if not all(map(is_unicode, cast("Mapping[str, object]", value))):
            return "has a name with half of a surrogate pair, which is not valid text"
        case _:
            return ""


def _typed(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    try:
        return compiled(schema).faults(given)
    except UnusableSchema as error:
        return [f"the problem's own schema cannot be used: {error}"]
    except Unfinished as error:
        return [f"it cannot be checked: {error}"]


def _free(given: Mapping[str, Any]) -> list[str]:
    reasons = [f"unknown part {key!r}; known: answer, justification" for key in given if key not in FREE_KEYS]
    answer = given.get("answer")
    if not isinstance(answer, str):
        reasons.append("answer must be text")
    elif not answer.strip():
        reasons.append("answer is blank")
    if not isinstance(given.get("justification", ""), str):
        reasons.append("justification must be text")
    return reasons


MAX_WORDS = 500
MAX_OUTPUT = 1024 * 1024
"""Maximum bytes of a judge's standard output, which is its whole answer."""

_FUNCTION_JUDGE = Path(__file__).with_name("function_judge.py")
_WHOLE_NUMBER = re.compile(r"-?\d{1,4000}")


CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The input of a judge: the submission; `result` is the answer of the server if that owns `submit_final`.

    `unknown` if that answer is not known: the call was made, and its result is None. `calls` and `evaluations` count
    those that the attempt made before, by its log: a restart does not change them.
    """

    submission: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    unknown: bool = False
    calls: int = 0
    evaluations: int = 0

    @classmethod
    def of(cls, taken: SubmissionTaken) -> Self:
        return cls(
            submission=taken.submission,
            result=taken.result,
            unknown=bool(taken.unknown),
            calls=taken.calls,
            evaluations=taken.evaluations or 0,
        )

    def parts(self) -> dict[str, Any]:
        """The judge's input: the validated submission, or the call's arguments with its result."""
        if self.result is None and not self.unknown:
            return {"submission": dict(self.submission)}
        return {"arguments": dict(self.submission), "result": None if self.result is None else dict(self.result)}

    def counts(self) -> dict[str, int]:
        return {"calls": self.calls, "evaluations": self.evaluations}

    def told(self) -> dict[str, Any]:
        return {**self.parts(), **self.counts()}


async def judge(
    problem: Manifest,
    submitted: Submitted,
    *,
    expressions: Sandbox,
    call: CallTool | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Judged:
    """The score of a submission; with `evidence`, no server is called. Raises `CannotScore`."""
    scorer = problem.scorer
    found: dict[str, Any] | None = None
    try:
        with anyio.move_on_after(scorer.timeout) as scope:
            match scorer.kind:
                case "function":
                    said = await _function(problem, submitted)
                case "command":
                    said = await _command(problem, submitted)
                case "predicates":
                    said = await _predicates(problem, submitted, expressions)
                case "tool":
                    found = dict(evidence) if evidence is not None else await _tool(problem, submitted, call)
                    said = _told(found)
            return replace(score_of(scorer, said), evidence=found, isolated=_isolated(problem, said))
    except (CannotScore, PursuitError):
        raise
    except Exception as error:  # the boundary to any output of a judge, such as very deep JSON
        raise CannotScore(f"cannot read the judge's answer: {type(error).__name__}: {error}"[:MAX_WORDS]) from error
    assert scope.cancelled_caught  # noqa: S101 - the block ends without an answer only so
    raise CannotScore(f"the scorer took longer than {plain_number(scorer.timeout)} s")


def _isolated(problem: Manifest, said: Any) -> bool | None:
    """True if the judge reports isolation and it is possible: code that sees the judge can forge its answer."""
    if problem.repository is None:
        return None
    possible = problem.scorer.isolation is None and not no_isolation()
    return possible and isinstance(said, Mapping) and cast("Mapping[str, Any]", said).get("isolated") is True


async def _function(problem: Manifest, submitted: Submitted) -> Any:
    file, _, name = (problem.scorer.function or "").partition(":")
    asked = {"file": str(problem.folder / file), "name": name, "parts": submitted.parts(), "counts": submitted.counts()}
    # A separate process: its output, crashes, leftover threads and exit cannot affect ours.
    argv = [sys.executable, "-P", str(_FUNCTION_JUDGE)]
    told = await _run(problem, argv, asked)
    try:
        answer = json.loads(told["stdout"])
    except ValueError:
        raise CannotScore(f"{problem.scorer.function}: exited with {told['exit_code']} without an answer") from None
    if "error" in answer:
        raise CannotScore(f"{problem.scorer.function}: {answer['error']}"[:MAX_WORDS])
    return answer["said"]


async def _run(problem: Manifest, argv: list[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        around = ProcessEnvironment(isolation=problem.scorer.isolation)
        body = json.dumps(asked).encode()
        return await run_command(argv, str(problem.folder), around=around, given=body, whole=MAX_OUTPUT)
    except CallFailed as error:
        raise CannotScore(str(error)) from None


async def _command(problem: Manifest, submitted: Submitted) -> Any:
    scorer = problem.scorer
    argv = [sys.executable if word == PYTHON else word for word in scorer.command]
    done = await _run(problem, argv, submitted.told())
    code = done["exit_code"]
    if scorer.output == "exit_code":
        return {scorer.metrics[0].name: float(code == 0), "feasible": code == 0}
    if code != 0:
        raise CannotScore(f"{argv[0]!r} exited with {code}: {done['stderr'].strip()[-MAX_WORDS:]}")
    try:
        return json.loads(done["stdout"])
    except ValueError as error:
        raise CannotScore(f"{argv[0]!r} did not print JSON: {error}") from None


async def _predicates(problem: Manifest, submitted: Submitted, expressions: Sandbox) -> dict[str, Any]:
    rules = problem.scorer.predicates
    values = await expressions.evaluate([rule.expression for rule in rules], submitted.told())
    wrong = [f"{rule.metric}: {value.error}" for rule, value in zip(rules, values, strict=True) if value.error]
    if wrong:
        raise CannotScore("; ".join(wrong)[:MAX_WORDS])
    return {rule.metric: _plain(value) for rule, value in zip(rules, values, strict=True)}


def _plain(value: PredicateValue) -> Any:
    """Converts a value of the sandbox, which returns very large whole numbers as their digits."""
    if not value.is_json and isinstance(value.value, str) and _WHOLE_NUMBER.fullmatch(value.value):
        return int(value.value)
    return value.value


async def _tool(problem: Manifest, submitted: Submitted, call: CallTool | None) -> dict[str, Any]:
    name = problem.scorer.tool or ""
    if call is None:
        raise CannotScore(f"the server of the scoring tool {name!r} is not available")
    # The manifest's arguments come last: a submission cannot replace them.
    arguments = {**submitted.submission, **problem.scorer.arguments}
    try:
        return kept_result((await call(name, arguments)).as_dict())
    except CallFailed as error:
        raise CannotScore(f"{name}: {error}"[:MAX_WORDS]) from None


def _told(result: Mapping[str, Any]) -> Any:
    """The content of a tool's result: its structured part, else its text as JSON."""
    texts = [str(block.get("text", "")) for block in result.get("content", ()) if block.get("type") == "text"]
    if result.get("isError"):
        raise CannotScore(f"the scoring tool failed: {' '.join(texts)}"[:MAX_WORDS])
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    try:
        return json.loads("".join(texts))
    except ValueError:
        raise CannotScore("the scoring tool answered without a structured result or JSON") from None
