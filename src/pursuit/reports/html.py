"""Renders a report, or a comparison of attempts at problems, as one self-contained HTML file.

The template escapes every value; only our own SVG counts as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pursuit.reports.plots import line_plot, scatter_plot
from pursuit.reports.report import Report
from pursuit.reports.view import MetricView, read
from pursuit.reports.wording import figure, seconds, stated, text

if TYPE_CHECKING:
    from jinja2 import Template

MAX_PLOTS = 24
"""More plots are hard to read; the other metrics are listed in a table."""


def render_html(report: Report) -> str:
    """The report as one HTML file: without scripts or external resources, for light and dark mode and for print."""
    view = read(report)
    others = view.metrics[MAX_PLOTS:]
    shown = {"view": view, "report": report, "plots": metric_plots(view.metrics), "others": others}
    return template("report.html.j2").render(**shown, figure=figure)


def metric_plots(metrics: Sequence[MetricView]) -> list[tuple[MetricView, str]]:
    return [
        (
            one,
            line_plot(one.points, label=one.name, best=one.best, target=one.target, goal=one.goal, trace=one.trace),
        )
        for one in metrics[:MAX_PLOTS]
    ]


@cache
def template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only a command that writes a report loads it

    loader = PackageLoader("pursuit.reports", "templates")
    environment = Environment(
        loader=loader,
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    return environment.get_template(name)


def printable(value: Any) -> Any:
    """The text for a template: plain text without unprintable characters, markup unchanged."""
    return text(value) if type(value) is str else value


AGENT_COLUMNS = ("who", "attempts", "feasible", "solved", "mean", "standard error", "best", "pass@k")
WHOLE = ("attempt", "status", "score")
"""Columns whose cells do not wrap."""

_AXES = {"calls": "calls", "seconds": "seconds", "tokens": "tokens", "cost_usd": "cost in USD"}


def render_comparison(problems: Sequence[Mapping[str, Any]]) -> str:
    """A comparison page; each problem has `title`, `problem_id`, the primary metric with levels, and `attempts`."""
    sections = [comparison_section(one) for one in problems]
    words = {"columns": COLUMNS, "whole": WHOLE, "agent_columns": AGENT_COLUMNS}
    return template("comparison.html.j2").render(**words, problems=sections)


def comparison_section(problem: Mapping[str, Any]) -> dict[str, Any]:
    attempts: Sequence[Mapping[str, Any]] = problem["attempts"]
    plots = [(name, _comparison_plot(problem, attempts, axis, name)) for axis, name in _AXES.items()]
    return {
        "title": problem["title"],
        "problem_id": problem["problem_id"],
        "metric": problem["metric"],
        "aim": aim(problem),
        "rows": [cells(problem, row) for row in attempts],
        "agents": [agent_cells(problem, row) for row in repeated(problem)],
        "plots": [(axis, svg) for axis, svg in plots if svg],
    }


def aim(problem: Mapping[str, Any]) -> str:
    """The basis for comparing attempts: `cost in cm^3, lower is better; target 264.5; best known …`."""
    name = f"{problem['metric']} in {problem['unit']}" if problem["unit"] else str(problem["metric"])
    more = "higher is better" if problem["direction"] == "maximize" else "lower is better"
    levels = (("target", problem["target"]), ("best known", problem["best_known"]))
    return "; ".join([f"{name}, {more}", *(f"{word} {stated(value)}" for word, value in levels if value is not None)])


def _known(form: Callable[[Any], str], value: Any) -> str:
    return "" if value is None else form(value)


def _score(problem: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return ""
    score = f"{figure(row['value'], problem['target'])} {row['unit']}".strip()
    return score if row["feasible"] else f"{score} (infeasible)"


_CELLS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]] = {
    "attempt": lambda _, row: str(row["attempt_id"]),
    "who": lambda _, row: text(str(row["label"])),
    "status": lambda _, row: "not judged" if row["error"] else str(row["status"]),
    "score": _score,
    "solved": lambda _, row: "yes" if row["solved"] else "no",
    "calls": lambda _, row: _known(figure, row["calls"]),
    "evaluations": lambda _, row: _known(figure, row["evaluations"]),
    "seconds": lambda _, row: _known(seconds, row["seconds"]),
    "from first call": lambda _, row: _known(seconds, row["seconds_from_first_call"]),
    "tokens": lambda _, row: _known(figure, row["tokens"]),
    "other metrics": lambda _, row: "; ".join(others(row)),
    "notes": lambda _, row: "; ".join(notes(row)),
    "turns": lambda _, row: _known(figure, row["turns"]),
    "cost": lambda _, row: (
        "" if row["turns"] is None else _known(lambda usd: f"${figure(usd)}", row["cost_usd"]) or "unknown"
    ),
}
"""The cell of each column for a problem and an attempt at it."""
COLUMNS = tuple(_CELLS)


def cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell(problem, row) for cell in _CELLS.values())


def others(row: Mapping[str, Any]) -> list[str]:
    more = (one for one in row["score"] if one["metric"] != row["metric"])
    return [f"{text(one['metric'])} {figure(one['value'])} {text(one['unit'])}".strip() for one in more]


def repeated(problem: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The agents of a problem, if any of them tried it more than once."""
    agents: Sequence[Mapping[str, Any]] = problem["agents"]
    return agents if any(one["attempts"] > 1 for one in agents) else ()


def agent_cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    mean, error, best = row["mean"], row["standard_error"], row["best"]
    return (
        text(str(row["label"])),
        *(figure(row[key]) for key in ("attempts", "feasible", "solved")),
        "" if mean is None else figure(mean, problem["target"]),
        "" if error is None else f"{error:.3g}",
        "" if best is None else figure(best, problem["target"]),
        ", ".join(f"{k}: {share:.0%}" for k, share in row["pass_at"].items()),
    )


def notes(row: Mapping[str, Any]) -> list[str]:
    said = {
        f"attempt {row['number']} of the same caller": row["number"] > 1,
        f"spent: {', '.join(row['spent_budgets'])}": row["spent_budgets"],
        "not isolated": row["isolated"] is False,
        "fate unknown": row["fate_unknown"],
        "other version": row["other_version"],
        f"not judged: {row['error']}": row["error"],
    }
    return [words for words, holds in said.items() if holds]


def _comparison_plot(problem: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], axis: str, name: str) -> str:
    points = [
        (float(row[axis]), float(row["value"]), text(f"{row['label']} ({row['attempt_id']})"))
        for row in attempts
        if row["value"] is not None and row["feasible"] and row[axis] is not None
    ]
    if not any(x for x, _, _ in points):  # no attempt used any
        return ""
    label = f"{problem['metric']} over {name}"
    return scatter_plot(points, label=label, target=problem["target"], whole=axis in ("calls", "tokens"))
