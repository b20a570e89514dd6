"""Problems that a program hands in: what it may write, and what it is told of what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pursuit import Problem
from pursuit.errors import Fault, ValidationFailed
from pursuit.problems.catalogue import ProblemCatalogue

Table = dict[str, Any]


def test_an_error_says_its_first_faults() -> None:
    faults = [Fault(field=f"f{n}", reason=f"is wrong in way {n}", source="x.toml") for n in range(7)]
    error = ValidationFailed(faults, "x.toml has 7 faults")
    assert str(error).splitlines() == [
        "x.toml has 7 faults",
        *(f"  x.toml f{n}: is wrong in way {n}" for n in range(5)),
        "  and 2 more",
    ]
    assert error.message == "x.toml has 7 faults" and error.as_dict()["message"] == error.message
    assert str(ValidationFailed([Fault(field="kind", reason="is none")], "kind: is none")) == "kind: is none"


def test_a_wrong_manifest_in_python_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "problem.toml").write_text('title = "x"\n', encoding="utf-8")
    with pytest.raises(ValidationFailed, match=r"(?s)has 5 faults\n.* problem_id: is missing; it must be given\n"):
        Problem.from_manifest(tmp_path)


def test_tuples_and_paths_are_taken_as_lists_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.py").write_text("", encoding="utf-8")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    problem = Problem.from_stdio(
        Path(sys.executable), (Path("..") / "server.py",), tags=("a", "b"), citations=({"summary": "x"},)
    )
    assert problem.manifest.tags == ("a", "b") and problem.manifest.citations[0].summary == "x"
    assert problem.manifest.server is not None and problem.manifest.server.args == ("../server.py",)
    assert Problem.from_stdio("python3", ["../server.py"]).problem_id == "problem"
    with pytest.raises(ValidationFailed, match="does not exist"):
        Problem.from_stdio("python3", ["../nowhere.py"])


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"args": "server.py"}, "server.args", 'must be a list of strings, not a string; write ["server.py"]'),
        ({"server": {"url": "x"}}, "server", "is built from the command and its args"),
        ({"cwd": "nowhere"}, "server.cwd", "folder 'nowhere' does not exist"),
    ],
)
def test_what_a_program_hands_in_wrongly_is_told(given: Table, field: str, words: str) -> None:
    with pytest.raises(ValidationFailed) as failed:
        Problem.from_stdio(sys.executable, **given)
    told = {fault.field: fault.reason for fault in failed.value.faults}
    assert words in told.get(field, ""), told


def test_the_catalogue_takes_texts_for_paths_and_one_tag(tmp_path: Path) -> None:
    assert len(ProblemCatalogue.load(str(tmp_path))) == len(ProblemCatalogue.load())
    shipped = ProblemCatalogue.load()
    assert shipped.search(tags="engineering") == shipped.search(tags=["engineering"]) != []
