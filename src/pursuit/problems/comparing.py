"""Attempts side by side: what each reached, and what it took.

Owns: the row of an attempt, and the order of a table. Pure.
Invariant: the best attempt comes first: what is feasible before what is not, then by the primary metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.model.problems import AttemptState
from pursuit.model.report import iso
from pursuit.problems.manifest import Manifest
from pursuit.problems.replay import is_other_version


def attempt_row(
    problem: Manifest, state: AttemptState, spent: Mapping[str, Any] | None = None, *, version: str = ""
) -> dict[str, Any]:
    """One attempt as JSON; `spent` is what its mission used (tokens, cost), `version` the digest of today's judge."""
    rows = () if state.scored is None else state.scored.rows
    first = rows[0] if rows else None
    opened, taken = state.opened, state.taken
    return {
        "problem_id": problem.problem_id,
        "attempt_id": state.attempt_id,
        "label": opened.label or opened.by,
        "mission": opened.mission,
        "status": state.status,
        "metric": problem.primary.name,
        "direction": problem.primary.direction,
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
        "spent_budgets": sorted(state.spent),
        "seconds": None if taken is None else max(0.0, taken.at - (opened.at if state.began is None else state.began)),
        "tokens": None if spent is None else spent.get("tokens"),
        "cost_usd": None if spent is None else spent.get("cost_usd"),
        "started_at": iso(opened.at),
        "score": list(msgspec.to_builtins(rows)),
        "series": [
            [number, numbers[problem.primary.name]] for number, numbers in state.series if _has(problem, numbers)
        ],
    }


def _is_other(problem: Manifest, state: AttemptState, version: str) -> bool:
    if state.opened.manifest != problem.digest:
        return True
    return bool(version) and is_other_version(state, version)


def _has(problem: Manifest, numbers: Mapping[str, float]) -> bool:
    return problem.primary.name in numbers


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one problem, the best first; what has no score comes last, in the order given."""
    return sorted(rows, key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    value = row["value"]
    if value is None:
        return True, True, 0.0
    return False, not row["feasible"], -value if row["direction"] == "maximize" else value
