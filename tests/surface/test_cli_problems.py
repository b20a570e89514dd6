"""`pursuit problem`: what there is, searched and completed; manifests, with all their faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main
from cli_stage import Place
from problem_stage import SCHEMA, client, problem

from pursuit import Problem
from pursuit.cli.main import app
from pursuit.problems.catalogue import SHIPPED

HOSTILE = Path(__file__).parent.parent / "servers" / "hostile_upstream.py"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


def ids(found: Any) -> list[str]:
    return [row["problem_id"] for row in found["problems"]]


def test_problems_are_searched_by_words_kind_and_tags_which_must_all_fit(place: Place) -> None:
    assert ids(place.json("problem", "search", "lightest")) == ["speed-reducer", "spring", "three-bar-truss"]
    assert ids(place.json("problem", "search", "LIGHTEST", "bars")) == ["three-bar-truss"]
    assert ids(place.json("problem", "search", "lightest", "--tag", "mixed")) == ["speed-reducer"]
    both = ("--tag", "engineering", "--tag", "continuous", "--kind", "optimization")
    assert ids(place.json("problem", "search", "lightest", *both)) == ["spring", "three-bar-truss"]
    assert ids(place.json("problem", "list", *both)) == ["spring", "three-bar-truss", "welded-beam"]
    assert ids(place.json("problem", "search", "lightest", "--kind", "text")) == []
    assert "no problem matches" in place.ask("problem", "search", "nothing like this")[1]
    row = place.json("problem", "search", "fifteen items")["problems"][0]
    assert set(row) == {"problem_id", "title", "kind", "tags", "summary"}
    problem(place.folder / "mine")
    assert ids(place.json("problem", "search", "number", "--dir", ".")) == ["exam", "fix-intervals"]


def test_validate_tells_the_faults_of_all_files_at_once(place: Place) -> None:
    problem(place.folder / "sound")
    (place.folder / "broken" / "problem.toml").mkdir(parents=True)
    place.write(
        "problem.toml", 'problem_id = "x"\nassets = ["a\\u0000b"]\n[submission]\ntype = "object"\nrequired = 3\n'
    )
    (place.folder / "dangling").mkdir()
    (place.folder / "dangling" / "problem.toml").symlink_to("nowhere")
    faults = place.json("problem", "validate", code=2)["details"]["faults"]
    told = {(str(Path(one["source"]).relative_to(place.folder.resolve())), one["field"]) for one in faults}
    missing = {("problem.toml", key) for key in ("title", "summary", "kind", "statement", "scorer")}
    assert told == {
        *missing,
        ("problem.toml", "assets[0]"),
        ("problem.toml", "submission.required"),
        ("broken/problem.toml", ""),
        ("dangling/problem.toml", ""),
    }
    assert all(one["reason"] for one in faults)
    assert "the file or directory does not exist" in place.ask("problem", "validate", "nowhere", code=2)[1]
    assert place.json("problem", "validate", "sound", SHIPPED / "pangram")["problems"] == ["exam", "pangram"]


def test_validate_refuses_a_server_with_two_tools_of_one_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    problem(place.folder / "doubled", "hyphen", exam=str(HOSTILE))
    (fault,) = place.json("problem", "validate", code=2)["details"]["faults"]
    assert (fault["field"], fault["reason"]) == ("server", "lists 2 tools named 'hyphen'")
    monkeypatch.setenv("PURSUIT_TRUST", "0")
    (warning,) = place.json("problem", "validate")["warnings"]
    assert warning["reason"].startswith("its tools were not checked: ") and "pursuit trust" in warning["reason"]


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last of these words."""
    command: Any = typer.main.get_command(app)
    from typer._completion_classes import BashComplete

    return [item.value for item in BashComplete(command, {}, "pursuit", "_X").get_completions([*words[:-1]], words[-1])]


async def test_a_shell_completes_problems_kinds_and_attempts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    assert completed("problem", "show", "sp") == ["speed-reducer", "spring"]
    assert completed("problem", "compare", "knapsack", "mas") == ["mastermind"]
    assert completed("problem", "list", "--kind", "o") == ["optimization"]
    problem(place.folder / "mine", submission=SCHEMA)
    assert completed("problem", "serve", "--dir", ".", "ex") == ["exam"]
    assert completed("problem", "replay", "att") == [] and not place.ledger.exists()
    place.ledger.parent.mkdir()
    one = Problem.from_manifest(place.folder / "mine")
    async with client(one, place.ledger.parent, "legacy", attempt_id="attempt-mine") as agent:
        await agent.call_tool("submit_final", {"x": 3})
    assert completed("problem", "replay", "att") == ["attempt-mine"]
    assert completed("problem", "serve", "exam", "--attempt", "attempt-m") == ["attempt-mine"]
    assert completed("problem", "serve", "--dir", "/nowhere", "ex") == []
