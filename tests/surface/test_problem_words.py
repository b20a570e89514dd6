"""What `pursuit problem` makes of its words: places that cannot be, problems by any name, faults told once."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from cli_stage import Place
from problem_stage import SCHEMA, problem, submitted


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


def test_a_place_where_no_ledger_can_be_is_named_and_nothing_is_made(place: Place) -> None:
    place.write("text", "no ledger")
    (place.folder / "taken").mkdir()
    place.write("taken/problems", "no folder")
    long = "x" * 300
    places = {
        "text/x.db": (2, "Not a directory"),
        "text": (1, "not an SQLite database"),
        ".": (2, "is a folder"),
        long: (2, "name too long"),
        "taken/x.db": (1, "taken/problems beside it is not a folder"),
    }
    if sys.platform == "linux":
        places |= {"/proc/x/y.db": (1, "cannot be created")}
    before = sorted(place.folder.rglob("*"))
    for state, (code, reason) in places.items():
        told = place.ask("problem", "attempt", "pangram", "--state", state, code=code)[1]
        assert told.startswith("error: ") and reason in told and state in told, told
        assert "--state" in told or "not an SQLite" in told, told
        assert "internal error" not in told and told.count("\n") == 1
        other = place.ask("problem", "compare", "pangram", "--state", state, code=None)[1]
        assert other.startswith("error: ") and state in other
    assert sorted(place.folder.rglob("*")) == before


def test_a_problem_is_named_by_its_id_its_file_or_its_folder(place: Place) -> None:
    one = problem(place.folder / "mine", submission=SCHEMA)
    for word in ("mine", "./mine", "mine/", "mine/problem.toml", place.folder / "mine"):
        assert place.json("problem", "show", word)["problem_id"] == "exam"
        assert place.json("problem", "validate", word)["problems"] == ["exam"]
    told = place.ask("problem", "show", ".", code=2)[1]
    assert "problem.toml: cannot be read: No such file" in told
    place.ledger.parent.mkdir()
    anyio.run(submitted, place, one, "attempt-1")
    (found,) = place.json("problem", "compare", "mine", "exam", "./mine", "--dir", "mine")["problems"]
    assert found["attempts"][0]["file"] == str((place.folder / "mine" / "problem.toml").resolve())
    assert place.json("problem", "replay", "attempt-1", "--problem", "mine")["solved"]
    told = place.ask("problem", "serve", "./mine", "--attempt", "attempt-A.b", code=2)[1]
    assert "not an attempt id" in told  # the problem was found
    told = place.ask("problem", "attempt", "./mine", "--proposer", "search", code=2)[1]
    assert "exam cannot be searched" in told
    for wrong in ("", "x" * 300, "./" + "x" * 300, "nowhere/at/all", "mine\x00"):
        told = place.ask("problem", "show", wrong, code=2)[1]
        assert "internal error" not in told and told.startswith("error: ")


def test_a_fault_is_told_once_and_names_its_option(place: Place) -> None:
    wrong = {
        ("attempt", "pangram", "--proposer", "scripd"): "--proposer: 'scripd' is not one of",
        ("attempt", "pangram", "--mode", "aut"): "--mode: 'aut' is not a mode",
        ("serve", "pangram", "--mode", "aut"): "--mode: 'aut' is not a mode",
        ("list", "--dir", "nowhere"): "--dir nowhere: the file or directory does not exist",
        ("attempt", "pangram", "--dir", "nowhere"): "--dir nowhere: the file or directory does not exist",
        ("compare", "pangram", "--dir", "nowhere"): "--dir nowhere: the file or directory does not exist",
        ("list", "--kind", "tex"): "--kind: unknown kind 'tex'; known:",
        ("validate", "nowhere"): "nowhere: the file or directory does not exist",
    }
    for words, told in wrong.items():
        lines = place.ask("problem", *words, code=2)[1].splitlines()
        assert len(lines) == 1 and lines[0].startswith(f"error: {told}"), lines
    both = place.ask("problem", "show", "pangram", "--dir", "here", "--dir", "there", code=2)[1]
    assert both.count("--dir here: ") == both.count("--dir there: ") == 1
