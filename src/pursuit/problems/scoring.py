"""Scores a submission.

Owns: the four kinds of judges, each asked in its own way. Does not know: attempts, or what an agent sees.
Invariant: whatever a judge does, the answer is a score or `CannotScore`; a judge outside of this process leaves
evidence, from which the same score follows without it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import anyio

from pursuit.config.servers import PYTHON
from pursuit.core.attempts import AttemptScored, SubmissionTaken
from pursuit.core.tools import CallFailed, ToolResult
from pursuit.engine.commands import run_command
from pursuit.errors import PursuitError
from pursuit.problems.manifest import Manifest, plain_number
from pursuit.problems.rows import CannotScore, Score, score_of
from pursuit.problems.submission import kept_result
from pursuit.sandbox import PredicateValue

LONGEST_WORDS = 500
MOST_OUTPUT = 1024 * 1024
"""Of a judge's standard output: all of it is its answer."""

_FUNCTION_JUDGE = Path(__file__).with_name("function_judge.py")
_WHOLE_NUMBER = re.compile(r"-?\d{1,4000}")


class Expressions(Protocol):
    """Whoever evaluates expressions in a sandbox."""

    async def evaluate(self, expressions: list[str], variables: Mapping[str, Any]) -> list[PredicateValue]:
        """The value of each expression."""
        ...


CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What is judged: the submission; `result` is the own server's answer to it, where that owns `submit_final`.

    `unknown` if nobody knows that answer: then there is a call, and its result is None. `calls` and `evaluations` are
    how many the attempt made before, by its log: whatever was restarted meanwhile, they are the same.
    """

    submission: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    unknown: bool = False
    calls: int = 0
    evaluations: int = 0

    @classmethod
    def of(cls, taken: SubmissionTaken) -> Self:
        """What the ledger has of it."""
        return cls(
            submission=taken.submission,
            result=taken.result,
            unknown=bool(taken.unknown),
            calls=taken.calls,
            evaluations=taken.evaluations or 0,
        )

    def parts(self) -> dict[str, Any]:
        """What a judge is told: the validated submission, or the call's arguments with its result."""
        if self.result is None and not self.unknown:
            return {"submission": dict(self.submission)}
        return {"arguments": dict(self.submission), "result": None if self.result is None else dict(self.result)}

    def counts(self) -> dict[str, int]:
        """What a judge is told of the way there."""
        return {"calls": self.calls, "evaluations": self.evaluations}

    def told(self) -> dict[str, Any]:
        """All that a judge may know."""
        return {**self.parts(), **self.counts()}


@dataclass(frozen=True, slots=True)
class Judged:
    """A score, and what of it came from a server."""

    score: Score
    evidence: dict[str, Any] | None = None


def scored_event(found: Judged, *, at: float, version: str) -> AttemptScored:
    """The judge's word as a fact; `version` is the digest of what judged."""
    score = found.score
    return AttemptScored(at=at, rows=score.rows, solved=score.solved, evidence=found.evidence, judge=version)


async def judge(
    problem: Manifest,
    submitted: Submitted,
    *,
    expressions: Expressions,
    call: CallTool | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Judged:
    """The score of a submission; with `evidence` no server is asked. Raises `CannotScore`."""
    try:
        return await _judged(problem, submitted, expressions, call, evidence)
    except (CannotScore, PursuitError):
        raise
    except Exception as error:  # the boundary to whatever a judge may say, such as JSON of any depth
        raise CannotScore(f"what it said cannot be read: {type(error).__name__}: {error}"[:LONGEST_WORDS]) from error


async def _judged(
    problem: Manifest,
    submitted: Submitted,
    expressions: Expressions,
    call: CallTool | None,
    evidence: Mapping[str, Any] | None,
) -> Judged:
    scorer = problem.scorer
    found: dict[str, Any] | None = None
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
        return Judged(score_of(scorer, said), found)
    assert scope.cancelled_caught  # noqa: S101 - the only way out of the block without an answer
    raise CannotScore(f"the scorer took longer than {plain_number(scorer.timeout)} s")


async def _function(problem: Manifest, submitted: Submitted) -> Any:
    file, _, name = (problem.scorer.function or "").partition(":")
    asked = {"file": str(problem.folder / file), "name": name, "parts": submitted.parts(), "counts": submitted.counts()}
    # A process of its own: what it prints, breaks, leaves running or exits is not ours.
    argv = [sys.executable, "-P", str(_FUNCTION_JUDGE)]
    told = await _run(problem, argv, asked)
    try:
        answer = json.loads(told["stdout"])
    except ValueError:
        raise CannotScore(f"{problem.scorer.function}: ended with {told['exit_code']} and no answer") from None
    if "error" in answer:
        raise CannotScore(f"{problem.scorer.function}: {answer['error']}"[:LONGEST_WORDS])
    return answer["said"]


async def _run(problem: Manifest, argv: list[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await run_command(argv, str(problem.folder), given=json.dumps(asked).encode(), whole=MOST_OUTPUT)
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
        raise CannotScore(f"{argv[0]!r} ended with {code}: {done['stderr'].strip()[-LONGEST_WORDS:]}")
    try:
        return json.loads(done["stdout"])
    except ValueError as error:
        raise CannotScore(f"{argv[0]!r} printed no JSON: {error}") from None


async def _predicates(problem: Manifest, submitted: Submitted, expressions: Expressions) -> dict[str, Any]:
    rules = problem.scorer.predicates
    values = await expressions.evaluate([rule.expression for rule in rules], submitted.told())
    wrong = [f"{rule.metric}: {value.error}" for rule, value in zip(rules, values, strict=True) if value.error]
    if wrong:
        raise CannotScore("; ".join(wrong)[:LONGEST_WORDS])
    return {rule.metric: _plain(value) for rule, value in zip(rules, values, strict=True)}


def _plain(value: PredicateValue) -> Any:
    """A value of the sandbox; a whole number that is larger than those of JSON comes out of it as its digits."""
    if not value.is_json and isinstance(value.value, str) and _WHOLE_NUMBER.fullmatch(value.value):
        return int(value.value)
    return value.value


async def _tool(problem: Manifest, submitted: Submitted, call: CallTool | None) -> dict[str, Any]:
    name = problem.scorer.tool or ""
    if call is None:
        raise CannotScore(f"the server whose tool {name!r} scores is not there")
    # The manifest's last: nothing that is handed in may replace what the operator tells the judge.
    arguments = {**submitted.submission, **problem.scorer.arguments}
    try:
        return kept_result((await call(name, arguments)).as_dict())
    except CallFailed as error:
        raise CannotScore(f"{name}: {error}"[:LONGEST_WORDS]) from None


def _told(result: Mapping[str, Any]) -> Any:
    """What a tool's result says: its structured part, else its text as JSON."""
    texts = [str(block.get("text", "")) for block in result.get("content", ()) if block.get("type") == "text"]
    if result.get("isError"):
        raise CannotScore(f"the scoring tool failed: {' '.join(texts)}"[:LONGEST_WORDS])
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    try:
        return json.loads("".join(texts))
    except ValueError:
        raise CannotScore("the scoring tool answered with no structured result and no JSON") from None
