"""Numbers as they stand in a text that people read.

Owns: the ways to write one: grouped digits, a decimal comma, powers of ten, percent, LaTeX, fractions, words. Pure.
Does not know: which of them matter. Invariant: a number that can be read in two ways (`1,458`) is given out in both;
the time is linear in the text.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import floor, isfinite, log10
from unicodedata import numeric

from pursuit.problems.number_words import numbers_in_words

_HIGH = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_SIGNS = "\u207b\u207a"
_SUPERSCRIPT = str.maketrans(_HIGH + _SIGNS, "0123456789-+")
_MINUS = "\u2212"
_GROUP = "[,_'\u2019 \u00a0\u2009\u202f]"
_MOST_GROUPS = 8
_TIMES_TEN = (
    r"\s{0,3}(?:[x\u00d7*\u00b7]|\\times|\\cdot)\s{0,3}\{?10\}?\s?"
    rf"(?:(?:\^|\*\*)\s?[{{(]?\s?(?P<caret>[-+{_MINUS}]?\d{{1,3}})\s?[)}}]?|(?P<high>[{_SIGNS}]?[{_HIGH}]{{1,3}}))"
)
_SCALES = {
    "k": 3,
    "thousand": 3,
    "million": 6,
    "mio": 6,
    "billion": 9,
    "bn": 9,
    "m": 6,
    "%": -2,
    "percent": -2,
    "per cent": -2,
}
_SCALE = r"[\s-]?\\?(?P<scale>%|(?:k|thousand|million|mio|billion|bn|percent|per cent|(?-i:M))(?!\w))"
_NUMBER = re.compile(
    rf"(?<![\d.])(?P<digits>(?:\d{{1,3}}(?:{_GROUP}\d{{3}}){{1,{_MOST_GROUPS}}}+(?!\d)"
    rf"|[1-9]\d{{0,2}}(?:\.\d{{3}}){{1,{_MOST_GROUPS}}}+(?!\d)|\d{{1,2}}(?:,\d{{2}}(?=,)){{1,{_MOST_GROUPS}}}+,\d{{3}}(?!\d)|\d++)"
    rf"(?:[.,]\d++)?|[.,]\d++)"
    rf"(?:[eE](?P<power>[-+{_MINUS}]?\d{{1,4}})|{_TIMES_TEN}|{_SCALE})?(?!\d|\.\d)",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"(?<![\w./])(\d{1,4})\s?/\s?(\d{1,4})(?![\w/]|\.\d)")
_GROUPING = re.compile(_GROUP)
_BLANKS = re.compile(r"\s")
_GROUPED = re.compile(rf"\d{{1,3}}(?:{_GROUP}\d{{3}})+(?:\.\d+)?|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?:\.\d+)?")
_DOTTED = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_GROUPED_DECIMALS = re.compile(r"(?<![\d.,])\d{1,4}[.,](?:\d{3}[ \u00a0\u2009\u202f]){1,5}\d{1,3}(?![\d.,]?\d)")
_PERCENT = re.compile(r"[\s-]?(?:%|percent\b|per cent\b)", re.IGNORECASE)
_VULGAR = re.compile("(?<![\\d.,])(\\d{0,4}) ?([\u00bc-\u00be\u2150-\u215e])")
_YEARS = range(1900, 2100)

_UNSEEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_WIDE = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_LATEX_MARK = re.compile(r"(?<=\d)\{([.,])\}(?=\d)")
_LATEX_BLANK = re.compile(r"(?<=\d)(?:\\[,;:! ]|~)(?=\d)")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{(\d{1,4})\}\{(\d{1,4})\}")
_MARKED_POINT = re.compile(r"(?<=\d)[*_`]{1,3}([.,])[*_`]{1,3}(?=\d)")


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number in a text: its value, how many digits were written of it, and where; `named` if letters lead to it.

    In doubt is one whose point may stand between groups: 1.458 as 1458.
    """

    value: float
    digits: int
    start: int
    end: int
    named: bool = False
    in_doubt: bool = False

    @property
    def is_year(self) -> bool:
        """Whether it may be a year."""
        return self.value in _YEARS


def as_read(text: str) -> str:
    """A text as a reader sees it: entities, wide digits and LaTeX's blanks as what they show, the unseen left out."""
    if "&" in text:
        text = html.unescape(text)
    if not text.isascii():
        text = text.translate(_UNSEEN | _WIDE)
    if "\\" in text:
        text = _LATEX_FRACTION.sub(r"\1/\2", text)
    return _MARKED_POINT.sub(r"\1", _LATEX_BLANK.sub("\u2009", _LATEX_MARK.sub(r"\1", text)))


def numerals(text: str) -> Iterator[Numeral]:
    """Every number in a text, in every way that it can be read; signs are left out."""
    yield from digit_numerals(text)
    for value, begin, stop in numbers_in_words(text):
        yield Numeral(value, len(digits_of(value)), begin, stop)
        if (percent := _PERCENT.match(text, stop)) is not None:
            yield Numeral(value / 100, len(digits_of(value)), begin, percent.end())
    for found in _FRACTION.finditer(text) if "/" in text else ():
        if int(found[2]):
            # How many digits it would have is not said, so that it is this very number or none.
            yield Numeral(int(found[1]) / int(found[2]), 0, found.start(), found.end())
    for found in _VULGAR.finditer(text) if not text.isascii() else ():
        yield Numeral(int(found[1] or 0) + numeric(found[2]), 0, found.start(), found.end())


def digit_numerals(text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[Numeral]:
    """The numbers that a part of a text has in digits."""
    for found in _NUMBER.finditer(text, start, end):
        power = found["power"] or found["caret"] or (found["high"] or "0").translate(_SUPERSCRIPT)
        powers = [power.replace(_MINUS, "-")]
        if found["scale"]:
            powers.append(str(_SCALES[found["scale"].lower()]))
        before = text[found.start() - 1] if found.start() else " "
        for digits in _readings(found["digits"]):
            for one in powers:
                numeral = _numeral(digits, one, found, named=before.isalpha() or before == "_")
                if numeral is not None:
                    yield numeral
    for found in _GROUPED_DECIMALS.finditer(text, start, end):
        digits = _BLANKS.sub("", found[0]).replace(",", ".")
        yield Numeral(float(digits), len(digits.replace(".", "").lstrip("0")), found.start(), found.end())


def _readings(digits: str) -> list[str]:
    """What the digits may mean: pieces of their own, groups, and a comma before decimals."""
    found = [piece for piece in _GROUPING.split(digits) if piece]
    if _GROUPED.fullmatch(digits):
        found.append(_GROUPING.sub("", digits))
    if _DOTTED.fullmatch(digits):
        found.append(digits.replace(".", "").replace(",", "."))
    if digits.count(",") == 1 and "." not in digits:
        found.append(_GROUPING.sub("", digits.replace(",", ".")))
    return list(dict.fromkeys(found))


def _numeral(digits: str, power: str, found: re.Match[str], *, named: bool) -> Numeral | None:
    written = digits.replace(".", "").lstrip("0")
    try:
        value = float(f"{digits}e{power}")
    except ValueError:
        return None
    in_doubt = found["digits"].count(".") == 1 and "." not in digits and "," not in found["digits"]
    return Numeral(value, len(written), found.start(), found.end(), named, in_doubt) if isfinite(value) else None


def plain_number(value: float) -> str:
    """A number as people write it: all of its digits, without a power of ten."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def digits_of(value: float) -> str:
    """The digits of a number, without the zeros that only say where the point is."""
    return f"{abs(value):.15g}".partition("e")[0].replace(".", "").strip("0")


def same(numeral: Numeral, value: float) -> bool:
    """Whether a text says exactly this number."""
    return abs(numeral.value - abs(value)) <= 1e-12 * abs(value)


def about(numeral: Numeral, value: float, *, least: int) -> bool:
    """Whether a text says this number, rounded or cut off after as many digits as were written, `least` of them.

    Zeros at the end are digits, or only say where the point is: 1460 may be 1458.
    """
    size = abs(value)
    counts = {numeral.digits, min(numeral.digits, len(digits_of(numeral.value)))}
    return any(_rounded(numeral.value, size, count) for count in counts if count >= least)


def _rounded(number: float, size: float, digits: int) -> bool:
    step = 10.0 ** (floor(log10(size)) + 1 - digits) if size else 0
    if step == 0:
        return False
    cut = floor(size / step) * step
    return any(abs(number - one) <= step * 1e-6 for one in (cut, cut + step * (size / step - size // step >= 0.5)))
