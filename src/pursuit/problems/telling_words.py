"""Whether a text says of a number that it is the best one, or the one to reach.

Owns: the words that say so, and how near to the number they stand. Pure. Does not know: numbers. Invariant: at most
`_REACH` characters on either side of the number are looked at.

A word such as "best" or "target" says it of a number at most `FEW` words behind it in the same sentence, if nothing but
small words stands between, or before the number one that states ("is", ":"); or of one right before it, after a mark or
a word that states ("42, the cheapest so far", "26 (best)").
"Best" and "optimal" also say it of the number of a thing ("optimal tour 426", "the best design costs 26"), "minimum"
and the like only as "global minimum", with "known" or with the metric. "Goal", "record" and the like need both; a
measure ("score", the metric's name) needs a limit ("at least").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FEW = 6
_REACH = 160
_SUPERLATIVES = frozenset(
    ("best", "optimal", "lowest", "highest", "cheapest", "lightest", "shortest", "fastest", "fewest")
)  # fmt: skip
STRONG = _SUPERLATIVES | {"optimum", "optima", "target", "targets", "threshold", "thresholds"}
HINTS = STRONG | {"known", "global", "art", "pass", "winning", "minim", "maxim", "smallest", "largest", "least"}
"""Where none of these stands, no number is said to be the best; but for an answer."""

_WEAK = frozenset(("goal", "goals", "record", "records", "beat", "solved"))
_MEASURES = frozenset(("score", "scores", "result", "results", "loss", "accuracy", "error"))
_ANSWERS = frozenset(("solution", "solutions", "answer", "answers"))
_GOOD = frozenset(("good", "right", "correct", "perfect", "exact", "known", "true", "winning"))
_STATES = frozenset((
    "is", "are", "was", "were", "be", "equals", "about", "around", "roughly", "nearly", "almost", "approx", "ca",
    "approximately", "circa", "reached", "found", "at", ":", "=", "|", "~", "\u2248", "\u2192",
))  # fmt: skip
_OWNS = frozenset(("has", "have", "had"))
_LIMITS = frozenset((
    "least", "most", "below", "under", "above", "over", "than", "within", "<", ">", "\u2264", "\u2265", "\u2a7d",
))  # fmt: skip
_SMALL = _MEASURES | _ANSWERS | _STATES | _LIMITS | STRONG | {
    "a", "an", "the", "of", "by", "with", "some", "only", "just", "no", "its", "our", "your", "this", "that", "it",
    "so", "far", "yet", "ever", "known", "published", "possible", "current", "global", "overall", "final", "less",
    "more", "value", "values", "cost", "weight", "length", "total", "price", "number", "exactly", "as", "usd", "eur",
}  # fmt: skip
_OWNERS = frozenset(("the", "our", "your"))
_TOKEN = re.compile(r"[^\W\d_]+|\d[\d.,]*|[:=|~<>\u2248\u2192\u2264\u2265\u2a7d]")
_END = re.compile(r"(?P<word>[^\W\d_]*)[.!;](?:[\"')\]*_]{0,3})(?=\s)")
_EXTREME = r"(?:minimum|minimal|maximum|maximal|smallest|largest|biggest|greatest|least)"
_PHRASES = re.compile(
    rf"\b(?:state[ -]of[ -]the[ -]art|pass(?:ing)? (?:mark|score|grade)|winning (?:score|cost|value|result)"
    rf"|global {_EXTREME}|known {_EXTREME}|{_EXTREME}(?: [a-z]+)? known)\b",
    re.IGNORECASE,
)
_EXTREMES = re.compile(rf"\b{_EXTREME} ([a-z]+)\b", re.IGNORECASE)
_OF_THE_BEST = re.compile(
    r"\b(?:best|optimal|optimum) (?:(?P<noun>[a-z]+) ?[ (]|[a-z]+ (?P<costs>costs?|weighs?)(?: about| only)? )$",
    re.IGNORECASE,
)
_LINKS = frozenset((
    "of", "in", "at", "to", "for", "from", "by", "with", "after", "before", "within", "on", "per", "and", "or", "than",
    "as", "among", "out", "over", "about", "until",
))  # fmt: skip
_ENDS = re.compile(r"\s*(?:[.,;:)\]]|$|\n)")
_GLUED = re.compile(r"[ -]([^\W\d_]+)")
_MARK = re.compile(r"[,(\[:=|\u2013\u2014]|\s-\s")
_NEXT_KEY = re.compile(r"[{}\t]|,\s*\"")
_NEXT_COLUMN = re.compile(r"[,;{}|\t\n]")
_ABBREVIATIONS = frozenset(("approx", "ca", "c", "abt", "est", "e", "g", "i", "vs", "no", "resp", "cf", "max", "min"))


def says_best(text: str, start: int, end: int, *, metric: str = "", data: bool = False) -> bool:
    """Whether the number at `start` to `end` is said to be the best or the one to reach.

    In `data` the name of a column or key is no statement: a bare "target" says nothing there, nor does a measure.
    """
    led, follows = _sentence_before(text, start), _sentence_after(text, end)
    if data:
        led, follows = _NEXT_KEY.split(led)[-1], _NEXT_COLUMN.split(follows)[0]
    names = frozenset(_tokens(metric.replace("_", " ").lower())) if metric else frozenset[str]()
    led, follows = _with_best(led, names), _with_best(follows, names)
    before, glued = _tokens(led), _GLUED.match(follows)
    if before and before[-1] in _SUPERLATIVES and _adjacent(text, start) and glued and glued[1].lower() not in _SMALL:
        return False  # "the best 5 items", "an optimal 2-opt tour"
    if before[-2:-1] and before[-2] in _SUPERLATIVES and before[-1] == "of":
        return False  # "the best of 5 runs"
    return _led_to(before, names, data=data) or _called(follows, data=data) or _is_of_the_best(led, follows)


def _with_best(text: str, metric: frozenset[str]) -> str:
    """A text with "best" for the phrases that say so: "state of the art", "global minimum", "least" and the metric."""
    text = _PHRASES.sub("best ", text)
    return _EXTREMES.sub(lambda found: f"best {found[1]}" if found[1].lower() in metric else found[0], text)


def _is_of_the_best(led: str, follows: str) -> bool:
    """Whether the number is that of the best thing: "optimal tour 426", "the best design costs 26"."""
    found = _OF_THE_BEST.search(led)
    if found is None or (found["noun"] or "").lower() in _LINKS:
        return False
    return found["costs"] is not None or _ENDS.match(follows) is not None


def _led_to(before: Sequence[str], metric: frozenset[str], *, data: bool) -> bool:
    """Whether words before the number lead to it."""
    small, states, limits, owns, count = True, False, False, False, 0
    for place in range(len(before) - 1, -1, -1):
        token = before[place]
        if (small or ((states or owns) and not limits)) and _is_strong(before, place, data=data):
            return True
        if small and not data and token in _WEAK and (states or limits):
            return True
        if small and not data and limits and (token in _MEASURES or token in metric):
            return not _is_scale(before[place + 1 :])
        if small:  # one that states does so of what stands right behind it: not "the target is hit from 7 m away"
            states, limits, owns = states or token in _STATES, limits or token in _LIMITS, owns or token in _OWNS
        small = small and (token in _SMALL or token in metric)
        count += token.isalnum()
        if count > FEW:
            break
    return False


def _is_scale(words: Sequence[str]) -> bool:
    """Whether words between a measure and a limit only say how far it can go: "the score is at most 100"."""
    return words[0] in ("is", "are") and "most" in words


def _called(follows: str, *, data: bool) -> bool:
    """Whether words right after the number call it the best: but for a unit, only small ones stand between.

    Where the number has a noun ("8 queens with the fewest moves"), a mark or a word that states has to stand between.
    """
    found = list(_TOKEN.finditer(follows.lower()))[:FEW]
    after = [one[0] for one in found]
    direct = _GLUED.match(follows)
    if direct is not None and direct[1].lower() in _SUPERLATIVES:
        return False  # "the two best ones"
    for place, token in enumerate(after):
        if _is_strong(after, place, data=data):
            states = not place or _MARK.search(follows[: found[place].start()]) or _STATES.intersection(after[:place])
            return bool(states) and after[place + 1 : place + 3] not in (["of", "which"], ["of", "them"])
        if place and token not in _SMALL:
            return False
    return False


def _is_strong(tokens: Sequence[str], place: int, *, data: bool) -> bool:
    token, one_before = tokens[place], tokens[place - 1] if place else ""
    if token in _ANSWERS:
        return one_before in _GOOD
    if data and token in ("target", "targets"):
        return one_before in _OWNERS
    return token in STRONG


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def _adjacent(text: str, start: int) -> bool:
    return start >= 2 and text[start - 1] == " " and text[start - 2].isalpha()


def _sentence_before(text: str, start: int) -> str:
    part = text[max(0, start - _REACH) : start]
    ends = [found.end() for found in _END.finditer(part) if found["word"].lower() not in _ABBREVIATIONS]
    return part[ends[-1] :] if ends else part


def _sentence_after(text: str, end: int) -> str:
    part = text[end : end + _REACH]
    found = next((one for one in _END.finditer(part) if one["word"].lower() not in _ABBREVIATIONS), None)
    return part[: found.start() + len(found["word"])] if found is not None else part
