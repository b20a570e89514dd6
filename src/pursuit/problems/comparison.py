"""Compares attempts: a row for each, their order, and their scores judged again from the log.

Invariant: the best attempt comes first: feasible before infeasible, then by the primary metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import msgspec

from pursuit.core.attempts import AttemptState, ScoreRow, submission_digest
from pursuit.core.report import iso
from pursuit.errors import InvalidArgument
from pursuit.problems.manifest import Manifest
from pursuit.problems.scoring import CannotScore, Judged, Submitted, judge
from pursuit.problems.secrecy import judging_digest
from pursuit.sandbox.sandbox import Sandbox

ANOTHER_VERSION = "it was judged by another version of the problem's judge or files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A score judged again; `same` tells if it equals the recorded score, None without a recorded score."""

    attempt: AttemptState
    judged: Judged
    same: bool | None
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[ScoreRow, ...]:
        return self.judged.rows

    @property
    def solved(self) -> bool:
        return self.judged.solved

    def as_dict(self) -> dict[str, Any]:
        return {
            "attempt_id": self.attempt.attempt_id,
            "problem_id": self.attempt.opened.problem_id,
            "score": list(msgspec.to_builtins(self.rows)),
            "solved": self.solved,
            "isolated": self.judged.isolated,
            "same": self.same,
            "notes": list(self.notes),
        }


async def replay(problem: Manifest, state: AttemptState, expressions: Sandbox, *, serve: str | None = None) -> Replayed:
    """Judges the submission of an attempt again; raises `InvalidArgument` if that is not possible.

    No server is called: if a server's tool judges, its recorded evidence is scored instead. `serve` is the command
    with which the caller can open the attempt again.
    """
    own = f"serving it again (`to_mcp_server(attempt_id={state.attempt_id!r}, …)`)"
    again = own if serve is None else f"`{serve}`"
    taken = state.taken
    if taken is None:
        why = "lacks a submission to judge"
        if state.claimed is not None:
            why = f"was interrupted before the server answered its submission; {again} settles it"
        raise InvalidArgument(f"{state.attempt_id} {why}", attempt_id=state.attempt_id)
    notes = _versions(problem, state)
    intact = submission_digest(taken.submission) == taken.digest
    if not intact:
        notes.append("the submission does not have the hash of its receipt")
    if taken.unknown:
        notes.append(f"the problem's server may or may not have accepted it: {taken.unknown}")
    recorded = state.scored
    evidence = None if recorded is None else recorded.evidence
    if problem.scorer.kind == "tool" and evidence is None:
        said = "has not answered yet" if recorded is None else f"failed: {recorded.error}"
        raise InvalidArgument(f"{state.attempt_id}: the judging tool {said}; {again} calls it")
    try:
        found = await judge(problem, Submitted.of(taken), expressions=expressions, evidence=evidence)
    except CannotScore as error:
        raise InvalidArgument(f"{state.attempt_id} cannot be judged again: {error}") from None
    if recorded is None or recorded.error is not None:
        failed = "" if recorded is None else f": the judge failed ({recorded.error})"
        notes.append(f"the ledger does not contain its score{failed}")
        same = None if intact else False
    else:
        same = intact and (found.rows, found.solved) == (recorded.rows, recorded.solved)
    return Replayed(attempt=state, judged=found, same=same, notes=tuple(notes))


def _versions(problem: Manifest, state: AttemptState) -> list[str]:
    """Notes on differences between the judge of the attempt and the current judge."""
    if state.opened.manifest != problem.digest:
        return ["the problem's manifest has changed since the attempt"]
    return [ANOTHER_VERSION] if is_other_version(state, judging_digest(problem)) else []


def is_other_version(state: AttemptState, current: str) -> bool:
    """True if the attempt was judged (or, unjudged, begun) with another version than the current one.

    False for attempts from before this digest was recorded.
    """
    judge = state.scored.judge if state.scored is not None and state.scored.judge else state.opened.judge
    return bool(judge) and judge != current


def attempt_row(
    problem: Manifest,
    state: AttemptState,
    spent: Mapping[str, Any] | None = None,
    *,
    version: str = "",
    mission_over: bool = False,
    now: float | None = None,
) -> dict[str, Any]:
    """One attempt as JSON; `spent` is its mission's use of budget, `version` the digest of the current judge.

    `seconds` includes all thinking; `wall_seconds` limits `seconds_from_first_call`. A repository without a server has
    no tools to call.
    """
    has_calls = problem.repository is None or problem.server is not None
    rows = () if state.scored is None else state.scored.rows
    first = next((row for row in rows if row.metric == problem.primary.name), None)
    opened, taken = state.opened, state.taken
    return {
        "problem_id": problem.problem_id,
        "file": str(problem.path),
        "attempt_id": state.attempt_id,
        "label": opened.label or opened.by,
        "number": opened.number,
        "mission": opened.mission,
        "status": status_of(state, mission_over=mission_over, now=now),
        "metric": problem.primary.name,
        "direction": problem.primary.direction,
        "targets": targets_of(problem),
        "value": None if first is None else first.value,
        "unit": problem.primary.unit,
        "feasible": None if first is None else first.feasible,
        "solved": False if state.scored is None else state.scored.solved,
        "isolated": None if state.scored is None else state.scored.isolated,
        "error": None if state.scored is None else state.scored.error,
        "fate_unknown": taken is not None and bool(taken.unknown),
        "other_version": opened.manifest != problem.digest or (bool(version) and is_other_version(state, version)),
        "turns": None if spent is None else spent.get("iterations"),
        "calls": state.calls if has_calls else None,
        "evaluations": state.evaluations if has_calls else None,
        "failed_calls": state.failed_calls,
        "spent_budgets": spent_budgets(state, now),
        "seconds": None if taken is None else max(0.0, taken.at - opened.at),
        "seconds_from_first_call": (
            max(0.0, taken.at - (state.began or opened.at)) if taken is not None and has_calls else None
        ),
        "tokens": None if spent is None else spent.get("tokens"),
        "cost_usd": None if spent is None else spent.get("cost_usd"),
        "started_at": iso(opened.at),
        "score": list(msgspec.to_builtins(rows)),
        "series": [
            [number, numbers[problem.primary.name]]
            for number, numbers in state.series
            if problem.primary.name in numbers
        ],
    }


def targets_of(problem: Manifest) -> dict[str, float]:
    return {one.name: one.target for one in problem.scorer.metrics if one.target is not None}


def status_of(state: AttemptState, *, mission_over: bool, now: float | None = None) -> str:
    """The attempt's status; `ended` if nothing was submitted and the mission, the time or the budget is over."""
    if state.status != "open":
        return state.status
    limits, endless = state.opened.limits, math.inf
    overdrawn = state.calls > limits.get("calls", endless) or state.evaluations > limits.get("evaluations", endless)
    return "ended" if mission_over or overdrawn or "wall_seconds" in spent_budgets(state, now) else "open"


def spent_budgets(state: AttemptState, now: float | None = None) -> list[str]:
    """The budgets that refused a call or are used up; time runs until there is a submission."""
    limits = state.opened.limits
    until = state.taken.at if state.taken is not None else now
    used: dict[str, float] = {"calls": state.calls, "evaluations": state.evaluations}
    if until is not None and state.began is not None:
        used["wall_seconds"] = until - state.began
    full = {name for name, amount in used.items() if name in limits and amount >= limits[name]}
    return sorted({*state.spent, *full})


def problem_row(problem: Manifest, attempts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    primary = problem.primary
    return {
        "problem_id": problem.problem_id,
        "title": problem.title,
        "metric": primary.name,
        "unit": primary.unit,
        "direction": primary.direction,
        "target": primary.target,
        "best_known": primary.best_known,
        "attempts": sorted(attempts, key=_rank),
        "agents": agents_of(attempts),
    }


PASS_AT = (1, 2, 3, 5, 10, 20, 50, 100)


def agents_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Statistics of the attempts of each agent (`label`), the agent with the best mean first.

    Running attempts are excluded. Mean, standard error and best are over the feasible scores. `pass_at` is the chance
    that at least one of k finished attempts, drawn at random, solves the problem.
    """
    over: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] != "open":
            over.setdefault(row["label"], []).append(row)
    found = [_agent(label, mine) for label, mine in over.items()]
    sign = -1.0 if rows and rows[0]["direction"] == "maximize" else 1.0
    return sorted(found, key=lambda one: math.inf if one["mean"] is None else sign * one["mean"])


def _agent(label: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [row["value"] for row in rows if row["value"] is not None and row["feasible"]]
    solved, count = sum(row["solved"] for row in rows), len(rows)
    best = max if rows[0]["direction"] == "maximize" else min
    return {
        "label": label,
        "attempts": count,
        "feasible": len(values),
        "solved": solved,
        "mean": fmean(values) if values else None,
        "standard_error": stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
        "best": best(values) if values else None,
        "pass_at": {str(k): 1 - math.comb(count - solved, k) / math.comb(count, k) for k in PASS_AT if k <= count},
    }


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """The sort key: the best first, attempts without a score last, in the given order."""
    value = row["value"]
    if value is None:
        return True, True, 0.0
    return False, not row["feasible"], -value if row["direction"] == "maximize" else value
