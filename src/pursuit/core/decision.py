"""The verdict of an iteration: a cascade over facts in which the first rule that holds wins.

Pure and total: the same facts always give the same verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, assert_never

from pursuit.core.budgets import kept_for_checks
from pursuit.core.caps import CAPS
from pursuit.core.early_warnings import LONGEST, repeated_failure
from pursuit.core.evaluate import out_of_reach, required_met
from pursuit.core.events import CompletionOrdered, CriterionResult, Facts, Verdict
from pursuit.core.mission import EveryIteration, EveryN, EverySeconds, OnEvent
from pursuit.core.progress import figures, without_progress
from pursuit.core.state import IterationRecord, MissionState, error_key

PROPOSER_FAILURES = 3


class Decision(NamedTuple):
    """A verdict with its reason, and maybe advice for the proposer."""

    verdict: Verdict
    reason: str
    rationale: str | None = None

    @property
    def final(self) -> bool:
        """Whether the mission ends here."""
        return self.verdict in ("complete", "terminate")


def decide(facts: Facts) -> Decision:
    """The cascade, in the order of the specification."""
    if facts.operator_stop == "complete":
        return Decision("complete", "forced_complete", facts.operator_reason)
    if facts.operator_stop == "abort":
        return Decision("terminate", "user_abort", facts.operator_reason)
    if facts.checkpoint and facts.required_met:
        return Decision("complete", "criteria_met")
    if facts.never is not None:
        return Decision("terminate", "out_of_reach", f"{facts.never} can never be met any more.")
    if facts.cap is not None:
        return Decision("terminate", facts.cap)
    if facts.proposer_failures >= PROPOSER_FAILURES:
        return Decision("terminate", "proposer_failed", facts.proposer_error)
    if facts.threshold is not None and facts.no_progress >= facts.threshold:
        return Decision("terminate", "no_progress", facts.figures)
    if not facts.checkpoint:
        return Decision("continue", "cadence_skip")
    if (advice := _unproductive(facts)) is not None:
        return Decision("adjust", "heuristic_unproductive", advice)
    return Decision("continue", "in_progress")


def _unproductive(facts: Facts) -> str | None:
    """Why the proposer should change course, or None."""
    if facts.new_error is not None:
        return f"A new error came up: {facts.new_error}"
    if facts.threshold is None or not facts.same_calls:
        return None
    if facts.no_progress < _half(facts.threshold):
        return None
    return (
        f"The last three iterations made the same calls, and nothing improved for {facts.no_progress} checkpoints "
        f"(the mission ends at {facts.threshold}). Try something else."
    )


def _half(threshold: int) -> int:
    return (threshold + 1) // 2


def reached_cap(state: MissionState, *, elapsed: float, iterations: int | None = None) -> str | None:
    """The first cap that is used up, as the reason of a verdict, or None."""
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
    """Whether the open iteration is a checkpoint by its cadence, or because it is the last that fits."""
    if cap is not None or state.stop is not None:
        return True
    index = state.current_index
    match state.mission.checkpoint_cadence:
        case EveryIteration():
            return True
        case EveryN(n=n):
            return (index + 1) % n == 0
        case EverySeconds(t=t):
            return state.checkpoint_at is None or not 0 <= now - state.checkpoint_at < t  # a clock may be put back
        case OnEvent(event_name=name):
            seen = state.events.find(name)
            return seen is not None and seen.iteration == index
        case _ as cadence:
            assert_never(cadence)


def facts_of(state: MissionState, results: Sequence[CriterionResult], *, checkpoint: bool, cap: str | None) -> Facts:
    """Everything that the cascade needs, from the state at the end of its open iteration."""
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
        never=out_of_reach(state.mission.criteria, results) if checkpoint else None,
    )


def _proposer_failures(state: MissionState) -> tuple[int, str | None]:
    """How often in a row the proposer failed, and how it did last; equal failures of a script or command count too."""
    iteration = state.open
    if iteration is None or iteration.failed:
        return state.proposer_failures, iteration and "; ".join(iteration.failed)[:LONGEST]
    return repeated_failure(state, iteration)


def _same_calls(state: MissionState, iteration: IterationRecord) -> bool:
    """Whether this iteration and the two before it made equal sequences of calls."""
    known = state.sequences
    return len(known) > 1 and known[-1] == known[-2] == iteration.sequence()


def _new_error(state: MissionState, iteration: IterationRecord) -> str | None:
    for tool, error in iteration.errors():
        if error_key(tool, error) not in state.errors_seen:
            return f"{tool}: {error[:500]}"
    return None
