"""What of a problem no agent may see, and where a manifest shows it all the same.

Owns: what scoring data is: the manifest itself; the judge's files, with what they import from the folder; the
baseline's file and the answer that it hands in; each target and best known value. Reads files and runs nothing.
Invariant: a fault names the place that tells, and what it tells.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Baseline, Manifest, Scorer
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
_LONG_LINE = 24
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
    for numeral in numerals(text):
        for secret in secrets:
            if secret.field not in found and _tells(text, numeral, secret.value, data=data):
                found[secret.field] = secret
    return list(found.values())


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
    ends = [found.end() for found in _SENTENCE_END.finditer(text, max(0, at - 400), at + 400)]
    start = max((end for end in ends if end <= at), default=max(0, at - 400))
    stop = min((end for end in ends if end > at), default=at + 400)
    return _TELLING_WORDS.search(text, start, stop) is not None


def hidden_files(path: Path, scorer: Scorer | None, baseline: Baseline | None) -> dict[Path, str]:
    """The files that hold scoring data, and what each is."""
    folder = path.parent
    named: list[tuple[str, str]] = []
    if scorer is not None and scorer.function is not None:
        named.append((scorer.function.partition(":")[0], "the judge"))
    if scorer is not None:
        words = [part for word in scorer.command for part in (word, word.partition("=")[2]) if part]
        named += [(word, "the judge") for word in words]
    if baseline is not None and isinstance(baseline.proposer.get("file"), str):
        named.append((cast("str", baseline.proposer["file"]), "the baseline"))
    found = {path.resolve(): "the manifest"}
    for name, what in named:
        file = file_of(folder, name)
        if isinstance(file, Path):
            found.setdefault(file, what)
            if what == "the judge":
                found |= {one: what for one in _imported(file, folder) if one not in found}
    return found


def _imported(file: Path, folder: Path) -> set[Path]:
    """The modules of the folder that a Python file brings in, and those that these bring in."""
    seen: set[Path] = set()
    left = [file]
    while left:
        tree = _parsed(left.pop())
        names = {name for node in ast.walk(tree) for name in _modules(node)} if tree is not None else set[str]()
        for name in names:
            stem = name.replace(".", "/")
            for place in (f"{stem}.py", f"{stem}/__init__.py"):
                found = file_of(folder, place)
                if isinstance(found, Path) and found != file and found not in seen:
                    seen.add(found)
                    left.append(found)
    return seen


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [part for part in (module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)) if part]
    return []


def _parsed(path: Path) -> ast.AST | None:
    text = text_of(path) if path.suffix == ".py" else None
    return None if text is None else parsed_python(text)


def check_assets(root: Fields, manifest: Manifest) -> None:
    """No asset is, or holds, a file with scoring data, or tells a number of the scorer or the baseline's answer."""
    hidden = hidden_files(manifest.path, manifest.scorer, manifest.baseline)
    # Of the manifest itself agents read a good part, so that a line of it tells nothing.
    lines = [(what, _long_lines(path)) for path, what in hidden.items() if path != manifest.path]
    secrets, answers = numbers_of(manifest.scorer), _answers(manifest)
    for place, name in enumerate(manifest.assets):
        path = file_of(manifest.folder, name)
        if isinstance(path, str):
            continue
        at = f"assets[{place}]"
        what = next((what for file, what in hidden.items() if _is_one(path, file)), None)
        if what is not None:
            root.fault(at, f"{name!r} is {what}: scoring data, which no agent may see")
            continue
        text = text_of(path) or ""
        held = next((what for what, some in lines if some and _holds(text, some)), None)
        if held is not None:
            root.fault(at, f"{name!r} holds lines of {held}: scoring data, which no agent may see")
        for secret in told_in(text, secrets, data=True):
            root.fault(at, f"{name!r} tells agents the number of {secret.field}")
        if any(_answered(text, answer) for answer in answers):
            root.fault(at, f"{name!r} holds the answer of the baseline")


def _is_one(path: Path, hidden: Path) -> bool:
    try:
        return path == hidden or path.samefile(hidden)
    except OSError:
        return False


def _long_lines(path: Path) -> list[str]:
    lines = {line.strip() for line in (text_of(path) or "").splitlines()}
    return [line for line in lines if len(line) >= _LONG_LINE and not line.startswith(("import ", "from "))]


def _holds(text: str, lines: list[str]) -> bool:
    return sum(line in text for line in lines) >= min(3, len(lines))


def check_words(root: Fields, manifest: Manifest) -> None:
    """Nothing that an agent reads in the brief tells a number of the scorer or the baseline's answer."""
    secrets, answers = numbers_of(manifest.scorer), _answers(manifest)
    for field, text in _shown(manifest):
        for secret in told_in(text, secrets):
            root.fault(field, f"tells agents the number of {secret.field}")
        if any(_answered(text, answer) for answer in answers):
            root.fault(field, "tells agents the answer of the baseline")


def _shown(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield from (("title", manifest.title), ("summary", manifest.summary), ("statement", manifest.statement))
    for place, one in enumerate(manifest.citations):
        yield f"citations[{place}].summary", one.summary or ""
        yield f"citations[{place}].raw", one.raw or ""
    if manifest.submission is not None:
        yield from _leaves(manifest.submission, "submission")


def _leaves(value: object, at: str) -> Iterator[tuple[str, str]]:
    """The texts and numbers of a schema, each with its place."""
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[str, Any]", value).items():
            yield from _leaves(one, f"{at}.{key}")
    elif isinstance(value, list | tuple):
        for place, one in enumerate(cast("list[Any]", value)):
            yield from _leaves(one, f"{at}[{place}]")
    elif isinstance(value, str):
        yield at, value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, repr(value)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a baseline's script hands in: a text, or numbers that stand together."""

    text: str = ""
    numbers: tuple[float, ...] = ()


def _answers(manifest: Manifest) -> list[_Answer]:
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
    found: list[_Answer] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(_names_submission(one) for one in node.args[:1]):
            parts = [one.value for arg in node.args[1:] for one in ast.walk(arg) if isinstance(one, ast.Constant)]
            texts = [part for part in parts if isinstance(part, str) and len(part) >= _LONG_ANSWER]
            # What the schema lists as a choice is no secret.
            found += [_Answer(text=text) for text in texts if text not in offered]
            numbers = tuple(float(n) for n in parts if isinstance(n, int | float) and not isinstance(n, bool))
            if len(numbers) >= 3:
                found.append(_Answer(numbers=numbers))
    return found


def _names_submission(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("submit_final")


def _answered(text: str, answer: _Answer) -> bool:
    if answer.text:
        return _plain(answer.text) in _plain(text)
    told = [float(number) for number in _PLAIN_NUMBER.findall(text)]
    size = len(answer.numbers)
    return any(tuple(told[at : at + size]) == answer.numbers for at in range(len(told) - size + 1))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
