"""How many tokens a question to a language model will take, before it is asked.

Owns: the estimate and how it learns. Pure: it stands on what the ledger says of this mission alone, so whoever resumes
one estimates the same. Invariant: an estimate is never below what a question of this mission with as many tokens to a
byte as the densest so far would take.
"""

from __future__ import annotations

import math

FIRST_RATE = 0.5
"""Tokens in a byte before anything is known: prose and JSON have 0.2 to 0.4, long rows of digits come near to this."""
FIRST_EXTRA = 512
"""What a provider may add of its own to the first question; afterwards that is part of what was learnt."""
MARGIN = 1.25
"""The next question may be denser than the densest so far, because other results stand in it."""
LEAST_ANSWER = 64
"""Fewer tokens than these seldom hold a call, so nothing is asked for them."""


def estimate(size: int, densest: float | None) -> int:
    """The tokens of a question of so many bytes; `densest` is the most tokens in a byte of one that was answered."""
    if densest is None:
        return math.ceil(size * FIRST_RATE) + FIRST_EXTRA
    return math.ceil(size * densest * MARGIN)


def learnt(densest: float | None, *, size: int, tokens: int) -> float | None:
    """The most tokens in a byte, with one more answered question; a provider that told none taught none."""
    if size <= 0 or tokens <= 0:
        return densest
    return max(densest or 0.0, tokens / size)
