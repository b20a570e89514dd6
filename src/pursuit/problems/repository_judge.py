"""Judges what a coding agent hands in: applies its files to a copy of the repository and runs the hidden tests there.

It runs as a module with nothing but the standard library, from the folder of the manifest:
`python -m pursuit.problems.repository_judge REPOSITORY HIDDEN`. Standard input is the submission, standard output the
score. The hidden tests are a package of `unittest`. They run in a process of their own, which must say a key at its
end: code that leaves early has passed nothing.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SECONDS = 30.0
"""Tests that run for longer have passed nothing."""
PACKAGE = "hidden"
RUN = """
import sys, unittest
key = sys.stdin.readline().strip()
sys.path.insert(0, ".")
result = unittest.TestResult()
unittest.defaultTestLoader.discover("hidden", top_level_dir=".").run(result)
failed = {case.id() for case, _ in result.failures + result.errors}
print("\\n" + key, result.testsRun - len(failed))
"""


def main(repository: str, hidden: str) -> None:
    """Prints how many of the hidden tests pass."""
    files = json.load(sys.stdin)["submission"]["files"]
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        shutil.copytree(repository, tree, ignore=shutil.ignore_patterns("__pycache__"))
        _apply(files, tree)
        shutil.rmtree(tree / PACKAGE, ignore_errors=True)
        shutil.copytree(hidden, tree / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        json.dump({"passed": _passed(tree)}, sys.stdout)


def _apply(files: Mapping[str, str | None], tree: Path) -> None:
    root = tree.resolve()
    for name, text in files.items():
        path = (root / name).resolve()
        if root not in path.parents:
            sys.exit(f"{name!r} is not inside the repository")
        if text is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _passed(tree: Path) -> int:
    key = secrets.token_hex(16)
    command = [sys.executable, "-B", "-I", "-c", RUN]
    try:
        done = subprocess.run(  # noqa: S603 - the words are ours
            command, cwd=tree, input=key, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 0
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(f"{key} ")]
    return int(found[-1]) if found else 0


if __name__ == "__main__":
    main(*sys.argv[1:])
