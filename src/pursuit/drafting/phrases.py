"""The parts of a directive: clauses that each say one thing, and the names of what they speak of.

Owns: where a clause ends, which words name something, and words that are not turned into a criterion. Knows no number.
Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pursuit.drafting.measures import known, wordset

_SPLIT = re.compile(
    r"(?<!\d),|,(?!\d)|[;\n]|:(?=\s)|\s(?:-|\u2013|—|->|=>|→)\s|(?<!\bmax)(?<!\bmin)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\.(?=\s|$)"
    r"|\b(?:and|while|whilst|but|then|plus|yet|with|so that|as well as|as long as|provided that|subject to|such that)\b"
    r"|\s(?=(?:without|keeping|ensuring|maintaining|holding|making sure)\b)",
    re.I,
)
_WORD = re.compile(r"\b\d[\d.,]*\d\b|[\w./'\u2019-]*[\w']")
FILLERS = wordset("""
    don_t doesn_t didn_t shouldn_t mustn_t can_t won_t isn_t aren_t since because
    a an the our its their my your this that these it we i you they get gets bring keep keeping keeps make makes
    ensure ensuring have has having hold holding drive push reach achieve attain hit maintain maintaining stay
    stays staying be being is are was were remain remains should must shall will can could to down up until till
    so please want need only from at by in on of for not no never still always go goes going come comes find
    give show sure us let lets with without using use and or reduce reduces reducing lower lowers lowering
    decrease decreases cut cuts cutting shrink drop drops fall falls minimise minimize shorten increase
    increases increasing raise raises improve improves improving grow boost lift maximise maximize optimise
    optimize design both all any each every than as of ever exceed just about around roughly approximately
    obtain limit restrict cap within don doesn does do avoid
""")
_ENDS = wordset("of for in on at from when during across by using under within to if where which after")
_STARTS = wordset("""
    that which whose has have having is are until till so such ensure ensuring keep keeping get make bring sure
    without maintain maintaining holding hold want need let when once if since because""")
_ARTICLES = wordset("a an the our my this these its all each every")
_NOUNS_TOO = wordset("or lift drop cut limit cap design need hit reach growth push drive hold")
_OF_COUNTS = frozenset({"number", "count", "amount", "total"})
_OF_KEPT = wordset("mean average median max maximum min minimum sum rate variance std share fraction ratio")
_OF_PERCENT = frozenset({"percentage", "percent"})
_VERBS = {
    "costs": "cost", "weighs": "weight", "takes": "duration", "lasts": "duration", "runs": "duration",
    "finish": "duration", "finishes": "duration", "complete": "duration", "completes": "duration", "run": "duration",
    "respond": "response_time", "responds": "response_time", "take": "duration", "weigh": "weight",
}  # fmt: skip
_MOST_WORDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Words that look like a criterion and are none, and why."""

    said: str
    reason: str
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A part that says one thing; `after` is what stands between it and the one before."""

    text: str
    at: int
    after: str = ""

    @property
    def said(self) -> str:
        """Its words."""
        return " ".join(self.text.split())


def clauses(text: str, whole: Sequence[tuple[int, int]] = ()) -> Iterator[Clause]:
    """The parts of a text; none ends within one of the spans that are to stay whole."""
    at, after = 0, ""
    for cut in _SPLIT.finditer(text):
        if any(start <= cut.start() < end for start, end in whole):
            continue
        yield Clause(text=text[at : cut.start()], at=at, after=after)
        at, after = cut.end(), cut[0].strip().lower()
    yield Clause(text=text[at:], at=at, after=after)


def slug(words: str) -> str:
    """Words as a name; accents go where that leaves plain letters."""
    folded = unicodedata.normalize("NFKD", words.lower())
    bare = "".join(letter for letter in folded if not unicodedata.combining(letter))
    plain = bare if bare.isascii() else unicodedata.normalize("NFKC", words.lower())
    return re.sub(r"[\W_]+", "_", plain).strip("_")


def words_in(text: str) -> list[str]:
    """The words of a text, as names."""
    words = (re.sub(r"['\u2019]s$", "", word) for word in _WORD.findall(text))
    return [word for word in map(slug, words) if word]


def noun(text: str, *, following: bool = False) -> str:
    """What a phrase names, without what leads up to it and what it belongs to; empty if it names nothing.

    A phrase that follows a number names what it begins with.
    """
    words = words_in(re.sub(r"\bspeed(?:ing)? up\b", "", text, flags=re.I))
    last = max((place for place, word in enumerate(words[:-1]) if word in _STARTS), default=-1)
    if any(word not in FILLERS for word in words[last + 1 :]):
        words = words[last + 1 :]
    while words and words[0] in FILLERS:
        words.pop(0)
    while words and words[-1] in FILLERS:
        words.pop()
    if len(words) > 2 and words[1] in _ARTICLES and not known(words[0]):
        words = words[2:]
    if words and words[-1] in _VERBS and not following:
        return _VERBS[words[-1]]
    words = _head(_without_of(words), following)
    named = [word for place, word in enumerate(words) if not _idle(words, place)]
    return "_".join(named[-_MOST_WORDS:])


def _head(words: list[str], following: bool) -> list[str]:
    """The words up to the first that says whose it is, unless only the last ones name something that is measured."""
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    if not ends or following:
        return words[: ends[0]] if ends else words
    head, tail = words[: ends[0]], words[max([place for place in ends if words[place] != "to"], default=-1) + 1 :]
    return tail if head and tail and known(tail[-1]) and not known(head[-1]) else head


def _idle(words: Sequence[str], place: int) -> bool:
    """Whether a word within a phrase names nothing: a filler, or a number that is no part of a name."""
    word = words[place]
    if word[0].isdigit() and word.replace("_", "").isdigit():
        return place == 0 or len(word) > 3  # HTTP 500 errors, top 5 accuracy
    return word in FILLERS and word not in _NOUNS_TOO


def _without_of(words: list[str]) -> list[str]:
    """A count of things is named by the things, a mean of them by both."""
    if len(words) < 3 or "of" not in words[1:-1]:
        return words
    place = words.index("of")
    head, rest = words[:place], [word for word in words[place + 1 :] if word not in _ARTICLES]
    if head[-1] in _OF_COUNTS:
        return rest
    if head[-1] in _OF_KEPT:
        return [*rest, head[-1]] if head[-1] in ("rate", "share", "fraction", "ratio") else [head[-1], *rest]
    return [*rest, "percent"] if head[-1] in _OF_PERCENT else words
