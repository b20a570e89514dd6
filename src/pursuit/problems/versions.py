"""Which version of a problem judges.

Owns: the digest over everything that a judgement depends on: the manifest, the judge's own files, the assets. Does not
know: attempts. Invariant: the same bytes in the same places have the same digest, whatever folder they lie in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pursuit.problems.manifest import Manifest


def judging_digest(problem: Manifest) -> str:
    """The sha256 over all of it; a file that cannot be read counts as missing."""
    whole = hashlib.sha256(problem.digest.encode())
    for name in sorted(set(_files(problem))):
        try:
            content = hashlib.sha256((problem.folder / name).read_bytes()).hexdigest()
        except OSError:
            content = "missing"
        whole.update(f"\n{name}\n{content}".encode(errors="replace"))
    return whole.hexdigest()


def _files(problem: Manifest) -> Iterator[str]:
    """The names, inside the problem's folder, of the files that take part."""
    scorer = problem.scorer
    yield from problem.assets
    if scorer.function is not None:
        yield scorer.function.partition(":")[0]
    for word in scorer.command:
        if not Path(word).is_absolute() and _is_file(problem.folder / word):
            yield word


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a word that is too long for a name
        return False
