"""Which files belong to the version of a judge: the ones that the manifest names, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pursuit.problems.manifest import Manifest
from pursuit.problems.manifest_reading import read_manifest
from pursuit.problems.secrecy import judging_digest

HEAD = 'problem_id = "p"\ntitle = "P"\nsummary = "p"\nkind = "text"\nstatement = "p"\nassets = ["items.csv"]\n'
METRIC = '[[scorer.metrics]]\nmetric = "cost"\n'
FUNCTION = 'kind = "function"\nfunction = "score.py:score"\n'
COMMAND = 'kind = "command"\ncommand = ["__python_executable__", "score.py", "limits.json"]\n'
DECLARED = 'files = ["key.csv", "data/**/*.csv", "../shared/formulas.py"]\n'


def staged(folder: Path, scorer: str) -> Manifest:
    files = (
        "score.py",
        "items.csv",
        "limits.json",
        "key.csv",
        "data/a.csv",
        "data/deep/b.csv",
        "data/c.txt",
        "other.py",
    )
    for name in (*files, "../shared/formulas.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("def score(submission): ...\n", encoding="utf-8")
    (folder / "problem.toml").write_text(f"{HEAD}[scorer]\n{scorer}{METRIC}", encoding="utf-8")
    return read_manifest(folder / "problem.toml")


@pytest.mark.guarantee("declared-files-are-of-the-version")
@pytest.mark.parametrize(
    ("scorer", "changed", "counts"),
    [
        (FUNCTION, "score.py", True),
        (FUNCTION, "items.csv", True),
        (FUNCTION, "key.csv", False),
        (FUNCTION, "limits.json", False),
        (COMMAND, "score.py", True),
        (COMMAND, "limits.json", True),
        (COMMAND, "other.py", False),
        (FUNCTION + DECLARED, "score.py", True),
        (FUNCTION + DECLARED, "key.csv", True),
        (FUNCTION + DECLARED, "data/a.csv", True),
        (FUNCTION + DECLARED, "data/deep/b.csv", True),
        (FUNCTION + DECLARED, "data/new.csv", True),
        (FUNCTION + DECLARED, "data/c.txt", False),
        (FUNCTION + DECLARED, "../shared/formulas.py", True),
        (FUNCTION + DECLARED, "other.py", False),
    ],
)
def test_a_file_counts_if_the_manifest_names_it(tmp_path: Path, scorer: str, changed: str, counts: bool) -> None:
    one = staged(tmp_path / "mine", scorer)
    before = judging_digest(one)
    with (one.folder / changed).open("a", encoding="utf-8") as file:
        file.write("# another version\n")
    assert (judging_digest(one) != before) is counts


def test_the_version_is_the_same_in_another_place_and_another_without_a_file(tmp_path: Path) -> None:
    one = staged(tmp_path / "a" / "mine", FUNCTION + DECLARED)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = read_manifest(tmp_path / "b" / "mine" / "problem.toml")
    assert judging_digest(other) == judging_digest(one)
    (other.folder / "key.csv").unlink()
    assert judging_digest(other) != judging_digest(one)
