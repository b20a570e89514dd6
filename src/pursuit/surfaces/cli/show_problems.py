"""Problems and attempts on the screen.

Owns: which facts are shown, for a terminal and for a pipe. Reads JSON and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.reports.comparison import COLUMNS, cells
from pursuit.reports.wording import figure
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import clean, line


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
        rows = [cells(row) for row in problem["attempts"]]
        if screen.rich and rows:
            screen.plain(clean(problem["title"]))
            _table(screen, COLUMNS, rows)
        else:
            for row in rows:
                screen.plain("\t".join(line(cell) for cell in (problem["problem_id"], *row)))
        if not rows:
            screen.hint(f"no attempt at {problem['problem_id']} yet")


def attempt(screen: Screen, row: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """One attempt that has just been made."""
    if screen.json:
        screen.document({**row, "session_id": status["session_id"], "mission_status": status["status"]})
        return
    screen.fact("attempt", row["attempt_id"])
    screen.fact("mission", f"{status['session_id']} ({status['status']})")
    score(screen, row)
    screen.fact("took", f"{row['calls']} calls, {row['evaluations']} evaluations")


def score(screen: Screen, row: Mapping[str, Any]) -> None:
    """What was reached."""
    for one in row["score"]:
        words = f"{figure(one['value'])} {one['unit']}".strip()
        screen.fact(one["metric"], words if one["feasible"] else f"{words} (infeasible)")
    if not row["score"]:
        screen.fact("score", row.get("error") or "none: nothing was submitted")
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
