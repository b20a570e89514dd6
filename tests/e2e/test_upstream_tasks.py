"""Servers that make tasks of their calls, seen from a mission: both generations, and across a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_stage import COMMAND, Place
from engine_stage import mission, outcomes, proposal, replay
from mission_files import mission_file
from public_servers import NODE, NODE_SERVERS
from quick_start import quick

from pursuit import Runtime
from pursuit.config.configuration import load_configuration

pytestmark = pytest.mark.slow
FIXTURE = Path(__file__).parent.parent / "conformance" / "fixture_server.py"
EVERYTHING = NODE_SERVERS / "server-everything" / "dist" / "index.js"


def runtime(tmp_path: Path, command: list[str]) -> Runtime:
    words = f"command = {json.dumps(command[0])}\nargs = {json.dumps(command[1:])}\n"
    path = tmp_path / "pursuit.toml"
    path.write_text(f'[policy]\nmode = "auto"\n[servers.far]\n{words}', encoding="utf-8")
    return Runtime(state=tmp_path / "ledger.db", config=load_configuration(path))


async def pursued(
    tmp_path: Path, command: list[str], *calls: tuple[str, dict[str, Any]]
) -> tuple[list[Any], dict[str, Any]]:
    """The outcomes of these calls of one mission, and its last results as they were stored."""
    async with runtime(tmp_path, command) as opened:
        names = sorted({name for name, _ in calls})
        wanted = mission(proposer=replay(proposal(*calls)), tool_allowlist=names)
        mission_id = (await opened.runner.start(wanted)).session_id
        await opened.runner.run(mission_id)
        page = (await opened.runner.history(mission_id, full=True)).as_json()
        tasks = await opened.tasks.list()
        return await outcomes(opened, mission_id), {"rows": page["iterations"][0]["calls"], "tasks": tasks}


@pytest.mark.guarantee("tasks-of-servers")
async def test_a_mission_gets_the_result_of_a_first_generation_task(tmp_path: Path) -> None:
    """`simulate-research-query` refuses plain calls: it is a task or nothing."""
    found, more = await pursued(
        tmp_path, [str(NODE), str(EVERYTHING)], ("far.simulate-research-query", {"topic": "wind"})
    )
    assert found == [("far.simulate-research-query", "ok")]
    assert "Research Report: wind" in json.dumps(more["rows"])


@pytest.mark.guarantee("tasks-of-servers")
async def test_a_mission_gets_the_results_of_second_generation_tasks(tmp_path: Path) -> None:
    calls = [
        ("far.slow_compute", {"seconds": 20, "label": "x"}),
        ("far.failing_job", {}),
        ("far.protocol_error_job", {}),
        ("far.greet", {"name": "Ann"}),
    ]
    found, more = await pursued(tmp_path, [sys.executable, quick(str(FIXTURE))], *calls)
    assert [outcome for _tool, outcome in found] == ["ok", "failed", "failed", "ok"]
    rows = {row["tool"]: row for row in more["rows"]}
    assert "computed: x" in json.dumps(rows["far.slow_compute"])
    assert "this job always fails" in rows["far.failing_job"]["error"]
    assert "this job always breaks" in rows["far.protocol_error_job"]["error"]


MISSION = mission_file("far.slow_compute", args={"seconds": 60, "label": "slow"})


@pytest.mark.guarantee("missions-wait-durably-for-tasks")
def test_a_mission_that_was_killed_while_it_waited_picks_the_servers_task_up(tmp_path: Path) -> None:
    """The server's task takes six seconds and goes on without us; it must not be begun a second time."""
    argv = [sys.executable, quick(str(FIXTURE)), "--http"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            place = Place(tmp_path)
            place.write("pursuit.toml", f'[policy]\nmode = "auto"\n[servers.far]\nurl = "{url}"\n')
            mission_id = place.run("start", place.write("m.toml", MISSION)).stdout.split()[0]
            first = subprocess.Popen(
                [*COMMAND, "resume", mission_id],
                cwd=place.folder,
                env=place.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            until_waiting(place, mission_id)
            first.send_signal(signal.SIGKILL)
            first.wait()
            assert json.loads(place.run("status", mission_id, "--json").stdout)["waiting_for"] == "task"
            place.run("resume", mission_id)
            status = json.loads(place.run("status", mission_id, "--json").stdout)
            assert (status["status"], status["iteration_count"]) == ("completed", 1)
            tasks = json.loads(place.run("task", "list", "--json").stdout)["tasks"]
            assert [task["status"] for task in tasks] == ["completed"]
        finally:
            os.kill(server.pid, signal.SIGTERM)


def until_waiting(place: Place, mission_id: str) -> None:
    """Another process tells when the server's task is known, which is what the next driver picks it up by."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status = json.loads(place.ask("status", mission_id, "--json")[0])
        if status.get("waiting_for") == "task":
            return
    raise AssertionError("the mission never waited")
