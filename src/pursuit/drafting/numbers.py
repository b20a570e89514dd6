"""Comparisons with numbers, as people write them: "under 200 ms", "at least 90 %", "reduce the cost to 1.76".

Owns: the way from a clause to metrics, comparisons and targets. Pure. Invariant: every number of a directive that is
not part of a criterion, and looks as if it should be, is a doubt with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pursuit.drafting.comparing import CHANGE, CHANGING, find_all
from pursuit.drafting.measures import known, measured_in, never_a_share, smaller_is_better, wordset
from pursuit.drafting.naming import OTHER, Compared, named, named_after, of_which
from pursuit.drafting.phrases import Clause, Doubt, clauses, noun, words_in
from pursuit.drafting.quantities import RATES, Unit, decimal_commas
from pursuit.drafting.ranges import RELATIVE, Found, Fuzzy, ranges
from pursuit.model.criteria import Comparison

_LOOSE = re.compile(r"(?<![\w.,#/^-])[$€£]?-?\d[\d.,]*(?:e-?\d+)?(?!\d*(?:st|nd|rd|th)\b|[\w.,]*\w*[/.]\w)")
_LABELS = wordset(
    "top status code class "
    "version v issue pr ticket port step phase chapter section page line layer week year day in by since python node "
    "java rust go http gpt level round stage figure table appendix http2 ubuntu debian"
)
_EITHER = "it says one thing or another; a mission needs all of its criteria, so say which"
_EPOCH = re.compile(r"(?:19|20)\d\d")
_LONGEST = 500
"""Characters of a clause; no person says one thing in more, and reading it would cost their square."""
_ASIDE = re.compile(r"\b(?:at|after|for|on|over|across|with|under|in)\s+$", re.I)


@dataclass(slots=True)
class Numbers:
    """What was read; `counting` are the places of clauses that count what they name ("at least 3 tests pass")."""

    compared: list[Compared] = field(default_factory=list[Compared])
    doubts: list[Doubt] = field(default_factory=list[Doubt])
    counting: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


def read_numbers(directive: str) -> Numbers:
    """Every comparison of a directive, and what is in doubt."""
    text = re.sub(r"`[^`\n]*`", lambda quoted: "¤" * len(quoted[0]), directive)
    read, commas = Numbers(), decimal_commas(text)
    parts = list(clauses(text, ranges(text, commas)))
    for place in range(len(parts)):
        _read_clause(read, parts, place, directive, commas)
    read.doubts = list(dict.fromkeys(read.doubts))
    return read


def _read_clause(read: Numbers, parts: Sequence[Clause], place: int, directive: str, commas: bool) -> None:
    clause = parts[place]
    if len(clause.text) > _LONGEST:
        if re.search(r"\d", clause.text):
            said, why = f"{clause.text[:60].strip()}…", "it is too long to say one thing; say it in parts"
            read.doubts.append(Doubt(said=said, reason=why, at=clause.at))
        return
    # What was said is shown as it was written, with what was quoted.
    said = " ".join(directive[clause.at : clause.at + len(clause.text)].split())
    everything = find_all(clause.text, commas)
    asides = [one for one in everything if isinstance(one, Fuzzy) and one.aside]
    for aside in asides:
        blank = " " * (aside.end - aside.start)
        clause = replace(clause, text=clause.text[: aside.start] + blank + clause.text[aside.end :])
    found = [one for one in everything if one not in asides]
    if everything and not noun(clause.text[: everything[0].start]) and noun(clause.text[everything[0].end :]):
        read.counting.append((clause.at, clause.at + len(clause.text)))
    alternative = bool(found) and re.match(r"\s*(?:or|otherwise)\b", clause.text, re.I) is not None
    if alternative:
        _withdraw(read, parts[place - 1].at if place else -1)
    following = parts[place + 1] if place + 1 < len(parts) else None
    why = _EITHER if alternative else _nested(found, clause, following, commas)
    if why is not None:
        read.doubts.append(Doubt(said=said, reason=why, at=clause.at))
    else:
        _read_found(read, parts, place, found, clause=clause, said=said)
        read.doubts += [Doubt(said=said, reason=aside.reason, at=clause.at) for aside in asides if found]
    _left_over(read, said, clause, [(one.start, one.end) for one in everything])


def _read_found(
    read: Numbers, parts: Sequence[Clause], place: int, found: Sequence[Found | Fuzzy], *, clause: Clause, said: str
) -> None:
    """Turns the comparisons of a clause into criteria, one after the other."""
    previous, taken = _before(read, parts, place), 0
    for number, one in enumerate(found):
        before = clause.text[max(taken, found[number - 1].end if number else 0) : one.start]
        after = clause.text[one.end : found[number + 1].start if number + 1 < len(found) else None]
        drafted = (
            one.reason if isinstance(one, Fuzzy) else _meant(one, before, after, previous, said=said, at=clause.at)
        )
        if isinstance(drafted, Compared):
            metrics = _shared(parts, place, before, drafted.metric, first=not number)
        else:
            metrics = drafted
        if isinstance(one, Fuzzy) or isinstance(drafted, str) or isinstance(metrics, str):
            read.doubts.append(Doubt(said=said, reason=str(metrics), at=clause.at))
            continue
        for metric in metrics:
            read.compared.append(replace(drafted, metric=metric))
            if one.and_op is not None:
                read.compared.append(replace(drafted, metric=metric, op=one.and_op, target=one.and_target))
        previous = drafted
        taken = one.end + len(after) if named_after(drafted.metric, one, before, after) else 0


def _before(read: Numbers, parts: Sequence[Clause], place: int) -> Compared | str | None:
    """What the clause before speaks of: a comparison, or a thing that is only named."""
    if place and read.compared and read.compared[-1].at == parts[place - 1].at:
        return read.compared[-1]
    refers = place and re.match(r"without\b|(?=.*\bit\b)", parts[place].text, re.I | re.S)
    compared = find_all(parts[place - 1].text, commas=False) if refers else []
    name = noun(parts[place - 1].text[: compared[0].start if compared else None]) if refers else ""
    return name if name and known(name) else None


def _withdraw(read: Numbers, at: int) -> None:
    """Takes back what was read off a clause, as the next one is its alternative."""
    for one in [one for one in read.compared if one.at == at]:
        read.compared.remove(one)
        read.doubts.append(Doubt(said=one.said, reason=_EITHER, at=at))


def _nested(found: Sequence[Found | Fuzzy], clause: Clause, following: Clause | None, commas: bool) -> str | None:
    """Why comparisons that stand within each other say nothing alone: "95 % of requests under 200 ms"."""
    between = [clause.text[one.end : other.start] for one, other in pairwise(found)]
    if any(re.search(r"\bor\b", words, re.I) for words in between):
        return _EITHER
    first = found[0] if found else None
    if first is None or noun(clause.text[: first.start]) or (isinstance(first, Found) and first.chained):
        return None
    inner = len(found) > 1 and noun(clause.text[found[0].end : found[1].start])
    if following is not None and len(found) == 1 and following.after == "with" and noun(clause.text[found[0].end :]):
        inner = bool(find_all(following.text, commas))
    return "one comparison is within another; say it as one number (p95 latency under 200 ms)" if inner else None


def _meant(one: Found, before: str, after: str, last: Compared | str | None, *, said: str, at: int) -> Compared | str:
    """The criterion that a comparison asks for, or why there is none."""
    unit = one.unit
    metric = named(one, before, after, last)
    if metric is None:
        return "it does not say of what; name the metric (p95 latency under 200 ms)"
    if "_or_" in metric:
        return _EITHER
    if "version" in metric.split("_"):
        return "a version is not a number: 3.9 is less than 3.11"
    wrong = _impossible(metric, unit, one)
    if wrong is not None:
        return wrong
    metric = of_which(metric, after)
    op = one.op or _better(metric, unit, one.wish)
    if op is None:
        return f"whether more or less of {metric!r} is good is not known here; say “at least” or “at most”"
    op = OTHER[op] if one.negated else op
    if one.verb is not None and (op in ("<", "<=")) != (one.verb == "down") and op not in ("==", "!="):
        return "it says two ways at once; say “at least” or “at most”"
    return Compared(metric=metric, op=op, target=one.target, said=said, at=at)


def _impossible(metric: str, unit: Unit, one: Found) -> str | None:
    """Why this unit does not go with this metric."""
    bare = metric.removesuffix(f"_{unit.name}") if unit.name else metric
    if unit.kind == "share" and (one.of_something or never_a_share(bare)):
        return RELATIVE
    if unit.kind == "factor" and not set(bare.split("_")) & {"speedup", "factor", "ratio", "multiple"}:
        return RELATIVE
    kind = measured_in(bare)
    if kind is not None and unit.kind in ("time", "money", "mass", "length", "data") and kind != unit.kind:
        return f"{bare.replace('_', ' ')} is not measured in {unit.name}"
    return None


def _better(metric: str, unit: Unit, wish: str) -> Comparison | None:
    """The comparison that a word such as faster or better means for this metric."""
    if wish in ("faster", "slower", "as fast"):
        quick: Comparison | None = None
        if unit.kind == "time" or (not unit.name and measured_in(metric) == "time"):
            quick = "<"
        elif unit.kind in RATES or {"throughput", "speed", "fps", "rps"} & set(metric.split("_")):
            quick = ">"
        if wish == "as fast" and quick is not None:
            return "<=" if quick == "<" else ">="
        return quick if wish == "faster" or quick is None else (">" if quick == "<" else "<")
    smaller = smaller_is_better(metric)
    if smaller is None and wish == "reach" and not unit.name and metric.endswith("s"):
        return ">="
    if smaller is None:
        return None
    if wish == "worse":
        return ">" if smaller else "<"
    if wish == "better":
        return "<" if smaller else ">"
    return "<=" if smaller else ">="


def _shared(parts: Sequence[Clause], place: int, before: str, metric: str, *, first: bool) -> list[str] | str:
    """The metric with those before it in a list ("precision and recall above 0.9"), or why that is unclear."""
    name, together = noun(before), [metric]
    leads = [word for word in words_in(before) if word != "both"][:1] == name.split("_")[:1]
    if not first or not name or not known(name) or not leads:
        return together
    while place and parts[place].after in ("and", ","):
        place -= 1
        other = noun(parts[place].text)
        if not parts[place].text.strip() and parts[place].after:
            continue
        if not other or not known(other) or find_all(parts[place].text, commas=False):
            break
        together.insert(0, metric.replace(name, other, 1))
    ways = {smaller_is_better(one) for one in together} - {None}
    return "of these one is better high and the other low; say a number for each" if len(ways) > 1 else together


def _left_over(read: Numbers, said: str, clause: Clause, used: Sequence[tuple[int, int]]) -> None:
    """Tells what of a clause looks as if it should be a criterion, and nothing was made of."""
    why = None
    if not used and re.search(r"\bthan\s+(?!\d)", clause.text, re.I):
        why = RELATIVE
    for number in _LOOSE.finditer(clause.text):
        taken = any(start <= number.start() < end for start, end in used)
        if not taken and number[0] != "0" and not _a_label(clause.text, number):
            why = why or _of_loose(clause.text, number, compared=bool(used))
    if why is None and not used and CHANGING.match(clause.text):
        why = "it does not say how much is enough; say the number that it should come to"
    if why is not None:
        read.doubts.append(Doubt(said=said, reason=why, at=clause.at))


def _of_loose(text: str, number: re.Match[str], *, compared: bool) -> str:
    """What is to be said of a number that nothing compares with."""
    aside = _ASIDE.search(text[: number.start()])
    if _relative(text, number):
        return RELATIVE
    if compared and aside is not None:
        rest = re.compile(r"\s?[%\w]*").match(text, number.end())
        said = text[aside.start() : number.end() if rest is None else rest.end()].strip(" .,")
        return f"“{said}” is a condition, which is up to the tool that reports it"
    return f"no comparison that is known here goes with {number[0].strip('.,')}"


def _relative(text: str, number: re.Match[str]) -> bool:
    by = re.search(r"\bby\s+(?:about\s+|around\s+|a\s+|a factor of\s+)?$", text[: number.start()], re.I)
    share = re.compile(r"\s?(?:%|percent|x\b|times\b)").match(text, number.end())
    return by is not None or (share is not None and CHANGE.match(text, share.end()) is not None)


def _a_label(text: str, number: re.Match[str]) -> bool:
    """Whether a number names something: Python 3.12, issue 7, in 2030, top 5 accuracy."""
    words = re.findall(r"[\w#]+", text[: number.start()])
    before = words[-1] if words else ""
    labelled = before.lower() in _LABELS or (len(words) > 1 and before[:1].isupper())
    return labelled and (before.lower() not in ("in", "by", "day") or bool(_EPOCH.fullmatch(number[0])))
