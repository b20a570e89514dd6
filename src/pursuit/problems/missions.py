"""Writes the mission for an attempt: its tools are the problem's, its criteria the judge's, its end a submission.

Invariant: where an agent proposes, the mission holds no number of the scorer: whether the target is met is a check that
only the runtime runs.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationInfo

from pursuit.config.servers import PYTHON
from pursuit.core.base_model import Broken, Filled, TableModel, nearest, read_inside, refuse
from pursuit.core.patterns import SyntaxProblem, checked_script
from pursuit.core.proposing import settings_type
from pursuit.errors import Fault, ValidationFailed, advice
from pursuit.problems.attempts import PREFIX
from pursuit.problems.brief import write_brief
from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Baseline, Manifest
from pursuit.problems.repositories import repository_of
from pursuit.problems.scorer import SUBMIT, TOOL, Reading
from pursuit.sandbox.scripts import escaped

SERVER = "problem"
"""What a baseline calls the problem's server; in a mission each attempt has one of its own (`server_of`)."""

_QUOTED = re.compile(rf"(?<=[\"']){SERVER}\.(?=[\w{{])")

UNSOLVED = 3
"""The exit code of a judge that was asked whether an attempt is solved, and says that it is not."""

_MODEL = re.compile(r"[a-z][a-z0-9_-]*:\S{1,150}")


LONGEST_DIRECTIVE = 8_000
OWN_START = 15.0
AGENTS = ("client", "sampling")
MACHINES = ("search", "script")
"""Proposers that are no agents: the operator wrote what they know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the operator wants: who proposes, and the command that serves and judges this attempt."""

    attempt_id: str
    proposer: Mapping[str, Any]
    serve: Sequence[str]
    judge: Sequence[str]
    max_iterations: int = 500
    max_seconds: float = 300.0


def server_of(attempt_id: str) -> str:
    """What the server of an attempt is called: one process may drive several, each with its own."""
    return f"{SERVER}-{attempt_id.removeprefix(PREFIX)[-8:]}"


def proposer_for(problem: Manifest, word: str | None) -> dict[str, Any]:
    """The table of a proposer by its word; without one, and for `search` and `script`, the problem's baseline."""
    baseline = problem.baseline
    if word is None:
        if baseline is None:
            raise _wrong(f"{problem.problem_id} has no baseline; say who proposes")
        return _baseline(problem, baseline)
    if word in MACHINES:
        if baseline is not None and baseline.proposer.get("kind") == word:
            return _baseline(problem, baseline)
        if word == "script":
            state = "has no baseline" if baseline is None else "has a baseline that is no script"
            raise _wrong(
                f"{problem.problem_id} {state}; give it a [baseline.proposer] with a script, or write a mission of "
                f"your own whose server is `{advice('pursuit problem serve {}', problem.problem_id)}`"
            )
        tools = problem.budget.evaluation_tools
        if not tools:
            raise _wrong(f"{problem.problem_id} names no evaluation_tools that could be searched")
        return {"kind": "search", "tool": tools[0]}
    if ":" in word:
        if _MODEL.fullmatch(word) is None:
            raise _wrong(f"{word[:80]!r} names no model; one is provider:name, such as anthropic:claude-haiku-4-5")
        return {"kind": "model", "model": word}
    if word not in AGENTS:
        known = (*MACHINES, *AGENTS)
        raise _wrong(f"{word[:80]!r} is none of {', '.join(known)} or provider:model{nearest(word, known)}")
    return {"kind": word}


def _wrong(reason: str) -> ValidationFailed:
    fault = Fault(field="--proposer", reason=reason)
    return ValidationFailed([fault], str(fault))


def _baseline(problem: Manifest, baseline: Baseline) -> dict[str, Any]:
    table = dict(baseline.proposer)
    file = table.pop("file", None)
    if file is not None:
        table["script"] = (problem.folder / str(file)).read_text(encoding="utf-8")
    return table


def _script(text: str) -> str:
    try:
        checked_script(text)
    except SyntaxProblem as problem:
        raise ValueError(str(problem)) from None
    return text


def _script_file(name: str, info: ValidationInfo) -> str:
    path = file_of(Reading.of(info).folder, name)
    text = None if isinstance(path, str) else text_of(path)
    if text is None:
        raise ValueError(path if isinstance(path, str) else f"{name!r} is no text that could be a script")
    _script(text or "pass")
    return name


class ScriptBaseline(TableModel):
    """A script that solves the problem: a file beside the manifest, or the text itself."""

    kind: Literal["script"]
    file: Annotated[Filled, AfterValidator(_script_file)] | None = None
    script: Annotated[Filled, AfterValidator(_script)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        """One of the two."""
        if ("file" in given) == ("script" in given):
            yield Broken("give exactly one of file and script", "file")


def check_proposer(given: Mapping[str, Any], info: ValidationInfo) -> None:
    """Refuses the proposer of a baseline unless it can solve a problem by itself."""
    kind = given.get("kind")
    if kind not in MACHINES:
        words = f"{str(kind)[:100]!r} is none of" if "kind" in given else "is missing; give one of"
        why = f"{words} {', '.join(MACHINES)}{nearest(str(kind), MACHINES)}"
        refuse([Broken(why, "kind")])
    if kind == "search" and "tool" not in given and "tool_name" not in given:
        refuse([Broken("is missing; name the tool whose arguments are searched", "tool")])
    model = ScriptBaseline if kind == "script" else settings_type("search")
    if model is not None:
        read_inside(model, dict(given), info)


def _addressed(proposer: Mapping[str, Any], server: str) -> dict[str, Any]:
    """The proposer with the tools of this attempt's server."""
    table = dict(proposer)
    if table.get("kind") == "search":
        tool = str(table.pop("tool", None) or table.pop("tool_name"))
        return {**table, "tool": f"{server}.{tool.removeprefix(f'{SERVER}.')}"}
    if isinstance(table.get("script"), str):
        table["script"] = addressed_script(table["script"], server)
    return table


def addressed_script(source: str, server: str) -> str:
    """The script with the name of this attempt's server, as a name and at the beginning of texts.

    Every line stays where it is; a script that makes a name `problem` of its own keeps it.
    """
    source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # as the sandbox reads it
    lines = source.split("\n")
    with suppress(tokenize.TokenError, SyntaxError):
        for line, start in sorted(_names(source), reverse=True):
            text = lines[line - 1]
            lines[line - 1] = text[:start] + escaped(server) + text[start + len(SERVER) :]
    return _QUOTED.sub(f"{server}.", "\n".join(lines))


def _names(source: str) -> Iterator[tuple[int, int]]:
    """Where the server is named: line and column."""
    tree = parsed_python(source)
    nodes = [] if tree is None else list(ast.walk(tree))
    if any(isinstance(one, ast.Name) and one.id == SERVER and isinstance(one.ctx, ast.Store) for one in nodes):
        return
    if tree is None or any(isinstance(one, ast.arg) and one.arg == SERVER for one in nodes):
        return
    before, held = "", None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if held is not None and token.string != "=":  # that would be an argument of this name
            yield held
        is_name = token.type == tokenize.NAME and token.string == SERVER and before != "."
        held = token.start if is_name else None
        before = token.string


def mission_for(problem: Manifest, plan: Plan) -> dict[str, Any]:
    """The mission as the table of a mission file."""
    server = server_of(plan.attempt_id)
    proposer = _addressed(plan.proposer, server)
    criteria: list[dict[str, Any]] = []
    if proposer.get("kind") == "search":
        criteria = _thresholds(problem, str(proposer["tool"]))
        proposer = {**_sought(problem, criteria, proposer, plan), **proposer, "then": f"{server}.{SUBMIT}"}
    criteria += _of_the_end(plan, server)
    return {
        "directive": _directive(problem, server),
        "tool_allowlist": [f"{server}.*"],
        "criteria": criteria,
        "budget": {"max_iterations": plan.max_iterations, "max_wall_clock_seconds": plan.max_seconds},
        "proposer": proposer,
        "lessons": False,  # other attempts, the baseline's among them, learned what an agent is to find out
        "servers": {server: _served(problem, plan)},
    }


TURNS = 10
"""Turns that each coding agent has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsPlan:
    """What the operator wants of coding agents: who they are, where they start, and the command that submits."""

    agents: Sequence[Mapping[str, Any]]
    repository: str
    submit: Sequence[str]
    max_iterations: int | None = None
    max_seconds: float = 3_600.0


def mission_for_agents(problem: Manifest, plan: AgentsPlan) -> dict[str, Any]:
    """The mission of coding agents at a problem with a repository, as the table of a mission file.

    An agent works until the check that it knows passes; then what it has is its one submission.
    """
    repository = repository_of(problem)
    base: dict[str, Any] = {"kind": "check", "cwd": plan.repository}
    criteria: list[dict[str, Any]] = []
    if repository.check:
        words = [sys.executable if word == PYTHON else word for word in repository.check]
        criteria.append({**base, "criterion_id": "tests", "command": words, "when": "checkpoint", "idempotent": True})
    expect = {"exit_code": 0, "never_exit_codes": [UNSOLVED]}
    judged = {"command": list(plan.submit), "expect": expect, "when": "met", "idempotent": True}
    criteria.append({**base, "criterion_id": "hidden tests", **judged})
    agents = [{"kind": "agent", **agent} for agent in plan.agents]
    turns = plan.max_iterations or TURNS
    several = len(agents) > 1
    return {
        "directive": f"{problem.title}. {problem.summary}\n\n{problem.statement}",
        "criteria": criteria,
        "workspace": {"path": plan.repository, "protect": list(repository.protect)},
        "budget": {
            "max_iterations": turns * len(agents) + 1 if several else turns,
            "max_wall_clock_seconds": plan.max_seconds,
        },
        "proposer": {"kind": "best_of", "pick": "all", "agents": agents} if several else agents[0],
        "lessons": False,
    }


def _of_the_end(plan: Plan, server: str) -> list[dict[str, Any]]:
    """What decides is the attempt's own record and its judge: a call that was cut off may have been taken all the same.

    That one was answered decides nothing; it is how a report and its lessons know what was handed in.
    """
    submit = f"{server}.{SUBMIT}"
    answered = {"kind": "tool_call_succeeded", "tool_name": submit, "required": False}
    # There is one submission: what was judged and solves nothing is the end.
    expect = {"exit_code": 0, "never_exit_codes": [UNSOLVED]}
    judged = {"kind": "check", "command": list(plan.judge), "expect": expect, "idempotent": True, "after": submit}
    return [{"criterion_id": "submission answered", **answered}, {"criterion_id": "solved", **judged}]


def _served(problem: Manifest, plan: Plan) -> dict[str, Any]:
    """The server of the mission: it has the time to start that the problem's own has, and some for itself."""
    table: dict[str, Any] = {"command": PYTHON, "args": list(plan.serve), "required": True}
    if problem.server is not None:
        table["timeouts"] = {"connect": problem.server.timeouts.connect + OWN_START}
    return table


def _directive(problem: Manifest, server: str) -> str:
    brief = write_brief(problem, resources=False)  # its server runs only in the mission, and is not asked for this
    if len(brief) <= LONGEST_DIRECTIVE:
        return brief
    return f"{problem.title}: {problem.summary} Read {server}.{TOOL}, then call {server}.{SUBMIT} once."


def _sought(
    problem: Manifest, thresholds: Sequence[Mapping[str, Any]], table: Mapping[str, Any], plan: Plan
) -> dict[str, Any]:
    """What a search works at unless its table says otherwise: what is out of bounds scores nothing, the rest does."""
    primary, budget = problem.primary, problem.budget
    most = [one for one in (budget.evaluations, budget.calls) if one is not None]
    sought: dict[str, Any] = {"constraints": [one["criterion_id"] for one in thresholds]}
    targets = [one for one in problem.scorer.metrics if one.target is not None]
    if targets and "constraints" not in table:  # attempts are compared so: what is allowed, then the primary metric
        sought["gives_way"] = thresholds[len(targets) - 1]["criterion_id"]
    if primary.target is None:  # then there is always a better one, and only a number of trials is an end
        most = most or [max(1, plan.max_iterations - 1) * int(table.get("batch", 1))]
    if "objective" not in table and (primary.target is None or len(targets) > 1):
        sought |= {"objective": primary.name, "direction": primary.direction or "minimize"}
    sought |= {} if budget.wall_seconds is None else {"seconds": budget.wall_seconds}
    return {**sought, "trials": min(most)} if most else sought


def _thresholds(problem: Manifest, source: str) -> list[dict[str, Any]]:
    """What the scorer asks of the numbers that the searched tool tells: it steers, and the judge alone decides."""
    scorer = problem.scorer
    wanted = [(one.name, ">=" if one.direction == "maximize" else "<=", one.target) for one in scorer.metrics]
    wanted += [(name, "<=", scorer.tolerance) for name in scorer.constraints]
    return [
        {
            "criterion_id": f"{name} {op} {repr(target).removesuffix('.0')}",
            "kind": "metric_threshold",
            "metric": name,
            "op": op,
            "target": target,
            "source": source,
            "required": False,
        }
        for name, op, target in wanted
        if target is not None
    ]
