"""The files of a problem's folder that its judge and its baseline are made of.

Owns: which these are: the manifest, what the scorer and the baseline name, what the judge imports from the folder, and
what else it names in its source. Reads files and runs nothing. Invariant: no file outside of the folder is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pursuit.problems.files import file_of, parsed_python, source_of
from pursuit.problems.manifest import Baseline, Manifest, Scorer
from pursuit.tools.server_config import ServerConfig

JUDGE = "the judge"
_LONGEST_NAME = 255


def hidden_files(
    path: Path, scorer: Scorer | None, baseline: Baseline | None, server: ServerConfig | None = None
) -> dict[Path, str]:
    """The files that hold scoring data, and what each is; where a tool judges, the `server`'s are the judge's."""
    folder = path.parent
    named = [(name, JUDGE) for name in _named_by(scorer, server)]
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


def judging_files(manifest: Manifest) -> dict[Path, str]:
    """The files that can be shared with nobody: the manifest, the file that judges, and the baseline's."""
    whole = hidden_files(manifest.path, manifest.scorer, manifest.baseline, manifest.server)
    found = {path: what for path, what in whole.items() if what != JUDGE}
    for name in _named_by(manifest.scorer, manifest.server):
        file = file_of(manifest.folder, name)
        if isinstance(file, Path):
            return found | {file: JUDGE}
    return found


def _named_by(scorer: Scorer | None, server: ServerConfig | None) -> Iterator[str]:
    """What may be a file among what the scorer names, the one that judges first."""
    if scorer is None:
        return
    if scorer.function is not None:
        yield scorer.function.partition(":")[0]
    yield from _words_of(scorer.command)
    if scorer.kind == "tool" and server is not None:
        yield from _words_of((server.command or "", *server.args))


def _words_of(command: tuple[str, ...]) -> Iterator[str]:
    """The words of a command that may be files: as they stand, after an option's `=`, and as modules after `-m`."""
    for before, word in zip(("", *command), command, strict=False):
        yield from (part for part in (word, word.partition("=")[2]) if part)
        if before == "-m":
            stem = word.replace(".", "/")
            yield from (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py")


def read_files(path: Path, scorer: Scorer | None, server: ServerConfig | None = None) -> set[Path]:
    """Further files that the judge names in its source: it may read them, and agents may as well."""
    folder, own = path.parent, hidden_files(path, scorer, None, server)
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
        importing = left.pop()
        tree = _parsed(importing)
        for place in (
            {place for node in ast.walk(tree) for place in _places(node, importing, (file.parent, folder))}
            if tree
            else ()
        ):
            found = file_of(folder, str(place))
            if isinstance(found, Path) and found != file and found not in seen:
                seen.add(found)
                left.append(found)
    return seen


def imported_names(file: Path) -> set[str]:
    """The modules that a Python file names where it imports from elsewhere; of another file there are none."""
    tree = _parsed(file)
    return set() if tree is None else {name for node in ast.walk(tree) for name in _names(node)}


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
    return []


def _places(node: ast.AST, importing: Path, roots: tuple[Path, Path]) -> Iterator[Path]:
    """Where a module may lie that an import names: from the roots, or for `from .` from the importing file's folder."""
    if isinstance(node, ast.Import):
        names, places = [alias.name for alias in node.names], roots
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        beside = importing.parents[min(node.level, len(importing.parents)) - 1] if node.level else None
        places = roots if beside is None else (beside,)
    else:
        return
    for name in names:
        parts = [part for part in name.split(".") if part]
        # A package is run on the way to what lies in it.
        for length in range(len(parts) + 1):
            for place in places:
                stem = place.joinpath(*parts[:length])
                yield stem / "__init__.py"
                if length:
                    yield stem.with_name(f"{stem.name}.py")


def is_python(path: Path) -> bool:
    """Whether a file is a Python program, by its name or its first line."""
    if path.suffix == ".py":
        return True
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_NAME)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def _parsed(path: Path) -> ast.AST | None:
    text = source_of(path) if is_python(path) else None
    return None if text is None else parsed_python(text)
