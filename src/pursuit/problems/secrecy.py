"""The parts of a problem that no agent may see: the files of its judge and its baseline, and their exact values.

A file of the judge (its program, and those in `scorer.files`) cannot be an asset; a text for agents that holds an exact
value of a target or of the baseline's answer is a warning. Hints in sentences are not detected.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pursuit.errors import Fault
from pursuit.problems.brief import source_words
from pursuit.problems.files import file_of, files_of, parsed_python, text_of
from pursuit.problems.manifest import Manifest, plain_number
from pursuit.problems.scorer import SUBMIT

SHORTEST_TEXT = 8
"""Minimum characters of an answer to search for: shorter answers are common words."""

_COMMON = (0, 1)
"""Targets and answers that occur in any text and reveal nothing."""

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")


def judge_files(manifest: Manifest) -> dict[Path, str]:
    """The judge's files with a description of each: its program, and those in `scorer.files`."""
    scorer, server, folder = manifest.scorer, manifest.server, manifest.folder
    words = scorer.command if scorer.function is None else (scorer.function.partition(":")[0],)
    if scorer.kind == "tool" and server is not None:
        words = (server.command or "", *server.args)
    program = next((path for word in words if isinstance(path := file_of(folder, word), Path)), None)
    found = {} if program is None else {program: "the judge's program"}
    for pattern in scorer.files:
        declared = files_of(folder, pattern)
        for path in declared if isinstance(declared, list) else ():
            found.setdefault(path, "one of scorer.files")
    return found


def secret_assets(manifest: Manifest) -> Iterator[tuple[str, str]]:
    hidden = {**judge_files(manifest), manifest.path: "the manifest"}
    script = None if manifest.baseline is None else manifest.baseline.proposer.get("file")
    path = file_of(manifest.folder, script) if isinstance(script, str) else None
    if isinstance(path, Path):
        hidden[path] = "the baseline"
    for place, name in enumerate(manifest.assets):
        asset = file_of(manifest.folder, name)
        what = next((what for file, what in hidden.items() if isinstance(asset, Path) and _is_one(asset, file)), None)
        if what is not None:
            yield f"assets[{place}]", f"{name!r} is {what}, which agents may not see; remove it from assets"


def _is_one(path: Path, other: Path) -> bool:
    try:
        return path == other or path.samefile(other)
    except OSError:
        return False


def warnings_of(manifest: Manifest) -> list[Fault]:
    """Warnings for a problem's author; they do not make the manifest invalid."""
    found = [(field, reason) for field, text in _shown(manifest) for reason in revealed_in(text, manifest)]
    if manifest.visibility.public:
        found.append(("visibility.public", "is ignored; remove it"))
    return [Fault(field=field, reason=reason, source=str(manifest.path)) for field, reason in found]


def revealed_in(text: str, manifest: Manifest) -> list[str]:
    """Describes each exact target, best known value or baseline answer that a text contains."""
    numbers = [float(token) for token in _NUMBER.findall(text)]
    known = set(numbers)
    found: list[str] = []
    for place, metric in enumerate(manifest.scorer.metrics):
        hidden = {metric.best_known: "best_known", metric.target: "target"}
        if manifest.visibility.target:
            hidden.pop(metric.target)
        for value, key in hidden.items():
            if value is not None and value not in _COMMON and value in known:
                way_out = "; set visibility.target = true if agents may know it" if key == "target" else ""
                found.append(f"contains {plain_number(value)}, the value of scorer.metrics[{place}].{key}{way_out}")
    for answer in _answers(manifest):
        row = [float(one) for one in answer if isinstance(one, int | float) and abs(one) < 1e300]
        if row and not (len(row) == 1 and row[0] in _COMMON) and known.issuperset(row) and _has_row(numbers, row):
            found.append(f"contains the numbers of the baseline's answer: {', '.join(map(plain_number, row))[:80]}")
        for one in answer:
            if isinstance(one, str) and len(one) >= SHORTEST_TEXT and one in text:
                found.append(f"contains a string from the baseline's answer: {one[:80]!r}")
    return list(dict.fromkeys(found))


def _has_row(numbers: list[float], row: list[float]) -> bool:
    return any(numbers[at : at + len(row)] == row for at in range(len(numbers) - len(row) + 1) if numbers[at] == row[0])


def _answers(manifest: Manifest) -> Iterator[list[object]]:
    """The literals that the baseline's script submits, in order, without justifications."""
    proposer: Mapping[str, Any] = manifest.baseline.proposer if manifest.baseline is not None else {}
    path = file_of(manifest.folder, str(proposer["file"])) if "file" in proposer else ""
    source = text_of(path) if isinstance(path, Path) else proposer.get("script")
    tree = parsed_python(source) if isinstance(source, str) else None
    for call in ast.walk(tree) if tree is not None else ():
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute):  # problem.submit_final(…), else call("problem.submit_final", …)
            name, given = call.func.attr, call.args
        else:
            name, given = next(map(_literal, call.args), ""), call.args[1:]
        if str(name).endswith(SUBMIT):
            given = [*given, *(one.value for one in call.keywords if one.arg != "justification")]
            yield [leaf for node in given for leaf in _leaves(_literal(node))]


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        value = [one for key, one in table.items() if key != "justification"]
    if isinstance(value, list | tuple):
        for one in cast("list[object]", value):
            yield from _leaves(one)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _shown(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The texts that agents read, each with its field: those of the brief, and the text assets."""
    for field in ("title", "summary", "statement"):
        yield field, getattr(manifest, field)
    for place, one in enumerate(manifest.citations):
        yield f"citations[{place}]", source_words(one, manifest.visibility.citation_mode)
    yield "submission", json.dumps(_without_choices(manifest.submission or {}), ensure_ascii=False)
    for place, name in enumerate(manifest.assets):
        path = file_of(manifest.folder, name)
        yield f"assets[{place}]", (text_of(path) if isinstance(path, Path) else None) or ""


def _without_choices(value: object) -> object:
    """A schema without `enum` and `const`, whose choices include the answer."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: _without_choices(one) for key, one in table.items() if key not in ("enum", "const")}
    return [_without_choices(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


def judging_digest(problem: Manifest) -> str:
    """The version of a problem and its judge: a sha256 that is independent of their folder.

    A file that cannot be read counts as missing.
    """
    whole = hashlib.sha256(problem.digest.encode())
    named = (file_of(problem.folder, name) for name in (*problem.assets, *problem.scorer.command))
    files = {*judge_files(problem), *(path for path in named if isinstance(path, Path))}
    root = problem.folder.resolve()
    for name, path in sorted((Path(os.path.relpath(path, root)).as_posix(), path) for path in files):
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            content = "missing"
        whole.update(f"\n{name}\n{content}".encode(errors="replace"))
    return whole.hexdigest()
