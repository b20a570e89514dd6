"""Where a clause compares something with a number, and how.

Owns: the words for comparisons and what negates them; ranges are found by `ranges`. Names no metric. Pure.
Invariant: a comparison whose words can be taken in two ways is a `Fuzzy` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pursuit.drafting.measures import measured_in
from pursuit.drafting.phrases import noun, words_in
from pursuit.drafting.quantities import Quantity, Unclear, read_quantity
from pursuit.drafting.ranges import NOT, RELATIVE, Found, Fuzzy, in_ranges
from pursuit.model.criteria import Comparison

_DOWN = (
    r"reduc\w+|lower(?!\s+bound)\w*|decreas\w+|cut(?:s|ting)?|shrink\w*|drop\w*|minimi[sz]e|shorten\w*|down|slash|trim"
)
_UP = r"increas\w+|rais\w+|grow\w*|boost\w*|lift\w*|maximi[sz]e|up(?!\s+to\b)|double|triple"
_NEUTRAL = r"improv\w+|bring\w*|get|gets|getting|push\w*|driv\w+|mov\w+|optimi[sz]e|take|scale|ramp|reach\w*"
CHANGING = re.compile(
    rf"\s*(?:please\s+|to\s+)?(?:{_DOWN}|{_UP}|improv\w+|halve|speed up|make\b.*\b(?:faster|cheaper|smaller|better))\b",
    re.I,
)
_WORDS: dict[str, str] = {
    "<=": r"(?:at|equal to) or (?:below|under|less than)|(?:less|lower|smaller|fewer) than or equal(?: to)?|"
    r"at most|up to|max(?:imum|\.)?(?: of)?|within|no later than|capped at|limited to|"
    r"(?:a )?(?:limit|cap|ceiling|budget) of",
    ">=": r"(?:at|equal to) or (?:above|over|more than)|(?:more|greater|higher|larger) than or equal(?: to)?|"
    r"at least|min(?:imum|\.)?(?: of)?",
    "<": r"under|below|beneath|(?:less|fewer|lower|smaller|shorter|cheaper|lighter) than",
    ">": r"over|above|(?:more|greater|higher|larger|bigger|longer|heavier|costlier) than|exceed(?:s|ing|ed)?|beyond|"
    r"surpass(?:es|ing)?",
    "!=": r"(?:is )?not equal to|other than",
    "==": r"exactly|equals?(?: to)?",
    "faster": r"(?:faster|quicker) than",
    "slower": r"slower than",
    "better": r"better than",
    "worse": r"worse than",
}
_KEYS = list(_WORDS)
_SIGNS = {"<=": "<=|≤|=<", ">=": ">=|≥", "<": "<", ">": ">", "!=": "!=|≠", "==": "==?"}
_SIGN = re.compile(
    "|".join(
        f"(?P<w{place}>(?<![-\\w])(?:{words})(?![-\\w])"
        + (f"|(?<![-<>=!≤≥])(?:{_SIGNS[key]})(?![<>=]))" if key in _SIGNS else ")")
        for place, (key, words) in enumerate(_WORDS.items())
    ),
    re.I,
)
_AFTER = {
    "<=": r"or (?:less|fewer|lower|below|under|cheaper|smaller|shorter|lighter)|max(?:imum)?|at most|tops",
    ">=": r"or (?:more|higher|above|over|greater|larger|longer)|minimum|at least",
    "as fast": r"or (?:faster|quicker)",
    "reach": r"or better",
}
_AFTERS = {
    key: re.compile(rf"\s*(?P<things>(?:[a-z]+\s+){{0,2}}?)(?:{words})\b(?!\s*[-$€\d])", re.I)
    for key, words in _AFTER.items()
}
_NUMBER_AT = re.compile(r"(?<![\w.,#])(?=[$€£]?[-\u2212]?\.?\d)")
_SIGN_THEN = re.compile(r"\s*(?P<sign><=|>=|<|>|≤|≥)\s*(?=[^\W\d])")
_SKIP = re.compile(r"\s*(?:(?:of|than|a|an|the|about|around|roughly|approximately|only|just|some|~|≈)\s*(?=[\W\d\s]))*")
_GLUE = (
    r"to|be|being|go|goes|going|get|gets|getting|rise|rises|rising|drop|drops|dropping|fall|falls|falling|ever|it|let|"
    r"letting|the|a|have|has|use|uses|using|take|takes|taking|run|runs|cost|costs|costing|spend|spending|any|much|stay|"
    r"become|grow|grows|allow|allowed|move|climb|need|needs|consume|require|weigh|weighs|last|by|all|of|larger"
)
_NEGATED = re.compile(rf"(?:{NOT})(?:\s+(?:{_GLUE}))*\s*$", re.I)
_NO_THING = re.compile(
    r"\b(?:no|none of|without|never let|(?:do not|don['\u2019]t) let|avoid)\s+(?:[\w-]+\s+){1,4}$", re.I
)
_BAD = re.compile(r"\b(?:errors?|failures?|warnings?|bugs?|crash\w*|timeouts?|regressions?)\b", re.I)
_IF = re.compile(
    r"\b(?:if|when|whenever|unless|in case|assuming|given|once|after|before|except|as soon as|"
    r"since|because|although|though|currently)\b",
    re.I,
)
_GOAL_WHEN = re.compile(
    r"\b(?:stop|stops|done|finish(?:ed)?|end|complete|succeed|success) (?:when|once|as soon as)\b", re.I
)
CHANGE = re.compile(
    r"\s*-?(?:less|more|fewer|faster|slower|better|worse|lower|higher|cheaper|smaller|larger|bigger|shorter|longer|"
    r"lighter|reduction|improvement|increase|decrease|drop|gains?|speed-?up|savings?|boost|"
    r"regression|degradation|slowdown|of (?:the |its |our )?(?:"
    r"baseline|current|original|previous|today))\b",
    re.I,
)
_RUNS = re.compile(
    r"\s*(?:consecutive |random |different |independent )?(?:runs?|seeds?|trials?|epochs?|folds?|iterations?|samples?|"
    r"repeats|attempts|steps|rounds|builds|requests|episodes|days|hours|minutes|weeks|seconds)\b",
    re.I,
)
_LASTING = re.compile(r"\b(?:life|lifetime|uptime|time|duration|runtime|lasts?|endurance|mtbf)\s*$", re.I)
_TO = re.compile(r"\bto\s+(?=[-\u2212$€£.\d])", re.I)
_FROM = re.compile(r"\bfrom\s+(?=[-\u2212$€£.\d])", re.I)
_HOLD = re.compile(r"\b(?:limit|restrict|cap|confine|keep|hold)\b", re.I)
_REACH = re.compile(r"\b(?:reach(?:es)?|achieve|attain|hit|obtain|get(?: to)?)\s+(?:an?\s+|the\s+)?(?=[-$€.\d])", re.I)
_REACH_OF = re.compile(
    r"\b(?:reach(?:es)?|achieve|attain|hit|obtain|get)\s+(?:an?\s+|the\s+)?(?P<what>(?:[\w-]+\s+){1,4})of\s+(?=[-$€.\d])",
    re.I,
)
_BE = re.compile(r"\b(?:must|should|shall|has to|have to|needs? to)\s+be\s+(?=[-$€.\d]|zero\b)", re.I)


_TWICE = "it has two bounds on one side; say which of them counts, and of what"


def find_all(text: str, commas: bool) -> list[Found | Fuzzy]:
    """Every comparison of a clause, in its order."""
    context = frozenset(words_in(text))
    found: list[Found | Fuzzy] = [one for _, _, one in in_ranges(text, commas)]
    for finder in (_turned, _prefixed, _suffixed, _towards, _reached, _being):
        for one in finder(text, context, commas):
            if not any(one.start < other.end and other.start < one.end for other in found):
                found.append(one)
    return _one_side(text, sorted(found, key=lambda one: one.start))


def _one_side(text: str, found: list[Found | Fuzzy]) -> list[Found | Fuzzy]:
    """The same, but two bounds in a row on one side ("p95 < 200 ms < 300 ms") are none: one of them is too many."""
    told: list[Found | Fuzzy] = []
    for one in found:
        last = told[-1] if told else None
        if last is not None and not text[last.end : one.start].strip() and _too_many(last, one):
            told[-1] = Fuzzy(start=last.start, end=one.end, reason=_TWICE)
        else:
            told.append(one)
    return told


def _too_many(last: Found | Fuzzy, one: Found | Fuzzy) -> bool:
    if isinstance(last, Fuzzy) or isinstance(one, Fuzzy):
        return isinstance(last, Fuzzy) and last.reason == _TWICE
    sides = {(found.op or " ")[0] for found in (last, one)}
    same = len(sides) == 1 and bool(sides & {"<", ">"}) and last.negated == one.negated
    bare = last.and_op is None and one.and_op is None and not last.chained
    return same and bare and last.unit.kind == one.unit.kind


def _prefixed(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    for sign in _SIGN.finditer(text):
        key = next(key for place, key in enumerate(_KEYS) if sign[f"w{place}"] is not None)
        skipped = _SKIP.match(text, sign.end())
        at = sign.end() if skipped is None else skipped.end()
        value = read_quantity(text, at, context, commas=commas)
        if value is None:
            if sign[0].lower().endswith(" than"):
                yield Fuzzy(start=sign.start(), end=sign.end(), reason=RELATIVE)
            continue
        if sign[0].lower() == "over" and isinstance(value, Quantity) and (runs := _averaged(text, sign, value)):
            said = text[sign.start() : runs].strip()
            why = f"“{said}” says how it is measured, which is up to the tool that reports it"
            yield Fuzzy(start=sign.start(), end=runs, reason=why, aside=True)
            continue
        yield _judged(text, sign, key, value)


def _turned(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    """A number, a sign and then the thing: "3 < clusters"."""
    turned: dict[str, Comparison] = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "≤": ">=", "≥": "<="}
    for place in _NUMBER_AT.finditer(text):
        value = read_quantity(text, place.start(), context, commas=commas)
        sign = None if not isinstance(value, Quantity) else _SIGN_THEN.match(text, value.end)
        if isinstance(value, Quantity) and sign is not None:
            op = turned[sign["sign"]]
            yield Found(start=value.start, end=sign.end(), op=op, target=value.number, unit=value.unit, chained=True)


def _averaged(text: str, sign: re.Match[str], value: Quantity) -> int | None:
    """Where "over 5 runs" ends, if it says how something is measured and not how much it should be."""
    before = text[: sign.start()]
    if re.search(r"\b(?:is|are|be|stays?|gets?|goes|go|not|never)\s*$", before, re.I):
        return None
    if value.unit.kind == "time":
        return None if _LASTING.search(before) or measured_in(noun(before)) == "time" else value.end
    runs = _RUNS.match(text, value.end)
    return None if runs is None else runs.end()


def _judged(text: str, sign: re.Match[str], key: str, value: Quantity | Unclear) -> Found | Fuzzy:
    """The comparison that a sign and a number make, with the words before them."""
    start, end, before = sign.start(), value.end, text[: sign.start()]
    why = None
    if isinstance(value, Unclear):
        return Fuzzy(start=start, end=end, reason=value.reason)
    negated, unclear = _negation(before, key)
    if unclear is not None:
        why = unclear
    elif re.search(r"\bby\s*(?:a|an)?\s*$", before, re.I) or _a_change(text, value):
        why = RELATIVE
    elif _IF.search(before) and not _GOAL_WHEN.search(before):
        why = "it is a condition, not a goal; say what should come of it"
    elif (
        key == "<="
        and sign[0].lower() == "up to"
        and re.search(r"\b(?:support|handle|serve|sustain|tolerate)\b", before, re.I)
    ):
        why = "“up to” can mean at most or at least here; say which"
    if why is not None:
        return Fuzzy(start=start, end=end, reason=why)
    verb, neutral = _verb(before)
    op: Comparison | None = _op(key)
    if sign[0].lower() == "up to" and (verb == "up" or neutral):
        op, verb = ">=", "up"
    if verb == "both":
        return Fuzzy(start=start, end=end, reason="it says up and down at once; say “at least” or “at most”")
    of = value.of is None and re.compile(r"\s*of\b", re.I).match(text, end) is not None and bool(before.strip())
    leads = verb if re.match(rf"\s*(?:please\s+)?(?:{_DOWN}|{_UP})\b", before, re.I) else None
    return Found(
        start=start,
        end=end,
        op=op,
        wish="" if op is not None else key,
        target=value.number,
        unit=value.unit,
        negated=negated,
        verb=leads,
        neutral=neutral or verb is not None,
        of_something=of and bool(noun(before)),
    )


def _a_change(text: str, value: Quantity) -> bool:
    """Whether it is so many percent, or so many times, more or less than something."""
    return value.unit.kind in ("share", "factor") and CHANGE.match(text, value.end) is not None


def _op(key: str) -> Comparison | None:
    known: dict[str, Comparison] = {"<=": "<=", ">=": ">=", "<": "<", ">": ">", "==": "==", "!=": "!="}
    return known.get(key)


def _negation(before: str, key: str) -> tuple[bool, str | None]:
    """Whether the words before turn a comparison around, or why that cannot be told."""
    said = len(re.findall(NOT, before, re.I))
    if not said:
        return False, None
    unclear = "what the negation in it goes with is not clear; say “at least” or “at most”"
    turned = _NEGATED.search(before) is not None
    thing = _NO_THING.search(before)
    turned = turned or (thing is not None and not _BAD.search(thing[0]))
    if said > 1 or not turned or key in ("<=", ">=", "!="):
        return False, unclear
    return True, None


def _verb(before: str) -> tuple[str | None, bool]:
    """Which way the verbs before go (up, down, both), and whether there is one that goes either way."""
    down = re.search(rf"\b(?:{_DOWN})\b", before, re.I) is not None
    up = re.search(rf"\b(?:{_UP})\b", before, re.I) is not None
    neutral = re.search(rf"\b(?:{_NEUTRAL})\b", before, re.I) is not None
    return ("both" if down and up else "down" if down else "up" if up else None), neutral


def _suffixed(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    """A number and then how: "5 or less", "200 ms max"."""
    for place in _NUMBER_AT.finditer(text):
        value = read_quantity(text, place.start(), context, commas=commas)
        if not isinstance(value, Quantity):
            continue
        for key, pattern in _AFTERS.items():
            found = pattern.match(text, value.end)
            if found is None:
                continue
            op = _op(key)
            if re.search(NOT, text[: value.start], re.I):
                yield Fuzzy(start=value.start, end=found.end(), reason="what the negation in it goes with is not clear")
            else:
                # A thing may be named in between ("100 points or more"); it names the metric if nothing else does.
                yield Found(
                    start=value.start,
                    end=found.end(),
                    op=op,
                    wish="" if op is not None else key,
                    target=value.number,
                    unit=value.unit,
                    things=found["things"],
                )
            break


def _towards(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    """A verb of change, and what to: "reduce the cost to 5", "from 60 % to 80 %"."""
    for sign in _TO.finditer(text):
        value = read_quantity(text, sign.end(), context, commas=commas)
        if value is None:
            continue
        before = text[: sign.start()][-200:]
        began = _from(text, sign, context, commas)
        verb, neutral = _verb(before)
        start, end = (sign.start() if began is None else began.start), value.end
        held = _HOLD.search(before) is not None
        if began is None and verb is None and not neutral and not held:
            continue
        if isinstance(value, Unclear):
            yield Fuzzy(start=start, end=end, reason=value.reason)
            continue
        if began is not None:
            first = began.within(value.unit) if value.unit.name else began.number
            way = None if first is None or first == value.number else "up" if first < value.number else "down"
            verb = way if verb in (None, way) else "both"
        if verb == "both" or re.search(NOT, before, re.I):
            yield Fuzzy(start=start, end=end, reason="it says two ways at once; say “at least” or “at most”")
            continue
        op: Comparison | None = "<=" if verb == "down" or (held and verb is None) else ">=" if verb == "up" else None
        yield Found(
            start=start,
            end=end,
            op=op,
            wish="towards",
            target=value.number,
            unit=value.unit,
            neutral=True,
            of_something=re.compile(r"\s*of\b", re.I).match(text, end) is not None,
        )


def _from(text: str, to: re.Match[str], context: frozenset[str], commas: bool) -> Quantity | None:
    for sign in _FROM.finditer(text, 0, to.start()):
        value = read_quantity(text, sign.end(), context, commas=commas)
        if isinstance(value, Quantity) and not text[value.end : to.start()].strip():
            return Quantity(number=value.number, unit=value.unit, start=sign.start(), end=value.end)
    return None


def _reached(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    """A verb of reaching and a number: which way is good is told by the metric."""
    for sign in (*_REACH.finditer(text), *_REACH_OF.finditer(text)):
        value = read_quantity(text, sign.end(), context, commas=commas)
        if value is None:
            continue
        start = sign.start() if sign.re is _REACH else sign.end()
        if isinstance(value, Unclear):
            yield Fuzzy(start=start, end=value.end, reason=value.reason)
        elif _a_change(text, value):
            yield Fuzzy(start=start, end=value.end, reason=RELATIVE)
        elif re.search(NOT, text[: sign.start()], re.I):
            yield Fuzzy(start=start, end=value.end, reason="what the negation in it goes with is not clear")
        else:
            yield Found(start=start, end=value.end, op=None, wish="reach", target=value.number, unit=value.unit)


def _being(text: str, context: frozenset[str], commas: bool) -> Iterator[Found | Fuzzy]:
    """What something must be: nothing is nothing, any other number is an end that the metric tells."""
    for sign in _BE.finditer(text):
        value = read_quantity(text, sign.end(), context, commas=commas)
        if not isinstance(value, Quantity) or re.search(NOT, text[: value.start], re.I):
            continue
        if _a_change(text, value):
            yield Fuzzy(start=sign.start(), end=value.end, reason=RELATIVE)
            continue
        op: Comparison | None = "==" if value.number == 0 else None
        yield Found(start=sign.start(), end=value.end, op=op, wish="reach", target=value.number, unit=value.unit)
