"""How an attempt at a problem ended, wherever its mission was driven.

Owns: which attempt a mission is, and the words on why it came to what it came to. Judges nothing.
Invariant: nothing of a score is told before the mission has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pursuit.core.attempts import AttemptState
from pursuit.core.criteria import Check
from pursuit.core.mission import Mission
from pursuit.errors import AttemptNotFound
from pursuit.problems.attempts import is_attempt, load_attempt
from pursuit.problems.comparison import spent_budgets
from pursuit.runtime import Runtime
from pursuit.surfaces.cli import show, show_problems
from pursuit.surfaces.cli.options import Common
from pursuit.surfaces.cli.screen import Screen

UNSOLVED = "what was submitted does not solve it, and there is one submission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt whose mission has ended; `problem` is the word that the command line knows it by."""

    state: AttemptState
    status: Mapping[str, Any]
    report: Mapping[str, Any]
    problem: str

    def as_dict(self) -> dict[str, Any]:
        """What programs are told of it."""
        scored = self.state.scored
        return {
            "attempt_id": self.state.attempt_id,
            "problem_id": self.state.opened.problem_id,
            "status": self.state.status,
            "solved": scored is not None and scored.solved,
            "score": [] if scored is None else list(msgspec.to_builtins(scored.rows)),
            "error": None if scored is None else scored.error,
            "spent_budgets": spent_budgets(self.state),
        }

    def tell(self, screen: Screen) -> None:
        """The score with all that goes with it, for people."""
        screen.fact("attempt", self.state.attempt_id)
        show_problems.score(screen, self.as_dict(), {})
        self.explain(screen)

    def explain(self, screen: Screen) -> None:
        """Why it is not solved, which budgets are spent, and where it is compared."""
        if self.status["status"] != "completed":
            screen.fact("ended", why(self.status, self.report))
        if budgets := spent_budgets(self.state):
            screen.fact("spent", ", ".join(budgets))

    def next_step(self, said: Common) -> str:
        """Where it stands beside others."""
        return f"compare it: {said.command('problem', 'compare', self.problem)}"


async def ended_attempt(runtime: Runtime, status: Mapping[str, Any]) -> Ended | None:
    """The attempt that an ended mission was; None if it has not ended, or is about something else."""
    if status["status"] not in ("completed", "terminated"):
        return None
    mission_id: str = status["session_id"]
    state = await runtime.service.state(mission_id)
    name = "" if state.file is None else Path(state.file).stem
    if not is_attempt(name):
        return None
    try:
        attempt = await load_attempt(runtime.service.ledger, name)
    except AttemptNotFound:
        return None
    if attempt.opened.mission != mission_id:
        return None
    problem = show_problems.problem_word(_judged_by(state.mission), attempt.opened.problem_id)
    return Ended(state=attempt, status=status, report=await runtime.service.report(mission_id), problem=problem)


def _judged_by(mission: Mission) -> Path | None:
    for criterion in mission.criteria:
        words = criterion.command or () if isinstance(criterion, Check) else ()
        if "--problem" in words[:-1]:
            return Path(words[words.index("--problem") + 1])
    return None


def why(status: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """One sentence on why the mission of an attempt ended without having solved it."""
    reason = status.get("verdict_reason")
    words = UNSOLVED if reason == "out_of_reach" else show.why(status)
    said = [row["message"] for row in report["errors"] if row["tool"] == status.get("proposer")]
    if reason == "proposer_failed" and said:
        words = f"{words.removesuffix('.')}: {said[-1]}"
    refused = [row for row in report["refused"] if row["outcome"] == "denied"]
    if not refused:
        return words
    count = len(refused)
    return f"{words} {count} call{' was' if count == 1 else 's were'} denied: {refused[-1]['reason']}"
