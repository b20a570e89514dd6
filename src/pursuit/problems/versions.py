"""Which version of a problem judges.

Owns: the digest over everything that a judgement depends on: the manifest, the judge's own files with what they import
and name from the folder, the modules of Pursuit that they import, the assets. Does not know: attempts. Reads files and
runs nothing. Invariant: the same bytes in the same places have the same digest, whatever folder they lie in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pursuit.problems.files import file_of
from pursuit.problems.judge_files import JUDGE, hidden_files, imported_names, read_files
from pursuit.problems.manifest import Manifest

PACKAGE = Path(__file__).parent.parent
"""Where Pursuit's own modules lie; a judge may be made of them."""


def judging_digest(problem: Manifest, *, package: Path = PACKAGE) -> str:
    """The sha256 over all of it; a file that cannot be read counts as missing."""
    whole = hashlib.sha256(problem.digest.encode())
    root = problem.folder.resolve()
    files = {path.relative_to(root).as_posix(): path for path in _files(problem)}
    # A colon, so that no file of the folder is meant by the same name as one of ours.
    files |= {f"{package.name}:{path.relative_to(package).as_posix()}": path for path in _own_modules(problem, package)}
    for name, path in sorted(files.items()):
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            content = "missing"
        whole.update(f"\n{name}\n{content}".encode(errors="replace"))
    return whole.hexdigest()


def _files(problem: Manifest) -> Iterator[Path]:
    """The files of the problem's folder that take part."""
    for name in problem.assets:
        found = file_of(problem.folder, name)
        if isinstance(found, Path):
            yield found
    for path in hidden_files(problem.path, problem.scorer, None, problem.server):
        if path != problem.path.resolve():
            yield path
    yield from read_files(problem.path, problem.scorer, problem.server)


def _own_modules(problem: Manifest, package: Path) -> set[Path]:
    """The modules of the package that the judge brings in, and those that these bring in from beside them.

    Beside them is the same subpackage: what lies deeper is Pursuit itself, whose every release would be another judge.
    """
    judge = [
        path for path, what in hidden_files(problem.path, problem.scorer, None, problem.server).items() if what == JUDGE
    ]
    command = problem.scorer.command
    named = {word for before, word in pairwise(command) if before == "-m"}
    left = [
        path
        for name in named | {name for path in judge for name in imported_names(path)}
        for path in _modules(name, package)
    ]
    seen: set[Path] = set()
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            near = (one for name in imported_names(path) for one in _modules(name, package))
            left += [one for one in near if _part(one, package) == _part(path, package)]
    return seen


def _modules(name: str, package: Path) -> list[Path]:
    """The files of a module of the package, with its parents' own; none for the package itself or another one."""
    first, *parts = name.split(".")
    if first != package.name or not parts or not all(map(str.isidentifier, parts)):
        return []
    place = package.joinpath(*parts)
    found = [
        place.with_suffix(".py"),
        *(package.joinpath(*parts[:size], "__init__.py") for size in range(1, len(parts) + 1)),
    ]
    return [path for path in found if path.is_file()]


def _part(path: Path, package: Path) -> str:
    """The subpackage that a module is of."""
    return path.relative_to(package).parts[0]
