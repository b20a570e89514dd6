"""A package from outside of the tree adds a kind of proposer, as docs/extend.md shows it, through every front door."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from cli_stage import until
from front_door import House
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mission_files import mission_file, threshold
from postgres_server import NewDatabase
from quick_start import pursuit, quick

from pursuit.server.bind import PAGE_PATH

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
SERVER = """
[commands.weigh]
argv = ["python3", "-c", "print('mass=', {width} * 1.2)"]
[commands.weigh.parameters.width]
type = "number"
[commands.weigh.metrics]
mass = "mass= ([0-9.]+)"
[settings]
task_patience = 60  # the commands of a run end within it, however slow the machine is
"""
LIGHT = threshold("mass", "<=", 2.4)
PROPOSER: dict[str, Any] = {"kind": "halving", "tool_name": "commands.weigh", "argument": "width", "start": 8}
MISSION = mission_file("commands.weigh", LIGHT, iterations=9, proposer=PROPOSER)


class Installed:
    """A folder with a project, and a folder with the package, as an installer leaves it."""

    def __init__(self, folder: Path) -> None:
        self.project, self.packages = folder / "project", folder / "packages"
        information = self.packages / "halving-1.0.dist-info"
        information.mkdir(parents=True)
        self.project.mkdir()
        source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
        (self.packages / "halving.py").write_text(source, encoding="utf-8")
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: halving\nVersion: 1.0\n", encoding="utf-8")
        (information / "entry_points.txt").write_text(
            "[pursuit.proposers]\nhalving = halving:Halving\n", encoding="utf-8"
        )
        (self.project / "pursuit.toml").write_text(SERVER, encoding="utf-8")
        (self.project / "mission.toml").write_text(MISSION, encoding="utf-8")
        program = folder / "program.py"
        there = f"import sys; sys.path.append({str(self.packages)!r})\n"
        program.write_text(f"{there}from pursuit.cli.main import main\nmain()\n", encoding="utf-8")
        self.command = [sys.executable, quick(str(program))]

    def run(self, *words: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
        command = self.command if installed else pursuit()
        more: dict[str, Any] = {"cwd": self.project, "timeout": 60}
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False, **more)

    def json(self, *words: str, installed: bool = True) -> Any:
        done = self.run("--json", *words, installed=installed)
        return json.loads(done.stdout)


@pytest.mark.guarantee("a-package-adds-a-kind")
def test_a_package_adds_a_kind_of_proposer(tmp_path: Path) -> None:
    place = Installed(tmp_path)
    done = place.run("run", "mission.toml", "--mode", "auto")
    assert done.returncode == 0, done.stderr
    status = place.json("status", "last")
    assert (status["status"], status["proposer"], status["iteration_count"]) == ("completed", "halving", 3)
    assert "completed" in place.run("report", "last").stdout
    # Without the package the mission can be read and verified, and not be driven.
    assert place.json("status", "last", installed=False)["proposer"] == "halving"
    assert place.run("list", installed=False).returncode == 0
    assert place.run("verify", installed=False).returncode == 0
    refused = place.run("run", "mission.toml", installed=False)
    assert refused.returncode == 2
    assert "kind 'halving' is not one of" in refused.stderr
    place.run("start", "mission.toml", "--mode", "auto")
    refused = place.run("resume", "last", installed=False)
    assert refused.returncode == 2
    assert "'halving' is not installed here" in refused.stderr
    assert place.run("resume", "last").returncode == 0


@pytest.mark.guarantee("a-package-adds-a-kind")
async def test_a_client_drives_such_a_mission_and_cannot_name_the_kind(tmp_path: Path) -> None:
    place = Installed(tmp_path)
    place.run("start", "mission.toml", "--mode", "auto")
    mission_id = place.json("status", "last")["session_id"]
    parameters = StdioServerParameters(
        command=place.command[0], args=[*place.command[1:], "serve", "--mode", "auto"], cwd=place.project
    )
    wanted = {
        "directive": "d",
        "criteria": [{"criterion_id": "m", "kind": "predicate", "expression": "True", "required": True}],
        "budget": {"max_iterations": 1},
        "tool_allowlist": ["commands.weigh"],
        "proposer": PROPOSER,
    }
    async with Client(stdio_client(parameters)) as client:
        refused = await client.call_tool("mission_start", wanted)
        assert refused.is_error
        assert "a client cannot name a proposer of another package" in str(refused.content)
        assert "[proposers]" in str(refused.content)
        asked = {"session_id": mission_id, "max_iterations_this_call": 9}
        result = await client.call_tool("mission_iterate", asked)
        assert not result.is_error, result.content
    assert place.json("status", "last")["status"] == "completed"


@pytest.mark.guarantee("a-package-adds-a-kind")
def test_a_worker_drives_such_a_mission_and_the_page_shows_it(tmp_path: Path, new_database: NewDatabase) -> None:
    (tmp_path / "house").mkdir()
    house = House(tmp_path / "house")
    house.command = Installed(tmp_path).command
    house.environment |= {"XDG_DATA_HOME": str(tmp_path / "data")}
    house.write("pursuit.toml", f'state = "{new_database()}"\n[policy]\nmode = "auto"\n{SERVER}')
    house.write("mission.toml", MISSION)
    started = house.begin("start", "mission.toml", "--json", program=house.command).end()
    mission_id = json.loads(started[1])["session_id"]
    worker = house.begin("worker", "--name", "one", program=house.command)
    until(lambda: house.json("status", mission_id)["status"] == "completed", 60)
    worker.end(signal.SIGTERM)
    with house.serving():
        link = house.json_of("page", "--no-browser")["page"]
        person = build_opener(HTTPCookieProcessor())
        person.open(link, timeout=60).close()
        with person.open(f"{link.partition(PAGE_PATH)[0]}{PAGE_PATH}/missions/{mission_id}", timeout=60) as answer:
            shown = answer.read().decode()
    assert "halving" in shown and "completed" in shown


@pytest.mark.guarantee("a-package-adds-a-kind")
def test_a_parent_names_such_a_kind_only_where_the_operator_allows_it(tmp_path: Path) -> None:
    place = Installed(tmp_path)
    child = {"directive": "c", "criteria": [LIGHT], "budget": {"max_iterations": 5}, "proposer": PROPOSER}
    spawns = {"kind": "script", "script": f"await fleet.spawn(**{child!r})"}
    parent = mission_file("commands.weigh", LIGHT, iterations=7, proposer=spawns, fleet={})
    (place.project / "parent.toml").write_text(parent, encoding="utf-8")
    place.run("run", "parent.toml", "--mode", "auto")
    refused = place.run("history", "last", "--full", "--json")
    assert "a parent mission cannot name a proposer of another package" in refused.stdout, refused
    with (place.project / "pursuit.toml").open("a", encoding="utf-8") as file:
        file.write('[proposers]\nclients = ["halving"]\n')
    (place.project / "again.toml").write_text(parent, encoding="utf-8")
    place.run("run", "again.toml", "--mode", "auto")
    assert place.json("status", "last")["status"] == "completed"
