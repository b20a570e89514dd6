"""Shows problems and attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pursuit.cli import show
from pursuit.cli.console import ENDED, CommandAnswer, Fact, Forms, Hint, Part, Styled, TableRows, counted, line
from pursuit.cli.context import Context
from pursuit.core.attempts import AttemptState
from pursuit.core.criteria import Check
from pursuit.core.mission import Mission
from pursuit.core.report import Status
from pursuit.errors import AttemptNotFound
from pursuit.problems.attempts import is_attempt, load_attempt
from pursuit.problems.catalogue import SHIPPED
from pursuit.problems.comparison import spent_budgets
from pursuit.reports.html import AGENT_COLUMNS, COLUMNS, agent_cells, aim, cells, notes, others, repeated
from pursuit.reports.report import Report
from pursuit.reports.wording import figure, stated
from pursuit.runtime import Runtime

_SHOWN = ("attempt", "status", "score", "calls", "seconds", "who")
"""The columns on a terminal; further details of an attempt are printed below them."""
_BELOW = ("turns", "evaluations", "from first call", "tokens", "cost")
_UNSCORED = {
    "submitted": "the submission is not judged yet",
    "claimed": "the submission was not answered yet",
}
"""Why a submission is not scored, by the status of its attempt."""


def listing(rows: Sequence[Mapping[str, Any]]) -> CommandAnswer:
    cells = [(row["problem_id"], row["kind"], ", ".join(row["tags"]), row["summary"]) for row in rows]
    piped = TableRows((), (), piped=cells)
    return CommandAnswer(
        {"problems": rows}, Forms([piped], lambda _width: _problems(cells)) if rows else Hint("no problem matches")
    )


def _problems(cells: Sequence[Sequence[str]]) -> Iterator[Part]:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("id", "kind", "tags", "what"):
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*(Text(line(cell)) for cell in row))
    yield table


def comparison(problems: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    if any(problem["attempts"] for problem in problems):
        yield Forms([TableRows((), (), piped=[("problem", *COLUMNS, "target", "best known")])], lambda _width: ())
    for problem in problems:
        if not problem["attempts"]:
            yield Hint(f"no attempts at {problem['problem_id']} yet")
            continue
        levels = ["" if problem[key] is None else stated(problem[key]) for key in ("target", "best_known")]
        piped = [(problem["problem_id"], *cells(problem, row), *levels) for row in problem["attempts"]]
        yield Forms([TableRows((), (), piped=piped)], lambda _width, problem=problem: _attempts(problem))


def _attempts(problem: Mapping[str, Any]) -> Iterator[Part]:
    """The attempts at one problem on a terminal."""
    rows = [_terminal_cells(problem, row) for row in problem["attempts"]]
    yield Styled((line(problem["title"]), "bold"), f" ({problem['problem_id']})")
    yield Styled((line(aim(problem)), "dim"))
    yield TableRows(_SHOWN, [[row[name] for name in _SHOWN] for row in rows], right=("score", "calls", "seconds"))
    for row, shown in zip(problem["attempts"], rows, strict=True):
        further = [f"{name} {shown[name]}" for name in _BELOW if shown[name] not in ("", "0")]
        if found := [*further, *others(row), *notes(row)]:
            yield Styled((f"  {row['attempt_id']}: {line('; '.join(found))}", "dim"))
    for row in repeated(problem):
        words = dict(zip(AGENT_COLUMNS, map(line, agent_cells(problem, row)), strict=True))
        yield f"  {words['who']}: {', '.join(f'{name} {words[name]}' for name in AGENT_COLUMNS[1:] if words[name])}"


def _terminal_cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = dict(zip(COLUMNS, cells(problem, row), strict=True))
    if row["value"] is not None:
        found["score"] = figure(row["value"], problem["target"])  # the unit is in the heading
        found["status"] = "infeasible" if not row["feasible"] else "solved" if row["solved"] else row["status"]
    return found


def attempt(context: Context, row: Mapping[str, Any], status: Status) -> CommandAnswer:
    if row["status"] == "open" and status.status in ENDED:
        row = {**row, "status": "ended"}
    data = {**row, "session_id": status.mission_id, "mission_status": status.status}
    return CommandAnswer(data, _attempt(context, row, status))


def _attempt(context: Context, row: Mapping[str, Any], status: Status) -> Iterator[Part]:
    because = row["why"] or show.why(status)
    yield Fact("attempt", row["attempt_id"])
    yield Fact("mission", f"{status.mission_id} ({status.status}{f': {because}' if because else ''})")
    yield from score(row, row["targets"])
    steps = [(row["turns"], "turn"), (row["calls"], "call"), (row["evaluations"], "evaluation")]
    yield Fact("took", ", ".join(counted(number, name) for number, name in steps if number is not None))
    if row["spent_budgets"]:
        yield Fact("spent", ", ".join(row["spent_budgets"]))
    if row["status"] == "ended":
        yield Hint(f"details of each call: {context.command('history', status.mission_id, '--full')}")
    if status.status in ENDED:
        word = problem_word(Path(row["file"]), row["problem_id"])
        yield Hint(f"compare it: {context.command('problem', 'compare', word)}")


def problem_word(path: Path | None, problem_id: str) -> str:
    """Returns the argument that names a problem: the id of a shipped problem, else the file."""
    return problem_id if path is None or path.is_relative_to(SHIPPED) else str(path)


def score(row: Mapping[str, Any], targets: Mapping[str, float]) -> Iterator[Part]:
    for one in row["score"]:
        target = targets.get(one["metric"])
        words = f"{figure(one['value'], target)} {one['unit']}".strip()
        beside = [] if one["feasible"] else ["infeasible"]
        beside += ["not isolated"] if row["isolated"] is False else []
        beside += [] if target is None else [f"target {stated(target)}"]
        yield Fact(one["metric"], f"{words} ({', '.join(beside)})" if beside else words)
    if not row["score"]:
        missing = _UNSCORED.get(row.get("status", ""), "nothing was submitted")
        yield Fact("score", row.get("error") or f"none: {missing}")
    yield Fact("solved", "yes" if row["solved"] else "no")


UNSOLVED = "the submission does not solve the problem, and only one is allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt whose mission has ended; `problem` is its name on the command line.

    Scores are hidden until the mission has ended.
    """

    state: AttemptState
    status: Status
    report: Report
    problem: str

    def as_dict(self) -> dict[str, Any]:
        scored = self.state.scored
        return {
            "attempt_id": self.state.attempt_id,
            "problem_id": self.state.opened.problem_id,
            "status": self.state.status,
            "solved": scored is not None and scored.solved,
            "score": [] if scored is None else list(msgspec.to_builtins(scored.rows)),
            "isolated": None if scored is None else scored.isolated,
            "error": None if scored is None else scored.error,
            "spent_budgets": spent_budgets(self.state),
        }

    def parts(self) -> Iterator[Part]:
        yield Fact("attempt", self.state.attempt_id)
        yield from score(self.as_dict(), {})
        if self.reason:
            yield Fact("ended", self.reason)
        if budgets := spent_budgets(self.state):
            yield Fact("spent", ", ".join(budgets))

    @property
    def reason(self) -> str:
        """One sentence on why the mission did not solve the problem; empty if it did."""
        if self.status.status == "completed":
            return ""
        reason = self.status.verdict_reason
        words = UNSOLVED if reason == "out_of_reach" else show.why(self.status)
        refused = [one for one in self.report.refused if one.outcome == "denied"]
        if not refused:
            return words
        denied = f"{counted(len(refused), 'call')} {'was' if len(refused) == 1 else 'were'} denied"
        return f"{words} {denied}: {refused[-1].reason}"

    def next_step(self, context: Context) -> str:
        return f"compare it: {context.command('problem', 'compare', self.problem)}"


async def ended_attempt(runtime: Runtime, status: Status) -> Ended | None:
    """The attempt of an ended mission; None if the mission has not ended or is not an attempt."""
    if status.status not in ENDED:
        return None
    mission_id: str = status.mission_id
    state = await runtime.runner.state(mission_id)
    name = "" if state.file is None else Path(state.file).stem
    if not is_attempt(name):
        return None
    try:
        attempt = await load_attempt(runtime.runner.ledger, name)
    except AttemptNotFound:
        return None
    if attempt.opened.mission != mission_id:
        return None
    problem = problem_word(_judged_by(state.mission), attempt.opened.problem_id)
    return Ended(state=attempt, status=status, report=await runtime.runner.report(mission_id), problem=problem)


def _judged_by(mission: Mission) -> Path | None:
    for criterion in mission.criteria:
        words = criterion.command or () if isinstance(criterion, Check) else ()
        if "--problem" in words[:-1]:
            return Path(words[words.index("--problem") + 1])
    return None
