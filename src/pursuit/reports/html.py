"""Renders a report, or a comparison of attempts at problems, as one self-contained HTML file.

The template escapes every value; only our own SVG counts as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


COLUMNS = (
    "attempt",
    "who",
    "status",
    "score",
    "solved",
    "calls",
    "evaluations",
    "seconds",
    "from first call",
    "tokens",
    "other metrics",
    "notes",
    "turns",
    "cost",
)
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


def cells(problem: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    value = row["value"]
    score = "" if value is None else f"{figure(value, problem['target'])} {row['unit']}".strip()
    if value is not None and not row["feasible"]:
        score += " (infeasible)"
    return (
        str(row["attempt_id"]),
        text(str(row["label"])),
        "not judged" if row["error"] else str(row["status"]),
        score,
        "yes" if row["solved"] else "no",
        *("" if row[key] is None else figure(row[key]) for key in ("calls", "evaluations")),
        *("" if row[key] is None else seconds(row[key]) for key in ("seconds", "seconds_from_first_call")),
        "" if row["tokens"] is None else figure(row["tokens"]),
        "; ".join(others(row)),
        "; ".join(notes(row)),
        "" if row["turns"] is None else figure(row["turns"]),
        "" if row["turns"] is None else "unknown" if row["cost_usd"] is None else f"${figure(row['cost_usd'])}",
    )


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
    found: list[str] = []
    if row["number"] > 1:
        found.append(f"attempt {row['number']} of the same caller")
    if row["spent_budgets"]:
        found.append(f"spent: {', '.join(row['spent_budgets'])}")
    if row["isolated"] is False:
        found.append("not isolated")
    if row["fate_unknown"]:
        found.append("fate unknown")
    if row["other_version"]:
        found.append("other version")
    if row["error"]:
        found.append(f"not judged: {row['error']}")
    return found


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
