"""Missions whose proposer is a coding agent, from the front door, with a stand-in that speaks the protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_stage import AgentPlace, library


@pytest.mark.guarantee("an-agent-is-believed-by-its-checks-alone")
def test_an_agent_works_in_a_worktree_until_the_checks_pass(tmp_path: Path) -> None:
    cheat = {**library(3), "tests/check.py": "print('all is well')\n"}
    place = AgentPlace(
        tmp_path,
        [
            [{"write": cheat}, {"write": {"ignored/x": "x"}}, {"say": "I am done."}],
            [{"write": {**library(2), "new.txt": "new\n"}}, {"say": "Now I am done."}],
        ],
        stray=True,
    )
    (place.repository / "notes.txt").write_text("not committed\n", encoding="utf-8")
    place.mission()
    done = place.json("run", "fix.toml")
    assert (done["status"], done["verdict_reason"], done["iteration_count"]) == ("completed", "criteria_met", 2)
    mission = done["session_id"]

    # The user's own files are as they were; the result is a branch, with protected files as they were.
    assert place.git("status", "--porcelain") == "?? notes.txt"
    assert place.git("log", "-1", "--format=%s", "main") == "First"
    branch = done["workspace"]["branch"]
    assert place.git("diff", "--name-only", f"{branch}~1", branch).split() == ["lib.py", "new.txt"]
    assert place.git("show", f"{branch}:notes.txt") == "not committed"
    assert "return 2" in place.git("show", f"{branch}:lib.py")

    # Each turn with the diff that we computed; protected files are told, and counted.
    first, second = place.turns()
    assert (first["text"], first["protected"], first["files"]) == ("I am done.", ["tests/check.py"], 2)
    assert "+    return 3" in first["diff"] and "+print('all is well')" in first["diff"]
    assert "+    return 2" in second["diff"] and "new file" in second["diff"]
    assert done["workspace"]["protected_turns"] == 2
    assert "return 3" in place.ask("workspace", "diff", mission, "--turn", 0)[0]
    assert "Changes of each turn" in place.ask("report", mission, "--format", "html")[0]
    assert place.json("verify")["ok"]

    # The prompt has the evidence of the check that the runtime itself ran, and says what does not count.
    assert "Make value() return 2." in place.prompts[0] and "not checked yet" in place.prompts[0]
    assert "value is 3" in place.prompts[1] and "protected files" in place.prompts[1]
    assert "Budget left: 3 turns." in place.prompts[1]
    assert [one["method"] for one in place.heard][:3] == ["initialize", "session/new", "session/prompt"]


def test_a_result_is_taken_over_or_removed(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[{"write": library(2)}]])
    place.mission()
    mission = place.json("run", "fix.toml")["session_id"]
    assert "+    return 2" in place.ask("workspace", "diff", mission)[0]

    (place.repository / "lib.py").write_text("mine\n", encoding="utf-8")
    assert "nothing was changed" in place.ask("workspace", "apply", mission, code=2)[1]
    assert (place.repository / "lib.py").read_text(encoding="utf-8") == "mine\n"
    place.git("checkout", "--", "lib.py")
    assert place.json("workspace", "apply", mission)["applied"] == ["lib.py"]
    assert "return 2" in (place.repository / "lib.py").read_text(encoding="utf-8")

    place.ask("workspace", "drop", mission)
    assert not list((place.folder / ".pursuit" / "workspaces").iterdir())
    assert place.git("for-each-ref", "--format=%(refname)", "refs/pursuit") == ""
    assert place.git("worktree", "list").count("\n") == 0
    assert place.git("branch", "--list", "pursuit/*") != ""
    assert "was dropped" in place.ask("workspace", "diff", mission, code=2)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workspace": 'in_place = true\nlink = ["../x"]'}, "workspace.link"),
        ({"proposer": 'on_cut = "rollback"', "workspace": "in_place = true"}, "would overwrite your own files"),
        ({"proposer": 'headless = ["cat"]'}, "unattended"),
        ({"rest": "allow_all_tools = true\ntool_allowlist = ['x']"}, "exactly one of tool_allowlist"),
    ],
)
def test_a_mission_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.mission(**change)
    assert said in place.ask("run", "fix.toml", code=2)[1]


def test_what_is_missing_is_told_before_anything_is_spent(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    path = place.mission()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('path = "repo"', 'path = "."'), encoding="utf-8")
    assert "is not in a git repository" in place.ask("run", "fix.toml", code=2)[1]
    path.write_text(text.replace(sys.executable, "no-such-agent"), encoding="utf-8")
    assert "'no-such-agent', was not found" in place.ask("run", "fix.toml", code=None)[1]
