"""The verdict of an iteration: a cascade over facts in which the first matching rule wins.

Also early warnings: a metric that never appears, a proposer that keeps failing in the same way.
Pure and total: the same facts always give the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never, cast

import msgspec

from pursuit.core.base_model import nearest
from pursuit.core.budgets import kept_for_checks
from pursuit.core.caps import CAPS
from pursuit.core.evaluate import out_of_reach, required_met
from pursuit.core.events import CompletionOrdered, CriterionResult, Facts, MissionWarned, Verdict
from pursuit.core.mission import EveryIteration, EveryN, EverySeconds, OnEvent
from pursuit.core.observe import source_matches
from pursuit.core.progress import figures, without_progress
from pursuit.core.state import SCRIPT_SOURCE, CallRecord, IterationRecord, MissionState, error_key

PROPOSER_FAILURES = 3
PATIENCE = 3
"""Iterations without a value before a warning, and equal failures before the mission ends."""
MAX_NAMES = 10
MAX_ERROR = 1_000
COMMANDS = "commands."


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A verdict with its reason and optional advice for the proposer."""

    verdict: Verdict
    reason: str
    rationale: str | None = None

    @property
    def final(self) -> bool:
        return self.verdict in ("complete", "terminate")


def decide(facts: Facts) -> Decision:
    """Applies the cascade, in the order of the specification."""
    if facts.operator_stop == "complete":
        return Decision("complete", "forced_complete", facts.operator_reason)
    if facts.operator_stop == "abort":
        return Decision("terminate", "user_abort", facts.operator_reason)
    if facts.checkpoint and facts.required_met:
        return Decision("complete", "criteria_met")
    if facts.never is not None:
        return Decision("terminate", "out_of_reach", f"{facts.never} can never be met.")
    if facts.cap is not None:
        return Decision("terminate", facts.cap)
    if facts.proposer_failures >= PROPOSER_FAILURES:
        return Decision("terminate", "proposer_failed", facts.proposer_error)
    if facts.threshold is not None and facts.no_progress >= facts.threshold:
        return Decision("terminate", "no_progress", facts.figures)
    if not facts.checkpoint:
        return Decision("continue", "cadence_skip")
    if facts.new_error is not None:
        return Decision("adjust", "heuristic_unproductive", f"New error: {facts.new_error}")
    if facts.threshold is not None and facts.same_calls and facts.no_progress >= _half(facts.threshold):
        advice = (
            f"The last three iterations made the same calls, and nothing improved for {facts.no_progress} checkpoints "
            f"(the mission ends at {facts.threshold}). Try something else."
        )
        return Decision("adjust", "heuristic_unproductive", advice)
    return Decision("continue", "in_progress")


def _half(threshold: int) -> int:
    return (threshold + 1) // 2


def reached_cap(state: MissionState, *, elapsed: float, iterations: int | None = None) -> str | None:
    """The reason for the first cap that is used up, or None."""
    for name, most in state.budget.items():
        if most == -1:
            continue
        match name:
            case "max_iterations":
                ahead = 1 if iterations is None else iterations - state.iteration_count
            case "max_wall_clock_seconds":
                ahead = max(0.0, elapsed - state.elapsed)
            case "max_tool_calls":
                ahead = kept_for_checks(state)
            case _:
                ahead = 0
        cap = CAPS[name]
        used = cap.own(state) + state.lent.get(name, 0) + ahead
        if most <= (round(used, 9) if cap.unit == "usd" else used):
            return cap.reason
    return None


def is_checkpoint(state: MissionState, *, now: float, cap: str | None) -> bool:
    """True if the open iteration is a checkpoint by its cadence, or because it is the last that fits."""
    if cap is not None or state.stop is not None:
        return True
    match state.mission.checkpoint_cadence:
        case EveryIteration():
            return True
        case EveryN(n=n):
            return (state.current_index + 1) % n == 0
        case EverySeconds(t=t):
            return state.checkpoint_at is None or not 0 <= now - state.checkpoint_at < t  # it may be set back
        case OnEvent(event_name=name):
            seen = state.events.find(name)
            return seen is not None and seen.iteration == state.current_index
        case _ as cadence:
            assert_never(cadence)


def facts_of(state: MissionState, results: Sequence[CriterionResult], *, checkpoint: bool, cap: str | None) -> Facts:
    """The input of the cascade, from the state at the end of its open iteration."""
    iteration = state.open
    no_progress, threshold = without_progress(state, results)
    shown = checkpoint and threshold is not None and no_progress >= max(1, _half(threshold))
    waits = state.mission.budget.on_exhausted == "wait"
    stop = None if state.stop is None else "complete" if isinstance(state.stop, CompletionOrdered) else "abort"
    failures, error = _proposer_failures(state)
    return Facts(
        checkpoint=checkpoint,
        required_met=checkpoint and required_met(state.mission.criteria, results),
        operator_stop=stop,
        operator_reason=state.stop.reason if state.stop is not None else None,
        cap=None if waits else cap,
        proposer_failures=failures,
        proposer_error=error,
        no_progress=no_progress,
        figures=figures(state, results, no_progress) if shown else None,
        threshold=threshold,
        same_calls=iteration is not None and state.stagnation is not None and _same_calls(state, iteration),
        new_error=None if iteration is None else _new_error(state, iteration),
        never=out_of_reach(state.mission.criteria, results) if checkpoint and state.gives_up else None,
    )


def _proposer_failures(state: MissionState) -> tuple[int, str | None]:
    """The number of consecutive failures of the proposer, and the last one; also counts equal failures of a script."""
    iteration = state.open
    if iteration is None or iteration.failed:
        return state.proposer_failures, iteration and "; ".join(iteration.failed)[:MAX_ERROR]
    return (0, None) if state.facts.failures is None else repeated_failure(state, iteration)


def _same_calls(state: MissionState, iteration: IterationRecord) -> bool:
    """True if this iteration and the two before it made equal sequences of calls."""
    known = state.sequences
    return len(known) > 1 and known[-1] == known[-2] == iteration.sequence()


def _new_error(state: MissionState, iteration: IterationRecord) -> str | None:
    for tool, error in iteration.errors():
        if error_key(tool, error) not in state.errors_seen:
            return f"{tool}: {error[:500]}"
    return None


def missing_metrics(state: MissionState, *, now: float) -> list[MissionWarned]:
    """A warning, given once, for each metric of a criterion that lacks a value after a few iterations."""
    if not state.unseen or (done := state.current_index + 1) < PATIENCE:
        return []
    warned = {name for event in state.raised for name in event.criteria}
    found: dict[tuple[str, str | None], list[str]] = {}
    for criterion in state.unseen:
        if criterion.criterion_id in warned or state.series.latest(criterion.metric, criterion.source) is not None:
            continue
        if _tried(state, criterion.source):
            found.setdefault((criterion.metric, criterion.source), []).append(criterion.criterion_id)
    return [
        MissionWarned(
            at=now,
            iteration=state.current_index,
            code="metric_missing",
            message=_missing(state, metric, source, done),
            criteria=ids,
        )
        for (metric, source), ids in found.items()
    ]


def _tried(state: MissionState, source: str | None) -> bool:
    """True if a matching source was called. The tool that a search calls at its end may still report the metric."""
    if state.facts.reports_metrics and source_matches(source, SCRIPT_SOURCE):
        return True
    if any(source_matches(source, last) and last not in state.succeeded for last in state.facts.later_tools):
        return False
    return any(source_matches(source, call.tool) for call in _recent_calls(state))


def _recent_calls(state: MissionState) -> Iterable[CallRecord]:
    for iteration in (*state.recent, state.open):
        if iteration is not None:
            yield from iteration.calls.values()


def _missing(state: MissionState, metric: str, source: str | None, done: int) -> str:
    seen = sorted(state.series.names())
    words = f"no value for `{metric}`{f' from {source}' if source else ''} after {done} iterations"
    if metric in seen:
        others = sorted({point.tool for point in state.series.points(metric)})
        return f"{words}; it comes from {', '.join(others)}, which does not match the criterion's source"
    if (note := _note(state, metric, source)) is not None:
        words = f"{words}; {note}"
    if not seen:
        return f"{words}; no metric has been reported yet"
    more = f" and {len(seen) - MAX_NAMES} more" if len(seen) > MAX_NAMES else ""
    return f"{words}; seen: {', '.join(f'`{name}`' for name in seen[:MAX_NAMES])}{more}{nearest(metric, seen)}"


def _note(state: MissionState, metric: str, source: str | None) -> str | None:
    for call in reversed(list(_recent_calls(state))):
        if source_matches(source, call.tool):
            for note in cast("list[Any]", _body(call).get("notes") or []):
                if isinstance(note, str) and note.startswith(f"metric {metric}: "):
                    return f"{call.tool}: {note.removeprefix(f'metric {metric}: ')}"
    return None


def repeated_failure(state: MissionState, iteration: IterationRecord) -> tuple[int, str | None]:
    """The number of consecutive equal failures of the operator's script or command up to now, and the failure.

    A command counts if it has never succeeded and a search, or a `repeat` without a pace, calls it: a command that
    polls may fail at first. A search always tries its whole first design, because a part of the space may be bad.
    """
    how, patience = _failure(state, iteration), state.facts.patience
    if how is None:
        return 0, None
    count = 1
    for before in reversed(state.recent):
        if _failure(state, before) != how:
            break
        count += 1
    if patience > PATIENCE and count >= PATIENCE:
        if state.tool_calls < patience:
            return PATIENCE - 1, how
        how = f"{how}; none of the {state.tool_calls} trials succeeded"
    return count, how


def _failure(state: MissionState, iteration: IterationRecord) -> str | None:
    made = [call for call in iteration.calls.values() if call.purpose != "check"]
    failed = [call for call in made if call.outcome == "failed"]
    if (not failed and iteration.script is None) or any(call.unapproved for call in made):
        return None
    whose = state.facts.failures
    if whose is None or (whose == "calls_without_pace" and state.mission.pace is not None):
        return None
    if whose == "script":
        error = None if iteration.script is None else iteration.script.error
        if error is None:
            return None
        return f"script: {_of_command(failed[-1]) if failed and failed[-1].tool in error else error[:MAX_ERROR]}"
    if not made or len(failed) < len(made):
        return None
    if any(not call.tool.startswith(COMMANDS) or call.tool in state.succeeded for call in made):
        return None
    ways = {_of_command(call) for call in made}
    return ways.pop() if len(ways) == 1 else None


def _of_command(call: CallRecord) -> str:
    """How a call failed, without details that vary between runs: exit code and last line of stderr of a command."""
    body = _body(call)
    if "exit_code" not in body:
        return f"{call.tool}: {(call.error or '')[:MAX_ERROR]}"
    lines = [one for one in cast("list[Any]", body.get("stderr_tail") or []) if isinstance(one, str) and one.strip()]
    last = f": {lines[-1].strip()[:MAX_ERROR]}" if lines else ""
    return f"{call.tool} ended with exit code {body['exit_code']}{last}"


def _body(call: CallRecord) -> Mapping[str, Any]:
    result = call.result
    body = cast("Mapping[str, Any]", result).get("structuredContent") if isinstance(result, Mapping) else None
    return cast("Mapping[str, Any]", body) if isinstance(body, Mapping) else {}
