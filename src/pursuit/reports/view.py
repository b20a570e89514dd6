"""What a reader is shown of a report, in which order, as plain text and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pursuit.core.caps import SHOWN, BudgetUse
from pursuit.reports.wording import (
    amount,
    compact,
    figure,
    moment,
    number,
    reason,
    seconds_between,
    sign,
    span,
    text,
)

MAX_TITLE = 160
MAX_ROWS = 500
MAX_COLUMNS = 12
LONGEST_DIFF = 20_000
"""Arguments, and metrics, that a table of trials shows."""
SHOWN_OUTPUT = 8

_TONES = {"completed": "good", "terminated": "warn", "failed": "bad"}
_MARKS = {"met": "good", "unmet": "bad", "inconclusive": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One part of the budget: what was used, of how much. `share` is 0 to 1, None without a cap."""

    label: str
    used: str
    limit: str | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionView:
    """One criterion with its evidence."""

    criterion_id: str
    kind: str
    required: bool
    status: str
    tone: str
    description: str
    evidence: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    """One metric over the iterations; only finite points."""

    name: str
    points: tuple[tuple[float, float], ...]
    best: float | None
    infeasible: str
    """A better value that violates limits, in words."""
    last: float | None
    target: float | None
    goal: str
    trace: tuple[tuple[float, float], ...]
    """The best value so far at each point; empty where no direction is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestView:
    """The best point of the mission, its arguments as JSON and its call; `remark` is what is better but infeasible."""

    headline: str
    args: str
    source: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table: a heading, its columns, which of them are numbers, and its rows of text."""

    title: str
    columns: tuple[str, ...]
    numeric: frozenset[int]
    rows: tuple[tuple[str, ...], ...]
    omitted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """Everything that a rendering shows."""

    session_id: str
    title: str
    body: str
    status: str
    tone: str
    verdict: str
    reason: str
    reason_text: str
    times: tuple[tuple[str, str], ...]
    gauges: tuple[Gauge, ...]
    criteria: tuple[CriterionView, ...]
    met: int
    best: BestView | None
    metrics: tuple[MetricView, ...]
    outcomes: str
    tables: tuple[Rows, ...]
    timeline: Rows
    lessons: tuple[str, ...]
    warnings: tuple[str, ...]
    ledger: tuple[tuple[str, str], ...]


_SINCE: Mapping[str, Any] = {
    **dict.fromkeys(("approvals", "call_log", "checks", "turns"), ()),
    "best_point": None,
    "call_log_omitted": 0,
}
"""What the first reports did not have."""


def read(report: Mapping[str, Any]) -> ReportView:
    """The view of a report."""
    report = {**_SINCE, **report}
    title, body = _headline(text(report["directive"]))
    criteria = tuple(_criterion(entry) for entry in report["criteria"])
    calls = report["calls"]
    return ReportView(
        session_id=text(report["session_id"]),
        title=title,
        body=body,
        status=text(report["status"]),
        tone=_TONES.get(text(report["status"]), "calm"),
        verdict=text(report["verdict"]),
        reason=reason(report["verdict_reason"]),
        reason_text=text(report["reason_text"]),
        times=_times(report),
        gauges=tuple(_gauges(BudgetUse.from_json(report["budget"]))),
        criteria=criteria,
        met=sum(criterion.status == "met" for criterion in criteria),
        best=_best(report["best_point"]),
        metrics=_metrics(report["metrics"]),
        outcomes=_outcomes(calls["by_outcome"]),
        tables=_tables(report, calls),
        timeline=_timeline(report),
        lessons=tuple(text(lesson) for lesson in report["lessons"]),
        warnings=tuple(text(warning) for warning in report["warnings"]),
        ledger=_ledger(report["ledger"]),
    )


def _headline(directive: str) -> tuple[str, str]:
    """The first line as a title and the rest as a body; one that is too long is cut, and shown in full below."""
    first, _, rest = directive.strip().partition("\n")
    if len(first) <= MAX_TITLE:
        return first or "A mission", rest.strip()
    return first[:MAX_TITLE].rstrip() + "\u2026", directive.strip()


def _times(report: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs = [(label, moment(report.get(key))) for label, key in (("Created", "created_at"), ("Started", "started_at"))]
    pairs.append(("Ended", moment(report["ended_at"])))
    if (taken := seconds_between(report["started_at"], report["ended_at"])) is not None:
        pairs.append(("From start to end", span(taken)))
    return tuple((label, value) for label, value in pairs if value)


def _gauges(budget: BudgetUse) -> Iterator[Gauge]:
    for cap in SHOWN:
        use = budget.caps[cap.name]
        if use.limit is None and use.used == 0:
            continue
        used, limit = (None if one is None else amount(one, cap.unit) for one in (use.used, use.limit))
        yield Gauge(label=cap.label, used=used or "unknown", limit=None if used is None else limit, share=use.share)


def _criterion(entry: Mapping[str, Any]) -> CriterionView:
    status, evidence, required = text(entry["status"]), entry["evidence"], entry["required"]
    return CriterionView(
        criterion_id=text(entry["criterion_id"]),
        kind=text(entry["kind"]),
        required=required,
        status=status,
        # An optional criterion that is not met is not shown as bad.
        tone=_MARKS.get(status, "calm") if required or status == "met" else "calm",
        description=text(entry["description"]),
        evidence="" if evidence is None else compact(evidence),
        source=_source(entry["source"]),
    )


def _source(source: Mapping[str, Any] | None) -> str:
    if not source:
        return ""
    return f"{text(source['tool'])}, iteration {_counted(source['iteration'])}, {text(source['call_id'])}"


def _counted(index: Any) -> str:
    """The number of an iteration: people count from 1, the data from 0."""
    place = number(index)
    return figure(None if place is None else place + 1)


def _metrics(metrics: Mapping[str, Any]) -> tuple[MetricView, ...]:
    """Those with a target come first: they are what the mission was about."""
    views = [_metric(name, entry) for name, entry in metrics.items()]
    return tuple(sorted((view for view in views if view.points), key=lambda view: (view.target is None, view.name)))


def _metric(name: str, entry: Mapping[str, Any]) -> MetricView:
    target: Mapping[str, Any] = entry["target"] or {}
    op, level = text(target.get("op")), number(target.get("target"))
    points = tuple(point for pair in entry["points"] if (point := _point(*pair)))
    return MetricView(
        name=text(name),
        points=tuple(sorted(points, key=lambda point: point[0])),
        best=number(entry["best"]),
        infeasible=_infeasible(entry.get("infeasible")),
        last=number(entry["last"]),
        target=level,
        goal=f"{sign(op)} {figure(level)}".strip() if level is not None else "",
        trace=_trace(sorted(points, key=lambda point: point[0]), op),
    )


def _trace(points: Sequence[tuple[float, float]], op: str) -> tuple[tuple[float, float], ...]:
    if op not in ("<", "<=", ">", ">="):
        return ()
    best = accumulate((value for _, value in points), min if op[0] == "<" else max)
    return tuple(zip((at for at, _ in points), best, strict=True))


def _infeasible(entry: Mapping[str, Any] | None) -> str:
    return f"{figure(entry['value'])} violates {text(entry['violates'])}" if entry else ""


def _best(row: Mapping[str, Any] | None) -> BestView | None:
    if not row:
        return None
    beyond: Mapping[str, Any] = row.get("infeasible") or {}
    shown = row if row["feasible"] else beyond
    remark = ""
    if beyond:
        broken = ", ".join(f"{text(e['wanted'])} ({figure(e['value'])})" for e in beyond["violates"])
        worse = f"{figure(beyond['value'])} in iteration {_counted(beyond['iteration'])} is infeasible: {broken}"
        remark = worse if row["feasible"] else f"It violates {broken}"
    if unknown := [text(e["wanted"]) for e in row.get("unknown", ())]:
        remark = ". ".join(filter(None, [remark, f"No call reported a value for {', '.join(unknown)}"]))
    kept = "keeps all limits" if row["feasible"] else "no point keeps all limits; this is the best of the others"
    mean = f"mean of {figure(shown['times'])} calls, " if shown.get("times") else ""
    return BestView(
        headline=f"{text(row['metric'])} {figure(shown['value'])} ({mean}{kept})",
        args=compact(shown["args"]),
        source=_source(shown),
        remark=remark,
    )


def _point(at: float, value: Any) -> tuple[float, float] | None:
    found = number(value)
    return None if found is None else (at + 1, found)


def _outcomes(by_outcome: Mapping[str, int]) -> str:
    return ", ".join(f"{value:,} {text(name)}" for name, value in by_outcome.items())


def _tables(report: Mapping[str, Any], calls: Mapping[str, Any]) -> tuple[Rows, ...]:
    by_tool = [
        (text(e["tool"]), figure(e["calls"]), _outcomes(e["by_outcome"]), span(e.get("seconds")))
        for e in calls.get("by_tool", ())
    ]
    refused = [
        (_counted(e["iteration"]), *(text(e.get(key)) for key in ("tool", "outcome", "reason", "call_id")))
        for e in report["refused"]
    ]
    unknown = [
        (_counted(e["iteration"]), *(text(e.get(key)) for key in ("tool", "reason", "call_id")))
        for e in report.get("unknown", ())
    ]
    errors = [(_counted(e["iteration"]), text(e["tool"]), compact(text(e["message"]))) for e in report["errors"]]
    children = [
        (text(e["session_id"]), text(e["outcome"]), _amounts(e["used"]), _amounts(e["reserved"]))
        for e in report.get("children", ())
    ]
    checks = [
        (_counted(e["iteration"]), text(e["criterion_id"]), _ended(e), span(e.get("seconds")), _output(e))
        for e in report["checks"]
    ]
    approvals = [
        (
            _counted(e["iteration"]),
            text(e["tool"]),
            compact(e["args"]),
            text(e.get("answer")) or "open",
            " ".join(part for key in ("by", "why") if (part := text(e.get(key)))),
            moment(e.get("answered_at")),
        )
        for e in report["approvals"]
    ]
    turns = [
        (
            _counted(e["iteration"]),
            text(e["who"]),
            ", ".join(text(call) for call in e["calls"]),
            compact(text(e.get("error") or e.get("text"))),
            figure(e.get("tokens")),
            span(e.get("seconds")),
        )
        for e in report["turns"]
    ]
    diffs = [
        (
            _counted(e["iteration"]),
            figure(e.get("files")),
            ", ".join(text(name) for name in e.get("protected", ())),
            text(e.get("diff"))[:LONGEST_DIFF],
        )
        for e in report["turns"]
        if e.get("diff")
    ]
    made = [
        (
            _counted(e["iteration"]),
            text(e["tool"]),
            compact(e["args"]),
            text(e["outcome"]),
            span(e.get("seconds")),
            compact(text(e.get("error"))),
        )
        for e in report["call_log"]
    ]
    tables = (
        _trials(report),
        _importance(report),
        _rows("Children", ("Mission", "Outcome of its call", "Used", "Set aside"), set(), children),
        _rows("Calls by tool", ("Tool", "Calls", "Outcomes", "Time"), {1, 3}, by_tool),
        _rows("Refused or skipped calls", ("Iteration", "Tool", "Outcome", "Reason", "Call"), {0}, refused),
        _rows("Calls whose outcome is unknown", ("Iteration", "Tool", "Reason", "Call"), {0}, unknown),
        _rows("Errors", ("Iteration", "Tool", "Message"), {0}, errors),
        _rows("Checks", ("Iteration", "Criterion", "Ended", "Time", "Last lines"), {0, 3}, checks),
        _rows("Approvals", ("Iteration", "Tool", "Arguments", "Answer", "By", "When"), {0}, approvals),
        _rows("Turns of models and agents", ("Iteration", "Who", "Calls", "Words", "Tokens", "Time"), {0, 4, 5}, turns),
        _rows("Changes of each turn", ("Iteration", "Files", "Protected, not counted", "Diff"), {0, 1}, diffs),
        _rows(
            "Calls",
            ("Iteration", "Tool", "Arguments", "Outcome", "Time", "Error"),
            {0, 4},
            made,
            omitted=report["call_log_omitted"],
        ),
    )
    return tuple(table for table in tables if table.rows)


def _trials(report: Mapping[str, Any]) -> Rows:
    """The trials, the newest of them: a column for each argument and each metric."""
    entries = report.get("trials", ())
    args = list(dict.fromkeys(text(name) for e in entries for name in e["args"]))[:MAX_COLUMNS]
    metrics = list(dict.fromkeys(text(name) for e in entries for name in e["metrics"]))[:MAX_COLUMNS]
    cut = entries[-MAX_ROWS:]
    rows = [
        (
            f"{figure(e['trial'])}{' (best)' if e['best'] else ''}",
            *(_value(e["args"].get(name)) for name in args),
            *(_value(e["metrics"].get(name)) for name in metrics),
            text(e["outcome"]),
            span(e.get("seconds")),
        )
        for e in cut
    ]
    columns = ("Trial", *args, *metrics, "Outcome", "Time")
    return Rows(
        title="Trials",
        columns=columns,
        numeric=frozenset({*range(len(columns) - 2), len(columns) - 1}),
        rows=tuple(rows),
        omitted=report.get("trials_omitted", 0) + len(entries) - len(cut),
    )


def _value(value: Any) -> str:
    return "" if value is None else figure(value) if number(value) is not None else compact(value)


def _importance(report: Mapping[str, Any]) -> Rows:
    shares: Mapping[str, float] = report.get("importance", {})
    known = sorted((share, text(name)) for name, share in shares.items())
    rows = [(name, f"{share:.0%}") for share, name in reversed(known)]
    return _rows("Importance of the parameters", ("Parameter", "Share"), {1}, rows)


def _ended(check: Mapping[str, Any]) -> str:
    """How a check ended: its exit code if it is a command."""
    code = check["exit_code"]
    return text(check["outcome"]) if code is None else f"exit code {code}"


def _output(check: Mapping[str, Any]) -> str:
    lines = [text(line) for line in check["output"]]
    return compact("\n".join(lines[-SHOWN_OUTPUT:]))


def _amounts(value: Mapping[str, float] | None) -> str:
    """Parts of a budget by name."""
    parts = (value or {}).items()
    return ", ".join(f"{text(name).removeprefix('max_')} {figure(amount)}" for name, amount in parts if amount)


def _timeline(report: Mapping[str, Any]) -> Rows:
    entries = report["timeline"]
    rows = [
        (
            _counted(e["iteration_index"]),
            " / ".join(part for key in ("verdict", "verdict_reason") if (part := text(e.get(key)))),
            figure(e["calls"]),
            span(seconds_between(e["started_at"], e["ended_at"])),
            compact(text(e["rationale"])),
        )
        for e in entries
    ]
    # The end of a mission explains it, so the beginning is cut.
    cut = rows[-MAX_ROWS:]
    return Rows(
        title="Iterations",
        columns=("Iteration", "Verdict", "Calls", "Time", "Rationale"),
        numeric=frozenset({0, 2, 3}),
        rows=tuple(cut),
        omitted=report["timeline_omitted"] + len(rows) - len(cut),
    )


def _rows(
    title: str, columns: tuple[str, ...], numeric: set[int], rows: Sequence[tuple[str, ...]], omitted: int = 0
) -> Rows:
    shown = tuple(rows[:MAX_ROWS])
    left = omitted + len(rows) - len(shown)
    return Rows(title=title, columns=columns, numeric=frozenset(numeric), rows=shown, omitted=left)


def _ledger(ledger: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs = (("Events", "head_seq"), ("Last event's hash", "head_hash"), ("Root of the ledger", "root"))
    return tuple((label, text(ledger.get(key))) for label, key in pairs if ledger.get(key) is not None)
