"""Numbers in English words.

Owns: how one is spelled, up to the thousands: "five", "twenty-six", "one hundred and five", "fourteen hundred",
"one point five". Pure.
Does not know: digits. Invariant: words that make no number together ("one, two") are numbers of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {word: 20 + 10 * n for n, word in enumerate(_TENS)}
_GAP = r"[\s-]{1,3}"
_AND = rf"{_GAP}(?:and{_GAP})?"
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:{_GAP}(?:{'|'.join(_UNITS[1:10])})\b)?|(?:{'|'.join(reversed(_UNITS))}))\b"
_HUNDREDS = rf"(?:{_SMALL}|a){_GAP}hundred\b(?:{_AND}{_SMALL})?"
_THOUSANDS = rf"(?:{_HUNDREDS}|{_SMALL}|a){_GAP}thousand\b(?:,?{_AND}{_HUNDREDS}|{_AND}{_SMALL})?"
_DECIMALS = rf"(?:{_GAP}point(?P<decimals>(?:{_GAP}(?:{'|'.join(_UNITS[:10])})\b){{1,12}}))?"
_IN_WORDS = re.compile(rf"\b(?P<whole>{_THOUSANDS}|{_HUNDREDS}|{_SMALL}){_DECIMALS}", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+")


def numbers_in_words(text: str) -> Iterator[tuple[float, int, int]]:
    """Every number in words, with where it begins and ends."""
    for found in _IN_WORDS.finditer(text):
        decimals = "".join(str(_VALUES[word]) for word in _WORD.findall((found["decimals"] or "").lower()))
        yield float(f"{_value(_WORD.findall(found['whole'].lower()))}.{decimals or 0}"), found.start(), found.end()


def _value(words: list[str]) -> int:
    whole = part = 0
    for word in words:
        if word == "hundred":
            part = 100 * (part or 1)
        elif word == "thousand":
            whole, part = 1000 * (part or 1), 0
        else:
            part += _VALUES.get(word, 0)
    return whole + part
