"""The budgets of an attempt: which is spent, and the words for it.

Owns: when a budget leaves no room. Pure. Invariant: a budget that leaves no room for a call is named; the end of the
time is the end of the attempt, that of calls and evaluations is not.
"""

from __future__ import annotations

from pursuit.core.attempts import AttemptState, BudgetName
from pursuit.errors import BudgetExhausted
from pursuit.problems.manifest import Limits, plain_number

Spent = tuple[BudgetName, float]


def exhausted(budget: BudgetName, limit: float, *, closed: bool = False) -> BudgetExhausted:
    """The error that names a budget; `closed` if its end is the end of the attempt, as that of the time is."""
    rest = "the attempt is over" if closed or budget == "wall_seconds" else "submit_final is still open"
    return BudgetExhausted(f"the budget {budget} ({plain_number(limit)}) is spent; {rest}", budget=budget, limit=limit)


def spent_for(budget: Limits, state: AttemptState, elapsed: float, *, evaluation: bool) -> Spent | None:
    """The first budget that leaves no room for another call."""
    if budget.wall_seconds is not None and elapsed >= budget.wall_seconds:
        return "wall_seconds", budget.wall_seconds
    if budget.calls is not None and state.calls >= budget.calls:
        return "calls", budget.calls
    if evaluation and budget.evaluations is not None and state.evaluations >= budget.evaluations:
        return "evaluations", budget.evaluations
    return None


def overdrawn(budget: Limits, state: AttemptState) -> Spent | None:
    """The budget that was spent before a server refused a submission: a further one would be an answer for nothing."""
    if budget.calls is not None and state.calls > budget.calls:
        return "calls", budget.calls
    if budget.evaluations is not None and state.evaluations > budget.evaluations:
        return "evaluations", budget.evaluations
    return None
