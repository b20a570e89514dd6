"""How problems and attempts are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pursuit.cli import show
from pursuit.cli.console import ENDED, STYLES, CommandAnswer, Fact, Forms, Hint, Part, TableRows, counted, line
from pursuit.cli.context import Context
from pursuit.core.attempts import AttemptState
from pursuit.core.criteria import Check
from pursuit.core.mission import Mission
from pursuit.errors import AttemptNotFound
from pursuit.problems.attempts import is_attempt, load_attempt
from pursuit.problems.catalogue import SHIPPED
from pursuit.problems.comparison import spent_budgets
from pursuit.reports.html import AGENT_COLUMNS, COLUMNS, agent_cells, aim, cells, notes, others, repeated
from pursuit.reports.wording import figure, stated
from pursuit.runtime import Runtime

if TYPE_CHECKING:
    from pursuit.core.report import Status
    from pursuit.reports.report import Report

_ALL = tuple(name for name in COLUMNS if name not in ("solved", "other metrics", "notes"))
"""On a terminal the status says whether it is solved; other metrics and notes stand below."""
_NUMBERS = ("score", "turns", "calls", "evaluations", "seconds", "from first call", "tokens", "cost")
_LEAST_FIRST = ("from first call", "tokens", "evaluations", "cost", "turns", "calls", "who", "seconds")
_HEADS = {"evaluations": "evals"}
_LEAST_WHO = 8
_GAP = 2
_UNSCORED = {
    "submitted": "what was submitted is not judged yet",
    "claimed": "what was handed in was not answered yet",
}
"""Why there is no score of something that was submitted, by the status of its attempt."""


def listing(rows: Sequence[Mapping[str, Any]]) -> CommandAnswer:
    """Problems, one per row."""
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
    """The attempts at problems, the best first."""
    if any(problem["attempts"] for problem in problems):
        yield Forms([TableRows((), (), piped=[("problem", *COLUMNS, "target", "best known")])], lambda _width: ())
    for problem in problems:
        if not problem["attempts"]:
            yield Hint(f"no attempt at {problem['problem_id']} yet")
            continue
        levels = ["" if problem[key] is None else stated(problem[key]) for key in ("target", "best_known")]
        piped = [(problem["problem_id"], *cells(problem, row), *levels) for row in problem["attempts"]]
        yield Forms([TableRows((), (), piped=piped)], partial(_attempts, problem))


def _attempts(problem: Mapping[str, Any], width: int) -> Iterator[Part]:
    """The attempts at one problem on a terminal; cells to copy or compare are never broken."""
    from rich.table import Table
    from rich.text import Text

    rows = [_terminal_cells(problem, row) for row in problem["attempts"]]
    columns = _fitting(rows, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        fixed = name != "who"
        table.add_column(
            _HEADS.get(name, name), justify="right" if name in _NUMBERS else "left", no_wrap=fixed, overflow="fold"
        )
    for row in rows:
        style = STYLES.get(row["status"], "")
        table.add_row(*(Text(row[name], style=style if name == "status" else "") for name in columns))
    title = Text.assemble((line(problem["title"]), "bold"), f" ({problem['problem_id']})")
    yield from (title, Text(line(aim(problem)), style="dim"), table)
    for row in problem["attempts"]:
        if found := [*others(row), *notes(row)]:
            yield Text(f"  {row['attempt_id']}: {line('; '.join(found))}", style="dim")
    for row in repeated(problem):
        words = dict(zip(AGENT_COLUMNS, map(line, agent_cells(problem, row)), strict=True))
        facts = ", ".join(f"{name} {words[name]}" for name in AGENT_COLUMNS[1:] if words[name])
        yield Text(f"  {words['who']}: {facts}")
    if left_out := [name for name in _ALL if name not in columns and any(row[name] for row in rows)]:
        yield Text(f"  no room for {', '.join(left_out)}: see --json", style="dim")


def _terminal_cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = dict(zip(COLUMNS, map(line, cells(problem, row)), strict=True))
    if row["value"] is not None:
        found["score"] = figure(row["value"], problem["target"])  # the unit stands above
        found["status"] = "infeasible" if not row["feasible"] else "solved" if row["solved"] else row["status"]
    return {name: found[name] for name in _ALL}


def _fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """The columns that fit the width: `who` shrinks first, then the least useful columns go."""
    wide = {name: max(map(len, (_HEADS.get(name, name), *(row[name] for row in rows)))) for name in _ALL}
    wide["who"] = min(wide["who"], _LEAST_WHO)
    columns = [name for name in _ALL if any(row[name] for row in rows)]
    idle = [name for name in _LEAST_FIRST if all(row[name] in ("", "0", "$0") for row in rows)]
    for name in (name for name in dict.fromkeys([*idle, *_LEAST_FIRST]) if name in columns):
        if sum(wide[one] + _GAP for one in columns) - _GAP <= width:
            break
        columns.remove(name)
    return columns


def attempt(context: Context, row: Mapping[str, Any], status: Status) -> CommandAnswer:
    """An attempt that was just made."""
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
        yield Hint(f"what became of each call: {context.command('history', status.mission_id, '--full')}")
    if status.status in ENDED:
        word = problem_word(Path(row["file"]), row["problem_id"])
        yield Hint(f"compare it: {context.command('problem', 'compare', word)}")


def problem_word(path: Path | None, problem_id: str) -> str:
    """How the command line names a problem: a shipped one by its id, any other by its file."""
    return problem_id if path is None or path.is_relative_to(SHIPPED) else str(path)


def score(row: Mapping[str, Any], targets: Mapping[str, float]) -> Iterator[Part]:
    """A score."""
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


UNSOLVED = "what was submitted does not solve it, and there is one submission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt whose mission has ended; `problem` is its name on the command line.

    Nothing of a score is shown before the mission has ended.
    """

    state: AttemptState
    status: Status
    report: Report
    problem: str

    def as_dict(self) -> dict[str, Any]:
        """The attempt as JSON."""
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
        """The score, why the problem is not solved, and which budgets are spent."""
        yield Fact("attempt", self.state.attempt_id)
        yield from score(self.as_dict(), {})
        if self.reason:
            yield Fact("ended", self.reason)
        if budgets := spent_budgets(self.state):
            yield Fact("spent", ", ".join(budgets))

    @property
    def reason(self) -> str:
        """One sentence on why the mission ended without solving the problem; empty if it solved it."""
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
        """How to compare it with other attempts."""
        return f"compare it: {context.command('problem', 'compare', self.problem)}"


async def ended_attempt(runtime: Runtime, status: Status) -> Ended | None:
    """The attempt of an ended mission; None if it has not ended or is not an attempt."""
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
