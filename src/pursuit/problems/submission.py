"""Whether a submission has the form that the problem asks for, and can be kept.

Owns: the check of our own `submit_final`, and what no submission may hold, whoever takes it. Pure. Invariant: what
passes is an object that the ledger keeps exactly, and that fits the manifest's schema or is a text that is not blank.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

from pursuit.core.patterns import Unfinished
from pursuit.core.validation import UnusableSchema, compiled
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.manifest import Manifest

FREE_KEYS = ("answer", "justification")
DEEPEST = 100
MOST_REASONS = 20
LONGEST_PLACE = 80
_FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs without a shape: fillers of Hangul, and the Braille pattern without dots."""

MOST_BITS = 13_000
"""Of a whole number: about 4,000 digits, which is what Python writes and reads."""


def checked_submission(problem: Manifest, given: Mapping[str, Any]) -> dict[str, Any]:
    """The submission; raises `ValidationFailed` with everything that is wrong, and then it does not count."""
    reasons = _unkept(given)
    if not reasons:
        reasons = _free(given) if problem.submission is None else _typed(problem.submission, given)
    return _passed(given, reasons)


def kept_submission(given: Mapping[str, Any]) -> dict[str, Any]:
    """A submission for the problem's own server, which knows its form; raises `ValidationFailed`."""
    return _passed(given, _unkept(given))


def kept_result(value: Any, depth: int = 0) -> Any:
    """What a server answered, as the ledger can keep it: what no number or no text is, or too deep, stands as none."""
    if depth > DEEPEST:
        return None
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            named = cast("Mapping[str, Any]", value).items()
            return {kept_result(key): kept_result(one, depth + 1) for key, one in named}
        case list() | tuple():
            return [kept_result(one, depth + 1) for one in cast("list[Any]", value)]
        case _:
            return value


def _passed(given: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    if reasons:
        faults = [Fault(field="submission", reason=reason) for reason in reasons]
        raise ValidationFailed(faults, "this is no valid submission, and it does not count as one")
    return dict(given)


def _unkept(given: Mapping[str, Any]) -> list[str]:
    """What JSON or UTF-8 cannot say, and so nobody could judge again."""
    reasons: list[str] = []
    rest: list[tuple[str, object, int]] = [("", given, 0)]
    while rest and len(reasons) < MOST_REASONS:
        where, value, depth = rest.pop()
        parts = _parts(where, value)
        why = f"is nested deeper than {DEEPEST} levels" if parts and depth == DEEPEST else _objection(value)
        if why:
            reasons.append(f"{where[-LONGEST_PLACE:]}: {why}")
        else:
            rest += [(place, one, depth + 1) for place, one in reversed(parts)]
    return reasons


def _parts(where: str, value: object) -> list[tuple[str, object]]:
    match value:
        case Mapping():
            named = cast("Mapping[str, object]", value).items()
            return [(f"{where}.{key}" if where else key, one) for key, one in named]
        case list():
            return [(f"{where}[{place}]", one) for place, one in enumerate(cast("list[object]", value))]
        case _:
            return []


def _objection(value: object) -> str:
    match value:
        case str():
            return "has half of a surrogate pair, which is no text" if _is_halved(value) else ""
        case float():
            return "" if math.isfinite(value) else f"{value} is no number in JSON; give a finite one"
        case int():
            return "is a whole number of more than 3,900 digits" if value.bit_length() > MOST_BITS else ""
        case Mapping():
            halved = any(map(_is_halved, cast("Mapping[str, object]", value)))
            return "has a name with half of a surrogate pair, which is no text" if halved else ""
        case _:
            return ""


def _is_halved(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _typed(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    try:
        return compiled(schema).faults(given)
    except UnusableSchema as error:
        return [f"the problem's own schema cannot be used: {error}"]
    except Unfinished as error:
        return [f"it cannot be checked: {error}"]


def _is_visible(character: str) -> bool:
    """Whether somebody would see it: a letter, digit, mark or sign, and no filler that only takes their place."""
    return unicodedata.category(character)[0] in "LNPS" and character not in _FILLERS


def _free(given: Mapping[str, Any]) -> list[str]:
    reasons = [f"there is no part {key!r}; known: answer, justification" for key in given if key not in FREE_KEYS]
    answer = given.get("answer")
    if not isinstance(answer, str):
        reasons.append("answer must be a text")
    elif not any(map(_is_visible, answer)):
        reasons.append("answer is blank; it must have a character that can be seen")
    if not isinstance(given.get("justification", ""), str):
        reasons.append("justification must be a text")
    return reasons
