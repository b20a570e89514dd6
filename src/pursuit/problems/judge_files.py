"""The files of a problem's folder that its judge and its baseline are made of.

Owns: which these are: the manifest, what the scorer and the baseline name, what the judge imports from the folder, and
what else it names in its source. Reads files and runs nothing. Invariant: no file outside of the folder is one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import cast

from pursuit.problems.files import file_of, parsed_python, source_of
from pursuit.problems.manifest import Baseline, Manifest, Scorer
from pursuit.tools.server_config import ServerConfig

JUDGE = "the judge"
MOST_FILES = 10_000
"""So many files of a folder that a command names are taken for the judge's."""

_LONGEST_NAME = 255
_MOST_FOLDERS = 8
_BETWEEN = re.compile(r"[\s:;,=|&<>()\"']+")


def hidden_files(
    path: Path, scorer: Scorer | None, baseline: Baseline | None, server: ServerConfig | None = None
) -> dict[Path, str]:
    """The files that hold scoring data, and what each is; where a tool judges, the `server`'s are the judge's."""
    folder = path.parent
    named = [(name, JUDGE) for name in _named_by(scorer, server, folder)]
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
    for name in _named_by(manifest.scorer, manifest.server, manifest.folder):
        file = file_of(manifest.folder, name)
        if isinstance(file, Path):
            return found | {file: JUDGE}
    return found


def _named_by(scorer: Scorer | None, server: ServerConfig | None, folder: Path) -> Iterator[str]:
    """What may be a file among what the scorer names, the one that judges first."""
    if scorer is None:
        return
    if scorer.function is not None:
        yield scorer.function.partition(":")[0]
    yield from _words_of(scorer.command, folder)
    if scorer.kind == "tool" and server is not None:
        yield from _words_of((server.command or "", *server.args), folder)


def _words_of(command: tuple[str, ...], folder: Path) -> Iterator[str]:
    """What of a command may be files: its words and their parts, modules after `-m`, and all files of a folder.

    A word has parts between blanks, colons, commas and the like, and after an option's one letter (`-ikey.csv`).
    """
    before = ""
    for part in (part for word in command for part in (word, *_BETWEEN.split(word)) if part):
        yield part
        if part.startswith("-") and not part.startswith("--"):
            yield part[2:]
        yield from _files_in(folder, part)
        if before == "-m":
            stem = part.replace(".", "/")
            yield from (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py")
        before = part


def _folder_in(folder: Path, path: Path) -> Path | None:
    """A path with every link followed, if it is a folder inside of the problem's own; that one itself is none."""
    try:
        root, path = folder.resolve(), path.resolve()
        return path if path != root and path.is_relative_to(root) and path.is_dir() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _files_in(folder: Path, name: str) -> Iterator[str]:
    """The files of a folder that is named, the one that runs first."""
    path = _folder_in(folder, folder / name) if name.isprintable() else None
    if path is None:
        return
    found = islice((one for one in path.rglob("*") if one.is_file()), MOST_FILES)
    first = path / "__main__.py"
    yield from map(str, sorted(found, key=lambda one: (one != first, one)))


def read_files(path: Path, scorer: Scorer | None, server: ServerConfig | None = None) -> set[Path]:
    """Further files that the judge names in its source: it may read them, and agents may as well.

    A name is looked for beside the source, in the problem's folder, and in every folder that the source names.
    """
    folder, own = path.parent, hidden_files(path, scorer, None, server)
    found: set[Path] = set()
    for file in (one for one, what in own.items() if what == JUDGE):
        tree = _parsed(file)
        names = {name for node in ast.walk(tree) if (name := _name_in(node))} if tree is not None else set[str]()
        for root in _roots(folder, file.parent, names):
            places = [file_of(folder, str(root / name)) for name in names]
            found |= {place for place in places if isinstance(place, Path) and place not in own}
    return found


def _roots(folder: Path, beside: Path, names: set[str]) -> list[Path]:
    """Where a name may lie: beside the source, in the folder, and in folders with such names there, and in these."""
    roots = list(dict.fromkeys((beside, folder.resolve())))
    for root in roots:
        inner = [one for name in sorted(names) if (one := _folder_in(folder, root / name)) is not None]
        roots += [one for one in dict.fromkeys(inner) if one not in roots][: _MOST_FOLDERS - len(roots)]
    return roots


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
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0].value
        return [name] if called in ("import_module", "__import__") and isinstance(name, str) else []
    return []


def _places(node: ast.AST, importing: Path, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Where a module may lie that an import names: from the roots, or for `from .` from the importing file's folder."""
    names, places = _names(node), roots
    if isinstance(node, ast.ImportFrom) and node.level:
        module = node.module or ""
        names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        places = (importing.parents[min(node.level, len(importing.parents)) - 1],)
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
