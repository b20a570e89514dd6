"""`pursuit check`: the checks of a mission file on the files as they are, for people and CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_stage import AgentPlace, library

METRIC = '[[criteria]]\ncriterion_id = "mass"\nkind = "metric_threshold"\nmetric = "mass"\nop = "<"\ntarget = 3\n'


def repaired(place: AgentPlace, number: int = 2) -> None:
    (place.repository / "lib.py").write_text(library(number)["lib.py"], encoding="utf-8")


@pytest.mark.parametrize("workspace", [True, False], ids=["copy", "here"])
def test_check_decides_on_the_files_as_they_are_and_exits_0_or_1(tmp_path: Path, workspace: bool) -> None:
    place = AgentPlace(tmp_path, [])
    file = place.mission(rest=METRIC)
    if not workspace:
        text = file.read_text(encoding="utf-8")
        start, end = text.index("[workspace]"), text.index("[budget]")
        file.write_text("allow_all_tools = true\n" + text[:start] + text[end:], encoding="utf-8")
    found = place.json("check", "fix.toml", code=1)
    assert (found["met"], found["not_checked"]) == (False, ["mass"])
    assert found["criteria"][0]["evidence"]["exit_code"]["value"] == 1
    repaired(place)
    out, notes = place.ask("check", "fix.toml")
    assert "met" in out and "not checked, because it needs the work of a proposer: mass" in notes
    assert not place.heard_file.exists(), "no agent was started"
    assert place.git("for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert place.git("status", "--porcelain") == "M lib.py"
    assert not place.ledger.exists(), "a check alone makes no ledger"


def test_check_at_a_commit_leaves_the_files_alone(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [])
    place.mission()
    repaired(place)
    assert place.json("check", "fix.toml", "--at", "HEAD", code=1)["met"] is False
    place.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--all", "--message=Right")
    repaired(place, 3)
    assert place.json("check", "fix.toml", "--at", "HEAD")["met"] is True
    assert "return 3" in (place.repository / "lib.py").read_text(encoding="utf-8")
    for wrong in ("nowhere", "--help", "HEAD:lib.py"):
        assert f"has no commit {wrong!r}" in place.ask("check", "fix.toml", f"--at={wrong}", code=2)[1]


def test_a_ledger_records_a_check(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(2)}]])
    place.mission()
    place.ask("run", "fix.toml")
    found = place.json("check", "fix.toml", code=1)  # the result is a branch; the files are as they were
    assert place.json("status", found["session_id"])["verdict_reason"] == "max_iterations"
    assert place.json("verify")["ok"]


def test_a_mission_without_a_check_cannot_be_checked(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [])
    file = place.mission(rest=METRIC)
    text = file.read_text(encoding="utf-8")
    start = text.index('[[criteria]]\ncriterion_id = "check"')
    file.write_text(text[:start] + text[text.index("[workspace]") :], encoding="utf-8")
    assert "criteria: none is of kind check" in place.ask("check", "fix.toml", code=2)[1]
