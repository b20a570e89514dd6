"""Which version of a problem judges.

Owns: the digest over everything that a judgement depends on, as far as the manifest names it: the manifest itself, the
judge's program, what `scorer.files` declares, the files that the judge's command names, the assets. Does not know:
attempts. Reads files and runs nothing. Invariant: the same bytes in the same places have the same digest, whatever
folder they lie in.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pursuit.problems.files import file_of
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import judge_files


def judging_digest(problem: Manifest) -> str:
    """The sha256 over all of it; a file that cannot be read counts as missing."""
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
