"""The metric that a comparison speaks of.

Owns: which of the words around a number name what is compared. Pure. Invariant: the unit is part of the name, as a
number alone has none; where no word names anything, there is no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pursuit.drafting.measures import known, measured_in, wordset
from pursuit.drafting.phrases import FILLERS, noun, slug
from pursuit.drafting.ranges import Found
from pursuit.model.criteria import Comparison

OTHER: dict[Comparison, Comparison] = {"<": ">=", ">": "<=", "==": "!=", "<=": ">", ">=": "<", "!=": "=="}
_THINGS = {"money": "cost", "time": "duration", "mass": "mass", "frames": "frame_rate"}
_MEANT_BY = {"usd": "cost", "eur": "cost", "gbp": "cost", "cents": "cost"}
_WHICH = re.compile(
    r"\s*(?:\(|(?:at|for) (?:the )?)?(?:(?P<which>p\d{2,3}|median|mean|average)\b|(?P<th>\d{2})th percentile)", re.I
)
_FIRST = re.compile(r"\s*(?P<word>[a-z]+)", re.I)
_NO_UNITS = wordset("""
    overall total now today please again everywhere throughout is are and or then there here while as after before
    either too also but so because since than more less only max min per out off over under above below across within
    during when if where which that until""")
_UNITS = ("_ms", "_s", "_minutes", "_hours", "_percent", "_usd", "_mb", "_gb", "_kg", "_mm")
_PER = re.compile(r"\bper\s+(?P<thing>[a-z]+)|(?<=\w)/(?P<other>[a-z]+)", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A metric that is compared with a number, and the words that say so."""

    metric: str
    op: Comparison
    target: float
    said: str
    at: int


def named(one: Found, before: str, after: str, last: Compared | str | None) -> str | None:
    """The metric: the words before, else those after, else the one before it if this is the other end of its range."""
    first, rest = noun(before), _following(one, after)
    unit = one.unit.name
    belongs = re.match(r"\s*of\b", after, re.I) is not None
    if rest and known(rest) and not known(first) and (belongs or _ends_in_to(before)):
        first = ""
    elif first and not known(first) and _ends_in_to(before) and one.verb is None and not one.neutral:
        return None
    if first:
        if not unit and (thing := _counted(after)) and thing not in first.split("_"):
            first = first if one.things is not None else f"{first}_{thing}"
        elif one.unit.kind == "time" and measured_in(first) is None and re.search(r"\b(?:in|within)\s*$", before, re.I):
            first = f"{first}_duration"
        return _with(_per(first, after) if not unit else first, unit)
    if rest:
        return _with(_per(rest, after), unit)
    meant = _THINGS.get(one.unit.kind) or _MEANT_BY.get(unit.partition("_per_")[0])
    if isinstance(last, str):
        return _with(last, unit)
    if last is not None and one.op is not None and _other_end(last, one):
        return last.metric
    return _with(meant, unit) if meant else None


def _following(one: Found, after: str) -> str:
    words = after.split("(", maxsplit=1)[0] if one.things is None else one.things
    return noun(re.sub(r"(?<=[a-z])/(?=[a-z])", " per ", words, flags=re.I), following=True)


def of_which(metric: str, after: str) -> str:
    """The metric with the percentile that is said after it: "under 200 ms (p99)"."""
    found = _WHICH.match(after)
    which = "" if found is None else (found["which"].lower() if found["which"] else f"p{found['th']}")
    return metric if not which or which in metric.split("_") else f"{which}_{metric}"


def _other_end(last: Compared, one: Found) -> bool:
    """Whether this is the other end of a range whose one end was just given."""
    op = OTHER[one.op] if one.negated and one.op is not None else one.op
    same = last.metric.endswith(f"_{one.unit.name}") if one.unit.name else not last.metric.endswith(_UNITS)
    return op is not None and last.op[0] != op[0] and same


def _with(name: str, unit: str) -> str:
    return name if not unit or unit == "times" or unit in name.split("_") else f"{name}_{unit}"


def _per(name: str, after: str) -> str:
    """A count per something is another metric than the count."""
    found = _PER.search(after)
    return (
        name
        if found is None or "_per_" in name
        else f"{name.split('/', maxsplit=1)[0]}_per_{slug(found['thing'] or found['other'])}"
    )


def _counted(after: str) -> str:
    """The word right after a number without a unit: what it counts."""
    found = _FIRST.match(after)
    word = "" if found is None else slug(found["word"])
    return "" if not word or word in FILLERS or word in _NO_UNITS or word.endswith("ly") else word


def _ends_in_to(before: str) -> bool:
    return re.search(r"\bto\s*$", before, re.I) is not None


def named_after(metric: str, one: Found, before: str, after: str) -> bool:
    """Whether a metric has its name from the words after the number, so that those name nothing else."""
    rest = _following(one, after)
    return bool(rest) and metric.startswith(rest) and not metric.startswith(noun(before) or " ")
