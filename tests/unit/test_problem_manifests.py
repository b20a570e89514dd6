"""Manifests: every fault with file, field and reason; the catalogue that they make."""

from __future__ import annotations

import json
import os
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place

from pursuit.config.files import as_toml
from pursuit.errors import ProblemNotFound, ValidationFailed
from pursuit.problems.catalogue import SHIPPED, ProblemCatalogue, discover
from pursuit.problems.manifest import scan_markdown
from pursuit.problems.manifest_reading import parse_manifest, read_manifest
from pursuit.problems.scorer import KNOWN_NAMES
from pursuit.sandbox import Sandbox

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
        "odd.py": "def score(answer): ...\ndef bare(): ...\ndef more(submission, key): ...\n",
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


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 95


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


def test_the_command_line_tells_the_faults_of_all_of_them_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    first, *others = (tmp_path / f"{number:03d}" for number in range(len(CASES)))
    first.mkdir()
    stage(first)
    for folder in others:
        shutil.copytree(first, folder, symlinks=True, copy_function=os.link)
    wanted: set[tuple[str, str]] = set()
    for folder, case in zip((first, *others), CASES.values(), strict=True):
        path = write(folder, case["text"])
        wanted |= {(str(path), field) for field in case["faults"]}
    answer = place.json("problem", "validate", *(first, *others), code=2)
    faults = answer["details"]["faults"]
    assert answer["message"] == f"{len(faults)} faults in the problems" and all(fault["reason"] for fault in faults)
    told = {(fault["source"], fault["field"]) for fault in faults}
    assert told == wanted


def test_a_sound_manifest_has_its_defaults(tmp_path: Path) -> None:
    problem = read_manifest(write(tmp_path))
    assert (problem.problem_id, problem.kind, problem.tags) == ("sum", "text", ("numbers",))
    assert problem.server is None and problem.submission is None
    assert problem.visibility.citation_mode == "summary" and not problem.visibility.score
    assert problem.budget.calls is None and problem.budget.wall_seconds is None


def test_bytes_that_are_no_toml_are_one_fault_with_a_place(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed) as failed:
        read_manifest(write(tmp_path, 'title = "x'))
    (fault,) = failed.value.faults
    assert "is not valid TOML" in fault.reason and fault.line == 1


@pytest.mark.guarantee("a-duplicate-problem-names-both-files")
def test_a_duplicate_id_names_both_files(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a" / "deep" / "er"), write(tmp_path / "b")
    found = discover([tmp_path], shipped=False)
    (fault,) = found.faults
    assert fault.field == "problem_id" and str(one) in fault.reason and str(other) in fault.reason
    with pytest.raises(ValidationFailed):
        ProblemCatalogue.load(tmp_path, shipped=False)


def test_the_command_line_names_both_files_of_a_duplicate_id(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    one, other = write(tmp_path / "a"), write(tmp_path / "b")
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


def test_filters_are_anded() -> None:
    shipped = ProblemCatalogue.load()
    names = [one.problem_id for one in shipped.search("lightest", kind="optimization", tags=["continuous"])]
    assert names == ["spring", "three-bar-truss"]
    assert shipped.search("lightest", kind="text") == []
    assert shipped.search("lightest bars", tags=["engineering", "continuous"]) == [shipped.get("three-bar-truss")]
    assert shipped.search(tags=["nobody has this"]) == []


def test_a_summary_is_compact_and_holds_no_statement() -> None:
    for problem in ProblemCatalogue.load():
        row = problem.summary_row()
        assert set(row) == {"problem_id", "title", "kind", "tags", "summary"}
        assert len(json.dumps(row)) < 400


def test_a_folder_that_cannot_be_read_is_told_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationFailed, match="there is no such file or directory"):
        discover([tmp_path / "nowhere"])
    write(tmp_path / "open")
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def denied(path: Any) -> Any:  # tests may run as somebody whom no mode keeps out
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    found = discover([tmp_path], shipped=False)
    assert [one.problem_id for one in found.problems] == ["sum"]
    assert [(fault.source, fault.reason) for fault in found.faults] == [
        (str(tmp_path / "locked"), "cannot be read: Permission denied")
    ]


def test_the_command_line_knows_the_ids_that_are_shipped_and_folders_without_problems(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write(tmp_path / "mine", GOOD.replace('"sum"', '"knapsack"', 1))
    told = place.ask("problem", "validate", "mine", code=2)[1]
    assert "is the id of two problems" in told and str(SHIPPED) in told
    (tmp_path / "empty").mkdir()
    assert "there is no problem.toml in empty" in place.ask("problem", "validate", "empty", code=2)[1]


def test_what_only_has_the_name_of_a_manifest_is_told_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder" / "problem.toml").mkdir(parents=True)
    for name in ("dangling", "circle", "pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "dangling" / "problem.toml").symlink_to("nowhere")
    (tmp_path / "circle" / "problem.toml").symlink_to("problem.toml")
    os.mkfifo(tmp_path / "pipe" / "problem.toml")
    write(tmp_path / "sound")
    found = discover([tmp_path], shipped=False)
    told = {Path(fault.source or "").parent.name: fault.reason for fault in found.faults}
    assert {name: words.partition(":")[0] for name, words in told.items()} == {
        "circle": "cannot be read",
        "dangling": "cannot be read",
        "folder": "is a directory; a problem.toml is a file",
        "pipe": "is no regular file",
    }
    assert [one.problem_id for one in found.problems] == ["sum"]
    for name in told:
        with pytest.raises(ValidationFailed):
            read_manifest(tmp_path / name / "problem.toml")
        assert discover([tmp_path / name / "problem.toml"], shipped=False).faults


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"'optimisation' is none of .* did you mean 'optimization'"):
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


@pytest.mark.parametrize("mark", ["* ", "- ", "> ", "1. ", "  -"])
def test_marks_in_a_row_take_no_time(mark: str) -> None:
    began = time.process_time()
    assert scan_markdown(mark * 3_000 + "x")[0] is None
    assert scan_markdown(mark * 3_000 + " # x")[0] is not None
    assert time.process_time() - began < 2


BOUND = {
    "assigned": b"score = lambda submission: 1\n",
    "imported": b"from other import score\n",
    "imported with all": b"from other import *\n",
    "under a condition": b"try:\n    import numpy\nexcept ImportError:\n    def score(submission, how=1): ...\n",
    "decorated": b"from functools import cache\n\n@cache\ndef score(whatever): ...\n",
    "by any name": b"def score(**parts): ...\n",
    "with the counts": b"def score(submission, evaluations, *, calls): ...\n",
    "in a case": b"match 1:\n    case 1:\n        def score(submission): ...\n",
    "by a pattern": b"match [len]:\n    case [score]:\n        pass\n",
    "on the way": b"def make():\n    return print\n(score := make())\n",
    "by a loop": b"for score in [print]: pass\n",
    "by a block": b"import contextlib\nwith contextlib.nullcontext(print) as score: pass\n",
    "among the globals": b"globals()['score'] = print\n",
    "by a function": b"def load():\n    global score\n    score = print\nload()\n",
    "when it is asked for": b"def __getattr__(name):\n    return print\n",
    "beside a long formula": b"x = " + b"+".join([b"1"] * 2000) + b"\ndef score(submission): ...\n",
    "with the others": b"(score, rest) = (print, 1)\n",
    "with a mark": b"\xef\xbb\xbfdef score(submission): ...\n",
    "with a coding": b"# -*- coding: latin-1 -*-\n# caf\xe9\ndef score(submission): ...\n",
}
FUNCTION = '[scorer]\nkind = "function"\nfunction = "score.py:score"\n[[scorer.metrics]]\nmetric = "right"\n'


@pytest.mark.parametrize("name", BOUND)
def test_a_function_may_be_bound_and_written_in_every_way(tmp_path: Path, name: str) -> None:
    (tmp_path / "score.py").write_bytes(BOUND[name])
    (tmp_path / "other.py").write_text("def score(submission): ...\n", encoding="utf-8")
    head = GOOD.partition("[scorer]")[0]
    assert read_manifest(write(tmp_path, head + FUNCTION)).scorer.function == "score.py:score"


def test_a_function_that_a_file_does_not_name_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("def scored(submission): ...\n", encoding="utf-8")
    wrong = FUNCTION.replace(":score", ":rate")
    with pytest.raises(ValidationFailed, match="has no function 'rate'"):
        read_manifest(write(tmp_path, GOOD.partition("[scorer]")[0] + wrong))


def test_the_command_line_takes_a_function_in_every_way(tmp_path: Path) -> None:
    head = GOOD.partition("[scorer]")[0]
    for place, source in enumerate(BOUND.values()):
        path = write(tmp_path / f"{place}", head.replace('"sum"', f'"sum-{place}"') + FUNCTION)
        (path.parent / "score.py").write_bytes(source)
    assert len(Place(tmp_path).json("problem", "validate", ".")["problems"]) == len(BOUND)


async def test_the_names_that_an_expression_may_use_are_those_of_the_sandbox() -> None:
    async with Sandbox() as sandbox:
        found = await sandbox.evaluate([f"{name} is None" for name in sorted(KNOWN_NAMES)], {"submission": {}})
        assert [one.error for one in found] == [None] * len(KNOWN_NAMES)


def test_a_manifest_needs_no_file_of_its_own(tmp_path: Path) -> None:
    problem, faults = parse_manifest(tomllib.loads(GOOD), tmp_path / "problem.toml")
    assert problem is not None and faults == []
