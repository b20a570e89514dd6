"""Writes the mission for an attempt: the tools come from the problem, the criteria from its judge.

The mission ends with a submission. Invariant: if an agent proposes, the mission holds no number of the scorer: a check
that only the runtime runs tests if the target is met.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from pursuit.problems.files import file_of, text_of
from pursuit.problems.manifest import Baseline, Manifest
from pursuit.problems.repositories import repository_of
from pursuit.problems.scorer import SUBMIT, TOOL, Reading
from pursuit.sandbox.scripts import escaped

SERVER = "problem"
"""The name of the problem's server in a baseline; in a mission each attempt has its own server (`server_of`)."""

_NAMED = re.compile(rf"(?<![\w.])(?:(?<=[\"'])({SERVER})|{SERVER})\.(?=[\w{{])")

UNSOLVED = 3
"""The exit code of the check for a solved attempt if the attempt is not solved."""

_MODEL = re.compile(r"[a-z][a-z0-9_-]*:\S{1,150}")


MAX_DIRECTIVE = 8_000
OWN_START = 15.0
AGENTS = ("client", "sampling")
MACHINES = ("search", "script")
"""Proposers that are not agents: the operator wrote all that they know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    attempt_id: str
    proposer: Mapping[str, Any]
    serve: Sequence[str]
    judge: Sequence[str]
    max_iterations: int = 500
    max_seconds: float = 300.0


def server_of(attempt_id: str) -> str:
    return f"{SERVER}-{attempt_id.removeprefix(PREFIX)[-8:]}"


def proposer_for(problem: Manifest, word: str | None) -> dict[str, Any]:
    """The table of a proposer by its name; without a name, and for `search` and `script`, the problem's baseline."""
    baseline = problem.baseline
    if word is None:
        if baseline is None:
            raise _wrong(f"{problem.problem_id} does not have a baseline; name a proposer")
        return _baseline(problem, baseline)
    if word in MACHINES:
        if baseline is not None and baseline.proposer.get("kind") == word:
            return _baseline(problem, baseline)
        if word == "script":
            state = "does not have a baseline" if baseline is None else "has a baseline that is not a script"
            raise _wrong(
                f"{problem.problem_id} {state}; give it a [baseline.proposer] with a script, or write your own mission "
                f"whose server is `{advice('pursuit problem serve {}', problem.problem_id)}`"
            )
        tools = problem.budget.evaluation_tools
        if not tools:
            raise _wrong(f"{problem.problem_id} cannot be searched: it does not set evaluation_tools")
        return {"kind": "search", "tool": tools[0]}
    if ":" in word:
        if _MODEL.fullmatch(word) is None:
            raise _wrong(f"{word[:80]!r} is not a model name; write provider:name, such as anthropic:claude-haiku-4-5")
        return {"kind": "model", "model": word}
    if word not in AGENTS:
        known = (*MACHINES, *AGENTS)
        raise _wrong(f"{word[:80]!r} is not one of {', '.join(known)} or provider:model{nearest(word, known)}")
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
        raise ValueError(path if isinstance(path, str) else f"{name!r} is not text, so it cannot be a script")
    _script(text or "pass")
    return name


class ScriptBaseline(TableModel):
    kind: Literal["script"]
    file: Annotated[Filled, AfterValidator(_script_file)] | None = None
    script: Annotated[Filled, AfterValidator(_script)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterator[Broken]:
        if ("file" in given) == ("script" in given):
            yield Broken("give exactly one of file and script", "file")


def check_proposer(given: Mapping[str, Any], info: ValidationInfo) -> None:
    """Refuses a baseline's proposer unless it can solve a problem by itself."""
    kind = given.get("kind")
    if kind not in MACHINES:
        words = f"{str(kind)[:100]!r} is not one of" if "kind" in given else "is missing; give one of"
        why = f"{words} {', '.join(MACHINES)}{nearest(str(kind), MACHINES)}"
        refuse([Broken(why, "kind")])
    if kind == "search" and "tool" not in given and "tool_name" not in given:
        refuse([Broken("is missing; name the tool whose arguments are searched", "tool")])
    model = ScriptBaseline if kind == "script" else settings_type("search")
    if model is not None:
        read_inside(model, dict(given), info)


def _addressed(proposer: Mapping[str, Any], server: str) -> dict[str, Any]:
    table = dict(proposer)
    if table.get("kind") == "search":
        tool = str(table.pop("tool", None) or table.pop("tool_name"))
        return {**table, "tool": f"{server}.{tool.removeprefix(f'{SERVER}.')}"}
    if isinstance(table.get("script"), str):
        table["script"] = addressed_script(table["script"], server)
    return table


def addressed_script(source: str, server: str) -> str:
    """Replaces each `problem.` in the script, also at the beginning of texts, with this attempt's server name."""
    return _NAMED.sub(lambda found: f"{server if found[1] else escaped(server)}.", source)


def mission_for(problem: Manifest, plan: Plan) -> dict[str, Any]:
    server = server_of(plan.attempt_id)
    proposer = _addressed(plan.proposer, server)
    criteria: list[dict[str, Any]] = []
    if proposer.get("kind") == "search":
        criteria = _thresholds(problem, str(proposer["tool"]))
        proposer = {**_sought(problem, criteria, proposer, plan), **proposer, "then": f"{server}.{SUBMIT}"}
    criteria += _of_the_end(plan, server)
    brief = write_brief(problem, resources=False)  # the server runs only in the mission, not yet here
    short = f"{problem.title}: {problem.summary} Read {server}.{TOOL}, then call {server}.{SUBMIT} once."
    return {
        "directive": brief if len(brief) <= MAX_DIRECTIVE else short,
        "tool_allowlist": [f"{server}.*"],
        "criteria": criteria,
        "budget": {"max_iterations": plan.max_iterations, "max_wall_clock_seconds": plan.max_seconds},
        "proposer": proposer,
        "lessons": False,  # other attempts, the baseline's among them, may hold the answer
        "servers": {server: _served(problem, plan)},
    }


TURNS = 10
"""Turns of each coding agent."""


def mission_for_agents(
    problem: Manifest,
    wanted: Sequence[Mapping[str, Any]],
    *,
    copy: str,
    submit: Sequence[str],
    max_iterations: int | None,
    max_seconds: float,
) -> dict[str, Any]:
    """The mission of coding agents on a copy of a problem's repository, as the table of a mission file.

    An agent works until its visible check passes; its files are then its one submission.
    """
    repository = repository_of(problem)
    base: dict[str, Any] = {"kind": "check", "cwd": copy}
    criteria: list[dict[str, Any]] = []
    if repository.check:
        words = [sys.executable if word == PYTHON else word for word in repository.check]
        criteria.append({**base, "criterion_id": "tests", "command": words, "when": "checkpoint", "idempotent": True})
    expect = {"exit_code": 0, "never_exit_codes": [UNSOLVED]}
    judged = {"command": list(submit), "expect": expect, "when": "met", "idempotent": True}
    judged["isolated"] = False  # it hands the files in, and the judge runs them isolated
    criteria.append({**base, "criterion_id": "hidden tests", **judged})
    agents = [{"kind": "agent", **agent} for agent in wanted]
    turns = max_iterations or TURNS
    several = len(agents) > 1
    return {
        "directive": f"{problem.title}. {problem.summary}\n\n{problem.statement}",
        "criteria": criteria,
        "workspace": {"path": copy, "protect": list(repository.protect)},
        "budget": {
            "max_iterations": turns * len(agents) + 1 if several else turns,
            "max_wall_clock_seconds": max_seconds,
        },
        "proposer": {"kind": "best_of", "pick": "all", "agents": agents} if several else agents[0],
        "lessons": False,
    }


def _of_the_end(plan: Plan, server: str) -> list[dict[str, Any]]:
    """The end criteria use the attempt's record and its judge, since even an interrupted call may have submitted.

    The criterion of an answered submission decides nothing; the report and its lessons read the submission from it.
    """
    submit = f"{server}.{SUBMIT}"
    answered = {"kind": "tool_call_succeeded", "tool_name": submit, "required": False}
    # There is one submission: a judged attempt that is not solved is the end.
    expect = {"exit_code": 0, "never_exit_codes": [UNSOLVED]}
    judged = {"kind": "check", "command": list(plan.judge), "expect": expect, "idempotent": True, "after": submit}
    return [{"criterion_id": "submission answered", **answered}, {"criterion_id": "solved", **judged}]


def _served(problem: Manifest, plan: Plan) -> dict[str, Any]:
    """The server of the mission; its start timeout is that of the problem's server plus some for itself."""
    table: dict[str, Any] = {"command": PYTHON, "args": list(plan.serve), "required": True}
    if problem.server is not None:
        table["timeouts"] = {"connect": problem.server.timeouts.connect + OWN_START}
    return table


def _sought(
    problem: Manifest, thresholds: Sequence[Mapping[str, Any]], table: Mapping[str, Any], plan: Plan
) -> dict[str, Any]:
    """The default objective of a search: points out of bounds get no score, other points get theirs."""
    primary, budget = problem.primary, problem.budget
    most = [one for one in (budget.evaluations, budget.calls) if one is not None]
    sought: dict[str, Any] = {"constraints": [one["criterion_id"] for one in thresholds]}
    targets = [one for one in problem.scorer.metrics if one.target is not None]
    if targets and "constraints" not in table:  # attempts are compared by feasibility, then by the primary metric
        sought["gives_way"] = thresholds[len(targets) - 1]["criterion_id"]
    if primary.target is None:  # a better value is always possible, so only a number of trials ends the search
        most = most or [max(1, plan.max_iterations - 1) * int(table.get("batch", 1))]
    if "objective" not in table and (primary.target is None or len(targets) > 1):
        sought |= {"objective": primary.name, "direction": primary.direction or "minimize"}
    sought |= {} if budget.wall_seconds is None else {"seconds": budget.wall_seconds}
    return {**sought, "trials": min(most)} if most else sought


def _thresholds(problem: Manifest, source: str) -> list[dict[str, Any]]:
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
