"""Problems and attempts on the screen.

Owns: which facts are shown, for a terminal and for a pipe. Reads JSON and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pursuit.problems.catalogue import SHIPPED
from pursuit.reports.comparison import COLUMNS, aim, cells, notes
from pursuit.reports.wording import figure, stated
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.show import why
from pursuit.surfaces.cli.text import ENDED, counted, line

_ALL = tuple(name for name in COLUMNS if name not in ("solved", "notes"))
"""On a terminal the status says whether it is solved, and notes stand below."""
_NUMBERS = ("score", "calls", "evaluations", "seconds", "from first call", "tokens")
_LEAST_FIRST = ("from first call", "tokens", "evaluations", "calls", "who", "seconds")
_HEADS = {"evaluations": "evals"}
_LEAST_WHO = 8
_GAP = 2
_UNSCORED = {
    "submitted": "what was submitted is not judged yet",
    "claimed": "what was handed in was not answered yet",
}
"""Why there is no score of something that was submitted, by the status of its attempt."""
_STYLES = {"solved": "bold green", "infeasible": "red", "ended": "yellow", "open": "cyan"}


def listing(screen: Screen, rows: Sequence[Mapping[str, Any]]) -> None:
    """Some problems."""
    if screen.json:
        screen.document({"problems": rows})
    elif screen.rich and rows:
        _table(screen, ("id", "kind", "tags", "what"), [_cells(row) for row in rows])
    else:
        for row in rows:
            screen.plain("\t".join(line(cell) for cell in _cells(row)))
    if not rows:
        screen.hint("no problem fits")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["problem_id"], row["kind"], ", ".join(row["tags"]), row["summary"]


def comparison(screen: Screen, problems: Sequence[Mapping[str, Any]]) -> None:
    """Attempts at problems, the best first."""
    if screen.json:
        screen.document({"problems": problems})
        return
    for problem in problems:
        if screen.rich and problem["attempts"]:
            _attempts(screen, problem)
        else:
            levels = ["" if problem[key] is None else stated(problem[key]) for key in ("target", "best_known")]
            for row in problem["attempts"]:
                words = (problem["problem_id"], *cells(problem, row), *levels)
                screen.plain("\t".join(line(cell) for cell in words))
        if not problem["attempts"]:
            screen.hint(f"no attempt at {problem['problem_id']} yet")


def _attempts(screen: Screen, problem: Mapping[str, Any]) -> None:
    """The attempts at one problem for a terminal: what is there to be copied or compared is never broken."""
    from rich.table import Table  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    rows = [_terminal_cells(problem, row) for row in problem["attempts"]]
    columns = _fitting(rows, screen.console.width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        fixed = name != "who"
        table.add_column(
            _HEADS.get(name, name), justify="right" if name in _NUMBERS else "left", no_wrap=fixed, overflow="fold"
        )
    for row in rows:
        style = _STYLES.get(row["status"], "")
        table.add_row(*(Text(row[name], style=style if name == "status" else "") for name in columns))
    title = Text.assemble((line(problem["title"]), "bold"), f" ({problem['problem_id']})")
    screen.show(title, Text(line(aim(problem)), style="dim"), table)
    for row in problem["attempts"]:
        if found := notes(row):
            screen.show(Text(f"  {row['attempt_id']}: {line('; '.join(found))}", style="dim"))
    if left_out := [name for name in _ALL if name not in columns]:
        screen.hint(f"  no room for {', '.join(left_out)}: see --json")


def _terminal_cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = dict(zip(COLUMNS, map(line, cells(problem, row)), strict=True))
    if row["value"] is not None:
        found["score"] = figure(row["value"], problem["target"])  # the unit stands above
        found["status"] = "infeasible" if not row["feasible"] else "solved" if row["solved"] else row["status"]
    return {name: found[name] for name in _ALL}


def _fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """The columns that have room side by side; `who` gives way first, then goes what says least."""
    wide = {name: max(map(len, (_HEADS.get(name, name), *(row[name] for row in rows)))) for name in _ALL}
    wide["who"] = min(wide["who"], _LEAST_WHO)
    columns = list(_ALL)
    idle = [name for name in _LEAST_FIRST if all(row[name] in ("", "0") for row in rows)]
    for name in dict.fromkeys([*idle, *_LEAST_FIRST]):
        if sum(wide[one] + _GAP for one in columns) - _GAP <= width:
            break
        columns.remove(name)
    return columns


def attempt(screen: Screen, row: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """One attempt that has just been made."""
    if row["status"] == "open" and status["status"] in ENDED:
        row = {**row, "status": "ended"}
    if screen.json:
        screen.document({**row, "session_id": status["session_id"], "mission_status": status["status"]})
        return
    because = row["why"] or why(status)
    screen.fact("attempt", row["attempt_id"])
    screen.fact("mission", f"{status['session_id']} ({status['status']}{f': {because}' if because else ''})")
    score(screen, row, row["targets"])
    screen.fact("took", f"{counted(row['calls'], 'call')}, {counted(row['evaluations'], 'evaluation')}")
    if row["spent_budgets"]:
        screen.fact("spent", ", ".join(row["spent_budgets"]))
    if row["status"] == "ended":
        screen.hint(f"what became of each call: {screen.common.command('history', status['session_id'], '--full')}")
    if status["status"] in ENDED:
        word = problem_word(Path(row["file"]), row["problem_id"])
        screen.hint(f"compare it: {screen.common.command('problem', 'compare', word)}")


def problem_word(path: Path | None, problem_id: str) -> str:
    """What a problem is called on the command line: a shipped one by its id, any other by its file."""
    return problem_id if path is None or path.is_relative_to(SHIPPED) else str(path)


def score(screen: Screen, row: Mapping[str, Any], targets: Mapping[str, float]) -> None:
    """What was reached."""
    for one in row["score"]:
        target = targets.get(one["metric"])
        words = f"{figure(one['value'], target)} {one['unit']}".strip()
        beside = [] if one["feasible"] else ["infeasible"]
        beside += [] if target is None else [f"target {stated(target)}"]
        screen.fact(one["metric"], f"{words} ({', '.join(beside)})" if beside else words)
    if not row["score"]:
        missing = _UNSCORED.get(row.get("status", ""), "nothing was submitted")
        screen.fact("score", row.get("error") or f"none: {missing}")
    screen.fact("solved", "yes" if row["solved"] else "no")


def _table(screen: Screen, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - rich loads only for a terminal
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(line(cell)) for cell in row))
    screen.show(table)
