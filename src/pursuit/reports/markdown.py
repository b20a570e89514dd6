"""A report as Markdown that reads well as plain text, too.

It escapes for CommonMark with GitHub's tables: no value of a report can start a block, leave its table cell, or become
a link, an image or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pursuit.reports.report import Report
from pursuit.reports.view import BestView, CriterionView, Gauge, MetricView, ReportView, Rows, read
from pursuit.reports.wording import figure, text

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!$@]|(?<=www)\.|:(?=//))", re.IGNORECASE)
_OPENING = re.compile(r"^([-+=]|\d{1,9}(?=[.)]))")
_MARKS = {"met": "\u2713", "unmet": "\u2717", "inconclusive": "?"}


def render_markdown(report: Report) -> str:
    """The report as Markdown."""
    view = read(report.data)
    blocks = [
        *_heading(view),
        *_list("Warnings", view.warnings),
        *_criteria(view.criteria),
        *_best(view.best),
        *_metrics(view.metrics),
        *_gauges(view.gauges),
        *(block for rows in view.tables for block in _rows(rows)),
        *_list("Lessons", view.lessons),
        *(_rows(view.timeline) if view.timeline.rows else ()),
        *_list("Ledger", [f"{label}: {value}" for label, value in view.ledger]),
    ]
    return "\n\n".join(blocks) + "\n"


def inline(value: str) -> str:
    """Text that stays text, on one line, wherever it stands."""
    flat = " ".join(text(value).split())
    return _OPENING.sub(_defuse, _SPECIAL.sub(r"\\\1", flat))


def table(columns: Sequence[str], numeric: Iterable[int], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are escaped here."""
    right = set(numeric)
    rules = ["---:" if index in right else "---" for index in range(len(columns))]
    lines = [_line(columns), _line(rules, raw=True), *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str], *, raw: bool = False) -> str:
    return f"| {' | '.join(cell if raw else inline(cell) for cell in cells)} |"


def _defuse(match: re.Match[str]) -> str:
    """Escapes what would start a list or an underline; after a number, the dot or bracket is escaped."""
    return f"\\{match[0]}" if not match[0].isdigit() else f"{match[0]}\\"


def _heading(view: ReportView) -> list[str]:
    verdict = f"**{inline(view.status)}**: {inline(view.reason)}" if view.reason else f"**{inline(view.status)}**"
    blocks = [f"# {inline(view.title)}"]
    if view.body:
        blocks.append("\n".join(f"> {inline(line)}" if line.strip() else ">" for line in view.body.split("\n")))
    blocks.append(verdict)
    if view.reason_text:
        blocks.append(f"Reason given: {inline(view.reason_text)}")
    times = [("Mission", view.session_id), *view.times]
    blocks.append("\n".join(f"- {label}: {inline(value)}" for label, value in times if value))
    return blocks


def _criteria(criteria: Sequence[CriterionView]) -> list[str]:
    if not criteria:
        return []
    rows = [
        (
            f"{_MARKS.get(criterion.status, '')} {criterion.status}".strip(),
            criterion.criterion_id,
            criterion.description or criterion.kind,
            "yes" if criterion.required else "no",
            criterion.evidence,
            criterion.source,
        )
        for criterion in criteria
    ]
    return ["## Criteria", table(("Status", "Criterion", "What", "Required", "Evidence", "Source"), (), rows)]


def _best(best: BestView | None) -> list[str]:
    if best is None:
        return []
    rows = [f"**{inline(best.headline)}**", f"- with: {inline(best.args)}", f"- from: {inline(best.source)}"]
    remark = [f"{inline(best.remark)}."] if best.remark else []
    return ["## Best point", rows[0], "\n".join(rows[1:]), *remark]


def _metrics(metrics: Sequence[MetricView]) -> list[str]:
    if not metrics:
        return []
    rows = [
        (
            metric.name,
            figure(metric.points[0][1]),
            figure(metric.last),
            figure(metric.best) + (f" ({metric.infeasible})" if metric.infeasible else ""),
            metric.goal,
            f"{len(metric.points):,}",
        )
        for metric in metrics
    ]
    columns = ("Metric", "First", "Last", "Best", "Target", "Points")
    return ["## Metrics", table(columns, (1, 2, 3, 4, 5), rows)]


def _gauges(gauges: Sequence[Gauge]) -> list[str]:
    if not gauges:
        return []
    rows = [(gauge.label, gauge.used, gauge.limit or "no limit") for gauge in gauges]
    return ["## Budget", table(("What", "Used", "Limit"), (1, 2), rows)]


def _rows(rows: Rows) -> list[str]:
    blocks = [f"## {rows.title}"]
    if rows.omitted:
        blocks.append(f"{rows.omitted:,} more are not shown.")
    blocks.append(table(rows.columns, rows.numeric, rows.rows))
    return blocks


def _list(title: str, entries: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {inline(entry)}" for entry in entries)] if entries else []
