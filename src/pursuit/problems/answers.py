"""The answers that no agent may read before it gives one.

Owns: what the baseline's script hands in as it stands there, the texts that a judge compares with, and whether a text
holds one. Does not know: which texts agents read. Reads files and runs nothing.
Invariant: an answer that says little (a count, `[1, 1, 1]`, a common word) is none; what the schema offers is none.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.numerals import digits_of, plain_number
from pursuit.problems.secrecy import (
    ARGUMENTS,
    LONG_TEXT,
    SHORT_TEXT,
    SHORTEST_TEXT,
    constants_of,
    excerpt_of,
    is_public,
)
from pursuit.tools.fields import as_table

BASELINE = "the answer of the baseline"
_ALONE, _TOGETHER, _IN_A_ROW = 4, 6, 4
"""So many digits one number, two numbers and more of them must have together to say something."""

_MOST_NUMBERS = 64
_MOST_HITS = 200_000
_TEXTS_OF_A_LIST = 2
"""So many texts may follow each other wherever all choices are listed."""

_TEXT_GAP = r"(?:[\W_]{1,12}|[^\w\n]{1,12}[^\W\d_]{1,12}[^\w\n]{1,12})"
_ASIDE = "justification"
_SUBMIT = "submit_final"
_WORDS = re.compile(r"\w+")
_INDEXED = re.compile(r"_\{\d{1,3}\}")
_LIST_NUMBER = re.compile(r"(?m)^([ \t]*)\d{1,3}[.)](?=[ \t])")
_COMMON_WORD = re.compile(r"[^\W\d_]?[^\W\d_A-Z]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """Texts or numbers that stand together, and whose they are."""

    whose: str = BASELINE
    texts: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


def answers_of(manifest: Manifest) -> list[Answer]:
    """The answers of a problem that say enough to be told."""
    offered = set(_offered(manifest.submission or {}))
    judged = [
        Answer(whose=field, texts=(value,))
        for field, value in constants_of(manifest.scorer)
        if isinstance(value, str) and not is_public(manifest, field)
    ]
    found = dict.fromkeys(
        replace(one, texts=tuple(text for text in one.texts if text not in offered))
        for one in (*_handed_in(manifest), *judged, *_told_lists(manifest))
    )
    return [one for one in found if one.texts or _says_much(one.numbers)]


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
    named = _literals(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (given := _submitted(node)) is None:
            continue
        parts = [part for arg in (*given, *(one.value for one in node.keywords)) for part in _constants(arg, named)]
        texts = tuple(
            text
            for text in parts
            if isinstance(text, str)
            and (len(text) >= LONG_TEXT or (len(text) >= SHORTEST_TEXT and not _COMMON_WORD.fullmatch(text)))
        )
        if texts:
            yield Answer(texts=texts[:_MOST_NUMBERS])
        sentences = [text for text in texts if len(text) >= LONG_TEXT]
        if len(sentences) == 1:
            yield Answer(texts=(sentences[0],))
        numbers = tuple(float(n) for n in parts if isinstance(n, int | float) and abs(n) < 1e300)
        if numbers:
            yield Answer(numbers=numbers[:_MOST_NUMBERS])


def _submitted(call: ast.Call) -> list[ast.expr] | None:
    """What is handed in by `call("problem.submit_final", …)` or `problem.submit_final(…)`; None for any other call."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == _SUBMIT:
        return call.args
    name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return call.args[1:] if isinstance(name, str) and name.endswith(_SUBMIT) else None


def _literals(tree: ast.AST) -> dict[str, ast.expr]:
    """The names that a script gives to a list, a table or a value once, and never again."""
    nodes = list(ast.walk(tree))
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and stored[node.targets[0].id] == 1
        and isinstance(node.value, ast.Constant | ast.Dict | ast.List | ast.Tuple)
    }


def _constants(node: ast.AST, named: Mapping[str, ast.expr]) -> Iterator[str | float]:
    """The texts and numbers below a node, in the order of the source, but for names of parts and what is said aside."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and key.value == _ASIDE):
                yield from _constants(value, named)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str | int | float) and not isinstance(node.value, bool):
            yield node.value
    elif isinstance(node, ast.Name):
        if node.id in named:
            yield from _constants(named[node.id], {name: one for name, one in named.items() if name != node.id})
    else:
        for child in ast.iter_child_nodes(node):
            yield from _constants(child, named)


def _told_lists(manifest: Manifest) -> Iterator[Answer]:
    """The lists of numbers that a judging tool is told."""
    left: list[tuple[str, object]] = [(ARGUMENTS, manifest.scorer.arguments)]
    while left:
        at, value = left.pop()
        parts = list(cast("list[object]", value)) if isinstance(value, list | tuple) else []
        numbers = tuple(float(one) for one in parts if isinstance(one, int | float) and abs(one) < 1e300)
        if 1 < len(numbers) == len(parts) and not is_public(manifest, at):
            yield Answer(whose=at, numbers=numbers[:_MOST_NUMBERS])
        left += [(f"{at}[{place}]", one) for place, one in enumerate(parts)]
        left += [(f"{at}.{name}", one) for name, one in (as_table(cast("object", value)) or {}).items()]


def _offered(schema: Any, depth: int = 0) -> Iterator[str]:
    """The texts that a schema lists as choices, and the names of its parts."""
    if depth > _MOST_NUMBERS:
        return
    listed = cast("list[object]", schema) if isinstance(schema, list) else []
    for one in listed:
        yield from _offered(one, depth + 1)
    for key, value in (as_table(cast("object", schema)) or {}).items():
        choices = cast("list[object]", value) if key == "enum" and isinstance(value, list) else [value]
        yield from (one for one in choices if isinstance(one, str) and key in ("enum", "const"))
        yield from (as_table(cast("object", value)) or {}) if key == "properties" else ()
        yield from _offered(value, depth + 1)


def _says_much(numbers: tuple[float, ...]) -> bool:
    """Whether numbers in a row stand in a text for one reason only."""
    if not numbers:
        return False
    digits = sum(len(digits_of(number)) for number in numbers)
    if len(numbers) <= 2:
        return digits >= (_ALONE if len(numbers) == 1 else _TOGETHER)
    steps = {after - before for before, after in pairwise(numbers)}
    return digits >= _IN_A_ROW and len(steps) > 1


def told_answer(answer: Answer, words: str, *, asset: bool = False) -> str:
    """The fault of a text, or of an asset, that tells an answer."""
    whose = answer.whose if answer.whose == BASELINE else f"a {'text' if answer.texts else 'list'} of {answer.whose}"
    shown = f", {', '.join(map(repr, answer.texts))[:60]}" if answer.whose == BASELINE and answer.texts else ""
    ways = ["leave it out"]
    if answer.texts and not answer.whose.startswith(ARGUMENTS):
        ways.append("list it as a choice (enum) of the submission's schema")
    if answer.whose.startswith(ARGUMENTS):
        ways.append(f"name {answer.whose} in visibility.public if agents may know it")
    if asset:
        ways.append("name the file in visibility.public if agents may know all of it")
    return f"tells agents {whose}{shown}: {words[:120]!r}; {', or '.join(ways)}"


def answered(text: str, answer: Answer) -> str | None:
    """The part of a text that holds an answer, or nothing."""
    if answer.numbers:
        return _first_row(_LIST_NUMBER.sub(r"\1", _INDEXED.sub("", text)), answer.numbers)
    wanted, *more = answer.texts
    if more:
        return _texts_in_a_row(text, answer.texts)
    if len(wanted) < (LONG_TEXT if answer.whose == BASELINE else SHORT_TEXT):
        exact = re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text)
        return None if exact is None else excerpt_of(text, exact.start(), exact.end())
    return wanted[:80] if f" {plain_words(wanted)} " in f" {plain_words(text)} " else None


def held_by(piece: str, bare: bytes, answer: Answer) -> str | None:
    """The same of a piece of data, where two texts in a row say nothing; `bare` are its letters and digits alone."""
    if answer.numbers:
        return _first_row(piece, answer.numbers)
    wanted, *more = answer.texts
    if more:
        return _texts_in_a_row(piece, answer.texts) if len(answer.texts) > _TEXTS_OF_A_LIST else None
    if plain_words(wanted).replace(" ", "").replace("_", "").encode() not in bare:
        return None
    return wanted[:80] if len(wanted) >= LONG_TEXT else answered(piece, answer)


def _texts_in_a_row(text: str, texts: tuple[str, ...]) -> str | None:
    """Where a text has these texts one after the other, with no more than a word between them."""
    row = re.compile(_TEXT_GAP.join(rf"(?<!\w){re.escape(one)}(?!\w)" for one in texts))
    at = text.find(texts[0])
    while at >= 0:
        if (found := row.match(text, at)) is not None:
            return excerpt_of(text, at, min(found.end(), at + 80))
        at = text.find(texts[0], at + 1)
    return None


def _first_row(text: str, numbers: tuple[float, ...]) -> str | None:
    """Where a text has these numbers one after the other: looked for only where the first one stands."""
    row = _row_of(numbers)
    left = _MOST_HITS
    for stem in _stems(numbers[0]):
        at = text.find(stem)
        while at >= 0 and left:
            for start in (at, at - 1) if stem[0] in ".," and at else (at,):
                if (found := row.match(text, start)) is not None:
                    return excerpt_of(text, start, min(found.end(), start + 80))
            at, left = text.find(stem, at + 1), left - 1
    return None


def plain_words(text: str) -> str:
    """The words of a text in lower case, without what stands between them."""
    return " ".join(_WORDS.findall(text.lower()))


@lru_cache(maxsize=64)
def _row_of(numbers: tuple[float, ...]) -> re.Pattern[str]:
    """Numbers one after the other; between them stands no digit but in a name such as `x1`."""
    gap = r"(?:[^\d]|(?<=[^\W\d])\d{1,3}){1,60}?"
    return re.compile(gap.join(_written(number) for number in numbers), re.IGNORECASE)


def _forms(number: float) -> Iterator[tuple[str, str, str]]:
    """What stands before and behind the point, and the power of ten, in each way to write a number."""
    size = abs(number)
    for form in dict.fromkeys((plain_number(size), repr(size), f"{size:g}", f"{size:.15g}")):
        digits, _, power = form.partition("e")
        whole, _, decimals = digits.partition(".")
        yield whole, decimals.rstrip("0"), power


def _stems(number: float) -> list[str]:
    """What a number begins with, however it is written; the zero before a point may be missing."""
    found: dict[str, None] = {}
    for whole, decimals, _ in _forms(number):
        lead = "" if whole == "0" and decimals else whole
        found |= {f"{lead}{mark}{decimals}": None for mark in (".," if decimals else ("",))}
    return list(found)


def _written(number: float) -> str:
    spelled: set[str] = set()
    for whole, decimals, power in _forms(number):
        lead = "0?" if whole == "0" and decimals else whole
        tail = rf"[.,]{decimals}0*" if decimals else r"(?:[.,]0+)?"
        spelled.add(
            lead
            + tail
            + (rf"e[+]?{'-0?' if power.startswith('-') else '0?'}{int(power.lstrip('+-'))}" if power else "")
        )
    return rf"(?<![\d.])(?<![^\W\d])(?:{'|'.join(sorted(spelled, key=len, reverse=True))})(?![\d]|\.\d)"
