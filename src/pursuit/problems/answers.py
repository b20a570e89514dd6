"""The answers that no agent may read before it gives one.

Owns: what the baseline's script hands in as it stands there, the texts that a judge compares with, and whether a text
holds one. Does not know: which texts agents read. Reads files and runs nothing.
Invariant: an answer that says little (a count, `[1, 1, 1]`, a common word) is none; what the schema offers is none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.numerals import digits_of, plain_number
from pursuit.problems.secrecy import LONG_TEXT, constants_of, excerpt_of
from pursuit.tools.fields import as_table

BASELINE = "the answer of the baseline"
_SHORTEST_TEXT = 4
_ALONE, _TOGETHER, _IN_A_ROW = 4, 6, 4
"""So many digits one number, two numbers and more of them must have together to say something."""

_MOST_NUMBERS = 64
_MOST_HITS = 200_000
_MOST_ZEROS = 24
_ASIDE = "justification"
_WORDS = re.compile(r"\w+")
_INDEXED = re.compile(r"_\{\d{1,3}\}")
_LIST_NUMBER = re.compile(r"(?m)^([ \t]*)\d{1,3}[.)](?=[ \t])")
_COMMON_WORD = re.compile(r"[^\W\d_]?[^\W\d_A-Z]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """A text, or numbers that stand together, and whose it is."""

    whose: str = BASELINE
    text: str = ""
    numbers: tuple[float, ...] = ()


def answers_of(manifest: Manifest) -> list[Answer]:
    """The answers of a problem that say enough to be told."""
    offered = set(_offered(manifest.submission or {}))
    judged = [
        Answer(whose=field, text=value) for field, value in constants_of(manifest.scorer) if isinstance(value, str)
    ]
    found = dict.fromkeys((*_handed_in(manifest), *judged))
    return [one for one in found if one.text not in offered and (_says_much(one.numbers) if one.numbers else True)]


def _handed_in(manifest: Manifest) -> Iterator[Answer]:
    """What stands in the baseline's calls of submit_final, in its order."""
    if manifest.baseline is None:
        return
    proposer = manifest.baseline.proposer
    file = file_of(manifest.folder, str(proposer["file"])) if "file" in proposer else ""
    source = text_of(file) if isinstance(file, Path) else proposer.get("script")
    tree = parsed_python(source) if isinstance(source, str) else None
    if tree is None:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not any(_names_submission(one) for one in node.args[:1]):
            continue
        parts = [part for arg in (*node.args[1:], *(one.value for one in node.keywords)) for part in _constants(arg)]
        for text in (part for part in parts if isinstance(part, str)):
            if len(text) >= LONG_TEXT or (len(text) >= _SHORTEST_TEXT and not _COMMON_WORD.fullmatch(text)):
                yield Answer(text=text)
        numbers = tuple(float(n) for n in parts if isinstance(n, int | float) and abs(n) < 1e300)
        if numbers:
            yield Answer(numbers=numbers[:_MOST_NUMBERS])


def _constants(node: ast.AST) -> Iterator[str | float]:
    """The texts and numbers below a node, in the order of the source, but for names of parts and what is said aside."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and key.value == _ASIDE):
                yield from _constants(value)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str | int | float) and not isinstance(node.value, bool):
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _constants(child)


def _names_submission(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("submit_final")


def _offered(schema: Any, depth: int = 0) -> Iterator[str]:
    """The texts that a schema lists as choices."""
    if depth > _MOST_NUMBERS:
        return
    listed = cast("list[object]", schema) if isinstance(schema, list) else []
    for one in listed:
        yield from _offered(one, depth + 1)
    for key, value in (as_table(cast("object", schema)) or {}).items():
        choices = cast("list[object]", value) if key == "enum" and isinstance(value, list) else [value]
        yield from (one for one in choices if isinstance(one, str) and key in ("enum", "const"))
        yield from _offered(value, depth + 1)


def _says_much(numbers: tuple[float, ...]) -> bool:
    """Whether numbers in a row stand in a text for one reason only."""
    digits = sum(len(digits_of(number)) for number in numbers)
    if len(numbers) <= 2:
        return digits >= (_ALONE if len(numbers) == 1 else _TOGETHER)
    steps = {after - before for before, after in pairwise(numbers)}
    return digits >= _IN_A_ROW and len(steps) > 1


def answered(text: str, answer: Answer) -> str | None:
    """The part of a text that holds an answer, or nothing."""
    if answer.numbers:
        return _first_row(_LIST_NUMBER.sub(r"\1", _INDEXED.sub("", text)), answer.numbers)
    if len(answer.text) < LONG_TEXT and answer.whose == BASELINE:
        exact = re.search(rf"(?<!\w){re.escape(answer.text)}(?!\w)", text)
        return None if exact is None else excerpt_of(text, exact.start(), exact.end())
    return answer.text[:80] if f" {plain_words(answer.text)} " in f" {plain_words(text)} " else None


def held_by(piece: str, bare: bytes, answer: Answer) -> str | None:
    """The same of a piece of data; `bare` are its letters and digits alone, in lower case."""
    if answer.numbers:
        return _first_row(piece, answer.numbers)
    wanted = plain_words(answer.text).replace(" ", "").replace("_", "").encode()
    if wanted not in bare:
        return None
    return answer.text[:80] if len(answer.text) >= LONG_TEXT else answered(piece, answer)


def _first_row(text: str, numbers: tuple[float, ...]) -> str | None:
    """Where a text has these numbers one after the other: looked for only where the digits of the first one stand."""
    row = _row_of(numbers)
    digits = digits_of(numbers[0]) or "0"
    at = text.find(digits)
    for _ in range(_MOST_HITS):
        if at < 0:
            return None
        zeros = len(text[max(0, at - _MOST_ZEROS) : at]) - len(text[max(0, at - _MOST_ZEROS) : at].rstrip("0.,"))
        for start in range(at, at - zeros - 1, -1):
            if (found := row.match(text, start)) is not None:
                return excerpt_of(text, start, min(found.end(), start + 80))
        at = text.find(digits, at + 1)
    return None


def plain_words(text: str) -> str:
    """The words of a text in lower case, without what stands between them."""
    return " ".join(_WORDS.findall(text.lower()))


@lru_cache(maxsize=64)
def _row_of(numbers: tuple[float, ...]) -> re.Pattern[str]:
    """Numbers one after the other; between them stands no digit but in a name such as `x1`."""
    gap = r"(?:[^\d]|(?<=[^\W\d])\d{1,3}){1,60}?"
    return re.compile(gap.join(_written(number) for number in numbers), re.IGNORECASE)


def _written(number: float) -> str:
    size = abs(number)
    forms = {plain_number(size), repr(size), f"{size:g}", f"{size:.15g}"}
    spelled: set[str] = set()
    for form in forms:
        digits, _, power = form.partition("e")
        whole, _, decimals = digits.partition(".")
        decimals = decimals.rstrip("0")
        lead = "0?" if whole == "0" and decimals else whole
        tail = rf"[.,]{decimals}0*" if decimals else r"(?:[.,]0+)?"
        spelled.add(
            lead
            + tail
            + (rf"e[+]?{'-0?' if power.startswith('-') else '0?'}{int(power.lstrip('+-'))}" if power else "")
        )
    return rf"(?<![\d.])(?<![^\W\d])(?:{'|'.join(sorted(spelled, key=len, reverse=True))})(?![\d]|\.\d)"
