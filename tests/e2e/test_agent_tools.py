"""The tools of a mission as the MCP server of its agent: its calls are calls of the mission."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_stage import AgentPlace, library, quick_beam

COST = """
[[criteria]]
criterion_id = "cheap"
kind = "metric_threshold"
metric = "cost"
op = "<="
target = 100
"""
CALL = {"call": {"tool": "beam__evaluate", "args": {"h": 0.5, "l": 3.0, "t": 5.0, "b": 0.6}}}


@pytest.mark.guarantee("an-agents-calls-to-our-tools-are-ours")
def test_a_call_of_the_agent_is_a_call_of_the_mission(tmp_path: Path) -> None:
    wrong = {"call": {"tool": "beam__evaluate", "args": {"h": "x"}}}
    place = AgentPlace(tmp_path, [[wrong, CALL, {"write": library(2)}]])
    place.write("pursuit.toml", quick_beam() + '[policy]\nmode = "ask"\n')
    place.mission(rest='tool_allowlist = ["beam.evaluate"]' + COST)
    done = place.json("run", "fix.toml")
    assert done["status"] == "completed" and done["metrics"]["cost"] > 0
    assert [one["tool"] for one in place.json("report", "last")["call_log"]] == [
        "beam.evaluate",
        "agent.turn",
        "check:check",
    ]
    assert '"beam__evaluate"' in place.turns()[0]["text"]


def test_a_call_that_needs_approval_waits_for_it(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[CALL, {"write": library(2)}]])
    place.write("pursuit.toml", quick_beam().replace("read_only = true", "") + '[policy]\nmode = "ask"\n')
    place.mission(rest='tool_allowlist = ["beam.evaluate"]' + COST, proposer="permission_seconds = 0")
    assert place.json("run", "fix.toml", code=4)["waiting_for"] == "approval"
    assert "end your turn" in place.turns()[0]["text"]
    place.ask("approve", "--all")
    assert place.json("resume", "last")["status"] == "completed"
    assert len(place.json("report", "last")["approvals"]) == 1, (
        "the stored answer is for the question that is asked again"
    )


def test_a_yes_for_the_tool_covers_the_next_call(tmp_path: Path) -> None:
    again = {"call": {**CALL["call"], "args": {**CALL["call"]["args"], "h": 0.6}}}
    place = AgentPlace(tmp_path, [[CALL, {"write": library(2)}], [CALL, again, {"write": library(2)}]])
    place.write("pursuit.toml", quick_beam().replace("read_only = true", "") + '[policy]\nmode = "ask"\n')
    place.mission(rest='tool_allowlist = ["beam.evaluate"]' + COST, proposer="permission_seconds = 0")
    assert place.json("run", "fix.toml", code=4)["waiting_for"] == "approval"
    place.ask("approve", "--all", "--for", "mission")
    assert place.json("resume", "last")["status"] == "completed"
    report = place.json("report", "last")
    assert [one["tool"] for one in report["call_log"]].count("beam.evaluate") == 2 and len(report["approvals"]) == 1
