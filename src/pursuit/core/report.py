"""The final report of a mission, and its row in a listing, built from its events alone. Pure.

`reports` renders the report; its caller adds the hashes of the ledger.
"""

from __future__ import annotations

import datetime
import math
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import msgspec

from pursuit.core import best_of
from pursuit.core.approvals import GRANTS, Yes, agreed
from pursuit.core.audit import redacted
from pursuit.core.best import Candidate, best_row, violations
from pursuit.core.budgets import cost_unknown
from pursuit.core.criteria import MetricThreshold, describe
from pursuit.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    CompletionOrdered,
    CriterionResult,
    Event,
    IterationEnded,
    IterationProposed,
    MissionEnded,
    MissionFailed,
    MissionResumed,
    ModelAnswered,
    ModelAsked,
    RunClaimed,
    ScriptEnded,
    WaitBegan,
    WaitingFor,
)
from pursuit.core.fold import CAP_REASONS, fold
from pursuit.core.lessons import Logged, lessons_of
from pursuit.core.mission import CAPS, QUEUE, BestOfProposer, ClientProposer
from pursuit.core.observe import leaves, source_matches, text_of, value_of
from pursuit.core.search import SearchProposer
from pursuit.core.series import Point
from pursuit.core.state import MissionState, Status
from pursuit.core.truncate import cut_text

FORMAT = "pursuit.report/1"
MOST_ROWS = 500
MOST_CHECKS = 50
TAIL_LINES, LONGEST_LINE, LONGEST_TURN = 20, 300, 2_000
LONGEST_DIFF = 100_000
LONGEST_ERROR = 500
LAST = 1 << 30
MOST_POINTS = 20_000
MOST_TRIALS = 10_000


@dataclass(slots=True)
class _Tally:
    """What is counted in one walk over the events."""

    results: Mapping[str, Mapping[str, Any]]
    diffs: Mapping[str, str]
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    pending: dict[str, CallIntended] = field(default_factory=dict[str, CallIntended])
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    unknown: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    timeline: list[tuple[IterationEnded, IterationProposed | None, int]] = field(
        default_factory=list["tuple[IterationEnded, IterationProposed | None, int]"]
    )
    points: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    started: dict[int, IterationProposed] = field(default_factory=dict[int, IterationProposed])
    calls: dict[int, int] = field(default_factory=dict[int, int])
    log: list[Logged] = field(default_factory=list[Logged])
    metrics: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    no_proposal: Counter[str] = field(default_factory=Counter[str])
    checks: deque[dict[str, Any]] = field(default_factory=lambda: deque[dict[str, Any]](maxlen=MOST_CHECKS))
    approvals: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    said: dict[str, dict[str, Yes]] = field(default_factory=dict[str, dict[str, Yes]])
    turns: deque[dict[str, Any]] = field(default_factory=lambda: deque[dict[str, Any]](maxlen=MOST_ROWS))
    asked_of: str = ""


def build_report(
    mission_id: str,
    events: Sequence[Event],
    state: MissionState | None = None,
    results: Mapping[str, Mapping[str, Any]] | None = None,
    diffs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The report as JSON, without the ledger's hashes; `state` is the fold of the events, if the caller has it.

    `results` are large results of checks, and `diffs` those of the turns of agents, by the digests of their blobs.
    """
    state = state or fold(events)
    if state is None:
        raise ValueError("a mission without events has no report")
    tally = _count(events, results or {}, diffs or {})
    trials = _trials(state, tally)
    newest = trials[-MOST_TRIALS:]
    shown = {row["call_id"]: row for row in newest[-MOST_ROWS:]}
    return {
        "format": FORMAT,
        "session_id": mission_id,
        "directive": state.mission.directive,
        "status": state.status,
        "verdict": state.verdict,
        "verdict_reason": state.verdict_reason,
        "reason_text": _reason_text(state),
        **({} if (forced := forced_row(state)) is None else {"completed_by_client": forced}),
        "created_at": iso(state.created_at),
        "started_at": iso(state.started_at),
        "ended_at": iso(state.ended_at),
        "criteria": criteria_rows(state),
        "budget": budget_row(state),
        "iteration_count": state.iteration_count,
        "best_point": best_row(state.best_points.best()),
        **({"trials": newest, "trials_omitted": len(trials) - len(newest)} if trials else {}),
        "metrics": _metrics(state, tally),
        "calls": {
            "total": len(tally.log),
            "by_outcome": dict(Counter([end.outcome for _, end in tally.log])),
            "by_tool": _tools(tally),
        },
        "call_log": [_log_row(*row, shown) for row in tally.log[-MOST_ROWS:]],
        "call_log_omitted": max(0, len(tally.log) - MOST_ROWS),
        "approvals": list(tally.approvals.values())[-MOST_ROWS:],
        "checks": list(tally.checks),
        "turns": list(tally.turns),
        "refused": tally.refused[:MOST_ROWS],
        "unknown": tally.unknown[:MOST_ROWS],
        "errors": tally.errors[-MOST_ROWS:],
        "timeline": [_timeline_row(*row) for row in tally.timeline[-MOST_ROWS:]],
        "timeline_omitted": max(0, len(tally.timeline) - MOST_ROWS),
        "lessons": lessons_of(state, tally.log, tally.no_proposal),
        "warnings": list(state.warnings),
        **({} if (workspace := workspace_row(mission_id, state)) is None else {"workspace": workspace}),
        **({"parent": state.parent} if state.parent is not None else {}),
        **({"children": children_rows(state)} if state.children else {}),
    }


def iso(moment: float | None) -> str | None:
    """A moment in ISO 8601, to the millisecond."""
    if moment is None:
        return None
    seconds, milliseconds = divmod(round(moment * 1e6) // 1000, 1000)
    return f"{_second(seconds)}.{str(1000 + milliseconds)[1:]}+00:00"


@lru_cache(maxsize=1024)
def _second(moment: int) -> str:
    """Most moments of a report share their second with others, and writing one takes long."""
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).isoformat()[:19]


def command_line(*words: str) -> str:
    """A command of `pursuit` for a person to copy."""
    return shlex.join(("pursuit", *words))


def way_on(
    mission_id: str,
    *,
    reason: str | None,
    parent: str | None,
    origin: str | None = None,
    say: Callable[..., str] = command_line,
) -> str:
    """What continues or repeats a mission that ended for this reason: a sentence with commands to copy."""
    if parent is not None:
        return f"its parent {parent} can start another child"
    if reason in CAP_REASONS:
        cap = next(name for name in CAPS if name.startswith(reason or ""))
        extend = say("extend", mission_id, f"--{cap.replace('_', '-')}", "N")
        return f"raise its cap with: {extend}, then: {say('resume', mission_id)}"
    if origin is not None:
        return f"start it again with: {say('run', origin)}"
    return "an ended mission stays as it is; start a new one"


def criteria_rows(state: MissionState) -> list[dict[str, Any]]:
    """Each criterion with its last result."""
    rows: list[dict[str, Any]] = []
    for criterion in state.mission.criteria:
        name = criterion.criterion_id
        result = state.results.get(name) or CriterionResult(
            criterion_id=name, status="inconclusive", evidence={"reason": "not evaluated yet"}
        )
        rows.append(
            {
                "criterion_id": name,
                "kind": criterion.kind,
                "required": criterion.required,
                "status": result.status,
                "description": describe(criterion),
                "evidence": result.evidence,
                "source": None if result.source is None else msgspec.structs.asdict(result.source),
            }
        )
    return rows


def budget_row(state: MissionState) -> dict[str, Any]:
    """The caps and what was used of them, also by children; what is set aside for running children counts as used.

    A cost that is not known is None, never 0.
    """
    lent = state.lent
    used = {
        "iterations": state.iteration_count + int(lent.get("max_iterations", 0)),
        "wall_clock_seconds": round(state.wall_clock, 3),
        "tool_calls": state.tool_calls + int(lent.get("max_tool_calls", 0)),
        "tokens": state.tokens + int(lent.get("max_tokens", 0)),
        "cost_usd": None if cost_unknown(state) else round(state.cost_usd + lent.get("max_cost_usd", 0), 9),
    }
    return {**state.budget, "on_exhausted": state.mission.budget.on_exhausted, "used": used}


def children_rows(state: MissionState) -> list[dict[str, Any]]:
    """Each child with what was set aside for it and what it used; the latter is not known while it runs."""
    return [
        {"session_id": child.session_id, "outcome": child.outcome, "reserved": child.reserved, "used": child.used}
        for child in state.children.values()
    ]


def workspace_row(mission_id: str, state: MissionState) -> dict[str, Any] | None:
    """The workspace of an agent's mission and what its latest turns changed; None without one."""
    workspace = state.mission.workspace
    if workspace is None:
        return None
    iterations = [*state.recent, *([state.open] if state.open is not None else [])]
    turns = [
        {"iteration": iteration.index, "outcome": call.outcome, **msgspec.to_builtins(call.change)}
        for iteration in iterations
        for call in iteration.calls.values()
        if call.change is not None
    ]
    row: dict[str, Any] = {"path": workspace.path, "in_place": workspace.in_place, "turns": turns}
    row |= {"protected_turns": state.protected_turns}
    if isinstance(state.mission.proposer, BestOfProposer):
        won = best_of.winner(state)
        row["agents"] = best_of.rows(state)
        return row | ({} if won is None else {"branch": f"pursuit/{won[1].session_id}"})
    return row | ({"branch": f"pursuit/{mission_id}"} if state.status == "completed" else {})


def exit_code_of(result: Mapping[str, Any] | None) -> int | None:
    """The exit code in the result of a command, or None if it has none."""
    value = None if result is None else value_of(result)
    code = cast("Mapping[str, Any]", value).get("exit_code") if isinstance(value, Mapping) else None
    return code if isinstance(code, int) else None


def output_tail(result: Mapping[str, Any] | None, *, lines: int = TAIL_LINES) -> list[str]:
    """The last lines that a command printed, or of the text that a tool answered with."""
    if result is None:
        return []
    value = value_of(result)
    texts = [text_of(result)]
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        streams = [found.get("stdout"), found.get("stderr")]
        printed_to = "output_tail" if found.get("output_tail") else "stderr_tail"
        tails = [cast("list[str]", found.get(key) or []) for key in ("failure_lines", printed_to)]
        printed = [text for text in streams if isinstance(text, str)] + ["\n".join(tail) for tail in tails]
        texts = [text for text in printed if text.strip()] or texts
    found = [line[:LONGEST_LINE] for text in texts for line in text.rstrip().splitlines()]
    return found[-lines:]


def _count(events: Iterable[Event], results: Mapping[str, Mapping[str, Any]], diffs: Mapping[str, str]) -> _Tally:
    tally = _Tally(results=results, diffs=diffs)
    for event in events:
        if (count := _COUNTED.get(type(event))) is not None:
            count(tally, event)
    return tally


def _count_proposal(tally: _Tally, event: IterationProposed) -> None:
    tally.started[event.iteration] = event
    for reason in event.failed:
        tally.no_proposal[reason] += 1
        tally.errors.append({"iteration": event.iteration, "tool": event.proposer, "message": reason})
    if event.proposer == "client":
        calls = ["script"] if event.script is not None else [call.tool for call in event.calls]
        turn = {"iteration": event.iteration, "who": "client", "at": iso(event.at), "calls": calls}
        tally.turns.append(turn | {"text": (event.rationale or "")[:LONGEST_TURN]})


def _count_intent(tally: _Tally, event: CallIntended) -> None:
    tally.pending[event.call_id] = event


def _count_end(tally: _Tally, event: IterationEnded) -> None:
    began = tally.started.pop(event.iteration, None)
    tally.timeline.append((event, began, tally.calls.get(event.iteration, 0)))


def _count_question(tally: _Tally, event: ApprovalAsked) -> None:
    tally.approvals[event.approval_id] = {
        "approval_id": event.approval_id,
        "iteration": event.iteration,
        "tool": event.tool,
        "args": redacted(event.args),
        "reason": event.reason,
        "asked_at": iso(event.at),
        **({"required": event.require} if event.require > 1 else {}),
    }


def _count_expiry(tally: _Tally, event: ApprovalExpired) -> None:
    row = tally.approvals.get(event.approval_id)
    if row is not None and "answer" not in row:
        row |= {"answer": "expired", "answered_at": iso(event.at)}


def _count_request(tally: _Tally, event: ModelAsked) -> None:
    tally.asked_of = event.model


def _count_turn(tally: _Tally, event: ModelAnswered) -> None:
    answer = event.answer
    turn: dict[str, Any] = {"iteration": event.iteration, "who": tally.asked_of, "at": iso(event.at)}
    turn |= {"calls": [] if answer is None else [call.name for call in answer.calls]}
    turn |= {"text": "" if answer is None else answer.text[:LONGEST_TURN], "tokens": event.tokens}
    turn |= {"cost_usd": event.cost_usd, "seconds": event.seconds}
    tally.turns.append(turn | ({"error": event.error} if event.error else {}))


def _check_row(tally: _Tally, call: CallIntended, event: CallSettled) -> dict[str, Any]:
    result = tally.results.get(event.blob, event.result) if event.blob is not None else event.result
    return {
        "iteration": event.iteration,
        "criterion_id": call.criterion_id,
        "outcome": event.outcome,
        "exit_code": exit_code_of(result),
        "seconds": event.seconds,
        "output": output_tail(result) or ([event.error] if event.error else []),
    }


def _agent_turn(event: CallSettled, diffs: Mapping[str, str]) -> dict[str, Any]:
    """A turn of an agent: what it said and did, and the diff that we computed."""
    change = event.change
    assert change is not None  # noqa: S101 - the caller looked
    value = value_of(event.result) if event.result is not None else None
    said: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    used = event.used or {}
    row: dict[str, Any] = {"iteration": event.iteration, "who": "agent", "at": iso(event.at), "outcome": event.outcome}
    row |= {"calls": [str(one.get("title") or one.get("kind")) for one in said.get("tool_calls", ())]}
    row |= {"text": str(said.get("text", ""))[-LONGEST_TURN:], "tokens": used.get("max_tokens")}
    row |= {"cost_usd": used.get("max_cost_usd"), "seconds": event.seconds, "files": change.files}
    row |= {"protected": change.protected} if change.protected else {}
    row |= {"diff": diffs[change.diff][:LONGEST_DIFF]} if change.diff is not None and change.diff in diffs else {}
    return row | ({"error": event.error} if event.error else {})


def _count_answer(tally: _Tally, event: ApprovalAnswered) -> None:
    """Notes an answer in the row of its question; of several people it is the yes of the last one that closes it."""
    row = tally.approvals.get(event.approval_id)
    if row is None or "answer" in row:
        return
    answer, by = event.answer, event.by
    if answer in GRANTS:
        said = tally.said.setdefault(event.approval_id, {})
        said.setdefault(event.person or by, Yes(answer, by))
        together = agreed(said, row.get("required", 1))
        if together is None:
            return
        answer, by = together
    row |= {"answer": answer, "by": by, "answered_at": iso(event.at)}
    row |= {"channel": event.channel} if event.channel else {}
    row |= {"why": event.reason} if event.reason else {}


def _count_call(tally: _Tally, event: CallSettled) -> None:
    call = tally.pending.pop(event.call_id, None)
    if call is None:
        return
    outcome, iteration, tool = event.outcome, event.iteration, call.tool
    tally.log.append((call, event))
    tally.calls[iteration] = tally.calls.get(iteration, 0) + 1
    tally.seconds[tool] = tally.seconds.get(tool, 0.0) + event.seconds
    if outcome == "unknown":
        place = {"call_id": event.call_id, "iteration": iteration, "tool": tool}
        tally.unknown.append({**place, "reason": event.error})
    if event.error is not None:
        tally.errors.append({"iteration": iteration, "tool": tool, "message": event.error})
    if event.change is not None:
        tally.turns.append(_agent_turn(event, tally.diffs))
    if call.purpose == "check":
        tally.checks.append(_check_row(tally, call, event))
    if event.metrics:
        tally.metrics[event.call_id] = found = dict(leaves(event.metrics))
        _count_points(tally, found, tool=tool, call_id=event.call_id, place=(iteration, call.order))


def _tools(tally: _Tally) -> list[dict[str, Any]]:
    """How often each tool was called, what came of it, and how long it took."""
    outcomes: dict[str, dict[str, int]] = {tool: {} for tool in tally.seconds}
    counts = Counter([(call.tool, end.outcome) for call, end in tally.log if call is not end])  # no refusals
    for (tool, outcome), count in counts.items():
        outcomes[tool][outcome] = count
    return [
        {"tool": tool, "calls": sum(found.values()), "by_outcome": found, "seconds": round(tally.seconds[tool], 6)}
        for tool, found in sorted(outcomes.items())
    ]


def _count_refusal(tally: _Tally, event: CallRefused) -> None:
    tally.log.append((event, event))
    place = {"call_id": event.call_id, "iteration": event.iteration, "tool": event.tool}
    tally.refused.append({**place, "outcome": event.outcome, "reason": event.reason})


def _log_row(
    call: CallIntended | CallRefused, end: CallSettled | CallRefused, shown: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A row of the log; `shown` are the rows of trials by their calls, without secrets."""
    error, seconds = (end.reason, 0.0) if isinstance(end, CallRefused) else (end.error, end.seconds)
    trial = shown.get(call.call_id)
    return {
        "iteration": end.iteration,
        "tool": call.tool,
        "args": redacted(call.args) if trial is None else trial["args"],
        "at": iso(call.at) if trial is None else trial["started_at"],
        "outcome": end.outcome,
        "seconds": seconds,
        **({"error": error} if error else {}),
    }


def _count_script(tally: _Tally, event: ScriptEnded) -> None:
    if event.error is not None:
        tally.errors.append({"iteration": event.iteration, "tool": "script", "message": event.error})
    if not event.claimed:
        found = dict(leaves(event.observed))
        _count_points(tally, found, tool="script", call_id="", place=(event.iteration, LAST))


def _count_points(tally: _Tally, found: dict[str, float], *, tool: str, call_id: str, place: tuple[int, int]) -> None:
    for name, value in found.items():
        tally.points.setdefault(name, []).append(Point(*place, value, tool, call_id))


_COUNTED: Mapping[type, Callable[[_Tally, Any], None]] = {
    IterationProposed: _count_proposal,
    CallIntended: _count_intent,
    CallSettled: _count_call,
    CallRefused: _count_refusal,
    ScriptEnded: _count_script,
    IterationEnded: _count_end,
    ApprovalAsked: _count_question,
    ApprovalAnswered: _count_answer,
    ApprovalExpired: _count_expiry,
    ModelAsked: _count_request,
    ModelAnswered: _count_turn,
}


def _timeline_row(event: IterationEnded, began: IterationProposed | None, calls: int) -> dict[str, Any]:
    return {
        "iteration_index": event.iteration,
        "verdict": event.verdict,
        "verdict_reason": event.reason,
        "started_at": iso(began.at) if began is not None else None,
        "ended_at": iso(event.at),
        "calls": calls,
        "rationale": event.rationale or (began.rationale if began is not None else None),
    }


def _metrics(state: MissionState, tally: _Tally) -> dict[str, Any]:
    known = [one for one in state.mission.criteria if isinstance(one, MetricThreshold)]
    thresholds = {one.metric: one for one in sorted(known, key=lambda one: one.required)}  # the required one wins
    rows: dict[str, Any] = {}
    for name in sorted(tally.points, key=lambda name: (name not in thresholds, name)):
        criterion = thresholds.get(name)
        source = criterion.source if criterion is not None else None
        matching = (point for point in tally.points[name] if source_matches(source, point.tool))
        counted = sorted(matching, key=lambda point: point.place)
        if not counted:
            continue
        points = list({point.iteration: point.value for point in counted}.items())
        best = state.best_points.of(criterion.criterion_id) if criterion is not None else None
        stride = -(-len(points) // MOST_POINTS)
        rows[name] = {
            "points": [list(point) for point in (points if stride == 1 else [*points[:-1:stride], points[-1]])],
            "last": points[-1][1],
            "best": best.point.value if best is not None and best.point is not None else None,
            **({} if best is None or best.infeasible is None else {"infeasible": _infeasible(best.infeasible)}),
            "target": None if criterion is None else {"op": criterion.op, "target": criterion.target},
        }
    return rows


def every_trial(events: Iterable[Event], state: MissionState) -> list[dict[str, Any]]:
    """The trials of a mission, from its first event to its last; `state` is the fold of the events."""
    return _trials(state, _count(events, {}, {}))


def _trials(state: MissionState, tally: _Tally) -> list[dict[str, Any]]:
    """Each call of a tool that gives metrics; the tool that a search calls is one, whether or not it did yet."""
    best, proposer = state.best_points.best(), state.mission.proposer
    best_call = best.point.call_id if best is not None and best.point is not None else None
    ended = [(call, end) for call, end in tally.log if isinstance(end, CallSettled) and isinstance(call, CallIntended)]
    calls = [*ended, *((call, None) for call in tally.pending.values())]
    measuring = {call.tool for call, _ in ended if call.purpose != "check" and call.call_id in tally.metrics}
    if isinstance(proposer, SearchProposer):
        measuring.add(proposer.tool_name)
    made = [pair for pair in calls if pair[0].tool in measuring and pair[0].purpose != "check"]
    made.sort(key=lambda pair: (pair[0].iteration, pair[0].order))
    return [_trial_row(number, *pair, tally, best_call) for number, pair in enumerate(made)]


def _trial_row(
    number: int, call: CallIntended, end: CallSettled | None, tally: _Tally, best_call: str | None
) -> dict[str, Any]:
    return {
        "trial": number,
        "iteration": call.iteration,
        "tool": call.tool,
        "args": redacted(call.args),
        "metrics": tally.metrics.get(call.call_id, {}),
        "outcome": None if end is None else end.outcome,
        # A call that becomes a task is settled by whichever process finds its end, so only the clock knows its time.
        "seconds": None if end is None else end.seconds or round(max(0.0, end.at - call.at), 3),
        "started_at": iso(call.at),
        "call_id": call.call_id,
        "best": call.call_id == best_call,
        **({"error": cut_text(end.error, LONGEST_ERROR)} if end is not None and end.error is not None else {}),
    }


def _infeasible(point: Candidate) -> dict[str, Any]:
    return {"value": point.value, "violates": violations(point)}


def forced_row(state: MissionState) -> dict[str, Any] | None:
    """On which client's word a mission was ended as completed, and the required criteria that were not met."""
    if not isinstance(state.stop, CompletionOrdered) or not state.stop.client:
        return None
    required = [criterion.criterion_id for criterion in state.mission.criteria if criterion.required]
    met = {name for name, result in state.results.items() if result.status == "met"}
    return {"by": state.stop.by, "unmet": [name for name in required if name not in met]}


def _reason_text(state: MissionState) -> str | None:
    if (forced := forced_row(state)) is not None:
        unmet = f", with these criteria unmet: {', '.join(forced['unmet'])}" if forced["unmet"] else ""
        said = f" ({state.stop.reason})" if state.stop is not None and state.stop.reason else ""
        return f"ended on the word of {forced['by']}{unmet}{said}"
    if state.stop is not None and state.stop.reason:
        return state.stop.reason
    if state.failure is not None:
        return state.failure.error
    return state.last_ended.rationale if state.last_ended is not None else None


DIRECTIVE_PREVIEW = 500


class Listing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The row of a mission in a listing; each append keeps it up to date."""

    status: Status
    directive: str
    iteration_count: int
    waiting_for: WaitingFor | None = None
    wait_until: float | None = None
    task: str | None = None
    parent: str | None = None
    run_goal: int | None = None
    background: bool = False
    owner: str | None = None
    share: list[str] = []
    queue: str = QUEUE

    def summary(self) -> dict[str, Any]:
        """What the listing shows beside the status; what does not apply is left out."""
        summary = msgspec.to_builtins(self)
        del summary["status"]
        return summary


def listing_after(state: MissionState, events: Sequence[Event] = ()) -> Listing:
    """The row once these events of a driver are stored."""
    status, count, waiting_for, until = state.status, state.iteration_count, state.waiting_for, state.wait_until
    goal, background, detail = state.run_goal, state.background, state.wait_detail
    for event in events:
        match event:
            case CallIntended():
                pass  # half of all appends, so it comes first
            case IterationEnded():
                count = event.iteration + 1
            case MissionResumed() if status in ("paused", "failed"):
                status, waiting_for, until = "running", None, None
            case RunClaimed():
                goal = None if event.iterations is None else count + event.iterations
                background = event.background
                if status != "paused" and waiting_for != "pace" and not state.terminal:
                    status, waiting_for, until = "running", None, None
            case ModelAsked() if status == "waiting":
                status, waiting_for, until = "running", None, None
            case MissionEnded():
                status, waiting_for, until = event.status, None, None
            case WaitBegan() if status in ("running", "pending", "waiting"):
                status, waiting_for, until = "waiting", event.waiting_for, event.until
                detail = event.detail
            case MissionFailed() if not state.terminal:
                status = "failed"
            case _:
                pass
    directive = state.mission.directive[:DIRECTIVE_PREVIEW]
    task = detail if waiting_for == "task" else None
    share = state.mission.share
    queue = state.mission.queue
    return Listing(
        status, directive, count, waiting_for, until, task, state.parent, goal, background, state.owner, share, queue
    )


def cut_short(status: str, summary: Mapping[str, Any], now: float) -> bool:
    """Whether a row shows a run that stopped, or may still be running, before it reached its goal.

    A question without an answer in time is a reason to continue: its call is then refused. A task that the mission
    waits for may have ended meanwhile.
    """
    waiting_for = summary.get("waiting_for") if status == "waiting" else None
    expired = waiting_for == "approval" and now >= summary.get("wait_until", math.inf)
    can_go_on = status == "running" or waiting_for in ("pace", "task", "model") or expired
    goal = summary.get("run_goal")
    return can_go_on and (goal is None or summary.get("iteration_count", 0) < goal)


def due_in(state: MissionState, now: float) -> float | None:
    """Seconds until a driver has something to do; None if it has nothing to do without someone's word.

    A mission that waits for a task is due when the task has ended, or at the latest when its own time is over.
    """
    if state.terminal:
        return None if state.closed else 0.0
    if state.status == "waiting" and state.waiting_for in ("approval", "pace", "model", "task"):
        return None if state.wait_until is None else max(0.0, state.wait_until - now)
    if state.status == "running":
        return None if state.run_goal is not None and state.iteration_count >= state.run_goal else 0.0
    clients_turn = isinstance(state.mission.proposer, ClientProposer)
    return 0.0 if state.status == "pending" and not clients_turn else None


def summary_of(state: MissionState) -> dict[str, Any]:
    """What a listing shows beside the status, as of this state."""
    return listing_after(state).summary()
