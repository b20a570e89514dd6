"""Why a drafted criterion decides nothing: it is met whatever happens, or can never be met.

Owns: the reasons that can be read off a criterion, or off several together. Pure; `trials` tries expressions out.
Invariant: a criterion without an objection can come out both ways, as far as its own words tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

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

_PERCENT = frozenset({"percent", "pct", "percentage"})
_UNBOUNDED = frozenset({"growth", "change", "increase", "decrease", "return", "improvement", "gain", "margin", "drift"})
_NEVER_NEGATIVE = frozenset(
    re.findall(
        r"\w+",
        """
    ms us s seconds minutes hours days kb mb gb bytes rps latency duration time size count errors failures warnings bugs
    violations crashes conflicts vulnerabilities regressions leaks timeouts memory coverage accuracy
    """,
    )
)
_ALWAYS_WELL = frozenset({"true", ":", "echo", "printf", "pwd", "date", "sleep"})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
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
    low, high = _range(criterion.metric)
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


def _range(metric: str) -> tuple[float, float]:
    """What values a metric can have, as far as its name tells."""
    words = frozenset(metric.lower().replace(".", "_").replace("-", "_").split("_"))
    if words & _UNBOUNDED:
        return -math.inf, math.inf
    if words & _PERCENT:
        return 0, 100
    return (0 if words & _NEVER_NEGATIVE else -math.inf), math.inf


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
    words = list(argv)
    if len(words) == 3 and PurePath(words[0]).name in _SHELLS and words[1] == "-c":
        words = words[2].split()
    name = PurePath(words[0]).name if words else "true"
    if name in _ALWAYS_WELL or words == ["exit", "0"]:
        ends = 0
    elif name == "false" and len(words) == 1:
        ends = 1
    else:
        return None
    says = "always" if ends == wanted else "never"
    return f"the command {' '.join(argv)!r} {says} ends with the exit code {wanted}, whatever the mission has done"
