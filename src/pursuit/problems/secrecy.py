"""The numbers of a problem that no agent may see, and where a text tells one all the same.

Owns: which numbers these are (targets, best known values, what a predicate or an argument of the judge holds), and when
a text tells one. Does not know: fields and files that are looked through (`shown_secrecy`, `asset_secrecy`). Pure.
Invariant: whatever tells a number is quoted; the work is bounded by the length of the text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from pursuit.problems.files import parsed_python
from pursuit.problems.manifest import Manifest, Scorer
from pursuit.problems.numerals import Numeral, about, as_read, digit_numerals, digits_of, numerals, plain_number, same
from pursuit.problems.telling_words import HINTS, says_best
from pursuit.problems.told_columns import best_cells

TELLING_DIGITS = 4
"""From so many significant digits on a number stands in a text for one reason only."""

ROUNDED_DIGITS = 5
"""Rounded, it tells by itself from so many digits on; with the words for it, from `FEWEST_DIGITS`."""

FEWEST_DIGITS = 3
SURE_DIGITS = 6
"""In data, where many numbers stand, one tells by itself from so many digits on."""

SHORTEST_TEXT, SHORT_TEXT, LONG_TEXT = 4, 8, 16
"""So long is a text that tells: a code, one that the judge compares with, and any other."""

ARGUMENTS = "scorer.arguments"

MOST_HITS, MOST_LOOKS = 50_000, 500
"""So often a number is looked at in one piece of data, and so often with all of the words around it."""

_EXCERPT, _WINDOW = 50, 200
_NAME_PARTS = re.compile(r"[^\w.]|_|(?<=[^\W\d])(?=\d)")
_PLAIN_WORDS = re.compile(r"[^\W\d_]?[^\W\d_A-Z]++\d*(?:[ _-](?:[^\W\d_]?[^\W\d_A-Z]++\d*|\d+))*")
_BETWEEN_DIGITS = "[.,_'\u2019 \u00a0\u2009\u202f]"


@dataclass(frozen=True, slots=True)
class Secret:
    """A number that only the scorer may know, the field that it stands in, and the metric that it is of."""

    value: float
    field: str
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A secret that a text tells, and the words that tell it."""

    secret: Secret
    excerpt: str

    def __str__(self) -> str:
        way_out = ""
        if self.secret.field.startswith(f"{ARGUMENTS}."):
            way_out = f", or name {self.secret.field} in visibility.public if agents may know it"
        elif self.secret.field.endswith(".target"):
            way_out = ", or set visibility.target = true if agents may know it"
        return f"tells agents the number of {self.secret.field}: {self.excerpt!r}; reword it{way_out}"


def is_telling(value: float) -> bool:
    """Whether a number has so many digits that it stands in a text for one reason only."""
    if value == int(value) and 1900 <= abs(value) < 2100:
        return False  # a year stands in every source
    return len(digits_of(value)) >= TELLING_DIGITS


def numbers_of(scorer: Scorer) -> list[Secret]:
    """The targets and best known values (0 and 1 tell nothing), and long numbers of predicates and arguments."""
    scored = [
        Secret(value, f"scorer.metrics[{place}].{name}", metric.name)
        for place, metric in enumerate(scorer.metrics)
        for name, value in (("target", metric.target), ("best_known", metric.best_known))
        if value is not None and abs(value) not in (0, 1)
    ]
    return scored + [
        Secret(float(value), field)
        for field, value in constants_of(scorer)
        if isinstance(value, int | float) and abs(value) < 1e300 and is_telling(float(value))
    ]


def secrets_of(manifest: Manifest) -> list[Secret]:
    """The numbers that this problem keeps from agents: with `visibility.target` its targets are none."""
    secrets = [secret for secret in numbers_of(manifest.scorer) if not is_public(manifest, secret.field)]
    if not manifest.visibility.target:
        return secrets
    open_ones = {secret.value for secret in secrets if secret.field.endswith(".target")}
    return [secret for secret in secrets if secret.value not in open_ones]


def has_argument(scorer: Scorer, field: str) -> bool:
    """Whether the judge is told something of this name, or in a table or list of it."""
    return any(_is_within(at, field) for at, _ in _leaves(scorer.arguments, ARGUMENTS))


def _is_within(field: str, other: str) -> bool:
    return field == other or field.startswith((f"{other}.", f"{other}["))


def is_public(manifest: Manifest, field: str) -> bool:
    """Whether the author vouches for an argument of the judge, or for the table or list that it is in."""
    return field.startswith(ARGUMENTS) and any(_is_within(field, name) for name in manifest.visibility.public)


def constants_of(scorer: Scorer) -> Iterator[tuple[str, str | float]]:
    """The texts and numbers that the judge compares with, each with its field; names of fields are none."""
    for place, rule in enumerate(scorer.predicates):
        tree = parsed_python(rule.expression.strip(), "eval")
        nodes = [] if tree is None else list(ast.walk(tree))
        names = {id(name) for node in nodes for name in _names_in(node)}
        compared = {
            id(part) for node in nodes if isinstance(node, ast.Compare) for part in (node.left, *node.comparators)
        }
        for node in nodes:
            if not isinstance(node, ast.Constant) or id(node) in names or isinstance(node.value, bool):
                continue
            if isinstance(node.value, int | float) or (
                isinstance(node.value, str) and len(node.value) >= (SHORT_TEXT if id(node) in compared else LONG_TEXT)
            ):
                yield f"scorer.predicates[{place}].expression", node.value
    for field, value in _leaves(scorer.arguments, ARGUMENTS):
        if not isinstance(value, str) or len(value) >= (LONG_TEXT if _is_plain(value) else SHORTEST_TEXT):
            yield field, value


def _names_in(node: ast.AST) -> list[ast.expr]:
    """What only says where a value is, or what a server calls its outcome.

    `submission['answer']`, `result.get('some')`, `'answer' in submission`; `result['status'] == 'accepted'`
    """
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return node.args[:1]
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
        if isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(parts[1], ast.Name):
            return [node.left]
        if any(isinstance(one, ast.Name) and one.id == "result" for part in parts for one in ast.walk(part)):
            return [part for part in parts if isinstance(part, ast.Constant) and _is_plain(part.value)]
    return []


def _is_plain(value: object) -> bool:
    """Whether a text is made of words, with or without numbers: `standard`, `two-point`, `berlin52`, `item-03`."""
    return isinstance(value, str) and _PLAIN_WORDS.fullmatch(value) is not None


def _leaves(value: object, at: str) -> Iterator[tuple[str, str | float]]:
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[str, Any]", value).items():
            yield from _leaves(one, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[Any]", value)):
            yield from _leaves(one, f"{at}[{place}]")
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield at, value


def told_in(text: str, secrets: list[Secret]) -> list[Secret]:
    """The secrets that a text for people tells."""
    return [told.secret for told in tellings(text, secrets)]


def tellings(text: str, secrets: list[Secret], *, data: bool = False) -> list[Told]:
    """What a text tells of the secrets, each once.

    One of many digits is told wherever it stands, in whatever spelling; a short or rounded one where words say that it
    is the best or the one to reach. Among `data` only one of `SURE_DIGITS` is told by itself.
    """
    if not secrets:
        return []
    text = as_read(text)
    found: dict[str, Told] = {}
    for numeral in numerals(text):
        for secret in secrets:
            if secret.field not in found and _tells(text, numeral, secret, data=data):
                found[secret.field] = Told(secret, excerpt_of(text, numeral.start, numeral.end))
    return list(found.values())


def _tells(text: str, numeral: Numeral, secret: Secret, *, data: bool) -> bool:
    value, exact = secret.value, same(numeral, secret.value)
    if is_telling(value):
        by_itself = exact or (not numeral.is_year and about(numeral, value, least=ROUNDED_DIGITS))
        if by_itself and not numeral.in_doubt and (not data or (exact and len(digits_of(value)) >= SURE_DIGITS)):
            return True
        said = by_itself or about(numeral, value, least=FEWEST_DIGITS)
    else:
        said = exact and not numeral.named
    return said and says_best(text, numeral.start, numeral.end, metric=secret.metric, data=data)


def excerpt_of(text: str, start: int, end: int) -> str:
    """The words around a place of a text, in one line."""
    begin, stop = max(0, start - _EXCERPT), end + _EXCERPT // 2
    words = " ".join(text[begin:stop].split())[: 2 * _EXCERPT]
    return f"{'…' if begin else ''}{words}{'…' if stop < len(text) else ''}"


def in_words(name: str) -> str:
    """A name or address, and its parts as words: what stands in it between letters and underscores is a number, too."""
    return f"{name} {_NAME_PARTS.sub(' ', name)}"


def told_among(piece: str, bare: bytes, secrets: list[Secret]) -> list[Told]:
    """What a piece of data tells of the secrets; `bare` are its letters and digits alone, in lower case.

    The digits are looked for first, and the words around them only where they stand.
    """
    speaks = any(word.encode() in bare for word in HINTS) or b"solution" in bare or b"answer" in bare
    found: list[Told] = []
    for secret in secrets:
        digits = digits_of(secret.value)
        places: list[Iterator[int]] = []
        if len(digits) >= SURE_DIGITS and digits.encode() in bare:
            places.append(one.start() for one in re.finditer(f"{_BETWEEN_DIGITS}?".join(digits), piece))
        if speaks:
            short = not is_telling(secret.value)
            places += [_starts(piece, stem, whole=short) for stem in _stems(secret.value)]
        told = _told_in_column(piece, secret) if speaks else None
        told = told or next(
            (told for starts in places if (told := _first_told(piece, starts, secret)) is not None), None
        )
        if told is not None:
            found.append(told)
    return found


def _told_in_column(piece: str, secret: Secret) -> Told | None:
    """Where a column that is called the best has a secret, or one rounded to so many digits as say something."""
    stems = _stems(secret.value)
    for start, end in best_cells(piece):
        if not any(stem in piece[start:end] for stem in stems):
            continue
        for numeral in digit_numerals(piece, start, end):
            if same(numeral, secret.value) or (
                is_telling(secret.value) and about(numeral, secret.value, least=FEWEST_DIGITS)
            ):
                return Told(secret, excerpt_of(piece, start, end))
    return None


def _first_told(piece: str, starts: Iterator[int], secret: Secret) -> Told | None:
    sure = len(digits_of(secret.value)) >= SURE_DIGITS
    looked = 0
    for at in islice(starts, MOST_HITS):
        # From the cheapest question to the dearest: words for it, the number itself, and whether they go together.
        if not sure and not _ANY_STRONG.search(piece, max(0, at - _WINDOW), at + _WINDOW):
            continue
        for numeral in digit_numerals(piece, max(0, at - 8), at + 40):
            if _tells(piece, numeral, secret, data=True):
                return Told(secret, excerpt_of(piece, numeral.start, numeral.end))
        looked += 1
        if looked == MOST_LOOKS:
            break
    return None


_ANY_STRONG = re.compile(
    rf"{'|'.join(sorted(HINTS - {'target', 'targets'}))}|\b(?:the|our|your)\s+target|solution|answer", re.IGNORECASE
)


def _starts(piece: str, stem: str, *, whole: bool) -> Iterator[int]:
    """Where a number begins with these characters; if they are the `whole` of it, nothing but zeros may follow."""
    follows = r"(?!\d|[.,]0*[1-9])" if whole else ""
    for found in re.finditer(re.escape(stem) + follows, piece):
        at = found.start()
        before = piece[max(0, at - 2) : at]
        if stem[0] in ".,":
            before = before.removesuffix("0")
        if not before or not (before[-1].isdigit() or (before[-1] == "." and stem[0] != ".")):
            yield at


def _stems(value: float) -> list[str]:
    """What a number can begin with where it is written in digits: as it is, rounded, grouped, as percent."""
    found: dict[str, None] = {}
    size = abs(value)
    forms = [size]
    if size <= 1:
        forms.append(size * 100)
    if not 1e-3 < size < 1e6:
        forms.append(float(f"{size:e}".partition("e")[0]))
    for one in [rounded for form in forms for rounded in (form, float(f"{form:.{FEWEST_DIGITS}g}"))]:
        whole, _, decimals = plain_number(float(f"{one:.12g}")).partition(".")
        if whole == "0":
            zeros = len(decimals) - len(decimals.lstrip("0"))
            found |= {f"{mark}{decimals[: zeros + FEWEST_DIGITS]}": None for mark in ".,"}
        elif len(whole) >= FEWEST_DIGITS or not decimals:
            found |= dict.fromkeys((whole, f"{int(whole):,}", f"{int(whole):,}".replace(",", " ")))
        else:
            found |= {f"{whole}{mark}{decimals[: FEWEST_DIGITS - len(whole)]}": None for mark in ".,"}
    return list(found)
