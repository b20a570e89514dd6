"""The verdict of an iteration: a cascade over facts, the first rule that holds wins.

Owns: the order of the rules. Pure and total: the same facts always give the same verdict.
"""

from __future__ import annotations

from typing import NamedTuple

from pursuit.model.events import Facts, Verdict

PROPOSER_FAILURES = 3


class Decision(NamedTuple):
    """A verdict with its reason, and a word to the proposer where there is one."""

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
        return Decision("terminate", "proposer_failed")
    if facts.threshold is not None and facts.no_progress >= facts.threshold:
        return Decision("terminate", "no_progress")
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
    half = (facts.threshold + 1) // 2
    if facts.no_progress < half:
        return None
    return (
        f"The last three iterations made the same calls, and nothing improved for {facts.no_progress} checkpoints "
        f"(the mission ends at {facts.threshold}). Try something else."
    )
