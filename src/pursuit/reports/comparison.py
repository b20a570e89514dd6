"""Attempts at problems as one self-contained HTML page: a table and plots for each problem.

Owns: the page. Does not know: ledgers or manifests; it reads the rows of attempts as JSON.
Invariant: nothing is loaded from anywhere; every value passes through the template's escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.reports.html import template
from pursuit.reports.plots import scatter_plot
from pursuit.reports.wording import figure

COLUMNS = ("attempt", "who", "status", "score", "solved", "calls", "evaluations", "seconds", "tokens")
_AXES = (("calls", "calls"), ("seconds", "seconds"), ("tokens", "tokens"))


def render_comparison(problems: Sequence[Mapping[str, Any]]) -> str:
    """The page; each problem has `title`, `problem_id`, `metric`, `target` and `attempts`."""
    return template("comparison.html.j2").render(columns=COLUMNS, problems=[_section(one) for one in problems])


def _section(problem: Mapping[str, Any]) -> dict[str, Any]:
    attempts: Sequence[Mapping[str, Any]] = problem["attempts"]
    plots = [(words, _plot(problem, attempts, key, words)) for key, words in _AXES]
    return {
        "title": problem["title"],
        "problem_id": problem["problem_id"],
        "metric": problem["metric"],
        "rows": [cells(row) for row in attempts],
        "plots": [(words, svg) for words, svg in plots if svg],
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One attempt as the cells of a table."""
    value = row["value"]
    score = "" if value is None else f"{figure(value)} {row['unit']}".strip()
    if value is not None and not row["feasible"]:
        score += " (infeasible)"
    if row.get("fate_unknown"):
        score = f"{score} (fate unknown)".strip()
    if row.get("other_version"):
        score = f"{score} (other version)".strip()
    numbers = (row["calls"], row["evaluations"], row["seconds"], row["tokens"])
    return (
        str(row["attempt_id"]),
        str(row["label"]),
        str(row["status"]),
        score,
        "yes" if row["solved"] else "no",
        *("" if one is None else figure(one) for one in numbers),
    )


def _plot(problem: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], key: str, words: str) -> str:
    points = [
        (float(row[key]), float(row["value"]), f"{row['label']} ({row['attempt_id']})")
        for row in attempts
        if row["value"] is not None and row["feasible"] and row[key] is not None
    ]
    return scatter_plot(points, label=f"{problem['metric']} over {words}", target=problem["target"])
