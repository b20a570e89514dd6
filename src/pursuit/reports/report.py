"""The report of a mission: its rows, built from the events alone, and its trials as CSV, Parquet and a pandas table.

Building is pure; the caller adds the proposer's part and the hashes of the ledger.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Self, cast

import msgspec

from pursuit.core.approvals import Approval
from pursuit.core.audit import redacted
from pursuit.core.best import BestPoint, violations
from pursuit.core.budgets import budget_use
from pursuit.core.caps import BudgetUse
from pursuit.core.criteria import MetricThreshold
from pursuit.core.events import CallIntended, CallRefused, CallSettled, IterationProposed, Outcome
from pursuit.core.history import Call, CallRow, History, IterationRow, ModelTurn, Shown, iso
from pursuit.core.lessons import lessons_of
from pursuit.core.observe import leaves, source_matches, value_of
from pursuit.core.report import (
    ApprovalRow,
    ChildRow,
    ClientCompletion,
    CriterionRow,
    WorkspaceRow,
    children_rows,
    client_completion,
    criteria_rows,
    exit_code_of,
    output_tail,
)
from pursuit.core.series import Point
from pursuit.core.state import MissionState
from pursuit.core.truncate import cut_text
from pursuit.errors import ExtraMissing

FORMAT = "pursuit.report/1"
MAX_ROWS = 500
MAX_CHECKS = 50
MAX_TURN = 2_000
MAX_DIFF = 100_000
MAX_ERROR = 500
LAST = 1 << 30
MAX_POINTS = 20_000
MAX_TRIALS = 10_000


class Trial(Shown, frozen=True, kw_only=True):
    """A call of a tool that gives metrics: its arguments without secrets, the metrics, and the outcome."""

    trial: int
    iteration: int
    tool: str
    args: Any
    metrics: Mapping[str, int | float]
    outcome: Outcome | None
    seconds: float | None
    started_at: str | None
    call_id: str
    best: bool
    """True if it gave the best point of the mission."""
    error: str | None = None


class MetricTarget(Shown, frozen=True, kw_only=True):
    op: str
    target: float


class BeyondLimits(Shown, frozen=True, kw_only=True):
    """A better value of a metric, and a text with the limits that its call violates."""

    value: float
    violates: str


class MetricRow(Shown, frozen=True, kw_only=True):
    """A metric over the iterations: each point is an iteration, from 0, and a value."""

    points: Sequence[tuple[int, int | float | None]]
    last: int | float | None
    best: int | float | None
    """The best value among the calls that keep all limits."""
    infeasible: BeyondLimits | None = None
    target: MetricTarget | None


class ToolUse(Shown, frozen=True, kw_only=True):
    tool: str
    calls: int
    by_outcome: dict[str, int]
    seconds: float


class CallCounts(Shown, frozen=True, kw_only=True):
    """Counts of a mission's calls by outcome and by tool; refused calls count only by outcome."""

    total: int
    by_outcome: dict[str, int]
    by_tool: list[ToolUse]


class CheckRow(Shown, frozen=True, kw_only=True):
    """A run of a check, with the last lines that it printed."""

    iteration: int
    criterion_id: str | None
    outcome: str
    exit_code: int | None
    seconds: float
    output: list[str]


class ProposerTurn(Shown, frozen=True, kw_only=True):
    """A client's proposal, a model's answer or an agent's turn; `files` and `diff` are the changes of an agent."""

    iteration: int
    who: str
    at: str | None
    outcome: str | None = None
    calls: list[str]
    text: str
    tokens: Any = msgspec.UNSET
    cost_usd: Any = msgspec.UNSET
    seconds: float | None = None
    files: int | None = None
    protected: list[str] = []  # noqa: RUF012 - msgspec copies it
    diff: str | None = None
    error: str | None = None


class ErrorRow(Shown, frozen=True, kw_only=True):
    iteration: int
    tool: str
    message: str


class EndedIteration(Shown, frozen=True, kw_only=True):
    iteration_index: int
    verdict: str
    verdict_reason: str
    started_at: str | None
    ended_at: str | None
    calls: int
    rationale: str | None


class LedgerHead(Shown, frozen=True, kw_only=True):
    """The last event of the mission with its hash, and the root of the whole ledger."""

    head_seq: int | None = None
    head_hash: str | None = None
    root: str | None = None


_SINCE: Mapping[str, Any] = {
    **dict.fromkeys(("approvals", "call_log", "checks", "turns"), ()),
    "best_point": None,
    "call_log_omitted": 0,
}
"""Defaults for keys that reports of early versions lack."""


class Report(Shown, frozen=True, kw_only=True):
    """The report of a mission: final once it has ended. Times are in ISO 8601, iterations count from 0.

    `data` is the whole report as JSON. Long lists contain only the newest rows.
    """

    format: str
    mission_id: str = msgspec.field(name="session_id")
    directive: str
    status: str
    """`completed`, `terminated`, or the current status."""
    verdict: str | None
    verdict_reason: str | None
    """Why it ended."""
    reason_text: str | None
    completed_by_client: ClientCompletion | None = None
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    criteria: list[CriterionRow]
    budget: BudgetUse
    iteration_count: int
    best_point: BestPoint | None
    trial_rows: list[Trial] = msgspec.field(name="trials", default=[])
    """The newest trials; `trials()` gives them as a table."""
    trials_omitted: int | None = None
    metrics: dict[str, MetricRow]
    calls: CallCounts
    call_log: list[Call]
    call_log_omitted: int
    approvals: list[ApprovalRow]
    checks: list[CheckRow]
    turns: list[ProposerTurn]
    refused: list[Call]
    unknown: list[Call]
    """The calls with an unknown outcome."""
    errors: list[ErrorRow]
    timeline: list[EndedIteration]
    timeline_omitted: int
    lessons: list[str]
    warnings: list[str]
    workspace: WorkspaceRow | None = None
    parent: str | None = None
    children: list[ChildRow] = []  # noqa: RUF012 - msgspec copies it
    importance: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it
    """The importance of each parameter of a search."""
    ledger: LedgerHead = LedgerHead()
    resume: str | None = None
    """The command that continues an interrupted mission."""
    data: Any = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Reads a report from its JSON, also from an earlier release."""
        return msgspec.convert({**_SINCE, **data, "data": data}, cls, dec_hook=lambda kind, row: kind.from_json(row))

    def as_json(self) -> dict[str, Any]:
        """The JSON from which it was read."""
        return super().as_json() if self.data is None else self.data

    @property
    def session_id(self) -> str:
        """`mission_id` under its name in JSON."""
        return self.mission_id

    @property
    def completed(self) -> bool:
        """True if the goal was reached."""
        return self.status == "completed"

    @property
    def best(self) -> BestPoint | None:
        """The best point that keeps all limits; None without one."""
        return self.best_point if self.best_point is not None and self.best_point.feasible else None

    def metric(self, name: str) -> float | None:
        """The last value of a metric."""
        row = self.metrics.get(name)
        return None if row is None else row.last

    def trials(self) -> Any:
        """The calls with arguments and metrics, one row for each: a pandas DataFrame, or else a list of dicts.

        Both have the same columns and at most the newest 10,000 rows; `pursuit report ID -o trials.csv` writes all.
        """
        return as_frame(self.trial_rows)

    def __repr__(self) -> str:
        best = self.best
        found = "" if best is None else f", best {best.metric} = {best.value:g} with {best.args}"
        reason = f" ({self.verdict_reason})" if self.verdict_reason else ""
        return f"<Report {self.mission_id}: {self.status}{reason}, {self.iteration_count} iterations{found}>"

    def _repr_html_(self) -> str:
        """The report for a notebook, in a frame because it is a complete page with a style sheet."""
        page = escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:480px;border:0" sandbox></iframe>'

    def html(self) -> str:
        """The report as one self-contained page."""
        return import_module("pursuit.reports.html").render_html(self)  # the template engine loads only when needed

    def markdown(self) -> str:
        """The report as Markdown."""
        return import_module("pursuit.reports.markdown").render_markdown(self)


def build_report(
    mission_id: str,
    history: History,
    state: MissionState,
    results: Mapping[str, Mapping[str, Any]],
    diffs: Mapping[str, str],
) -> Report:
    """Builds the report without the ledger's hashes; `state` is the fold of the same events.

    `results` maps blob digests to large check results; `diffs` maps blob digests to the diffs of agents' turns.
    """
    ended, made, measured = history.ended_calls, history.made_calls, _measured(history)
    iterations = [one for one in history.iterations.values() if one.ended is not None]
    checks = [pair for pair in made if pair[0].purpose == "check"]
    failures = [reason for one in history.iterations.values() if one.proposed for reason in one.proposed.failed]
    refused = [one for call in ended if isinstance(one := call.end, CallRefused)]
    unknown = [(call, end) for call, end in made if end.outcome == "unknown"]
    client = state.facts.proposed_by_client
    turns = [one for one in history.turns if client or not isinstance(one, IterationProposed)]
    trials = _trials(state, history, measured)
    newest = trials[-MAX_TRIALS:]
    shown = {one.call_id: one for one in newest[-MAX_ROWS:]}
    return Report(
        format=FORMAT,
        mission_id=mission_id,
        directive=state.mission.directive,
        status=state.status,
        verdict=state.verdict,
        verdict_reason=state.verdict_reason,
        reason_text=_reason_text(state),
        completed_by_client=client_completion(state),
        created_at=iso(state.created_at),
        started_at=iso(state.started_at),
        ended_at=iso(state.ended_at),
        criteria=criteria_rows(state),
        budget=budget_use(state),
        iteration_count=state.iteration_count,
        best_point=BestPoint.of(state.best_points.best()),
        trial_rows=newest,
        trials_omitted=len(trials) - len(newest) if trials else None,
        metrics=metric_rows(history, state),
        calls=CallCounts(
            total=len(ended), by_outcome=dict(Counter([call.outcome or "" for call in ended])), by_tool=_tools(made)
        ),
        call_log=[_log_row(call, shown) for call in ended[-MAX_ROWS:]],
        call_log_omitted=max(0, len(ended) - MAX_ROWS),
        approvals=[_question_row(one) for one in list(history.questions.asked.values())[-MAX_ROWS:]],
        checks=[_check_row(*pair, results) for pair in checks[-MAX_CHECKS:]],
        turns=[_turn_row(one, diffs) for one in turns[-MAX_ROWS:]],
        refused=[
            Call(call_id=one.call_id, iteration=one.iteration, tool=one.tool, outcome=one.outcome, reason=one.reason)
            for one in refused[:MAX_ROWS]
        ],
        unknown=[
            Call(call_id=call.call_id, iteration=call.iteration, tool=call.tool, reason=end.error)
            for call, end in unknown[:MAX_ROWS]
        ],
        errors=_errors(history)[-MAX_ROWS:],
        timeline=_timeline(iterations, made),
        timeline_omitted=max(0, len(iterations) - MAX_ROWS),
        lessons=lessons_of(state, ended, Counter(failures)),
        warnings=list(state.warnings),
        workspace=WorkspaceRow.of(mission_id, state),
        parent=state.parent,
        children=children_rows(state),
    )


def _errors(history: History) -> list[ErrorRow]:
    found: list[ErrorRow] = []

    def add(iteration: int, tool: str, message: str | None) -> None:
        if message is not None:
            found.append(ErrorRow(iteration=iteration, tool=tool, message=message))

    for one in history.iterations.values():
        for reason in () if one.proposed is None else one.proposed.failed:
            add(one.index, "" if one.proposed is None else one.proposed.proposer, reason)
    for call, end in history.made_calls:
        add(end.iteration, call.tool, end.error)
    for one in history.iterations.values():
        if one.script is not None:
            add(one.index, "script", one.script.error)
    return sorted(found, key=attrgetter("iteration"))


def _question_row(asked: Approval) -> ApprovalRow:
    return ApprovalRow(
        approval_id=asked.approval_id,
        iteration=asked.iteration,
        tool=asked.tool,
        args=redacted(asked.args),
        reason=asked.reason,
        asked_at=iso(asked.asked_at),
        required=asked.require,
        answer=asked.answer,
        by=asked.by,
        answered_at=iso(asked.answered_at),
        channel=asked.channel,
        why=asked.why or None,
    )


def _turn_row(turn: IterationProposed | ModelTurn | CallRow, diffs: Mapping[str, str]) -> ProposerTurn:
    match turn:
        case IterationProposed():
            calls = ["script"] if turn.script is not None else [call.tool for call in turn.calls]
            text = (turn.rationale or "")[:MAX_TURN]
            return ProposerTurn(iteration=turn.iteration, who="client", at=iso(turn.at), calls=calls, text=text)
        case ModelTurn(asked=asked, answered=event):
            assert event is not None  # noqa: S101 - a turn is listed when it is answered
            answer = event.answer
            return ProposerTurn(
                iteration=event.iteration,
                who=asked.model,
                at=iso(event.at),
                calls=[] if answer is None else [call.name for call in answer.calls],
                text="" if answer is None else answer.text[:MAX_TURN],
                tokens=event.tokens,
                cost_usd=event.cost_usd,
                seconds=event.seconds,
                error=event.error or None,
            )
        case CallRow(end=CallSettled() as event):
            return _agent_turn(event, diffs)
        case CallRow():
            raise AssertionError("a turn of an agent is listed when it has ended")


def _check_row(call: CallIntended, event: CallSettled, results: Mapping[str, Mapping[str, Any]]) -> CheckRow:
    result = results.get(event.blob, event.result) if event.blob is not None else event.result
    return CheckRow(
        iteration=event.iteration,
        criterion_id=call.criterion_id,
        outcome=event.outcome,
        exit_code=exit_code_of(result),
        seconds=event.seconds,
        output=output_tail(result) or ([event.error] if event.error else []),
    )


def _agent_turn(event: CallSettled, diffs: Mapping[str, str]) -> ProposerTurn:
    change = event.change
    assert change is not None  # noqa: S101 - the caller looked
    value = value_of(event.result)
    said: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    used = event.used or {}
    return ProposerTurn(
        iteration=event.iteration,
        who="agent",
        at=iso(event.at),
        outcome=event.outcome,
        calls=[str(one.get("title") or one.get("kind")) for one in said.get("tool_calls", ())],
        text=str(said.get("text", ""))[-MAX_TURN:],
        tokens=used.get("max_tokens"),
        cost_usd=used.get("max_cost_usd"),
        seconds=event.seconds,
        files=change.files,
        protected=change.protected,
        diff=None if change.diff is None or change.diff not in diffs else diffs[change.diff][:MAX_DIFF],
        error=event.error or None,
    )


def _tools(made: Sequence[tuple[CallIntended, CallSettled]]) -> list[ToolUse]:
    found: dict[str, list[CallSettled]] = {}
    for call, end in made:
        found.setdefault(call.tool, []).append(end)
    return [
        ToolUse(
            tool=tool,
            calls=len(ends),
            by_outcome=dict(Counter([end.outcome for end in ends])),
            seconds=round(sum(end.seconds for end in ends), 6),
        )
        for tool, ends in sorted(found.items())
    ]


def _log_row(call: CallRow, shown: Mapping[str, Trial]) -> Call:
    trial, said, end = shown.get(call.call_id), call.said, call.settled
    return Call(
        iteration=call.iteration,
        tool=said.tool,
        args=redacted(said.args) if trial is None else trial.args,
        at=iso(said.asked_at if isinstance(said, Approval) else said.at) if trial is None else trial.started_at,
        outcome=call.outcome,
        seconds=0.0 if end is None else end.seconds,
        error=call.error or None,
    )


def _measured(history: History) -> dict[str, dict[str, float]]:
    return {end.call_id: leaves(end.metrics) for _call, end in history.made_calls if end.metrics}


def _points(history: History, measured: Mapping[str, Mapping[str, float]]) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for call, _end in history.made_calls:
        for name, value in measured.get(call.call_id, {}).items():
            points.setdefault(name, []).append(Point(call.iteration, call.order, value, call.tool, call.call_id))
    for one in history.iterations.values():
        if one.script is not None and not one.script.claimed:
            for name, value in leaves(one.script.observed).items():
                points.setdefault(name, []).append(Point(one.index, LAST, value, "script", ""))
    return points


def _timeline(
    iterations: Sequence[IterationRow], made: Sequence[tuple[CallIntended, CallSettled]]
) -> list[EndedIteration]:
    calls = Counter([end.iteration for _call, end in made])
    return [
        EndedIteration(
            iteration_index=one.index,
            verdict=ended.verdict,
            verdict_reason=ended.reason,
            started_at=None if one.proposed is None else iso(one.proposed.at),
            ended_at=iso(ended.at),
            calls=calls[one.index],
            rationale=ended.rationale or (None if one.proposed is None else one.proposed.rationale),
        )
        for one in iterations[-MAX_ROWS:]
        if (ended := one.ended) is not None
    ]


def metric_rows(history: History, state: MissionState) -> dict[str, MetricRow]:
    found = _points(history, _measured(history))
    known = [one for one in state.mission.criteria if isinstance(one, MetricThreshold)]
    thresholds = {one.metric: one for one in sorted(known, key=lambda one: one.required)}  # the required one wins
    rows: dict[str, MetricRow] = {}
    for name in sorted(found, key=lambda name: (name not in thresholds, name)):
        criterion = thresholds.get(name)
        source = criterion.source if criterion is not None else None
        matching = (point for point in found[name] if source_matches(source, point.tool))
        counted = sorted(matching, key=lambda point: point.place)
        if not counted:
            continue
        points = [(point.iteration, point.value) for point in counted]
        best = None if criterion is None else state.best_points.of(criterion.criterion_id)
        beyond = None if best is None else best.infeasible
        stride = -(-len(points) // MAX_POINTS)
        rows[name] = MetricRow(
            points=points if stride == 1 else [*points[:-1:stride], points[-1]],
            last=points[-1][1],
            best=best.point.value if best is not None and best.point is not None else None,
            infeasible=None if beyond is None else BeyondLimits(value=beyond.value, violates=violations(beyond)),
            target=None if criterion is None else MetricTarget(op=criterion.op, target=criterion.target),
        )
    return rows


def every_trial(history: History, state: MissionState) -> list[Trial]:
    return _trials(state, history, _measured(history))


def _trials(state: MissionState, history: History, measured: Mapping[str, Mapping[str, float]]) -> list[Trial]:
    """Each call of a tool that gives metrics; a search's tool counts even if it has not given any yet."""
    best, objective = state.best_points.best(), state.facts.objective
    best_call = best.point.call_id if best is not None and best.point is not None else None
    under_way = [(one.intended, None) for one in history.calls if one.intended is not None and one.end is None]
    measuring = {call.tool for call, _ in history.made_calls if call.purpose != "check" and call.call_id in measured}
    if objective is not None:
        measuring.add(objective.tool)
    calls = [*history.made_calls, *under_way]
    made = [pair for pair in calls if pair[0].tool in measuring and pair[0].purpose != "check"]
    made.sort(key=lambda pair: (pair[0].iteration, pair[0].order))
    return [_trial(number, *pair, measured, best_call) for number, pair in enumerate(made)]


def _trial(
    number: int,
    call: CallIntended,
    end: CallSettled | None,
    measured: Mapping[str, Mapping[str, float]],
    best_call: str | None,
) -> Trial:
    return Trial(
        trial=number,
        iteration=call.iteration,
        tool=call.tool,
        args=redacted(call.args),
        metrics=measured.get(call.call_id, {}),
        outcome=None if end is None else end.outcome,
        # Any process may settle a call that became a task, so its duration comes from the wall clock.
        seconds=None if end is None else end.seconds or round(max(0.0, end.at - call.at), 3),
        started_at=iso(call.at),
        call_id=call.call_id,
        best=call.call_id == best_call,
        error=None if end is None or end.error is None else cut_text(end.error, MAX_ERROR),
    )


def _reason_text(state: MissionState) -> str | None:
    if (forced := client_completion(state)) is not None:
        unmet = f", with these criteria unmet: {', '.join(forced.unmet)}" if forced.unmet else ""
        said = f" ({state.stop.reason})" if state.stop is not None and state.stop.reason else ""
        return f"marked completed by {forced.by}{unmet}{said}"
    if state.stop is not None and state.stop.reason:
        return state.stop.reason
    if state.failure is not None:
        return state.failure.error
    return state.last_ended.rationale if state.last_ended is not None else None


Trials = Sequence[Trial]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

HEAD = ("trial", "iteration", "tool", "outcome", "best", "seconds", "started_at")
TAIL = ("error", "call_id")


def table_of(trials: Trials) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows of a flat table with a column for each argument and each metric.

    If names collide, a metric is called `metric.NAME` and an argument `arg.NAME`. Lists and tables are kept. Iterations
    count from 1, as everywhere for people.
    """
    args = list(dict.fromkeys(name for row in trials for name in row.args))
    metrics = list(dict.fromkeys(name for row in trials for name in row.metrics))
    taken = {*HEAD, *TAIL}
    arg_names = [f"arg.{name}" if name in taken or name in metrics else name for name in args]
    metric_names = [f"metric.{name}" if name in taken or name in args else name for name in metrics]
    rows = [
        [
            *(row.iteration + 1 if name == "iteration" else getattr(row, name) for name in HEAD),
            *(row.args.get(name) for name in args),
            *(row.metrics.get(name) for name in metrics),
            *(getattr(row, name) for name in TAIL),
        ]
        for row in trials
    ]
    return [*HEAD, *arg_names, *metric_names, *TAIL], rows


def as_csv(trials: Trials) -> str:
    columns, rows = table_of(trials)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"  # a spreadsheet would run it as a formula
    return value


def as_parquet(trials: Trials) -> bytes:
    """The table as a Parquet file; columns of mixed types become text. Raises `ExtraMissing` without pyarrow."""
    if find_spec("pyarrow") is None:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'pursuit[tables]', or write .csv", extra="tables")
    arrow: Any = import_module("pyarrow")
    columns, rows = table_of(trials)
    values = list(zip(*rows, strict=True)) or [() for _ in columns]
    arrays = {name: arrow.array(_uniform(column)) for name, column in zip(columns, values, strict=True)}
    sink: Any = arrow.BufferOutputStream()
    import_module("pyarrow.parquet").write_table(arrow.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _uniform(column: Sequence[Any]) -> list[Any]:
    """The column with a single type: mixed numbers become floats, any other mixture becomes text."""
    kinds: set[type[Any]] = {type(value) for value in column if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in column]
    if len(kinds) <= 1 and not kinds & {list, dict}:
        return list(column)
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in column]


def as_frame(trials: Trials) -> Any:
    """A pandas DataFrame, or a list of dicts with the same columns if pandas is not installed."""
    columns, rows = table_of(trials)
    if find_spec("pandas") is None:
        return [dict(zip(columns, row, strict=True)) for row in rows]
    return import_module("pandas").DataFrame(rows, columns=columns)
