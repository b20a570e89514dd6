"""Attempts side by side: what each reached, and what it took.

Owns: the row of an attempt, and the order of a table. Pure.
Invariant: the best attempt comes first: what is feasible before what is not, then by the primary metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.core.attempts import AttemptState
from pursuit.core.report import iso
from pursuit.problems.manifest import Manifest
from pursuit.problems.replay import is_other_version


def attempt_row(
    problem: Manifest,
    state: AttemptState,
    spent: Mapping[str, Any] | None = None,
    *,
    version: str = "",
    mission_over: bool = False,
    now: float | None = None,
) -> dict[str, Any]:
    """One attempt as JSON; `spent` is what its mission used (tokens, cost), `version` the digest of today's judge.

    `seconds` has all the thinking in it, `seconds_from_first_call` is what `wall_seconds` bounds.
    """
    rows = () if state.scored is None else state.scored.rows
    first = next((row for row in rows if row.metric == problem.primary.name), None)
    opened, taken = state.opened, state.taken
    return {
        "problem_id": problem.problem_id,
        "file": str(problem.path),
        "attempt_id": state.attempt_id,
        "label": opened.label or opened.by,
        "mission": opened.mission,
        "status": status_of(state, mission_over=mission_over, now=now),
        "metric": problem.primary.name,
        "direction": problem.primary.direction,
        "targets": targets_of(problem),
        "value": None if first is None else first.value,
        "unit": problem.primary.unit,
        "feasible": None if first is None else first.feasible,
        "solved": False if state.scored is None else state.scored.solved,
        "error": None if state.scored is None else state.scored.error,
        "fate_unknown": taken is not None and bool(taken.unknown),
        "other_version": _is_other(problem, state, version),
        "calls": state.calls,
        "evaluations": state.evaluations,
        "failed_calls": state.failed_calls,
        "spent_budgets": spent_budgets(state, now),
        "seconds": None if taken is None else max(0.0, taken.at - opened.at),
        "seconds_from_first_call": None if taken is None else max(0.0, taken.at - (state.began or opened.at)),
        "tokens": None if spent is None else spent.get("tokens"),
        "cost_usd": None if spent is None else spent.get("cost_usd"),
        "started_at": iso(opened.at),
        "score": list(msgspec.to_builtins(rows)),
        "series": [
            [number, numbers[problem.primary.name]] for number, numbers in state.series if _has(problem, numbers)
        ],
    }


def targets_of(problem: Manifest) -> dict[str, float]:
    """What each metric must reach to count as solved, where that is said."""
    return {one.name: one.target for one in problem.scorer.metrics if one.target is not None}


def status_of(state: AttemptState, *, mission_over: bool, now: float | None = None) -> str:
    """How far it is; `ended` where nothing was submitted, and nobody is left to, or no time, or no further try."""
    if state.status != "open":
        return state.status
    limits, endless = state.opened.limits, math.inf
    overdrawn = state.calls > limits.get("calls", endless) or state.evaluations > limits.get("evaluations", endless)
    return "ended" if mission_over or overdrawn or "wall_seconds" in spent_budgets(state, now) else "open"


def spent_budgets(state: AttemptState, now: float | None = None) -> list[str]:
    """The budgets that refused a call, or have room for none; time runs until there is a submission."""
    limits = state.opened.limits
    until = state.taken.at if state.taken is not None else now
    used: dict[str, float] = {"calls": state.calls, "evaluations": state.evaluations}
    if until is not None and state.began is not None:
        used["wall_seconds"] = until - state.began
    full = {name for name, amount in used.items() if name in limits and amount >= limits[name]}
    return sorted({*state.spent, *full})


def _is_other(problem: Manifest, state: AttemptState, version: str) -> bool:
    if state.opened.manifest != problem.digest:
        return True
    return bool(version) and is_other_version(state, version)


def _has(problem: Manifest, numbers: Mapping[str, float]) -> bool:
    return problem.primary.name in numbers


def problem_row(problem: Manifest, attempts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A problem with the attempts at it as JSON; for operators, since it tells the levels of the scorer."""
    primary = problem.primary
    return {
        "problem_id": problem.problem_id,
        "title": problem.title,
        "metric": primary.name,
        "unit": primary.unit,
        "direction": primary.direction,
        "target": primary.target,
        "best_known": primary.best_known,
        "attempts": ranked(attempts),
    }


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one problem, the best first; what has no score comes last, in the order given."""
    return sorted(rows, key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    value = row["value"]
    if value is None:
        return True, True, 0.0
    return False, not row["feasible"], -value if row["direction"] == "maximize" else value
