"""Numbers as they stand in a text that people read.

Owns: the ways to write one: grouped digits, a decimal comma, powers of ten, words. Pure. Does not know: which of them
matter. Invariant: a number that can be read in two ways (`1,458`) is given out in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import floor, isfinite, log10

_HIGH = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_SIGNS = "\u207b\u207a"
_SUPERSCRIPT = str.maketrans(_HIGH + _SIGNS, "0123456789-+")
_MINUS = "\u2212"
_GROUP = "[,_'\u2019 \u00a0\u2009\u202f]"
_TIMES_TEN = (
    rf"\s*(?:[x\u00d7*\u00b7]|\\times|\\cdot)\s*10\s*"
    rf"(?:(?:\^|\*\*)\s*\{{?\s*(?P<caret>[-+{_MINUS}]?\d{{1,3}})\s*\}}?|(?P<high>[{_SIGNS}]?[{_HIGH}]{{1,3}}))"
)
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<digits>(?:\d{{1,3}}(?:{_GROUP}\d{{3}})+|\d+)(?:[.,]\d+)?|[.,]\d+)"
    rf"(?:[eE](?P<power>[-+{_MINUS}]?\d{{1,4}})|{_TIMES_TEN})?(?!\d|\.\d)"
)
_GROUPING = re.compile(_GROUP)
_GROUPED = re.compile(rf"\d{{1,3}}(?:{_GROUP}\d{{3}})+(?:\.\d+)?")
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORD = re.compile(
    rf"\b(?:({'|'.join(_TENS)})(?:[- ]({'|'.join(_UNITS[1:10])}))?|({'|'.join(_UNITS)}))\b", re.IGNORECASE
)
_YEARS = range(1900, 2100)


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number in a text: its value, how many digits were written of it, and where."""

    value: float
    digits: int
    start: int

    @property
    def is_year(self) -> bool:
        """Whether it may be a year."""
        return self.value in _YEARS


def numerals(text: str) -> Iterator[Numeral]:
    """Every number in a text, in every way that it can be read; signs are left out."""
    for found in _NUMBER.finditer(text):
        power = found["power"] or found["caret"] or (found["high"] or "0").translate(_SUPERSCRIPT)
        for digits in _readings(found["digits"]):
            numeral = _numeral(digits, power.replace(_MINUS, "-"), found.start())
            if numeral is not None:
                yield numeral
    for found in _WORD.finditer(text):
        ten, unit, alone = (word.lower() if word else None for word in found.groups())
        value = _UNITS.index(alone) if alone else 20 + 10 * _TENS.index(ten or "") + (_UNITS.index(unit) if unit else 0)
        yield Numeral(float(value), len(str(value)), found.start())


def _readings(digits: str) -> list[str]:
    """What the digits may mean: pieces of their own, groups, and a comma before decimals."""
    found = [piece for piece in _GROUPING.split(digits) if piece]
    if _GROUPED.fullmatch(digits):
        found.append(_GROUPING.sub("", digits))
    if digits.count(",") == 1 and "." not in digits:
        found.append(_GROUPING.sub("", digits.replace(",", ".")))
    return list(dict.fromkeys(found))


def _numeral(digits: str, power: str, start: int) -> Numeral | None:
    written = digits.replace(".", "").lstrip("0")
    try:
        value = float(f"{digits}e{power}")
    except ValueError:
        return None
    return Numeral(value, len(written), start) if isfinite(value) else None


def plain_number(value: float) -> str:
    """A number as people write it: all of its digits, without a power of ten."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def digits_of(value: float) -> str:
    """The digits of a number, without the zeros that only say where the point is."""
    return f"{abs(value):.15g}".partition("e")[0].replace(".", "").strip("0")


def same(numeral: Numeral, value: float) -> bool:
    """Whether a text says exactly this number."""
    return abs(numeral.value - abs(value)) <= 1e-12 * abs(value)


def about(numeral: Numeral, value: float) -> bool:
    """Whether a text says this number, rounded or cut off after as many digits as were written."""
    size = abs(value)
    if same(numeral, size):
        return True
    if size == 0 or numeral.digits == 0:
        return False
    step = 10.0 ** (floor(log10(size)) + 1 - numeral.digits)
    if step == 0:
        return False
    cut = floor(size / step) * step
    return any(
        abs(numeral.value - one) <= step * 1e-6 for one in (cut, cut + step * (size / step - size // step >= 0.5))
    )
