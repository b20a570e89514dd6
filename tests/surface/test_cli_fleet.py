"""Fleets on the command line: a mission file with children, and how they are shown."""

from __future__ import annotations

from pathlib import Path

from cli_stage import DESIGN, Place, mission

SCRIPT = '''
kind = "script"
script = """
import asyncio
def child(name):
    return fleet.spawn(
        directive=name,
        criteria=[{"criterion_id": "cheap", "kind": "metric_threshold", "metric": "cost", "op": "<=", "target": 100}],
        budget={"max_iterations": 3},
        proposer={"kind": "repeat", "tool_name": "beam.evaluate", "args": %s},
    )
await asyncio.gather(child("One"), child("Two"))
"""
[fleet]
at_once = 1
'''


def test_a_mission_file_with_a_fleet_runs_and_its_children_are_shown(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    args = (
        DESIGN.replace(" = ", ": ")
        .replace("h:", '"h":')
        .replace("l:", '"l":')
        .replace("t:", '"t":')
        .replace("b:", '"b":')
    )
    place.write("m.toml", mission(target=100, iterations=9, proposer=SCRIPT % args))
    done = place.run("run", "m.toml", "--mode", "auto")
    mission_id = done.stdout.splitlines()[0].removeprefix("mission: ")
    told = place.json("status", mission_id)
    assert [(row["status"], row["directive"]) for row in told["children"]] == [
        ("completed", "One"),
        ("completed", "Two"),
    ]
    assert told["budget"]["used"]["iterations"] == 3
    first = told["children"][0]["session_id"]
    assert f"child {first}: completed: One [iterations 1 of 3]" in place.ask("status", mission_id)[0]
    assert f"parent: {mission_id}" in place.ask("status", first)[0]
    rows = place.ask("list")[0].splitlines()
    assert sum(f"(child of {mission_id})" in row for row in rows) == 2
    assert {row["session_id"]: row.get("parent") for row in place.json("list")["sessions"]} == {
        mission_id: None,
        **{row["session_id"]: mission_id for row in told["children"]},
    }
    assert "no mission was interrupted" in "".join(place.ask("resume", "--all"))
