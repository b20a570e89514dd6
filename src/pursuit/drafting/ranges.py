"""Numbers that something should lie between: "between 200 ms and 1 s", "within 2 % of 3.5", "3.5 ± 0.1 mm".

Owns: what a comparison comes to, and the words for ranges. Names no metric. Pure. Invariant: both ends of a range are
in one unit; ends that have none in common, or that nothing lies between, are a `Fuzzy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pursuit.drafting.phrases import words_in
from pursuit.drafting.quantities import Quantity, Unclear, Unit, read_quantity, tidy
from pursuit.model.criteria import Comparison

RELATIVE = "it is relative to a value that is not known here; say the number that it should come to"
NOT = r"\b(?:not|never|no|none|cannot|without|avoid(?:ing)?|nor|\w+n['\u2019]t)\b"
_BETWEEN = re.compile(
    r"\b(?:(?:in )?between|(?:in|within) (?:the |a )?range(?: of| from)?|ranging from|in)\s+(?P<open>[\[(])?"
    r"(?=[-\u2212$€.\d])",
    re.I,
)
_MIDDLE = re.compile(r"\s*(?:\band\b|\bto\b|-|\u2013|—|,)\s*", re.I)
_WITHIN = re.compile(r"\b(?:to )?within\s+(?:±\s*)?(?=[-$€.\d])", re.I)
_PLUS_MINUS = re.compile(r"\s*(?:±|\+/-|\+-)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A comparison. Without `op`, `wish` is a word whose meaning depends on the metric."""

    start: int
    end: int
    op: Comparison | None
    target: float
    unit: Unit
    wish: str = ""
    negated: bool = False
    verb: str | None = None
    neutral: bool = False
    of_something: bool = False
    things: str | None = None
    chained: bool = False
    and_op: Comparison | None = None
    and_target: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzy:
    """Words that compare, and why nothing can be made of them."""

    start: int
    end: int
    reason: str
    aside: bool = False
    """It says how something is measured; what stands around it is read as if it were not there."""


def ranges(text: str, commas: bool) -> list[tuple[int, int]]:
    """The places of ranges, which no clause may end in."""
    return [(start, end) for start, end, _ in in_ranges(text, commas)]


def in_ranges(text: str, commas: bool) -> Iterator[tuple[int, int, Found | Fuzzy]]:
    """Each range, with where it begins and ends."""
    for opening in _BETWEEN.finditer(text):
        if opening[0].strip().lower() == "in":
            continue
        near = frozenset(words_in(text[max(0, opening.start() - 60) : opening.end() + 60]))
        low = read_quantity(text, opening.end(), near, commas=commas)
        if isinstance(low, Unclear):  # "20-25" is no number, but a range is what is looked for here
            low = _before_dash(text, opening.end(), near, commas)
        if low is None or (middle := _MIDDLE.match(text, low.end)) is None:
            continue
        high = read_quantity(text, middle.end(), near, commas=commas)
        if high is None:
            continue
        end = high.end + (1 if opening["open"] and text[high.end : high.end + 1] in ("]", ")") else 0)
        yield opening.start(), end, _range(text, opening, low, high, end)
    yield from _tolerances(text, commas)


def _before_dash(text: str, at: int, near: frozenset[str], commas: bool) -> Quantity | None:
    found = re.compile(r"[-\u2212]?[\d.]+(?=\s?[-\u2013—,]\s?[\d.])").match(text, at)
    read = None if found is None else read_quantity(found[0], 0, near, commas=commas)
    if not isinstance(read, Quantity):
        return None
    return Quantity(number=read.number, unit=read.unit, start=at, end=at + read.end)


def _range(text: str, opening: re.Match[str], low: Quantity, high: Quantity | Unclear, end: int) -> Found | Fuzzy:
    start = opening.start()
    if isinstance(high, Unclear):
        return Fuzzy(start=start, end=end, reason=high.reason)
    if re.search(rf"(?:{NOT})\s*(?:be\s+)?$", text[max(0, start - 30) : start], re.I):
        return Fuzzy(start=start, end=end, reason="a range that is to be avoided has two good sides; say which")
    unit = low.unit if low.unit.name else high.unit
    top = high.within(unit)
    if top is None:
        return Fuzzy(start=start, end=end, reason=f"{low.unit.name} and {high.unit.name} do not go together")
    if top < low.number:
        return Fuzzy(start=start, end=end, reason=f"nothing is between {low.number:g} and {top:g} {unit.name}".rstrip())
    return Found(start=start, end=end, op=">=", target=low.number, unit=unit, and_op="<=", and_target=top)


def _tolerances(text: str, commas: bool) -> Iterator[tuple[int, int, Found | Fuzzy]]:
    for opening in _WITHIN.finditer(text):
        near = frozenset(words_in(text[max(0, opening.start() - 60) : opening.end() + 60]))
        by = read_quantity(text, opening.end(), near, commas=commas)
        of = None if not isinstance(by, Quantity) else re.compile(r"\s+of\s+(?:the\s+)?").match(text, by.end)
        if not isinstance(by, Quantity) or of is None:
            continue
        centre = read_quantity(text, of.end(), near, commas=commas)
        if isinstance(centre, Quantity):
            yield opening.start(), centre.end, _around(opening.start(), centre.end, centre, by)
        else:
            yield opening.start(), of.end(), Fuzzy(start=opening.start(), end=of.end(), reason=RELATIVE)
    for sign in _PLUS_MINUS.finditer(text):
        left = re.search(
            r"(?<![\w.,])[-\u2212]?[\d.,]+(?:\s?[^\W\d]{1,3}|\s?%)?$", text[max(0, sign.start() - 30) : sign.start()]
        )
        if left is None:
            continue
        start = max(0, sign.start() - 30) + left.start()
        centre = read_quantity(text, start, frozenset(), commas=commas)
        by = read_quantity(text, sign.end(), frozenset(), commas=commas)
        if isinstance(centre, Quantity) and isinstance(by, Quantity):
            yield start, by.end, _around(start, by.end, centre, by)


def _around(start: int, end: int, centre: Quantity, by: Quantity) -> Found | Fuzzy:
    """So much more or less than a number."""
    unit = centre.unit if centre.unit.name else (by.unit if by.unit.kind != "share" else centre.unit)
    share = by.unit.kind == "share" and centre.unit.kind != "share"
    reach = abs(centre.number) * by.number / 100 if share else by.within(unit)
    if reach is None:
        return Fuzzy(start=start, end=end, reason=f"{by.unit.name} and {centre.unit.name} do not go together")
    low, high = tidy(centre.number - reach), tidy(centre.number + reach)
    return Found(start=start, end=end, op=">=", target=low, unit=unit, and_op="<=", and_target=high)
