"""The content of a report for its renderings, in order: sentences, tables of text, and points of plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from operator import attrgetter
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
    """Describes a better value that was rejected because it violates limits; empty if there is none."""
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
        timeline=_table("Iterations", report.timeline, _ITERATIONS, report.timeline_omitted),
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


_CELLS: Mapping[str, Callable[[Any], str]] = {
    "answer": lambda row: row.answer or "open",
    "answered": lambda row: moment(row.answered_at),
    "args": lambda row: compact(row.args),
    "by": lambda row: " ".join(filter(None, (row.by, row.why))),
    "calls": lambda row: figure(row.calls),
    "diff": lambda row: row.diff[:MAX_DIFF],
    "ended": lambda row: row.outcome if row.exit_code is None else f"exit code {row.exit_code}",
    "error": lambda row: compact(row.error or ""),
    "files": lambda row: figure(row.files),
    "index": lambda row: _counted(row.iteration_index),
    "iteration": lambda row: _counted(row.iteration),
    "message": lambda row: compact(row.message),
    "outcomes": lambda row: _outcomes(row.by_outcome),
    "output": lambda row: compact("\n".join(row.output[-MAX_OUTPUT:])),
    "protected": lambda row: ", ".join(row.protected),
    "rationale": lambda row: compact(row.rationale or ""),
    "reserved": lambda row: _amounts(row.reserved),
    "time": lambda row: span(row.seconds),
    "tokens": lambda row: figure(row.tokens),
    "took": lambda row: span(seconds_between(row.started_at, row.ended_at)),
    "tools": lambda row: ", ".join(row.calls),
    "used": lambda row: _amounts(row.used),
    "verdict": lambda row: f"{row.verdict} / {row.verdict_reason}",
    "words": lambda row: compact(row.error or row.text),
}
"""The cells of a column; any other column has the text of the attribute with its name."""

_CALL = "#Iteration=iteration, Tool=tool"
_TABLES: Sequence[tuple[str, Callable[[Report], Sequence[object]], str]] = (
    (
        "Children",
        lambda it: it.children,
        "Mission=mission_id, Outcome of its call=outcome, Used=used, Set aside=reserved",
    ),
    ("Calls by tool", lambda it: it.calls.by_tool, "Tool=tool, #Calls=calls, Outcomes=outcomes, #Time=time"),
    ("Refused or skipped calls", lambda it: it.refused, f"{_CALL}, Outcome=outcome, Reason=reason, Call=call_id"),
    ("Calls whose outcome is unknown", lambda it: it.unknown, f"{_CALL}, Reason=reason, Call=call_id"),
    ("Errors", lambda it: it.errors, f"{_CALL}, Message=message"),
    (
        "Checks",
        lambda it: it.checks,
        "#Iteration=iteration, Criterion=criterion_id, Ended=ended, #Time=time, Last lines=output",
    ),
    ("Approvals", lambda it: it.approvals, f"{_CALL}, Arguments=args, Answer=answer, By=by, When=answered"),
    (
        "Turns of models and agents",
        lambda it: it.turns,
        "#Iteration=iteration, Who=who, Calls=tools, Words=words, #Tokens=tokens, #Time=time",
    ),
    (
        "Changes of each turn",
        lambda it: [turn for turn in it.turns if turn.diff],
        "#Iteration=iteration, #Files=files, Protected (not counted)=protected, Diff=diff",
    ),
    ("Calls", lambda it: it.call_log, f"{_CALL}, Arguments=args, Outcome=outcome, #Time=time, Error=error"),
)
"""The title, the rows and the columns of each table; `#` marks a column of numbers."""
_ITERATIONS = "#Iteration=index, Verdict=verdict, #Calls=calls, #Time=took, Rationale=rationale"


def _tables(report: Report) -> Iterator[Rows]:
    yield _trials(report)
    shares = sorted(report.importance.items(), key=lambda one: one[1], reverse=True)
    parts = [(name, f"{share:.0%}") for name, share in shares]
    yield Rows(title="Importance of the parameters", columns=("Parameter", "Share"), numeric=frozenset({1}), rows=parts)
    for title, rows, columns in _TABLES:
        yield _table(title, rows(report), columns, report.call_log_omitted if title == "Calls" else 0)


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
            e.outcome or "",
            span(e.seconds),
        )
        for e in trials[-MAX_ROWS:]
    ]
    omitted = (report.trials_omitted or 0) + len(trials) - len(rows)
    columns = ("Trial", *args, *metrics, "Outcome", "Time")
    numeric = frozenset({*range(len(columns) - 2), len(columns) - 1})
    return Rows(title="Trials", columns=columns, numeric=numeric, rows=rows, omitted=omitted)


def _value(value: Any) -> str:
    return "" if value is None else figure(value) if isinstance(value, int | float) else compact(value)


def _amounts(value: Mapping[str, float] | None) -> str:
    parts = (value or {}).items()
    return ", ".join(f"{name.removeprefix('max_')} {figure(amount)}" for name, amount in parts if amount)


def _table(title: str, rows: Sequence[object], columns: str, omitted: int = 0) -> Rows:
    titles, names = zip(*(column.split("=") for column in columns.split(", ")), strict=True)
    return Rows(
        title=title,
        columns=tuple(one.removeprefix("#") for one in titles),
        numeric=frozenset(place for place, one in enumerate(titles) if one.startswith("#")),
        rows=[[_CELLS.get(name, attrgetter(name))(row) or "" for name in names] for row in rows],
        omitted=omitted,
    )
