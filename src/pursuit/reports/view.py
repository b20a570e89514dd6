"""The content of a report for its renderings, in order: sentences, tables of text, and points of plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import Any

from pursuit.core.report import CriterionRow
from pursuit.reports.report import MetricRow, Report
from pursuit.reports.wording import (
    Gauge,
    best_words,
    compact,
    figure,
    gauges,
    moment,
    reason,
    seconds_between,
    sign,
    span,
)

MAX_TITLE = 160
MAX_ROWS = 500
MAX_COLUMNS = 12
"""The most arguments, and the most metrics, in a table of trials."""
MAX_DIFF = 20_000
MAX_OUTPUT = 8

_TONES = {"completed": "good", "terminated": "warn", "failed": "bad"}
_MARKS = {"met": "good", "unmet": "bad", "inconclusive": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionView:
    row: CriterionRow
    tone: str
    evidence: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    name: str
    points: tuple[tuple[float, float], ...]
    best: float | None
    infeasible: str
    """A text about a better value that violates limits."""
    last: float | None
    target: float | None
    goal: str
    trace: tuple[tuple[float, float], ...]
    """The best value so far at each point; empty for a metric without a wanted direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    title: str
    columns: tuple[str, ...]
    numeric: frozenset[int]
    rows: Sequence[Sequence[str]]
    omitted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """All content of a rendering besides the texts of the report itself."""

    report: Report
    title: str
    body: str
    tone: str
    reason: str
    times: Sequence[tuple[str, str]]
    gauges: Sequence[Gauge]
    criteria: Sequence[CriterionView]
    met: int
    best: str
    best_source: str
    metrics: Sequence[MetricView]
    outcomes: str
    tables: Sequence[Rows]
    timeline: Rows
    ledger: Sequence[tuple[str, str]]


def read(report: Report) -> ReportView:
    title, body = headline(report.directive)
    best, ledger = report.best_point, report.ledger
    found = None if best is None else best if best.feasible else best.infeasible
    pairs = (("Events", ledger.head_seq), ("Last event's hash", ledger.head_hash), ("Root of the ledger", ledger.root))
    return ReportView(
        report=report,
        title=title,
        body=body,
        tone=_TONES.get(report.status, "calm"),
        reason=reason(report.verdict_reason),
        times=_times(report),
        gauges=list(gauges(report.budget)),
        criteria=[_criterion(row) for row in report.criteria],
        met=sum(row.status == "met" for row in report.criteria),
        best=best_words(best),
        best_source="" if found is None else _place(found.tool, found.iteration, found.call_id),
        metrics=metric_views(report.metrics),
        outcomes=_outcomes(report.calls.by_outcome),
        tables=[table for table in _tables(report) if table.rows],
        timeline=_timeline(report),
        ledger=[(label, str(value)) for label, value in pairs if value is not None],
    )


def headline(directive: str) -> tuple[str, str]:
    """The first line as a title and the rest as a body; a long first line is cut and repeated in full in the body."""
    first, _, rest = directive.strip().partition("\n")
    if len(first) <= MAX_TITLE:
        return first or "A mission", rest.strip()
    return first[:MAX_TITLE].rstrip() + "\u2026", directive.strip()


def _times(report: Report) -> list[tuple[str, str]]:
    pairs = [("Created", moment(report.created_at)), ("Started", moment(report.started_at))]
    pairs.append(("Ended", moment(report.ended_at)))
    if (taken := seconds_between(report.started_at, report.ended_at)) is not None:
        pairs.append(("From start to end", span(taken)))
    return [(label, value) for label, value in pairs if value]


def _criterion(row: CriterionRow) -> CriterionView:
    return CriterionView(
        row=row,
        # an unmet optional criterion is not shown as bad
        tone=_MARKS.get(row.status, "calm") if row.required or row.status == "met" else "calm",
        evidence="" if row.evidence is None else compact(row.evidence),
        source="" if row.source is None else _place(row.source.tool, row.source.iteration, row.source.call_id),
    )


def _place(tool: str | None, iteration: int | None, call_id: str | None) -> str:
    return f"{tool}, iteration {_counted(iteration)}, {call_id}"


def _counted(index: int | None) -> str:
    """The number of an iteration: people count from 1, the data from 0."""
    return figure(None if index is None else index + 1)


def metric_views(metrics: Mapping[str, MetricRow]) -> list[MetricView]:
    views = [_metric(name, row) for name, row in metrics.items()]
    return sorted((view for view in views if view.points), key=lambda view: (view.target is None, view.name))


def _metric(name: str, row: MetricRow) -> MetricView:
    points = sorted((at + 1.0, float(value)) for at, value in row.points if value is not None and isfinite(value))
    op, level = ("", None) if row.target is None else (row.target.op, row.target.target)
    beyond, best = row.infeasible, accumulate((value for _, value in points), min if op.startswith("<") else max)
    return MetricView(
        name=name,
        points=tuple(points),
        best=row.best,
        infeasible="" if beyond is None else f"{figure(beyond.value)} violates {beyond.violates}",
        last=row.last,
        target=level,
        goal=f"{sign(op)} {figure(level)}" if level is not None else "",
        trace=tuple(zip((at for at, _ in points), best, strict=True)) if op.startswith(("<", ">")) else (),
    )


def _outcomes(by_outcome: Mapping[str, int]) -> str:
    return ", ".join(f"{value:,} {name}" for name, value in by_outcome.items())


def _tables(report: Report) -> Iterator[Rows]:
    yield _trials(report)
    shares = sorted(report.importance.items(), key=lambda one: one[1], reverse=True)
    yield _table(
        "Importance of the parameters", "Parameter, #Share", [(name, f"{share:.0%}") for name, share in shares]
    )
    yield _table(
        "Children",
        "Mission, Outcome of its call, Used, Set aside",
        [(one.mission_id, one.outcome, _amounts(one.used), _amounts(one.reserved)) for one in report.children],
    )
    yield _table(
        "Calls by tool",
        "Tool, #Calls, Outcomes, #Time",
        [(e.tool, figure(e.calls), _outcomes(e.by_outcome), span(e.seconds)) for e in report.calls.by_tool],
    )
    yield _table(
        "Refused or skipped calls",
        "#Iteration, Tool, Outcome, Reason, Call",
        [(_counted(e.iteration), e.tool, e.outcome, e.reason, e.call_id) for e in report.refused],
    )
    yield _table(
        "Calls whose outcome is unknown",
        "#Iteration, Tool, Reason, Call",
        [(_counted(e.iteration), e.tool, e.reason, e.call_id) for e in report.unknown],
    )
    yield _table(
        "Errors",
        "#Iteration, Tool, Message",
        [(_counted(e.iteration), e.tool, compact(e.message)) for e in report.errors],
    )
    yield _table(
        "Checks",
        "#Iteration, Criterion, Ended, #Time, Last lines",
        [
            (
                _counted(e.iteration),
                e.criterion_id,
                e.outcome if e.exit_code is None else f"exit code {e.exit_code}",
                span(e.seconds),
                compact("\n".join(e.output[-MAX_OUTPUT:])),
            )
            for e in report.checks
        ],
    )
    yield _table(
        "Approvals",
        "#Iteration, Tool, Arguments, Answer, By, When",
        [
            (
                _counted(e.iteration),
                e.tool,
                compact(e.args),
                e.answer or "open",
                " ".join(filter(None, (e.by, e.why))),
                moment(e.answered_at),
            )
            for e in report.approvals
        ],
    )
    yield _table(
        "Turns of models and agents",
        "#Iteration, Who, Calls, Words, #Tokens, #Time",
        [
            (
                _counted(e.iteration),
                e.who,
                ", ".join(e.calls),
                compact(e.error or e.text),
                figure(e.tokens),
                span(e.seconds),
            )
            for e in report.turns
        ],
    )
    yield _table(
        "Changes of each turn",
        "#Iteration, #Files, Protected (not counted), Diff",
        [
            (_counted(e.iteration), figure(e.files), ", ".join(e.protected), e.diff[:MAX_DIFF])
            for e in report.turns
            if e.diff
        ],
    )
    yield _table(
        "Calls",
        "#Iteration, Tool, Arguments, Outcome, #Time, Error",
        [
            (_counted(e.iteration), e.tool, compact(e.args), e.outcome, span(e.seconds), compact(e.error or ""))
            for e in report.call_log
        ],
        report.call_log_omitted,
    )


def _trials(report: Report) -> Rows:
    """The newest trials: a column for each argument and each metric."""
    trials = report.trial_rows
    args = list(dict.fromkeys(name for e in trials for name in e.args))[:MAX_COLUMNS]
    metrics = list(dict.fromkeys(name for e in trials for name in e.metrics))[:MAX_COLUMNS]
    rows = [
        (
            f"{e.trial}{' (best)' if e.best else ''}",
            *(_value(e.args.get(name)) for name in args),
            *(_value(e.metrics.get(name)) for name in metrics),
            e.outcome,
            span(e.seconds),
        )
        for e in trials[-MAX_ROWS:]
    ]
    omitted = (report.trials_omitted or 0) + len(trials) - len(rows)
    columns = ("Trial", *args, *metrics, "Outcome", "Time")
    numeric = frozenset({*range(len(columns) - 2), len(columns) - 1})
    return Rows(title="Trials", columns=columns, numeric=numeric, rows=_texts(rows), omitted=omitted)


def _value(value: Any) -> str:
    return "" if value is None else figure(value) if isinstance(value, int | float) else compact(value)


def _amounts(value: Mapping[str, float] | None) -> str:
    parts = (value or {}).items()
    return ", ".join(f"{name.removeprefix('max_')} {figure(amount)}" for name, amount in parts if amount)


def _timeline(report: Report) -> Rows:
    rows = [
        (
            _counted(e.iteration_index),
            f"{e.verdict} / {e.verdict_reason}",
            figure(e.calls),
            span(seconds_between(e.started_at, e.ended_at)),
            compact(e.rationale or ""),
        )
        for e in report.timeline
    ]
    return _table("Iterations", "#Iteration, Verdict, #Calls, #Time, Rationale", rows, report.timeline_omitted)


def _table(title: str, columns: str, rows: Sequence[Sequence[str | None]], omitted: int = 0) -> Rows:
    """A table; `columns` is separated by commas, and `#` marks numeric ones."""
    names = columns.split(", ")
    numeric = frozenset(place for place, name in enumerate(names) if name.startswith("#"))
    labels = tuple(name.removeprefix("#") for name in names)
    return Rows(title=title, columns=labels, numeric=numeric, rows=_texts(rows), omitted=omitted)


def _texts(rows: Sequence[Sequence[str | None]]) -> list[tuple[str, ...]]:
    return [tuple(cell or "" for cell in row) for row in rows]
