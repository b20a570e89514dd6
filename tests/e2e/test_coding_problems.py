"""Coding problems: agents work at a repository side by side, hidden tests judge each, and `compare` shows them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_stage import AGENT, agents_table
from cli_stage import Place

from pursuit.problems.catalogue import SHIPPED

REPAIRED = {"return sum(last - first for": "return sum(last - first + 1 for", "in intervals:": "in sorted(intervals):"}
HIDDEN = {"<= found[-1][1]:": "<= found[-1][1] + 1:", "(found[-1][0], last)": "(found[-1][0], max(last, found[-1][1]))"}


def module(*changes: dict[str, str]) -> str:
    """The module of the problem with some of its faults mended."""
    text = (SHIPPED / "fix-intervals" / "repository" / "intervals.py").read_text(encoding="utf-8")
    for old, new in (pair for change in changes for pair in change.items()):
        assert old in text
        text = text.replace(old, new)
    return text


def agent(place: Place, name: str, *turns: list[dict[str, Any]]) -> str:
    plan = place.write(f"{name}.json", json.dumps({"turns": turns}))
    return f"{name}={sys.executable} {AGENT} {plan} {place.folder / name}.jsonl"


@pytest.mark.guarantee("the-best-of-several-agents-is-decided-by-the-checks")
def test_three_agents_at_a_shipped_problem_are_compared_side_by_side(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", f'[policy]\nmode = "auto"\n{agents_table()}')
    cheat = {"tests/test_intervals.py": "", "intervals.py": module()}
    agents = [
        agent(place, "visible", [{"write": {"intervals.py": module(REPAIRED)}}]),
        agent(place, "cheat", [{"write": cheat}, {"say": "All tests pass."}]),
        agent(place, "whole", [{"say": "I look first."}], [{"write": {"intervals.py": module(REPAIRED, HIDDEN)}}]),
    ]
    words = [word for one in agents for word in ("--agent", one)]
    done = place.json("problem", "attempt", "fix-intervals", *words, "--max-iterations", "3")
    assert done["status"] == "completed"
    assert [row["agent"] for row in done["workspace"]["agents"] if row["won"]] == ["whole"]

    (found,) = place.json("problem", "compare", "fix-intervals")["problems"]
    rows = {row["label"]: row for row in found["attempts"]}
    assert [row["label"] for row in found["attempts"]] == ["whole", "visible", "cheat"]
    came_to = {name: (row["status"], row["value"], row["solved"]) for name, row in rows.items()}
    assert came_to["whole"] == ("scored", 6, True) and came_to["visible"] == ("scored", 3, False)
    assert came_to["cheat"] == ("ended", None, False)
    assert {one["label"]: one["solved"] for one in found["agents"]} == {"whole": 1, "visible": 0, "cheat": 0}

    # Agents take turns and call nothing; a cost that is not reported is unknown.
    assert [(row["turns"], row["calls"], row["cost_usd"]) for row in found["attempts"][:2]] == [
        (2, None, None),
        (1, None, None),
    ]
    head, *lines = [line.split("\t") for line in place.ask("problem", "compare", "fix-intervals")[0].splitlines()]
    told = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(row["who"], row["turns"], row["calls"], row["cost"]) for row in told[:2]] == [
        ("whole", "2", "", "unknown"),
        ("visible", "1", "", "unknown"),
    ]

    # An agent is told neither the hidden tests nor where they lie.
    heard = "".join((tmp_path / f"{name}.jsonl").read_text(encoding="utf-8") for name in rows)
    assert "hidden tests" in heard and str(SHIPPED) not in heard and "touch_are_one" not in heard


def test_a_folder_is_handed_in_by_hand_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configured()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "intervals.py").write_text(module(REPAIRED, HIDDEN), encoding="utf-8")
    done = place.json("problem", "submit", "fix-intervals", "--folder", tmp_path / "mine", "--label", "me")
    assert done["solved"] and done["score"][0]["value"] == 6
    (tmp_path / "mine" / "intervals.py").write_text("import os\nos._exit(0)\n", encoding="utf-8")
    done = place.json("problem", "submit", "fix-intervals", "--folder", tmp_path / "mine", code=3)
    assert not done["solved"] and done["score"][0]["value"] == 0
    assert "is not for coding agents" in place.ask("problem", "submit", "pangram", code=2)[1]
    assert "runs code from clients" in place.ask("problem", "serve", "fix-cache", "--http", code=2)[1]


def test_a_submission_cannot_leave_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = runpy.run_module("pursuit.problems.repository_judge")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "out").symlink_to(tmp_path)
    for name in ("../x", "/etc/x", "out/x", "."):
        with pytest.raises(SystemExit, match="not inside the repository"):
            judge["_apply"]({name: ""}, tree)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["tree"]
