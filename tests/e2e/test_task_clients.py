"""Real clients of both generations drive the same tool as a task, at the front door and through the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from front_door import ROOT, House, mcp1_python, talked
from mission_files import NEVER, mission_file

FASTMCP = ROOT / ".venv-fastmcp" / "bin" / "python"
RELATED = "io.modelcontextprotocol/related-task"
LONG_MS = 1_500
MISSION = mission_file(
    "workshop.step", NEVER, iterations=100, args={"log": "steps", "ms": 700, "gate": "gate"}, stagnation_threshold="off"
)


def fastmcp_python() -> Path:
    assert FASTMCP.is_file(), "FastMCP 4 is missing; `make test` installs it"
    return FASTMCP


@contextmanager
def serving(house: House, where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A server over HTTP, and what to call there."""
    with house.serving(*(["--gateway"] if where == "gateway" else [])) as served:
        if where == "gateway":
            yield served.url, "workshop.step", {"log": "steps", "ms": LONG_MS, "gate": "gate"}
        else:
            house.write("mission.toml", MISSION)
            mission = house.json_of("start", "mission.toml")["session_id"]
            yield served.url, "mission_iterate", {"session_id": mission, "max_iterations_this_call": 2}


@pytest.mark.slow
@pytest.mark.guarantee("both-generations")
@pytest.mark.parametrize("where", ["front door", pytest.param("gateway", marks=pytest.mark.soak)])
def test_real_clients_drive_the_same_tool_as_a_task_each_in_its_own_generation(where: str, tmp_path: Path) -> None:
    house = House(tmp_path)
    gate = house.logs / "gate"
    with serving(house, where) as (url, tool, arguments):
        first = talked(house, mcp1_python(), "mcp1_tasks.py", url, tool, json.dumps(arguments), str(gate))
        assert (first["protocol"], first["declared"]) == ("2025-11-25", True)
        task = first["created"]["task"]
        assert task["status"] == "working" and task["ttl"] == 60_000
        assert first["listed"], "found again over another connection"
        assert first["statuses"][0] == "working" and first["statuses"][-1] == "completed"
        assert first["result"]["_meta"][RELATED] == {"taskId": task["taskId"]}
        assert not first["result"]["isError"]

        gate.unlink()
        words = (url, tool, json.dumps(arguments), str(gate))
        second = talked(house, fastmcp_python(), "fastmcp_tasks_client.py", *words)
        assert (second["first"], second["last"]) == ("working", "completed")
        assert second["task_id"] != task["taskId"]
        assert second["result"] is not None and second["result"].keys() == first["result"]["structuredContent"].keys()
        assert second["again"].keys() == second["result"].keys()
    done = [line for line in house.lines("steps") if line.startswith("done")]
    assert len(done) == (3 if where == "gateway" else 6), "each call was made once"
