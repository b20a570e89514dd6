"""Formats single values of a report: text, numbers, durations, times, JSON, the reason for a mission's status.

Every function accepts any JSON value and returns text that can be stored as UTF-8, or None; none raises. The text is
not escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pursuit.core.caps import CAPS, SHOWN, BudgetUse
from pursuit.core.state import FOR_PROVIDERS
from pursuit.core.truncate import clean, line

if TYPE_CHECKING:
    from pursuit.core.best import BestPoint
    from pursuit.core.report import CriterionRow, Status

_MAX_JSON = 600
_DIGITS, _ALL_DIGITS = 7, 17

_REACHED = {
    "count": "The remaining {} are too few to continue.",
    "seconds": "The time budget is used up.",
    "usd": "The remaining money is not enough to continue.",
}
_REASONS = {
    **{cap.reason: _REACHED[cap.unit].format(cap.label.lower()) for cap in CAPS.values()},
    "max_iterations": "The iteration budget is used up.",
    "criteria_met": "Every required criterion is met.",
    "forced_complete": "It was marked completed.",
    "user_abort": "The operator stopped it.",
    "proposer_failed": "The proposer failed three times in a row.",
    "proposer_done": "The proposer has nothing more to try.",
    "out_of_reach": "A required check can never be met.",
    "no_progress": "It stopped making progress.",
    "cadence_skip": "The last iteration was not a checkpoint.",
    "heuristic_unproductive": "The last iterations were unproductive.",
    "in_progress": "It has not ended yet.",
}

_SIGNS = {"<=": "\u2264", ">=": "\u2265", "!=": "\u2260", "==": "="}


def sign(op: str) -> str:
    """A comparison operator as a person writes it."""
    return _SIGNS.get(op, op)


def text(value: Any) -> str:
    """The value as text without unprintable characters; None becomes empty, and other types become JSON."""
    if value is None:
        return ""
    raw = value if isinstance(value, str) else _json(value)
    return clean(raw.replace("\r\n", "\n").replace("\r", "\n"))


def number(value: Any) -> float | None:
    """A finite number, or None. True is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def figure(value: Any, level: float | None = None) -> str:
    """A number in at most seven digits, with thousands separators; a dash for none.

    With a `level` it gets enough digits to stay on its side, so that a met threshold never looks missed.
    """
    found = number(value)
    if found is None:
        return "\u2013"
    for digits in range(_DIGITS, _ALL_DIGITS):
        shown = _rounded(found, digits)
        if level is None or _side(float(shown.replace(",", "")), level) == _side(found, level):
            return shown
    return _rounded(found, _ALL_DIGITS)


class Gauge(NamedTuple):
    """One part of the budget: used amount, cap and rest. `share` is 0 to 1, None without a cap."""

    label: str
    used: str
    limit: str | None
    left: str | None
    share: float | None


def gauges(budget: BudgetUse) -> Iterator[Gauge]:
    """Each part of a budget that has a cap or was used."""
    for cap in SHOWN:
        use = budget.caps[cap.name]
        if use.limit is not None or use.used != 0:
            used, limit, left = (
                None if one is None else amount(one, cap.unit) for one in (use.used, use.limit, use.left)
            )
            yield Gauge(cap.label, used or "unknown", None if used is None else limit, left, use.share)


def amount(value: Any, unit: str) -> str:
    return span(value) if unit == "seconds" else f"${figure(value)}" if unit == "usd" else figure(value)


def stated(value: Any) -> str:
    """A number with all its digits, such as a target; a dash for none."""
    found = number(value)
    return "\u2013" if found is None else repr(found).removesuffix(".0")


def _rounded(found: float, digits: int) -> str:
    if found == 0:
        return "0"
    if not 1e-4 <= abs(found) < 1e9:
        return f"{found:.{digits}g}"
    if found == int(found):
        return f"{found:,.0f}"
    places = max(0, min(digits, digits - 1 - math.floor(math.log10(abs(found)))))
    text = f"{found:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def _side(found: float, level: float) -> int:
    return (found > level) - (found < level)


def seconds(value: Any) -> str:
    """Seconds in about three digits, for comparison in a column; a dash for none."""
    found = number(value)
    if found is None:
        return "\u2013"
    places = 3 if found < 1 else 2 if found < 10 else 1 if found < 100 else 0
    return f"{found:,.{places}f}"


def span(value: Any) -> str:
    seconds = number(value)
    if seconds is None or seconds < 0:
        return "\u2013"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part_size, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part_size
            return f"{whole // size:,} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def moment(value: Any) -> str:
    """An ISO time in the local zone, to the second; anything else is shown as it is."""
    at = _time(value)
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}" if at else text(value)


def local_iso(value: Any) -> str:
    """An ISO time as an ISO time of the local zone, for rows that people and programs read."""
    at = _time(value)
    return at.astimezone().isoformat(timespec="milliseconds") if at else text(value)


def seconds_between(start: Any, end: Any) -> float | None:
    """The seconds from one ISO time to another; None if either is not one."""
    first, last = _time(start), _time(end)
    return (last - first).total_seconds() if first and last else None


def compact(value: Any) -> str:
    """JSON on one line, cut if it is too long."""
    shown = text(value) if isinstance(value, str) else text(_json(value))
    if len(shown) <= _MAX_JSON:
        return shown
    return f"{shown[:_MAX_JSON]}\u2026 ({len(shown) - _MAX_JSON:,} more characters)"


def reason(value: Any) -> str:
    known = text(value)
    return _REASONS.get(known, known)


def waits(waiting_for: str, detail: str | None, until: str | None) -> str:
    """The reason and the end of a wait; that of a provider, which refuses work for a while, is its own sentence."""
    if waiting_for in FOR_PROVIDERS:
        return f"{line(detail or '')}, " + (f"continues at {moment(until)}" if until else "`pursuit resume` continues")
    more = "" if detail is None else f" ({line(detail)})"
    return f"waiting for {waiting_for}{more}" + ("" if until is None else f" until {moment(until)}")


def why(status: Status) -> str:
    if status.placement is not None:
        return status.placement
    if status.resume is not None:
        limit = f"{status.waiting_detail}, and " if status.waiting_for == "limit" else ""
        return f"{limit}no process drives it"
    if status.next is not None:
        return "its last run reached its goal"
    if status.failure is not None and status.status == "failed":
        return f"{status.failure} (the trace is in the ledger)"
    if status.waiting_for is not None:
        detail = "" if status.waiting_detail is None else f" ({status.waiting_detail})"
        if any(one.expired for one in status.pending_approvals):
            return f"waiting for {status.waiting_for}{detail}; its question expired, which counts as no"
        return waits(status.waiting_for, status.waiting_detail, status.waiting_until)
    if status.paused_reason is not None:
        return line(status.paused_reason)
    if status.status in ("completed", "terminated"):
        words = reason(status.verdict_reason)
        error = status.rationale if status.verdict_reason == "proposer_failed" else None
        return f"{words.removesuffix('.')}: {line(error)}" if error else words
    return ""


def best_words(best: BestPoint | None) -> str:
    if best is None:
        return ""
    words: list[str] = []
    if best.feasible:
        mean = "" if best.times == 1 else f", mean of {best.times} calls"
        at = f"iteration {1 + (best.iteration or 0)}{mean}"
        words.append(f"{best.metric} {figure(best.value)} with {compact(best.args)} ({at})")
    if (beyond := best.infeasible) is not None:
        broken = ", ".join(f"{one.wanted} ({figure(one.value)})" for one in beyond.violates)
        head = "" if words else f"no point satisfies all limits; {best.metric} "
        words.append(f"{head}{figure(beyond.value)} in iteration {beyond.iteration + 1} violates {broken}")
    if best.unknown:
        words.append(f"no call reported a value for {', '.join(one.wanted for one in best.unknown)}")
    return "; ".join(words)


def evidence_words(row: CriterionRow) -> str:
    evidence: Any = row.evidence
    if not isinstance(evidence, dict):
        return line(compact(evidence), 60)
    facts = cast("dict[str, Any]", evidence)
    if "count" in facts:
        return f"seen {facts['count']:,} time{'' if facts['count'] == 1 else 's'}"
    if isinstance(facts.get("met"), bool):
        parts = {name: cast("dict[str, Any]", part) for name, part in facts.items() if isinstance(part, dict)}
        return line(", ".join(_judged(name, part) for name, part in parts.items()), 60)
    value = next((facts[key] for key in ("error", "value", "reason") if facts.get(key) is not None), facts)
    return line(compact(value), 60) if number(value) is None else figure(value, number(facts.get("target")))


def _judged(name: str, part: Mapping[str, Any]) -> str:
    """The result of one expectation of a check: `exit code 1`, `succeeded: no`."""
    name, value = name.replace("_", " "), part.get("value")
    return f"{name}: {'yes' if part.get('met') else 'no'}" if value is None else f"{name} {figure(value)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
