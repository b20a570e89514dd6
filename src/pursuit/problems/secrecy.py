"""What of a problem no agent may see, and where a manifest shows it all the same.

Owns: what of a manifest is scoring data: the answer that the baseline hands in, each target and best known value. Does
not know: which files hold some (`judge_files`). Reads files and runs nothing.
Invariant: a fault names the place that tells, and what it tells.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Manifest, Scorer
from pursuit.problems.numerals import Numeral, about, digits_of, numerals, same
from pursuit.tools.fields import Fields

TELLING_DIGITS = 4
_SURE_DIGITS = 5
_TELLING_WORDS = re.compile(
    r"(?<![a-z])(best|optim[a-z]+|targets?|goal|record|solved?|solution|reach(ed|es)?|known|beat)(?![a-z])",
    re.IGNORECASE,
)
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.!?;](?=\s)|\n")
_SENTENCE = 400
_NAME_PARTS = re.compile(r"[^\w.]|_|(?<=[^\W\d])(?=\d)")
_BETWEEN_DIGITS = "[.,_'\u2019 \u00a0\u2009\u202f]"
_LONG_ANSWER = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """A number that only the scorer may know, and the field that it stands in."""

    value: float
    field: str


def is_telling(value: float) -> bool:
    """Whether a number has so many digits that it stands in a text for one reason only."""
    digits = digits_of(value)
    if value == int(value) and 1900 <= abs(value) < 2100:
        return False  # a year stands in every source
    return len(digits) >= TELLING_DIGITS or (len(digits) == 3 and len(f"{abs(value):.15g}") >= TELLING_DIGITS)


def numbers_of(scorer: Scorer) -> list[Secret]:
    """The targets and the best known values; 0 and 1 tell nothing."""
    return [
        Secret(value, f"scorer.metrics[{place}].{name}")
        for place, metric in enumerate(scorer.metrics)
        for name, value in (("target", metric.target), ("best_known", metric.best_known))
        if value is not None and abs(value) not in (0, 1)
    ]


def told_in(text: str, secrets: list[Secret], *, data: bool = False) -> list[Secret]:
    """The secrets that a text tells.

    One of many digits is told wherever it stands, also rounded; a short one where its sentence speaks of a best value.
    In `data`, where many numbers stand, a rounded one says nothing by itself.
    """
    found: dict[str, Secret] = {}
    if not secrets:
        return []
    for start, end in _telling_spans(text, secrets) if data else [(0, len(text))]:
        for numeral in numerals(text[start:end]):
            placed = replace(numeral, start=numeral.start + start)
            for secret in secrets:
                if secret.field not in found and _tells(text, placed, secret.value, data=data):
                    found[secret.field] = secret
    return list(found.values())


def in_words(name: str) -> str:
    """A name or address, and its parts as words: what stands in it between letters and underscores is a number, too."""
    return f"{name} {_NAME_PARTS.sub(' ', name)}"


def _telling_spans(text: str, secrets: list[Secret]) -> list[tuple[int, int]]:
    """Where data could tell a secret: around the words for what is scored, and where its digits stand in a row."""
    digits = {digits_of(one.value) for one in secrets}
    rows = [f"{_BETWEEN_DIGITS}?".join(one) for one in sorted(digits) if len(one) >= _SURE_DIGITS]
    near = [(found.start() - _SENTENCE, found.end() + _SENTENCE) for found in _TELLING_WORDS.finditer(text)]
    if rows:
        near += [(found.start() - 64, found.end() + 64) for found in re.finditer("|".join(rows), text)]
    spans: list[tuple[int, int]] = []
    for start, end in sorted(near):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((max(0, start), end))
    return spans


def _tells(text: str, numeral: Numeral, value: float, *, data: bool) -> bool:
    if not is_telling(value):
        return same(numeral, value) and _speaks_of_it(text, numeral.start)
    if same(numeral, value):
        return not data or len(digits_of(value)) >= _SURE_DIGITS or _speaks_of_it(text, numeral.start)
    if numeral.digits < TELLING_DIGITS or numeral.is_year or not about(numeral, value):
        return False
    return not data or _speaks_of_it(text, numeral.start)


def _speaks_of_it(text: str, at: int) -> bool:
    """Whether the sentence around this place has a word for what is scored."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text, max(0, at - _SENTENCE), at + _SENTENCE)]
    start = max((end for end in ends if end <= at), default=max(0, at - _SENTENCE))
    stop = min((end for end in ends if end > at), default=at + _SENTENCE)
    return _TELLING_WORDS.search(text, start, stop) is not None


def check_words(root: Fields, manifest: Manifest) -> None:
    """Nothing that an agent reads in the brief tells a number of the scorer or the baseline's answer."""
    secrets, answers = numbers_of(manifest.scorer), answers_of(manifest)
    for field, text in _shown(manifest):
        for secret in told_in(text, secrets):
            root.fault(field, f"tells agents the number of {secret.field}")
        if any(answered(text, answer) for answer in answers):
            root.fault(field, "tells agents the answer of the baseline")


def _shown(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "problem_id", in_words(manifest.problem_id)
    yield from (("title", manifest.title), ("summary", manifest.summary), ("statement", manifest.statement))
    for place, one in enumerate(manifest.citations):
        yield f"citations[{place}].summary", one.summary or ""
        yield f"citations[{place}].raw", one.raw or ""
        yield f"citations[{place}].url", in_words(one.url or "")
    if manifest.submission is not None:
        yield from _leaves(manifest.submission, "submission")


def _leaves(value: object, at: str) -> Iterator[tuple[str, str]]:
    """The names, texts and numbers of a schema, each with its place."""
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[str, Any]", value).items():
            yield f"{at}.{key}", in_words(str(key))
            yield from _leaves(one, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[Any]", value)):
            yield from _leaves(one, f"{at}[{place}]")
    elif isinstance(value, str):
        yield at, value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, repr(value)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a baseline's script hands in: a text, or numbers that stand together."""

    text: str = ""
    numbers: tuple[float, ...] = ()


def answers_of(manifest: Manifest) -> list[Answer]:
    """The answers that stand in the baseline's script as they are handed in."""
    if manifest.baseline is None:
        return []
    proposer = manifest.baseline.proposer
    file = file_of(manifest.folder, str(proposer["file"])) if "file" in proposer else ""
    source = text_of(file) if isinstance(file, Path) else proposer.get("script")
    tree = parsed_python(source) if isinstance(source, str) else None
    if tree is None:
        return []
    offered = json.dumps(manifest.submission or {}, ensure_ascii=False, default=str)
    found: list[Answer] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(_names_submission(one) for one in node.args[:1]):
            parts = [one.value for arg in node.args[1:] for one in ast.walk(arg) if isinstance(one, ast.Constant)]
            texts = [part for part in parts if isinstance(part, str) and len(part) >= _LONG_ANSWER]
            # What the schema lists as a choice is no secret.
            found += [Answer(text=text) for text in texts if text not in offered]
            numbers = tuple(float(n) for n in parts if isinstance(n, int | float) and not isinstance(n, bool))
            if len(numbers) >= 3:
                found.append(Answer(numbers=numbers))
    return found


def _names_submission(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("submit_final")


def answered(text: str, answer: Answer) -> bool:
    """Whether a text holds an answer."""
    if answer.text:
        return _plain(answer.text) in _plain(text)
    told = [float(number) for number in _PLAIN_NUMBER.findall(text)]
    size = len(answer.numbers)
    return any(tuple(told[at : at + size]) == answer.numbers for at in range(len(told) - size + 1))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
