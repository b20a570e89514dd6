"""Numbers in the columns of a table of data that are called the best.

Owns: what a table with a head is (fields between commas, semicolons, tabs or bars), and which of its columns hold best
values by their name. Pure. Does not know: which numbers matter. Invariant: the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BEST = frozenset(("best", "optimum", "optimal", "optima"))
_MARKS = ",;\t|"
_ARTICLES = frozenset(("the", "a", "an", "our", "your"))
_LONGEST_HEAD = 4_000
_MOST_WORDS = 4
_WORD = re.compile(r"[^\W\d_]+")


def best_cells(text: str) -> Iterator[tuple[int, int]]:
    """Where the fields of such columns begin and end; there are none unless the first line is a head."""
    head = text[:_LONGEST_HEAD].partition("\n")[0]
    mark = max(_MARKS, key=head.count)
    columns = {place for place, name in enumerate(head.split(mark)) if _says_best(name)}
    if mark not in head or not columns:
        return
    begin = len(head) + 1
    for line in text[begin:].split("\n"):
        start = begin
        for place, field in enumerate(line.split(mark)):
            if place in columns:
                yield start, start + len(field)
            start += len(field) + 1
        begin += len(line) + 1


def _says_best(name: str) -> bool:
    """Whether a column's name begins or ends with such a word: `best_known`, `global optimum`; no sentence does."""
    words = _WORD.findall(name.lower())
    begins_or_ends = bool(words) and (words[0] in _BEST or (words[-1] in _BEST and words[0] not in _ARTICLES))
    return begins_or_ends and len(words) <= _MOST_WORDS and not any(map(str.isdecimal, name))
