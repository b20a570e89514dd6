"""What a reader is shown of a report, in which order, as plain text and numbers.

Reading never fails, whatever the JSON holds: what has the wrong shape is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from pursuit.reports.wording import compact, count, figure, moment, number, reason, seconds_between, sign, span, text

MAX_TITLE = 160
MAX_ROWS = 500
MAX_COLUMNS = 12
LONGEST_DIFF = 20_000
"""Arguments, and metrics, that a table of trials shows."""
SHOWN_OUTPUT = 8

_TONES = {"completed": "good", "terminated": "warn", "failed": "bad"}
_MARKS = {"met": "good", "unmet": "bad", "inconclusive": "warn"}


def _dollars(value: Any) -> str:
    return f"${figure(value)}"


_GAUGES: tuple[tuple[str, str, str, Callable[[Any], str]], ...] = (
    ("Iterations", "max_iterations", "iterations", figure),
    ("Tool calls", "max_tool_calls", "tool_calls", figure),
    ("Wall clock", "max_wall_clock_seconds", "wall_clock_seconds", span),
    ("Tokens", "max_tokens", "tokens", figure),
    ("Cost", "max_cost_usd", "cost_usd", _dollars),
)


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


def read(report: Mapping[str, Any]) -> ReportView:
    """The view of a report."""
    title, body = _headline(text(report.get("directive")))
    criteria = tuple(_criterion(entry) for entry in _entries(report.get("criteria")))
    calls = _mapping(report.get("calls"))
    return ReportView(
        session_id=text(report.get("session_id")),
        title=title,
        body=body,
        status=text(report.get("status")) or "unknown",
        tone=_TONES.get(text(report.get("status")), "calm"),
        verdict=text(report.get("verdict")),
        reason=reason(report.get("verdict_reason")),
        reason_text=text(report.get("reason_text")),
        times=_times(report),
        gauges=_gauges(report),
        criteria=criteria,
        met=sum(criterion.status == "met" for criterion in criteria),
        best=_best(_mapping(report.get("best_point"))),
        metrics=_metrics(_mapping(report.get("metrics"))),
        outcomes=_outcomes(calls.get("by_outcome")),
        tables=_tables(report, calls),
        timeline=_timeline(report),
        lessons=tuple(text(lesson) for lesson in _items(report.get("lessons"))),
        warnings=tuple(text(warning) for warning in _items(report.get("warnings"))),
        ledger=_ledger(_mapping(report.get("ledger"))),
    )


def _headline(directive: str) -> tuple[str, str]:
    """The first line as a title and the rest as a body; one that is too long is cut, and shown in full below."""
    first, _, rest = directive.strip().partition("\n")
    if len(first) <= MAX_TITLE:
        return first or "A mission", rest.strip()
    return first[:MAX_TITLE].rstrip() + "\u2026", directive.strip()


def _times(report: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs = [(label, moment(report.get(key))) for label, key in (("Created", "created_at"), ("Started", "started_at"))]
    pairs.append(("Ended", moment(report.get("ended_at"))))
    if (taken := seconds_between(report.get("started_at"), report.get("ended_at"))) is not None:
        pairs.append(("From start to end", span(taken)))
    return tuple((label, value) for label, value in pairs if value)


def _gauges(report: Mapping[str, Any]) -> tuple[Gauge, ...]:
    budget = _mapping(report.get("budget"))
    used = {"iterations": report.get("iteration_count"), **_mapping(budget.get("used"))}
    rows = (_gauge(label, budget.get(cap), used.get(key, 0.0), show) for label, cap, key, show in _GAUGES)
    return tuple(gauge for gauge in rows if gauge is not None)


def _gauge(label: str, limit: Any, used: Any, show: Callable[[Any], str]) -> Gauge | None:
    if used is None and label == "Cost":
        return Gauge(label=label, used="unknown", limit=None, share=None)
    cap, spent = number(limit), number(used) or 0.0
    if cap is None or cap <= 0:
        return Gauge(label=label, used=show(spent), limit=None, share=None) if spent else None
    return Gauge(label=label, used=show(spent), limit=show(cap), share=min(1.0, max(0.0, spent / cap)))


def _criterion(entry: Mapping[str, Any]) -> CriterionView:
    status = text(entry.get("status")) or "inconclusive"
    evidence, required = entry.get("evidence"), entry.get("required") is not False
    return CriterionView(
        criterion_id=text(entry.get("criterion_id")),
        kind=text(entry.get("kind")),
        required=required,
        status=status,
        # An optional criterion that is not met is not shown as bad.
        tone=_MARKS.get(status, "calm") if required or status == "met" else "calm",
        description=text(entry.get("description")),
        evidence="" if evidence is None else compact(evidence),
        source=_source(_mapping(entry.get("source"))),
    )


def _source(source: Mapping[str, Any]) -> str:
    if not source:
        return ""
    parts = [text(source.get("tool"))]
    if number(source.get("iteration")) is not None:
        parts.append(f"iteration {_counted(source['iteration'])}")
    parts.append(text(source.get("call_id")))
    return ", ".join(part for part in parts if part)


def _counted(index: Any) -> str:
    """The number of an iteration: people count from 1, the data from 0."""
    place = number(index)
    return figure(None if place is None else place + 1)


def _metrics(metrics: Mapping[str, Any]) -> tuple[MetricView, ...]:
    """Those with a target come first: they are what the mission was about."""
    views = [_metric(name, _mapping(entry)) for name, entry in metrics.items()]
    return tuple(sorted((view for view in views if view.points), key=lambda view: (view.target is None, view.name)))


def _metric(name: str, entry: Mapping[str, Any]) -> MetricView:
    target = _mapping(entry.get("target"))
    op, level = text(target.get("op")), number(target.get("target"))
    points = tuple(point for pair in _items(entry.get("points")) if (point := _point(pair)))
    return MetricView(
        name=text(name),
        points=tuple(sorted(points, key=lambda point: point[0])),
        best=number(entry.get("best")),
        infeasible=_infeasible(_mapping(entry.get("infeasible"))),
        last=number(entry.get("last")),
        target=level,
        goal=f"{sign(op)} {figure(level)}".strip() if level is not None else "",
        trace=_trace(sorted(points, key=lambda point: point[0]), op),
    )


def _trace(points: Sequence[tuple[float, float]], op: str) -> tuple[tuple[float, float], ...]:
    if op not in ("<", "<=", ">", ">="):
        return ()
    best = accumulate((value for _, value in points), min if op[0] == "<" else max)
    return tuple(zip((at for at, _ in points), best, strict=True))


def _infeasible(entry: Mapping[str, Any]) -> str:
    return f"{figure(entry.get('value'))} violates {text(entry.get('violates'))}" if entry else ""


def _best(row: Mapping[str, Any]) -> BestView | None:
    if not row:
        return None
    beyond = _mapping(row.get("infeasible"))
    shown = row if row.get("feasible") else beyond
    remark = ""
    if beyond:
        broken = ", ".join(
            f"{text(e.get('wanted'))} ({figure(e.get('value'))})" for e in _entries(beyond.get("violates"))
        )
        worse = (
            f"{figure(beyond.get('value'))} in iteration {_counted(beyond.get('iteration'))} is infeasible: {broken}"
        )
        remark = worse if row.get("feasible") else f"It violates {broken}"
    if unknown := [text(e.get("wanted")) for e in _entries(row.get("unknown"))]:
        remark = ". ".join(filter(None, [remark, f"No call reported a value for {', '.join(unknown)}"]))
    kept = "keeps all limits" if row.get("feasible") else "no point keeps all limits; this is the best of the others"
    mean = f"mean of {figure(shown['times'])} calls, " if shown.get("times") else ""
    return BestView(
        headline=f"{text(row.get('metric'))} {figure(shown.get('value'))} ({mean}{kept})",
        args=compact(shown.get("args") or {}),
        source=_source(shown),
        remark=remark,
    )


def _point(pair: Any) -> tuple[float, float] | None:
    values = _items(pair)
    if len(values) != 2:
        return None
    at, value = number(values[0]), number(values[1])
    return None if at is None or value is None else (at + 1, value)


def _outcomes(by_outcome: Any) -> str:
    counts = ((text(name), count(value)) for name, value in _mapping(by_outcome).items())
    return ", ".join(f"{value:,} {name}" for name, value in counts if value)


def _tables(report: Mapping[str, Any], calls: Mapping[str, Any]) -> tuple[Rows, ...]:
    by_tool = [
        (text(e.get("tool")), figure(e.get("calls")), _outcomes(e.get("by_outcome")), span(e.get("seconds")))
        for e in _entries(calls.get("by_tool"))
    ]
    refused = [
        (_counted(e.get("iteration")), *(text(e.get(key)) for key in ("tool", "outcome", "reason", "call_id")))
        for e in _entries(report.get("refused"))
    ]
    unknown = [
        (_counted(e.get("iteration")), *(text(e.get(key)) for key in ("tool", "reason", "call_id")))
        for e in _entries(report.get("unknown"))
    ]
    errors = [
        (_counted(e.get("iteration")), text(e.get("tool")), compact(text(e.get("message"))))
        for e in _entries(report.get("errors"))
    ]
    children = [
        (text(e.get("session_id")), text(e.get("outcome")), _amounts(e.get("used")), _amounts(e.get("reserved")))
        for e in _entries(report.get("children"))
    ]
    checks = [
        (_counted(e.get("iteration")), text(e.get("criterion_id")), _ended(e), span(e.get("seconds")), _output(e))
        for e in _entries(report.get("checks"))
    ]
    approvals = [
        (
            _counted(e.get("iteration")),
            text(e.get("tool")),
            compact(e.get("args")),
            text(e.get("answer")) or "open",
            " ".join(part for key in ("by", "why") if (part := text(e.get(key)))),
            moment(e.get("answered_at")),
        )
        for e in _entries(report.get("approvals"))
    ]
    turns = [
        (
            _counted(e.get("iteration")),
            text(e.get("who")),
            ", ".join(text(call) for call in _items(e.get("calls"))),
            compact(text(e.get("error") or e.get("text"))),
            figure(e.get("tokens")),
            span(e.get("seconds")),
        )
        for e in _entries(report.get("turns"))
    ]
    diffs = [
        (
            figure(e.get("iteration")),
            figure(e.get("files")),
            ", ".join(text(name) for name in _items(e.get("protected"))),
            text(e.get("diff"))[:LONGEST_DIFF],
        )
        for e in _entries(report.get("turns"))
        if e.get("diff")
    ]
    made = [
        (
            _counted(e.get("iteration")),
            text(e.get("tool")),
            compact(e.get("args")),
            text(e.get("outcome")),
            span(e.get("seconds")),
            compact(text(e.get("error"))),
        )
        for e in _entries(report.get("call_log"))
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
            omitted=count(report.get("call_log_omitted")),
        ),
    )
    return tuple(table for table in tables if table.rows)


def _trials(report: Mapping[str, Any]) -> Rows:
    """The trials, the newest of them: a column for each argument and each metric."""
    entries = _entries(report.get("trials"))
    args = list(dict.fromkeys(text(name) for e in entries for name in _mapping(e.get("args"))))[:MAX_COLUMNS]
    metrics = list(dict.fromkeys(text(name) for e in entries for name in _mapping(e.get("metrics"))))[:MAX_COLUMNS]
    cut = entries[-MAX_ROWS:]
    rows = [
        (
            f"{figure(e.get('trial'))}{' (best)' if e.get('best') is True else ''}",
            *(_value(_mapping(e.get("args")).get(name)) for name in args),
            *(_value(_mapping(e.get("metrics")).get(name)) for name in metrics),
            text(e.get("outcome")),
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
        omitted=count(report.get("trials_omitted")) + len(entries) - len(cut),
    )


def _value(value: Any) -> str:
    return "" if value is None else figure(value) if number(value) is not None else compact(value)


def _importance(report: Mapping[str, Any]) -> Rows:
    shares = _mapping(report.get("importance"))
    known = sorted(((share, text(name)) for name, one in shares.items() if (share := number(one)) is not None))
    rows = [(name, f"{share:.0%}") for share, name in reversed(known)]
    return _rows("Importance of the parameters", ("Parameter", "Share"), {1}, rows)


def _ended(check: Mapping[str, Any]) -> str:
    """How a check ended: its exit code if it is a command."""
    code = number(check.get("exit_code"))
    return text(check.get("outcome")) if code is None else f"exit code {code:.0f}"


def _output(check: Mapping[str, Any]) -> str:
    lines = [text(line) for line in _items(check.get("output"))]
    return compact("\n".join(lines[-SHOWN_OUTPUT:]))


def _amounts(value: Any) -> str:
    """Parts of a budget by name."""
    parts = _mapping(value).items()
    return ", ".join(f"{text(name).removeprefix('max_')} {figure(amount)}" for name, amount in parts if amount)


def _timeline(report: Mapping[str, Any]) -> Rows:
    entries = _entries(report.get("timeline"))
    rows = [
        (
            _counted(e.get("iteration_index")),
            " / ".join(part for key in ("verdict", "verdict_reason") if (part := text(e.get(key)))),
            figure(e.get("calls")),
            span(seconds_between(e.get("started_at"), e.get("ended_at"))),
            compact(text(e.get("rationale"))),
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
        omitted=count(report.get("timeline_omitted")) + len(rows) - len(cut),
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", entry) for entry in _items(value) if isinstance(entry, Mapping)]
