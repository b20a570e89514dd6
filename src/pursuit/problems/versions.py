"""Which version of a problem judges.

Owns: the digest over everything that a judgement depends on: the manifest, the judge's own files with what they import
and name from the folder, the assets. Does not know: attempts. Invariant: the same bytes in the same places have the
same digest, whatever folder they lie in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pursuit.problems.files import file_of
from pursuit.problems.judge_files import hidden_files, read_files
from pursuit.problems.manifest import Manifest


def judging_digest(problem: Manifest) -> str:
    """The sha256 over all of it; a file that cannot be read counts as missing."""
    whole = hashlib.sha256(problem.digest.encode())
    root = problem.folder.resolve()
    for name, path in sorted({path.relative_to(root).as_posix(): path for path in _files(problem)}.items()):
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
    for path in hidden_files(problem.path, problem.scorer, None):
        if path != problem.path.resolve():
            yield path
    yield from read_files(problem.path, problem.scorer)
