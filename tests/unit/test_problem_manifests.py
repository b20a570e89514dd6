"""Manifests: every fault with file, field and reason; the catalogue that they make."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place

from pursuit.config.files import as_toml
from pursuit.errors import ProblemNotFound, ValidationFailed
from pursuit.problems.catalogue import SHIPPED, ProblemCatalogue
from pursuit.problems.manifest_reading import parse_manifest, read_manifest

CORPUS = Path(__file__).parents[1] / "data" / "problems" / "wrong.toml"
HEAD = """problem_id = "sum"
title = "A sum"
summary = "Add two numbers."
kind = "text"
statement = "What is 2 + 3?"
"""
JUDGE = """[scorer]
kind = "predicates"
[[scorer.predicates]]
metric = "right"
expression = "1"
[[scorer.metrics]]
metric = "right"
"""
CASES: dict[str, dict[str, Any]] = {
    name: {**case, "text": case["text"].replace("<head>\n", HEAD).replace("<judge>\n", JUDGE)}
    for name, case in tomllib.loads(CORPUS.read_text(encoding="utf-8")).items()
}

GOOD = """
problem_id = "sum"
title = "A sum"
summary = "Add two numbers."
kind = "text"
statement = "What is 2 + 3?"
tags = ["numbers"]
[scorer]
kind = "predicates"
[[scorer.predicates]]
metric = "right"
expression = "submission['answer'].strip() == '5'"
[[scorer.metrics]]
metric = "right"
direction = "maximize"
target = 1
"""


def write(folder: Path, text: str = GOOD, name: str = "problem.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def stage(folder: Path) -> None:
    """The files that the wrong manifests name."""
    files = {
        "score.py": "def score(submission):\n    return 1\n",
        "broken.py": "def score(:\n",
        "data.csv": "a,b\n",
        "judge.py": "def score(submission):\n    return 5\n",
        "key.csv": "1,5\n",
        "deep/more.csv": "2,7\n",
        "base.script": 'call("problem.submit_final", {"answer": "5"})\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "link.txt").symlink_to("judge.py")
    (folder / "hard.txt").hardlink_to(folder / "judge.py")


@pytest.mark.guarantee("wrong-manifests-say-everything")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_manifest_says_file_field_and_reason(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    stage(tmp_path)
    path = write(tmp_path, case["text"])
    with pytest.raises(ValidationFailed) as failed:
        read_manifest(path)
    told = {fault.field: fault.reason for fault in failed.value.faults}
    assert set(told) == set(case["faults"]), told
    for field, words in case["faults"].items():
        assert words in told[field], (field, told[field])
    assert {fault.source for fault in failed.value.faults} == {str(path)}


def test_a_sound_manifest_has_its_defaults(tmp_path: Path) -> None:
    problem = read_manifest(write(tmp_path))
    assert (problem.problem_id, problem.kind, problem.tags) == ("sum", "text", ("numbers",))
    assert problem.server is None and problem.submission is None
    assert problem.visibility.citation_mode == "summary" and not problem.visibility.score
    assert problem.budget.calls is None and problem.budget.wall_seconds is None


@pytest.mark.guarantee("a-duplicate-problem-names-both-files")
def test_a_duplicate_id_names_both_files(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    one, other = write(tmp_path / "a" / "deep" / "er"), write(tmp_path / "b")
    write(tmp_path / "c", GOOD.replace('"sum"', '"another"'))
    (fault,) = place.json("problem", "validate", code=2)["details"]["faults"]
    assert fault["field"] == "problem_id" and str(one) in fault["reason"] and str(other) in fault["reason"]
    listed, notes = place.ask("problem", "list", "--dir", ".")
    assert "another\t" in listed and f"{one} and {other}" in notes
    told = place.ask("problem", "compare", "another", "sum", "--dir", ".", code=2)[1]
    assert f"{one} and {other}" in told and "name the file that you mean" in told
    assert place.ask("problem", "compare", "another", "--dir", ".", code=2)[1].startswith("error: there is no ledger")


def test_manifests_are_found_recursively_and_listed_in_a_stable_order(tmp_path: Path) -> None:
    for place, name in enumerate(("zeta", "alpha", "mid")):
        write(tmp_path / f"{place}" / name, GOOD.replace('"sum"', f'"{name}"'))
    write(tmp_path / "node_modules" / "x", GOOD.replace('"sum"', '"never"'))
    found = ProblemCatalogue.load(tmp_path, tmp_path / "1", shipped=False)
    assert [one.problem_id for one in found] == ["alpha", "mid", "zeta"]
    assert len(found) == 3
    assert found.get("mid").path == (tmp_path / "2" / "mid" / "problem.toml").resolve()
    with pytest.raises(ProblemNotFound, match="did you mean 'alpha'"):
        found.get("alpa")


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"unknown kind 'optimisation'; known: .* did you mean 'optimization'"):
        ProblemCatalogue.load().search(kind="optimisation")


def test_what_is_shipped_is_of_every_kind_and_cites_its_sources() -> None:
    shipped = list(ProblemCatalogue.load())
    assert len(shipped) >= 8
    assert {one.kind for one in shipped} == {"text", "decision", "optimization", "mcp", "coding"}
    for problem in shipped:
        assert problem.citations or problem.kind == "coding", problem.problem_id
        assert problem.primary.best_known is not None and problem.primary.target is not None, problem.problem_id
        assert problem.baseline is not None and problem.baseline.proposer["kind"] in ("search", "script")
    assert SHIPPED.is_dir()


@pytest.mark.parametrize(
    "table",
    [
        {"text": 'quote " and \\ and \n and \x7f and é', "flag": True, "number": -2.7009e-12, "whole": 3},
        {"list": [1, "two", {"three": [False]}], "odd key": {"": 1, "a.b": "c"}},
        {"beyond the first plane": "\U0001f98a and \U00010000", "\U0001f98a\x7f": "\x85\u2028\ufeff"},
    ],
)
def test_a_table_written_as_toml_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(table)) == table


def test_a_manifest_needs_no_file_of_its_own(tmp_path: Path) -> None:
    problem, faults = parse_manifest(tomllib.loads(GOOD), tmp_path / "problem.toml")
    assert problem is not None and faults == []
