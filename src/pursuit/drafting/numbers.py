"""Comparisons with numbers, as people write them: "under 200 ms", "at least 90 %", "reduce the cost to 1.76".

Owns: the words for comparisons, the numbers, their units, and the name of what is compared. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pursuit.model.criteria import Comparison

_OPS: tuple[tuple[Comparison, str], ...] = (
    ("<=", r"at most|(?:no|not) (?:more|greater|higher|longer|larger) than|up to|(?:a )?maximum of|within"),
    (">=", r"at least|(?:no|not) (?:less|fewer|lower|smaller) than|(?:a )?minimum of"),
    ("<", r"under|below|(?:less|fewer|lower|smaller|shorter|cheaper|faster|quicker) than"),
    (">", r"over|above|(?:more|greater|higher|larger|longer|better) than|exceed(?:s|ing)?|beyond"),
    ("==", r"exactly|equals?(?: to)?"),
)
_SIGNS = {"<=": "<=|≤", ">=": ">=|≥", "<": "<", ">": ">", "==": "==?"}
_AFTER: tuple[tuple[Comparison, str], ...] = (
    ("<=", r"or (?:less|fewer|lower|below|faster|cheaper)"),
    (">=", r"or (?:more|higher|above|greater|better)"),
)
_DOWN = r"reduc\w*|lower\w*|decreas\w*|cut\w*|shrink\w*|drop\w*|minimi[sz]e|shorten\w*|down"
_UP = r"increas\w*|rais\w*|improv\w*|grow\w*|boost\w*|lift\w*|maximi[sz]e|reach\w*|up"
_UNITS = {
    "percent": r"%|percent|per cent",
    "ms": r"ms|milliseconds?",
    "us": r"µs|us|microseconds?",
    "s": r"s|secs?|seconds?",
    "minutes": r"mins?|minutes?",
    "hours": r"h|hrs?|hours?",
    "days": r"days?",
    "kb": r"kb|kib|kilobytes?",
    "mb": r"mb|mib|megabytes?",
    "gb": r"gb|gib|gigabytes?",
    "bytes": r"bytes?",
    "usd": r"usd|dollars?|\$",
    "eur": r"eur|euros?|€",
    "rps": r"rps|requests? (?:per|a) second",
}
_UNIT = "|".join(f"(?P<{name}>{words})" for name, words in _UNITS.items())
_VALUE = re.compile(
    rf"(?P<money>\$\s?)?(?P<number>-?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)"
    rf"(?P<scale>k|m(?![a-z]))?(?:\s?(?:{_UNIT})(?![a-z0-9]))?",
    re.I,
)
_SCALES = {"k": 1e3, "m": 1e6}
_COMPARED = re.compile(
    "|".join(
        f"(?P<op{place}>(?<![\\w-])(?:{words})(?![\\w-])|(?<![-<>=!])(?:{_SIGNS[op]})(?![<>=]))"
        for place, (op, words) in enumerate(_OPS)
    ),
    re.I,
)
_BY = re.compile(rf"\b(?:{_DOWN}|{_UP})\b.*\bby\s+(?:at least\s+|a\s+)?(?:\d|half|third|quarter)", re.I)
_TO = re.compile(r"\bto\s+(?=[-$\d])", re.I)
_BETWEEN = re.compile(
    r"\bbetween\s+(?P<low>[-$\d][\w.,$]*)(?P<unit>\s?(?:%|[a-z]+))?\s+and\s+(?P<high>[-$\d][\w.,]*)", re.I
)
_SPLIT = re.compile(
    r"(?<!\d),|,(?!\d)|[;\n]|\.(?=\s|$)|\b(?:and|while|but|then|with|so that|as long as|provided that|without)\b", re.I
)
_WORD = re.compile(r"[\w./-]+")
_FILLERS = frozenset(
    _WORD.findall("""
        a an the our its their this that it we i you get bring keep make ensure have hold drive push reach achieve
        attain hit maintain stay stays be is are was remain remains should must shall will can to down up until till so
        please want only from at by in on of for not no still always go goes going come comes find give show sure us let
        with using use and or reduce reduces lower lowers decrease decreases cut shrink drop minimise minimize shorten
        increase increases raise improve improves grow boost lift maximise maximize design
    """)
)
_ENDS = frozenset(_WORD.findall("of for in on at from per when during across by using under within to if where which"))
_COUNTS = frozenset({"number", "count", "amount", "total"})
_DOINGS = {"finish": "duration", "complete": "duration", "run": "duration", "respond": "response_time"}
_VERBS = {"costs": "cost", "weighs": "weight", "takes": "duration", "lasts": "duration", "runs": "duration", **_DOINGS}
_MOST_WORDS = 4
_NEAR = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A metric that is compared with a number, and the words that say so."""

    metric: str
    op: Comparison
    target: float
    said: str
    at: int


def comparisons(directive: str) -> Iterator[Compared]:
    """Every comparison in a directive; one that names no metric means the one before it."""
    last, whole = "", " ".join(directive.split())
    for at, clause in clauses(_BETWEEN.sub(_as_two, directive)):
        found = _compared(clause)
        if found is None:
            continue
        op, value, before, after = found
        unit = next((name for name in _UNITS if value.group(name)), "usd" if value["money"] else "")
        metric = _named(before, after, unit) or last
        if metric:
            last = metric
            said = " ".join(clause.split())
            yield Compared(metric=metric, op=op, target=_number(value), said=said if said in whole else whole, at=at)


def relative(directive: str) -> Iterator[str]:
    """The clauses that ask for a change by so much, which no number alone can decide."""
    for _, clause in clauses(directive):
        if _BY.search(clause) and _compared(clause) is None:
            yield " ".join(clause.split())


def clauses(text: str) -> Iterator[tuple[int, str]]:
    """The parts of a text that each say one thing, with their places."""
    at = 0
    for cut in _SPLIT.finditer(text):
        yield at, text[at : cut.start()]
        at = cut.end()
    yield at, text[at:]


def slug(words: str) -> str:
    """Words as a name."""
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _as_two(found: re.Match[str]) -> str:
    unit = found["unit"] or ""
    return f"at least {found['low']}{unit} and at most {found['high']}"


def _compared(clause: str) -> tuple[Comparison, re.Match[str], str, str] | None:
    """The comparison of a clause: how, with what, and the words around it."""
    for sign in _COMPARED.finditer(clause):
        value = _VALUE.match(clause, _skip(clause, sign.end()))
        if value is not None:
            op: Comparison = next(known for place, (known, _) in enumerate(_OPS) if sign[f"op{place}"])
            return op, value, clause[: sign.start()], clause[value.end() :]
    for value in _VALUE.finditer(clause):
        for said_after, words in _AFTER:
            # A thing may be named in between: "100 points or more".
            found = re.compile(rf"\s*(?P<things>(?:[a-z]+\s+){{0,2}}?)(?:{words})\b", re.I).match(clause, value.end())
            if found is not None:
                return said_after, value, clause[: value.start()], found["things"] + clause[found.end() :]
    for sign in _TO.finditer(clause):
        value = _VALUE.match(clause, sign.end())
        before = clause[: sign.start()][-_NEAR:]
        if value is not None and re.search(rf"\b(?:{_DOWN})\b", before, re.I):
            return "<=", value, before, clause[value.end() :]
        if value is not None and re.search(rf"\b(?:{_UP})\b", before, re.I):
            return ">=", value, before, clause[value.end() :]
    return None


def _skip(clause: str, at: int) -> int:
    """Past the space, and past an `of` or `than` that some people write."""
    found = re.compile(r"\s*(?:of\s+|than\s+|a\s+|the\s+)?").match(clause, at)
    return at if found is None else found.end()


def _number(value: re.Match[str]) -> float:
    number = float(value["number"].replace(",", ""))
    return number * _SCALES.get((value["scale"] or "").lower(), 1)


def _named(before: str, after: str, unit: str) -> str:
    """What is compared: the words before, else those after; with the unit, as numbers alone have none."""
    words = _noun(before) or _noun(after)
    if not words:
        return ""
    name = "_".join(words)
    return name if not unit or unit in words else f"{name}_{unit}"


def _noun(text: str) -> list[str]:
    """The words of a phrase that name something, without what leads up to it and what it belongs to."""
    words = [slug(word) for word in _WORD.findall(text)]
    while words and words[0] in _FILLERS:
        words.pop(0)
    while words and words[-1] in _FILLERS:
        words.pop()
    if words and words[-1] in _VERBS:
        return [_VERBS[words[-1]]]
    if len(words) > 2 and words[0] in _COUNTS and words[1] == "of":
        words = words[2:]
    for place, word in enumerate(words):
        if word in _ENDS:
            words = words[:place]
            break
    return [word for word in words if word and word not in _FILLERS][-_MOST_WORDS:]
