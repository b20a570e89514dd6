"""An attempt judged again from its log, without its server.

Owns: what is judged again and how two scores are compared. Invariant: nothing is asked but the judge itself; a judge
that is a server's tool is replaced by what it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from pursuit.core.attempts import AttemptState, ScoreRow, submission_digest
from pursuit.errors import InvalidArgument
from pursuit.problems.manifest import Manifest
from pursuit.problems.rows import CannotScore
from pursuit.problems.scoring import Expressions, Judged, Submitted, judge
from pursuit.problems.versions import judging_digest

ANOTHER_VERSION = "it was judged by another version of the problem's judge or files than the one here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came out, and whether it is what the ledger says; `same` is None where it says nothing."""

    attempt: AttemptState
    rows: tuple[ScoreRow, ...]
    solved: bool
    same: bool | None
    notes: tuple[str, ...] = ()
    judged: Judged | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """It as JSON."""
        return {
            "attempt_id": self.attempt.attempt_id,
            "problem_id": self.attempt.opened.problem_id,
            "score": list(msgspec.to_builtins(self.rows)),
            "solved": self.solved,
            "same": self.same,
            "notes": list(self.notes),
        }


async def replay(
    problem: Manifest, state: AttemptState, expressions: Expressions, *, serve: str | None = None
) -> Replayed:
    """Judges the submission of an attempt again; raises `InvalidArgument` if there is none or it cannot be judged.

    `serve` is the command that opens the attempt again, as whoever asked can run it.
    """
    own = f"serving it again (`to_mcp_server(attempt_id={state.attempt_id!r}, …)`)"
    again = own if serve is None else f"`{serve}`"
    taken = state.taken
    if taken is None:
        why = "has no submission to judge"
        if state.claimed is not None:
            why = f"handed something in and was cut off before the server answered; {again} settles it"
        raise InvalidArgument(f"{state.attempt_id} {why}", attempt_id=state.attempt_id)
    notes = _versions(problem, state)
    intact = submission_digest(taken.submission) == taken.digest
    if not intact:
        notes.append("the submission does not have the hash of its receipt")
    if taken.unknown:
        notes.append(f"nobody knows whether the problem's server took it: {taken.unknown}")
    recorded = state.scored
    evidence = None if recorded is None else recorded.evidence
    if problem.scorer.kind == "tool" and evidence is None:
        said = "has not said anything yet" if recorded is None else f"failed: {recorded.error}"
        raise InvalidArgument(f"{state.attempt_id}: the tool that judges {said}; {again} asks it")
    try:
        found = await judge(problem, Submitted.of(taken), expressions=expressions, evidence=evidence)
    except CannotScore as error:
        raise InvalidArgument(f"{state.attempt_id} cannot be judged again: {error}") from None
    rows = found.score.rows
    if recorded is None or recorded.error is not None:
        failed = "" if recorded is None else f": the judge failed ({recorded.error})"
        notes.append(f"the ledger had no score of it{failed}")
        same = None if intact else False
    else:
        same = intact and rows == recorded.rows and found.score.solved == recorded.solved
    return Replayed(attempt=state, rows=rows, solved=found.score.solved, same=same, notes=tuple(notes), judged=found)


def _versions(problem: Manifest, state: AttemptState) -> list[str]:
    """What is said of a judge that is not the one of then."""
    if state.opened.manifest != problem.digest:
        return ["the problem's manifest is not the one that the attempt was made with"]
    return [ANOTHER_VERSION] if is_other_version(state, judging_digest(problem)) else []


def is_other_version(state: AttemptState, current: str) -> bool:
    """Whether the attempt was judged (or, unjudged, begun) with another version than the current one.

    Of attempts older than this digest nothing is known, and nothing is said.
    """
    judge = state.scored.judge if state.scored is not None and state.scored.judge else state.opened.judge
    return bool(judge) and judge != current
