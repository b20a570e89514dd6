"""Why a drafted criterion decides nothing: it is met whatever happens, or can never be met.

Owns: the reasons that can be read off a criterion, or off several together. Pure; `trials` tries expressions out.
Invariant: a criterion without an objection can come out both ways, as far as its own words tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pursuit.drafting.commands import ending
from pursuit.drafting.measures import can_be_negative, possible
from pursuit.model.criteria import (
    AnyCriterion,
    Check,
    Comparison,
    Count,
    EventSeen,
    MetricThreshold,
    MetricTrend,
    Predicate,
    ToolCallSucceeded,
    describe,
)
from pursuit.model.patterns import Unfinished, find

_EXIT_CODES = range(256)


def objection(criterion: AnyCriterion) -> str | None:
    """Why this criterion alone decides nothing, or None."""
    match criterion:
        case MetricThreshold():
            return _of_threshold(criterion)
        case Check():
            return _of_check(criterion)
        case MetricTrend() | EventSeen() | ToolCallSucceeded() | Predicate():
            return None


def clashes(criteria: Sequence[AnyCriterion]) -> dict[str, str]:
    """Which criteria say what an earlier one says, or what no value can meet together with the earlier ones, by id."""
    found: dict[str, str] = {}
    kept: list[AnyCriterion] = []
    for criterion in criteria:
        same = next((one for one in kept if _essence(one) == _essence(criterion)), None)
        if same is not None:
            found[criterion.criterion_id] = f"it says the same as {same.criterion_id!r}"
        elif isinstance(criterion, MetricThreshold) and not _together(criterion, kept):
            others = ", ".join(describe(one) for one in kept if _same_metric(one, criterion))
            found[criterion.criterion_id] = f"no value meets it together with {others}"
        else:
            kept.append(criterion)
    return found


def _essence(criterion: AnyCriterion) -> Mapping[str, object]:
    return criterion.model_dump(exclude={"criterion_id", "required"})


def _same_metric(one: AnyCriterion, other: MetricThreshold) -> bool:
    return isinstance(one, MetricThreshold) and (one.metric, one.source) == (other.metric, other.source)


def _together(criterion: MetricThreshold, kept: Iterable[AnyCriterion]) -> bool:
    """Whether some value meets this threshold and those before it on the same metric."""
    all_of_it = [one for one in kept if isinstance(one, MetricThreshold) and _same_metric(one, criterion)]
    low, high = -math.inf, math.inf
    for one in (*all_of_it, criterion):
        low = max(low, _least(one.op, one.target))
        high = min(high, _most(one.op, one.target))
    return low <= high


def _least(op: Comparison, target: float) -> float:
    """The least value that meets a comparison."""
    match op:
        case ">":
            return math.nextafter(target, math.inf)
        case ">=" | "==":
            return target
        case _:
            return -math.inf


def _most(op: Comparison, target: float) -> float:
    match op:
        case "<":
            return math.nextafter(target, -math.inf)
        case "<=" | "==":
            return target
        case _:
            return math.inf


def _of_threshold(criterion: MetricThreshold) -> str | None:
    if criterion.op == "!=":
        return f"any value but {criterion.target:g} meets it; say which values are good"
    low, high = possible(criterion.metric)
    if criterion.op == ">=" and criterion.target == 0 and not can_be_negative(criterion.metric):
        low = 0
    return _of_numbers(criterion.metric, criterion.op, criterion.target, low, high)


def _of_numbers(what: str, op: Comparison, target: float, low: float, high: float) -> str | None:
    """Why a comparison on a range comes out one way only."""
    says = f"{what} {op} {target:g}"
    bounds = f"{what} is never below {low:g}" + ("" if high == math.inf else f" and never above {high:g}")
    if _least(op, target) <= low and high <= _most(op, target):
        return f"{says} is always true: {bounds}"
    if _least(op, target) > high or _most(op, target) < low:
        return f"{says} can never be true: {bounds}"
    return None


def _of_check(criterion: Check) -> str | None:
    expect = criterion.expect
    if expect.exit_code is not None and expect.exit_code not in _EXIT_CODES:
        return f"no command ends with the exit code {expect.exit_code}"
    if expect.text is not None and _matches_nothing(expect.text):
        return f"the pattern {expect.text!r} is found in any text, also in none"
    if expect.count is not None:
        why = _of_count(expect.count)
        if why is not None:
            return why
    looks = (expect.text, expect.count, expect.file, expect.predicate)
    if criterion.command is not None and all(one is None for one in looks):
        return _of_command(criterion.command, expect.exit_code or 0)
    return None


def _of_count(count: Count) -> str | None:
    if _matches_nothing(count.pattern):
        return f"the pattern {count.pattern!r} is found in any text, also in none"
    return _of_numbers("a count", count.op, count.target, 0, math.inf)


def _matches_nothing(pattern: str) -> bool:
    try:
        return find(pattern, "") is not None
    except Unfinished:
        return False


def _of_command(argv: Sequence[str], wanted: int) -> str | None:
    ends = ending(argv)
    if ends is None or (ends and wanted > 1):
        return None
    says = "always" if bool(ends) == bool(wanted) else "never"
    return f"the command {' '.join(argv)!r} {says} ends with the exit code {wanted}, whatever the mission has done"
