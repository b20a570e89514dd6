"""A mission's run that is a task goes on after the server that drove it was killed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from front_door import House, wait_until
from journey import AN_HOUR
from mission_files import NEVER, mission_file
from plain_http import post
from quick_start import quick

COUNT = 6
CUT_OFF = 2
SCRIPT = f"""
try:
    workshop.step(log="steps", key=f"{{state.iteration}}", ms={AN_HOUR} if state.iteration == {CUT_OFF} else 1)
except RuntimeError:
    pass
"""
STEPS = {"stagnation_threshold": "off", "proposer": {"kind": "script", "script": SCRIPT}}
MISSION = mission_file("workshop.step", NEVER, iterations=100, **STEPS)


@pytest.mark.slow
@pytest.mark.guarantee("mission-tasks-survive-kill-nine")
def test_killed_while_it_drove_a_task_the_next_server_drives_it_to_its_end(tmp_path: Path) -> None:
    house = House(tmp_path, fresh=True)
    house.write("mission.toml", MISSION)
    mission = house.json_of("start", "mission.toml")["session_id"]
    arguments = {"session_id": mission, "max_iterations_this_call": COUNT}
    with house.serving() as served:
        made = post(served.url, "tools/call", {"name": "mission_iterate", "arguments": arguments})["result"]
        assert made["resultType"] == "task"
        house.until_logged("steps", f"begun {CUT_OFF}")
        served.kill()
    with house.serving() as served:
        seen: list[dict[str, Any]] = []

        def over() -> bool:
            seen.append(post(served.url, "tasks/get", {"taskId": made["taskId"]})["result"])
            return seen[-1]["status"] not in ("working", "input_required")

        wait_until(over, "the end of the task", lambda: seen[-1:])
    ended = seen[-1]
    assert ended["status"] == "completed" and not ended["result"]["isError"], ended
    rows = ended["result"]["structuredContent"]["iterations"]
    assert [row["iteration_index"] for row in rows] == list(range(COUNT)), "no iteration more, none twice"
    each = [f"{word} {place}" for place in range(COUNT) for word in ("begun", "done")]
    assert house.lines("steps") == [line for line in each if line != f"done {CUT_OFF}"], "each call is made once"


@pytest.mark.slow
@pytest.mark.guarantee("tasks-of-servers-survive-the-gateway")
def test_killed_while_a_server_worked_at_a_task_the_next_gateway_gets_its_result(tmp_path: Path) -> None:
    """The server behind it keeps the work as a task of its own, which takes ten seconds and is begun once."""
    fixture = Path(__file__).parent.parent / "conformance" / "fixture_server.py"
    with subprocess.Popen([sys.executable, quick(str(fixture)), "--http"], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            house = House(tmp_path, fresh=True)
            house.write("pursuit.toml", f'[policy]\nmode = "auto"\n[servers.far]\nurl = "{url}"\n')
            with house.serving("--gateway") as served:
                arguments = {"seconds": 100, "label": "slow"}
                made = post(served.url, "tools/call", {"name": "slow_compute", "arguments": arguments})["result"]
                assert made["resultType"] == "task"
                wait_until(lambda: remembered(house, made["taskId"]), "the server's task in the ledger")
                served.kill()
            with house.serving("--gateway") as served:
                seen: list[dict[str, Any]] = []

                def over() -> bool:
                    seen.append(post(served.url, "tasks/get", {"taskId": made["taskId"]})["result"])
                    return seen[-1]["status"] not in ("working", "input_required")

                wait_until(over, "the end of the task", lambda: seen[-1:])
            assert seen[-1]["status"] == "completed", seen[-1]
            assert seen[-1]["result"]["content"][0]["text"] == "computed: slow"
        finally:
            server.terminate()


def remembered(house: House, task_id: str) -> bool:
    """Whether the ledger knows by what the server's task can be picked up."""
    with closing(sqlite3.connect(f"file:{house.ledger}?mode=ro", uri=True)) as ledger, ledger:
        found = ledger.execute(
            "SELECT count(*) FROM events JOIN streams ON streams.id = events.stream "
            "WHERE streams.name = ? AND CAST(body AS TEXT) LIKE '%handle%'",
            (task_id,),
        ).fetchone()
    return bool(found[0])
