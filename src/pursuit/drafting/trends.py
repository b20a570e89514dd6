"""Metrics that should go one way: "the loss is decreasing", "latency does not increase".

Owns: the words for trends. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pursuit.drafting.phrases import Doubt, noun

_DOWN = r"decreas(?:ing|es?)|falling|falls?|going down|goes down|shrinking|dropping|declining"
_UP = r"increas(?:ing|es?)|rising|rises?|going up|goes up|growing|climbing|improving"
_TREND = re.compile(
    rf"\b(?:is|are|keeps?|stays?|be)\s+(?P<not>not\s+|never\s+)?(?P<way>{_DOWN}|{_UP})\b"
    rf"|\b(?:does|do|must|should)\s*(?P<never>not|n['\u2019]t)\s+(?P<bare>decrease|fall|increase|rise)\b",
    re.I,
)
_BEFORE = re.compile(r"[.;:\n]|\b(?:until|so that|while|ensure|make sure|sure|keep|but|that|if)\b", re.I)
_MOST = 200


def trends(directive: str) -> Iterator[tuple[str, str, str, int] | Doubt]:
    """Each metric, its direction, the words that say so and where they stand; or why they are in doubt."""
    for found in _TREND.finditer(directive):
        before = directive[max(0, found.start() - _MOST) : found.start()]
        subject = before[max((cut.end() for cut in _BEFORE.finditer(before)), default=0) :]
        # Only "are" speaks of a list: "train it, and the loss is falling".
        parts = [part for part in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", subject) if part.strip()]
        if re.match(r"are|keep\b|stay\b|do\b", found[0], re.I) is None:
            parts = parts[-1:]
        said = " ".join(f"{subject}{found[0]}".split()).lstrip(", ")
        names = [noun(part) for part in parts]
        why = _doubt(found, before, " ".join(parts))
        if why is not None or not names or not all(names):
            yield Doubt(said=said, reason=why or "it does not say what; name the metric", at=found.start())
            continue
        for name in names:
            yield name, _direction(found), said, found.start()


def _doubt(found: re.Match[str], before: str, subject: str) -> str | None:
    if re.search(r"\bif\s+[^,]*$", before, re.I):
        return "it is a condition, not a goal; say what should come of it"
    if re.search(r"\b(?:increas|decreas|ris|fall|reduc|drop|improv)\w*\b", subject, re.I):
        return "it says two ways at once; say of the metric itself which way it should go"
    if re.search(r"\bor\b", subject, re.I):
        return "it says one thing or another; a mission needs all of its criteria, so say which"
    if (found["way"] or "").lower() == "improving":
        return "which way is better is not said; say increasing or decreasing"
    return None


def _direction(found: re.Match[str]) -> str:
    way = found["way"] or found["bare"]
    down = re.match(_DOWN, way, re.I) is not None or way.lower() in ("decrease", "fall")
    if found["not"] or found["never"]:
        return "non_decreasing" if down else "non_increasing"
    return "decreasing" if down else "increasing"
