"""The files of a problem's folder that its judge and its baseline are made of.

Owns: which these are: the manifest, what the scorer and the baseline name, what the judge imports from the folder, and
what else it names in its source. Reads files and runs nothing. Invariant: no file outside of the folder is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pursuit.problems.files import file_of, parsed_python, text_of
from pursuit.problems.manifest import Baseline, Scorer

JUDGE = "the judge"
_LONGEST_NAME = 255


def hidden_files(path: Path, scorer: Scorer | None, baseline: Baseline | None) -> dict[Path, str]:
    """The files that hold scoring data, and what each is."""
    folder = path.parent
    named: list[tuple[str, str]] = []
    if scorer is not None and scorer.function is not None:
        named.append((scorer.function.partition(":")[0], JUDGE))
    if scorer is not None:
        named += [(word, JUDGE) for word in _words_of(scorer.command)]
    if baseline is not None and isinstance(baseline.proposer.get("file"), str):
        named.append((cast("str", baseline.proposer["file"]), "the baseline"))
    found = {path.resolve(): "the manifest"}
    for name, what in named:
        file = file_of(folder, name)
        if isinstance(file, Path):
            found.setdefault(file, what)
            if what == JUDGE:
                found |= {one: what for one in _imported(file, folder) if one not in found}
    return found


def _words_of(command: tuple[str, ...]) -> Iterator[str]:
    """The words of a command that may be files: as they stand, after an option's `=`, and as modules after `-m`."""
    for before, word in zip(("", *command), command, strict=False):
        yield from (part for part in (word, word.partition("=")[2]) if part)
        if before == "-m":
            stem = word.replace(".", "/")
            yield from (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py")


def read_files(path: Path, scorer: Scorer | None) -> set[Path]:
    """Further files that the judge names in its source: it may read them, and agents may as well."""
    folder, own = path.parent, hidden_files(path, scorer, None)
    found: set[Path] = set()
    for file in (one for one, what in own.items() if what == JUDGE):
        tree = _parsed(file)
        names = {name for node in ast.walk(tree) if (name := _name_in(node))} if tree is not None else set[str]()
        for name in names:
            places = [file_of(folder, str(beside / name)) for beside in (file.parent, folder)]
            found |= {place for place in places if isinstance(place, Path) and place not in own}
    return found


def _name_in(node: ast.AST) -> str | None:
    """A text that may be the name of a file."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    return node.value if len(node.value) <= _LONGEST_NAME and node.value.isprintable() else None


def _imported(file: Path, folder: Path) -> set[Path]:
    """The modules of the folder that a Python file brings in, and those that these bring in."""
    seen: set[Path] = set()
    left = [file]
    while left:
        for name in imported_names(left.pop()):
            stem = name.replace(".", "/")
            # Modules are looked for beside the file that is run, and in the folder.
            places = [beside / f"{stem}{end}" for beside in (file.parent, folder) for end in (".py", "/__init__.py")]
            for place in places:
                found = file_of(folder, str(place))
                if isinstance(found, Path) and found != file and found not in seen:
                    seen.add(found)
                    left.append(found)
    return seen


def imported_names(file: Path) -> set[str]:
    """The modules that a Python file names where it imports; of another file there are none."""
    tree = _parsed(file)
    return set() if tree is None else {name for node in ast.walk(tree) for name in _modules(node)}


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
