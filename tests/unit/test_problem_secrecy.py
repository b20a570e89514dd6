"""What a manifest tells agents of its judge is refused with the words that tell it, and nothing else is."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pursuit.errors import ValidationFailed
from pursuit.problems.files import MOST_BYTES
from pursuit.problems.headings import first_level_heading
from pursuit.problems.reading import read_manifest
from pursuit.problems.versions import judging_digest

DATA = Path(__file__).parents[1] / "data" / "problems"
TOLD: dict[str, dict[str, Any]] = tomllib.loads((DATA / "told.toml").read_text(encoding="utf-8"))
RIGHT: dict[str, dict[str, Any]] = tomllib.loads((DATA / "right.toml").read_text(encoding="utf-8"))

FRAME = """problem_id = "x"
title = "T"
summary = "S."
kind = "decision"
statement = {statement}
{top}
{scorer}
[[scorer.metrics]]
metric = "{metric}"
direction = "minimize"
target = {target}
{best_known}
{tail}
"""
ANYTHING = '[scorer]\nkind = "predicates"\n[[scorer.predicates]]\nmetric = "{metric}"\nexpression = "1"'


def staged(folder: Path, case: dict[str, Any]) -> Path:
    metric = case.get("metric", "m")
    quoted = case.get("statement", "Do it.").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = FRAME.format(
        statement=f'"{quoted}"',
        top=case.get("top", ""),
        scorer=case.get("scorer", ANYTHING.format(metric=metric)),
        metric=metric,
        target=case["target"],
        best_known=f"best_known = {case['best_known']}" if "best_known" in case else "",
        tail=case.get("tail", ""),
    )
    for name, content in case.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    path = folder / "problem.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.guarantee("what-tells-the-judge-is-quoted")
@pytest.mark.parametrize("name", TOLD)
def test_what_tells_agents_of_the_judge_is_refused_and_quoted(tmp_path: Path, name: str) -> None:
    case = TOLD[name]
    with pytest.raises(ValidationFailed) as failed:
        read_manifest(staged(tmp_path, case))
    reasons = [fault.reason for fault in failed.value.faults if fault.field == case["told"]]
    assert any(case["says"] in reason for reason in reasons), [str(fault) for fault in failed.value.faults]
    assert all(len(fault.reason) < 400 for fault in failed.value.faults)


@pytest.mark.guarantee("everyday-manifests-pass")
@pytest.mark.parametrize("name", RIGHT)
def test_an_everyday_manifest_passes(tmp_path: Path, name: str) -> None:
    try:
        read_manifest(staged(tmp_path, RIGHT[name]))
    except ValidationFailed as failed:
        pytest.fail("; ".join(map(str, failed.faults)))


@pytest.mark.parametrize("mark", ["* ", "- ", "> ", "1. ", "  -"])
def test_marks_in_a_row_take_no_time(mark: str) -> None:
    began = time.process_time()
    assert first_level_heading(mark * 3_000 + "x") is None
    assert first_level_heading(mark * 3_000 + " # x") is not None
    assert time.process_time() - began < 2


def test_large_data_is_looked_through_in_bounded_time(tmp_path: Path) -> None:
    lines = "".join(f"{n} rows, best known {n * 37 % 1000}.{n % 97}, 26 of them\n" for n in range(100_000))
    script = 'call("problem.submit_final", {"a": [16, 19, 43]})'
    case = {
        "target": 12345.6,
        "best_known": 77777,
        "top": 'assets = ["data.txt"]',
        "files": {"data.txt": lines},
        "tail": f"[baseline.proposer]\nkind = \"script\"\nscript = '{script}'\n",
    }
    path = staged(tmp_path, case)
    began = time.process_time()
    read_manifest(path)
    assert time.process_time() - began < 3, "4 MB"


def test_what_a_package_of_the_judge_imports_is_of_its_version(tmp_path: Path) -> None:
    files = {
        "score.py": "import pkg\n\ndef score(submission):\n    return pkg.deep.K\n",
        "pkg/__init__.py": "from . import deep\n",
        "pkg/deep.py": "K = 1\n",
    }
    scorer = '[scorer]\nkind = "function"\nfunction = "score.py:score"'
    problem = read_manifest(staged(tmp_path, {"target": 3, "scorer": scorer, "files": files}))
    before = judging_digest(problem)
    (tmp_path / "pkg" / "deep.py").write_text("K = 2\n", encoding="utf-8")
    assert judging_digest(problem) != before


def test_a_file_whose_name_the_judge_puts_together_is_of_its_version(tmp_path: Path) -> None:
    source = "from pathlib import Path\n\ndef score(submission):\n    return Path() / 'data' / 'key.csv'\n"
    scorer = '[scorer]\nkind = "function"\nfunction = "score.py:score"'
    files = {"score.py": source, "data/key.csv": "1\n"}
    problem = read_manifest(staged(tmp_path, {"target": 3, "scorer": scorer, "files": files}))
    before = judging_digest(problem)
    (tmp_path / "data" / "key.csv").write_text("2\n", encoding="utf-8")
    assert judging_digest(problem) != before


def test_the_end_of_a_large_key_is_compared_as_well(tmp_path: Path) -> None:
    rows = [f"patient number {n} has the label {n * 7919 % 1000003}{' and others' * 90}\n" for n in range(5_000)]
    source = "def score(submission):\n    return len(open('key.csv').read())\n"
    case = {
        "target": 3,
        "scorer": '[scorer]\nkind = "function"\nfunction = "score.py:score"',
        "top": 'assets = ["end.csv"]',
        "files": {"score.py": source, "key.csv": "".join(rows), "end.csv": "".join(rows[-3:])},
    }
    assert len(case["files"]["key.csv"]) > MOST_BYTES
    with pytest.raises(ValidationFailed) as failed:
        read_manifest(staged(tmp_path, case))
    assert "patient number 4997" in str(failed.value.faults[0])
