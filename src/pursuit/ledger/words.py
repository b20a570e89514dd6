"""Which words of a text are worth looking for.

Owns: how a text is cut into words, and which words say nothing. Knows no database.
Invariant: a telling word holds letters and digits and nothing else, so no text can be more than words to a search.
"""

from __future__ import annotations

import re

MOST_WORDS = 32
LONGEST_WORD = 64
_WORD = re.compile(r"[^\W_]+")
_SAY_NOTHING = frozenset(
    _WORD.findall("""
    about above after again all also am an and any are as at be because been before being below between both but by can
    could did do does doing done down during each else ever every few find for from further get gets getting give go
    goes going had has have having he her here hers him his how if in into is it its just let like make makes making may
    me might more most must my need no nor not now of off on once one only or other our out over own per please put same
    set shall she should so some such than that the their them then there these they this those through to too under
    until up upon us use used using very via was way we were what when where whether which while who why will with
    within without would you your
    """)
)


def telling_words(text: str) -> list[str]:
    """The words that mean something, each once, in order, in lower case; at most so many."""
    words = dict.fromkeys(found.group().lower()[:LONGEST_WORD] for found in _WORD.finditer(text))
    return [word for word in words if _tells(word)][:MOST_WORDS]


def _tells(word: str) -> bool:
    """A single letter tells nothing, but in scripts where one character is a word."""
    return word not in _SAY_NOTHING and (len(word) > 1 or not word.isascii())
