"""Several agents at the same mission, each in a child mission and a worktree of its own: the first or the best wins."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from agent_stage import AgentPlace, library, quick_beam

COST = """
[[criteria]]
criterion_id = "cheap"
kind = "metric_threshold"
metric = "cost"
op = "<="
target = 100
source = "beam.evaluate"
"""


@pytest.mark.guarantee("the-best-of-several-agents-is-decided-by-the-checks")
def test_the_first_agent_that_meets_the_criteria_wins_and_the_others_are_ended(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    late = tmp_path / "late.txt"
    agents = [
        place.agent("slow", [[{"child": {"file": str(late), "after": 3600}}, {"wait": ""}]]),
        place.agent("wrong", [[{"write": library(3)}, {"say": "done"}]]),
        place.agent("right", [[{"write": library(4)}], [{"write": {**library(2), "tests/check.py": "cheat"}}]]),
    ]
    place.mission(proposer='kind = "best_of"\n' + "".join(agents), budget="max_iterations = 10")
    done = place.json("run", "fix.toml")
    assert (done["status"], done["verdict_reason"], done["iteration_count"]) == ("completed", "criteria_met", 1)
    rows = {row["agent"]: row for row in done["workspace"]["agents"]}
    assert [name for name, row in rows.items() if row["won"]] == ["right"]
    assert [row["completed"] for row in rows.values()] == [False, False, True]

    # The branch is that of the winner, and the user's files are as they were.
    assert done["workspace"]["branch"] == f"pursuit/{rows['right']['session_id']}"
    assert place.git("status", "--porcelain") == ""
    mission = done["session_id"]
    assert "+    return 2" in place.ask("workspace", "diff", mission)[0]
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(late) in (one.info["cmdline"] or [])]
    assert place.json("status", rows["slow"]["session_id"])["verdict_reason"] == "user_abort"
    assert "right won" in place.ask("status", mission)[0]

    place.ask("workspace", "apply", mission)
    assert place.git("status", "--porcelain") == "M lib.py"
    place.ask("workspace", "drop", mission)
    assert not list((place.ledger.parent / "workspaces").iterdir())


@pytest.mark.parametrize(("op", "wins"), [("<=", "small"), (">", "large")])
def test_the_best_by_a_metric_wins(tmp_path: Path, op: str, wins: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    place.write("pursuit.toml", quick_beam())
    sizes = {"large": 9.0, "small": 5.0}
    plans = {
        name: [{"call": {"tool": "beam__evaluate", "args": {"h": 0.5, "l": 3.0, "t": t, "b": 0.6}}}]
        for name, t in sizes.items()
    }
    agents = [place.agent(name, [[*plan, {"write": library(2)}]]) for name, plan in plans.items()]
    target = "100" if op == "<=" else "0"
    criterion = COST.replace('"<="', f'"{op}"').replace("100", target)
    place.mission(
        proposer='kind = "best_of"\npick = "cheap"\n' + "".join(agents),
        budget="max_iterations = 10",
        rest='tool_allowlist = ["beam.evaluate"]' + criterion,
    )
    done = place.json("run", "fix.toml")
    assert done["status"] == "completed"
    assert [row["agent"] for row in done["workspace"]["agents"] if row["won"]] == [wins]
    assert all(row["completed"] for row in done["workspace"]["agents"])


def test_without_a_winner_the_mission_ends(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    agents = [place.agent(name, [[{"write": library(3)}]]) for name in ("one", "two")]
    place.mission(proposer='kind = "best_of"\n' + "".join(agents), budget="max_iterations = 3")
    done = place.json("run", "fix.toml", code=3)
    assert done["verdict_reason"] == "out_of_reach"
    assert "no agent of" in place.ask("workspace", "diff", "last", code=2)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workspace": "in_place = true"}, "its own worktree"),
        ({"budget": "max_iterations = 2"}, "at least 3"),
        ({"pick": "check"}, "metric_threshold"),
        ({"pick": "nothing"}, "metric_threshold"),
        ({"names": "same"}, "given twice: same"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    place = AgentPlace(tmp_path, [[]])
    pick, names = change.get("pick", "first"), change.get("names", "")
    agents = [place.agent(names or name, [[]]) for name in ("one", "two")]
    rest = {key: value for key, value in change.items() if key in ("workspace", "budget")}
    place.mission(proposer=f'kind = "best_of"\npick = "{pick}"\n' + "".join(agents), **rest)
    assert said in place.ask("run", "fix.toml", code=2)[1]
