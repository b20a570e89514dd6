"""How single values of a report read: text, numbers, spans of time, moments, JSON, why a mission stands as it does.

Every function takes any JSON value and returns text that can be stored as UTF-8, or None; none raises. Nothing is
escaped here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pursuit.core.caps import CAPS

if TYPE_CHECKING:
    from pursuit.core.best import BestPoint
    from pursuit.core.report import CriterionRow, Status

# Control characters, halves of surrogate pairs, and the marks that make text run the other way.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_MAX_JSON = 600
_DIGITS, _ALL_DIGITS = 7, 17

_REACHED = {
    "count": "The {} that are left are too few to go on.",
    "seconds": "The time of the budget is used up.",
    "usd": "The money that is left is too little to go on.",
}
_REASONS = {
    **{cap.reason: _REACHED[cap.unit].format(cap.label.lower()) for cap in CAPS.values()},
    "max_iterations": "The iterations of the budget are used up.",
    "criteria_met": "Every required criterion is met.",
    "forced_complete": "It was declared complete.",
    "user_abort": "The operator stopped it.",
    "proposer_failed": "The proposer failed three times in a row.",
    "proposer_done": "The proposer has nothing more to try.",
    "out_of_reach": "A required check said that it can never be met any more.",
    "no_progress": "It has stopped making progress.",
    "cadence_skip": "The last iteration was no checkpoint.",
    "heuristic_unproductive": "The last iterations were unproductive.",
    "in_progress": "It has not ended yet.",
}

_SIGNS = {"<=": "\u2264", ">=": "\u2265", "!=": "\u2260", "==": "="}


def sign(op: str) -> str:
    """A comparison as a person writes it."""
    return _SIGNS.get(op, op)


def text(value: Any) -> str:
    """A value as text without unprintable characters; None is empty, and what is not a string is shown as JSON."""
    if value is None:
        return ""
    raw = value if isinstance(value, str) else _json(value)
    return _UNPRINTABLE.sub("\ufffd", raw.replace("\r\n", "\n").replace("\r", "\n"))


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
    """A number in at most seven digits, with thousands apart; a dash for none.

    With a `level` it has as many more digits as it needs to stay on its side: what is met never looks missed.
    """
    found = number(value)
    if found is None:
        return "\u2013"
    for digits in range(_DIGITS, _ALL_DIGITS):
        shown = _rounded(found, digits)
        if level is None or _side(float(shown.replace(",", "")), level) == _side(found, level):
            return shown
    return _rounded(found, _ALL_DIGITS)


def amount(value: Any, unit: str) -> str:
    """What was used of a cap, or the cap, in its unit."""
    return span(value) if unit == "seconds" else f"${figure(value)}" if unit == "usd" else figure(value)


def stated(value: Any) -> str:
    """A number with all the digits that it was given with, such as a target; a dash for none."""
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
    """Seconds in about three digits, to be compared in a column; a dash for none."""
    found = number(value)
    if found is None:
        return "\u2013"
    places = 3 if found < 1 else 2 if found < 10 else 1 if found < 100 else 0
    return f"{found:,.{places}f}"


def span(value: Any) -> str:
    """Seconds in the two largest units that matter."""
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
    """JSON on one line, cut where it gets too long to read."""
    shown = text(value) if isinstance(value, str) else text(_json(value))
    if len(shown) <= _MAX_JSON:
        return shown
    return f"{shown[:_MAX_JSON]}\u2026 ({len(shown) - _MAX_JSON:,} more characters)"


def reason(value: Any) -> str:
    """A verdict's reason as a sentence; an unknown one as it is."""
    known = text(value)
    return _REASONS.get(known, known)


def why(status: Status) -> str:
    """One sentence on why a mission has its status."""
    if status.placement is not None:
        return status.placement
    if status.resume is not None:
        return "no process drives it"
    if status.next is not None:
        return "its last run reached its goal"
    if status.failure is not None and status.status == "failed":
        return f"{status.failure} (the trace is in the ledger)"
    if status.waiting_for is not None:
        detail = "" if status.waiting_detail is None else f" ({status.waiting_detail})"
        if any(one.expired for one in status.pending_approvals):
            return f"waiting for {status.waiting_for}{detail}; its question has expired, which counts as no"
        until = "" if status.waiting_until is None else f" until {moment(status.waiting_until)}"
        return f"waiting for {status.waiting_for}{detail}{until}"
    if status.paused_reason is not None:
        return _flat(status.paused_reason)
    if status.status in ("completed", "terminated"):
        words = reason(status.verdict_reason)
        error = status.rationale if status.verdict_reason == "proposer_failed" else None
        return f"{words.removesuffix('.')}: {_flat(error)}" if error else words
    return ""


def best_words(best: BestPoint | None) -> str:
    """The best point that keeps all limits, and what a better one violates; empty before there is a point."""
    if best is None:
        return ""
    words: list[str] = []
    if best.feasible:
        mean = "" if best.times == 1 else f", mean of {best.times} calls"
        at = f"iteration {1 + (best.iteration or 0)}{mean}"
        words.append(f"{best.metric} {figure(best.value)} with {compact(best.args)} ({at})")
    if (beyond := best.infeasible) is not None:
        broken = ", ".join(f"{one.wanted} ({figure(one.value)})" for one in beyond.violates)
        head = "" if words else f"no point keeps all limits; {best.metric} "
        words.append(f"{head}{figure(beyond.value)} in iteration {beyond.iteration + 1} violates {broken}")
    return "; ".join(words)


def evidence_words(row: CriterionRow) -> str:
    """The evidence of a criterion, as short as possible."""
    evidence: Any = row.evidence
    if not isinstance(evidence, dict):
        return _flat(compact(evidence), 60)
    facts = cast("dict[str, Any]", evidence)
    if "count" in facts:
        return f"seen {facts['count']:,} time{'' if facts['count'] == 1 else 's'}"
    if isinstance(facts.get("met"), bool):
        parts = {name: cast("dict[str, Any]", part) for name, part in facts.items() if isinstance(part, dict)}
        return _flat(", ".join(_judged(name, part) for name, part in parts.items()), 60)
    value = next((facts[key] for key in ("error", "value", "reason") if facts.get(key) is not None), facts)
    return _flat(compact(value), 60) if number(value) is None else figure(value, number(facts.get("target")))


def _judged(name: str, part: Mapping[str, Any]) -> str:
    """What one expectation of a check came to: `exit code 1`, `succeeded: no`."""
    name, value = name.replace("_", " "), part.get("value")
    return f"{name}: {'yes' if part.get('met') else 'no'}" if value is None else f"{name} {figure(value)}"


def _flat(value: Any, most: int | None = None) -> str:
    """Text on one line, cut to `most` characters."""
    flat = " ".join(text(value).split())
    return flat if most is None or len(flat) <= most else f"{flat[: most - 1].rstrip()}\u2026"


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
