"""The final report of a mission, and its row in a listing, built from its events alone. Pure.

`reports` renders the report; its caller adds the hashes of the ledger.
"""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

import msgspec

from pursuit.core import pick
from pursuit.core.audit import redacted
from pursuit.core.best import Candidate, best_row, violations
from pursuit.core.budgets import budget_use
from pursuit.core.caps import BY_REASON
from pursuit.core.criteria import MetricThreshold, describe
from pursuit.core.events import (
    ApprovalExpired,
    CallIntended,
    CallRefused,
    CallSettled,
    CompletionOrdered,
    CriterionResult,
    IterationProposed,
    Outcome,
)
from pursuit.core.fold import EXTENDABLE
from pursuit.core.history import ApprovalQuestion, Call, History, Iteration, ModelTurn
from pursuit.core.lessons import lessons_of
from pursuit.core.observe import leaves, source_matches, text_of, value_of
from pursuit.core.series import Point
from pursuit.core.state import MissionState
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


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call of a tool that gives metrics: its arguments without secrets, what it reported, and what came of it."""

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
    """Whether it gave the best point of the mission."""
    error: str | None = None


def build_report(
    mission_id: str,
    history: History,
    state: MissionState,
    results: Mapping[str, Mapping[str, Any]],
    diffs: Mapping[str, str],
) -> dict[str, Any]:
    """The report as JSON, without the ledger's hashes; `state` is the fold of the same events.

    `results` are large results of checks, and `diffs` those of the turns of agents, by the digests of their blobs.
    """
    ended, made, measured = history.ended_calls, history.made_calls, _measured(history)
    iterations = [one for one in history.iterations.values() if one.ended is not None]
    checks = [pair for pair in made if pair[0].purpose == "check"]
    failures = [reason for one in history.iterations.values() if one.proposed for reason in one.proposed.failed]
    trials = _trials(state, history, measured)
    newest = trials[-MOST_TRIALS:]
    shown = {one.call_id: one for one in newest[-MOST_ROWS:]}
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
        "budget": budget_use(state).as_json(),
        "iteration_count": state.iteration_count,
        "best_point": best_row(state.best_points.best()),
        **({"trials": msgspec.to_builtins(newest), "trials_omitted": len(trials) - len(newest)} if trials else {}),
        "metrics": _metrics(state, _points(history, measured)),
        "calls": {
            "total": len(ended),
            "by_outcome": dict(Counter([call.outcome for call in ended])),
            "by_tool": _tools(made),
        },
        "call_log": [_log_row(call, shown) for call in ended[-MOST_ROWS:]],
        "call_log_omitted": max(0, len(ended) - MOST_ROWS),
        "approvals": [_question_row(one) for one in list(history.questions.values())[-MOST_ROWS:]],
        "checks": [_check_row(*pair, results) for pair in checks[-MOST_CHECKS:]],
        "turns": [_turn_row(one, diffs) for one in _turns(state, history)[-MOST_ROWS:]],
        "refused": [
            {**_place(one), "outcome": one.outcome, "reason": one.reason}
            for call in ended
            if isinstance(one := call.end, CallRefused)
        ][:MOST_ROWS],
        "unknown": [{**_place(call), "reason": end.error} for call, end in made if end.outcome == "unknown"][
            :MOST_ROWS
        ],
        "errors": _errors(history)[-MOST_ROWS:],
        "timeline": _timeline(iterations, made),
        "timeline_omitted": max(0, len(iterations) - MOST_ROWS),
        "lessons": lessons_of(state, ended, Counter(failures)),
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


def way_on(
    mission_id: str,
    *,
    reason: str | None,
    parent: str | None,
    origin: str | None = None,
    say: Callable[..., str] = lambda *words: shlex.join(("pursuit", *words)),
) -> str:
    """What continues or repeats a mission that ended for this reason: a sentence with commands to copy."""
    if parent is not None:
        return f"its parent {parent} can start another child"
    if reason in EXTENDABLE:
        cap = BY_REASON.get(reason or "")
        extend = say("extend", mission_id, "--max-iterations" if cap is None else cap.option, "N")
        return f"raise its cap with: {extend}, then: {say('resume', mission_id)}"
    if reason == "no_progress":
        return f"continue it with: {say('resume', mission_id)}"
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
    if state.mission.picks:
        won = pick.winner(state)
        row["agents"] = pick.rows(state)
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


def _place(call: CallIntended | CallRefused) -> dict[str, Any]:
    return {"call_id": call.call_id, "iteration": call.iteration, "tool": call.tool}


def _errors(history: History) -> list[dict[str, Any]]:
    """The errors of proposers, calls and scripts, by iteration."""
    found: list[tuple[int, str, str]] = []
    for one in history.iterations.values():
        if one.proposed is not None:
            found += [(one.index, one.proposed.proposer, reason) for reason in one.proposed.failed]
    found += [(end.iteration, call.tool, end.error) for call, end in history.made_calls if end.error is not None]
    scripts = [one.script for one in history.iterations.values() if one.script is not None]
    found += [(script.iteration, "script", script.error) for script in scripts if script.error is not None]
    found.sort(key=itemgetter(0))
    return [{"iteration": iteration, "tool": tool, "message": error} for iteration, tool, error in found]


def _question_row(question: ApprovalQuestion) -> dict[str, Any]:
    asked, end = question.asked, question.end
    row: dict[str, Any] = {
        "approval_id": asked.approval_id,
        "iteration": asked.iteration,
        "tool": asked.tool,
        "args": redacted(asked.args),
        "reason": asked.reason,
        "asked_at": iso(asked.at),
        **({"required": asked.require} if asked.require > 1 else {}),
    }
    if end is None:
        return row
    answer, by, event = end
    if isinstance(event, ApprovalExpired):
        return row | {"answer": answer, "answered_at": iso(event.at)}
    row |= {"answer": answer, "by": by, "answered_at": iso(event.at)}
    row |= {"channel": event.channel} if event.channel else {}
    return row | ({"why": event.reason} if event.reason else {})


def _turns(state: MissionState, history: History) -> list[IterationProposed | ModelTurn | Call]:
    """The turns of a client, a model or an agent; what other proposers propose is in the calls."""
    client = state.facts.proposed_by_client
    return [one for one in history.turns if client or not isinstance(one, IterationProposed)]


def _turn_row(turn: IterationProposed | ModelTurn | Call, diffs: Mapping[str, str]) -> dict[str, Any]:
    """What a client proposed, a model answered or an agent did."""
    match turn:
        case IterationProposed():
            calls = ["script"] if turn.script is not None else [call.tool for call in turn.calls]
            row = {"iteration": turn.iteration, "who": "client", "at": iso(turn.at), "calls": calls}
            return row | {"text": (turn.rationale or "")[:LONGEST_TURN]}
        case ModelTurn(asked=asked, answered=event):
            assert event is not None  # noqa: S101 - a turn is listed when it is answered
            answer = event.answer
            row: dict[str, Any] = {"iteration": event.iteration, "who": asked.model, "at": iso(event.at)}
            row |= {"calls": [] if answer is None else [call.name for call in answer.calls]}
            row |= {"text": "" if answer is None else answer.text[:LONGEST_TURN], "tokens": event.tokens}
            row |= {"cost_usd": event.cost_usd, "seconds": event.seconds}
            return row | ({"error": event.error} if event.error else {})
        case Call(end=CallSettled() as event):
            return _agent_turn(event, diffs)
        case Call():
            raise AssertionError("a turn of an agent is listed when it has ended")


def _check_row(call: CallIntended, event: CallSettled, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    result = results.get(event.blob, event.result) if event.blob is not None else event.result
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


def _tools(made: Sequence[tuple[CallIntended, CallSettled]]) -> list[dict[str, Any]]:
    """How often each tool was called, what came of it, and how long it took; a refused call was not made."""
    seconds: dict[str, float] = {}
    outcomes: dict[str, dict[str, int]] = {}
    for call, end in made:
        seconds[call.tool] = seconds.get(call.tool, 0.0) + end.seconds
    for (tool, outcome), count in Counter([(call.tool, end.outcome) for call, end in made]).items():
        outcomes.setdefault(tool, {})[outcome] = count
    return [
        {"tool": tool, "calls": sum(found.values()), "by_outcome": found, "seconds": round(seconds[tool], 6)}
        for tool, found in sorted(outcomes.items())
    ]


def _log_row(call: Call, shown: Mapping[str, Trial]) -> dict[str, Any]:
    """A row of the log; `shown` are the trials by their calls, without secrets."""
    trial, said, end = shown.get(call.call_id), call.said, call.settled
    return {
        "iteration": call.iteration,
        "tool": said.tool,
        "args": redacted(said.args) if trial is None else trial.args,
        "at": iso(said.at) if trial is None else trial.started_at,
        "outcome": call.outcome,
        "seconds": 0.0 if end is None else end.seconds,
        **({"error": error} if (error := call.error) else {}),
    }


def _measured(history: History) -> dict[str, dict[str, float]]:
    """The metrics of each call that reported some."""
    return {end.call_id: dict(leaves(end.metrics)) for _call, end in history.made_calls if end.metrics}


def _points(history: History, measured: Mapping[str, Mapping[str, float]]) -> dict[str, list[Point]]:
    """The values of each metric."""
    points: dict[str, list[Point]] = {}
    for call, _end in history.made_calls:
        for name, value in measured.get(call.call_id, {}).items():
            points.setdefault(name, []).append(Point(call.iteration, call.order, value, call.tool, call.call_id))
    for one in history.iterations.values():
        if one.script is not None and not one.script.claimed:
            for name, value in leaves(one.script.observed):
                points.setdefault(name, []).append(Point(one.index, LAST, value, "script", ""))
    return points


def _timeline(
    iterations: Sequence[Iteration], made: Sequence[tuple[CallIntended, CallSettled]]
) -> list[dict[str, Any]]:
    """The last iterations, each with the number of its calls."""
    calls = Counter([end.iteration for _call, end in made])
    rows: list[dict[str, Any]] = []
    for one in iterations[-MOST_ROWS:]:
        assert one.ended is not None  # noqa: S101 - the caller chose those
        rows.append(
            {
                "iteration_index": one.index,
                "verdict": one.ended.verdict,
                "verdict_reason": one.ended.reason,
                "started_at": iso(one.proposed.at) if one.proposed is not None else None,
                "ended_at": iso(one.ended.at),
                "calls": calls[one.index],
                "rationale": one.ended.rationale or (one.proposed.rationale if one.proposed is not None else None),
            }
        )
    return rows


def _metrics(state: MissionState, found: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    known = [one for one in state.mission.criteria if isinstance(one, MetricThreshold)]
    thresholds = {one.metric: one for one in sorted(known, key=lambda one: one.required)}  # the required one wins
    rows: dict[str, Any] = {}
    for name in sorted(found, key=lambda name: (name not in thresholds, name)):
        criterion = thresholds.get(name)
        source = criterion.source if criterion is not None else None
        matching = (point for point in found[name] if source_matches(source, point.tool))
        counted = sorted(matching, key=lambda point: point.place)
        if not counted:
            continue
        points = [(point.iteration, point.value) for point in counted]
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


def every_trial(history: History, state: MissionState) -> list[Trial]:
    """The trials of a mission, from its first to its last."""
    return _trials(state, history, _measured(history))


def _trials(state: MissionState, history: History, measured: Mapping[str, Mapping[str, float]]) -> list[Trial]:
    """Each call of a tool that gives metrics; the tool that a search calls is one, whether or not it did yet."""
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
        # A call that becomes a task is settled by whichever process finds its end, so only the clock knows its time.
        seconds=None if end is None else end.seconds or round(max(0.0, end.at - call.at), 3),
        started_at=iso(call.at),
        call_id=call.call_id,
        best=call.call_id == best_call,
        error=None if end is None or end.error is None else cut_text(end.error, LONGEST_ERROR),
    )


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
