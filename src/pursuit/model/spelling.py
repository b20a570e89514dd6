"""What somebody who misspelt a word probably meant.

Owns: the hint at the end of a fault. Pure, and light to import.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 100


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`; did you mean …?` with the closest known words, or an empty string; a unique beginning wins."""
    if len(word) > LONGEST:
        return ""
    words = list(known)
    begun = [other for other in words if len(word) > 2 and other.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, words, n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
