"""Commands of the front door when somebody dies: the client's end stops its command, the server's end does not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from front_door import House, wait_until
from sdk_client import ERAS, client


def tasks(house: House) -> list[dict[str, Any]]:
    return house.json_of("task", "list")["tasks"]


@pytest.mark.slow
@pytest.mark.guarantee("a-caller-that-goes-stops-its-command")
@pytest.mark.parametrize("era", [pytest.param(ERAS[0], marks=pytest.mark.soak), ERAS[1]])
def test_a_client_that_is_killed_stops_its_command(era: str, tmp_path: Path) -> None:
    house = House(tmp_path, fresh=True)
    with house.client(era, house.stdio, "linger", mark="mark") as process:
        house.until_logged("mark", "here")
        process.send_signal(signal.SIGKILL)
    # Over stdio the server hears of it by the end of its input, stops the command, and leaves.
    wait_until(lambda: [task["status"] for task in tasks(house)] == ["cancelled"], "cancelled", lambda: tasks(house))


@pytest.mark.slow
@pytest.mark.guarantee("a-server-that-goes-leaves-its-commands")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_ends_leaves_its_commands_to_the_next(number: int, tmp_path: Path) -> None:
    house = House(tmp_path, fresh=number == signal.SIGKILL)
    with house.serving() as served, house.client(ERAS[0], served.url, "linger", mark="mark"):
        house.until_logged("mark", "here")
        served.process.send_signal(number)
        served.process.wait(timeout=180)
    (task,) = tasks(house)
    assert task["status"] == "working"
    with house.serving() as served:
        url = served.url
        async with client(url, ERAS[0]) as connected:
            ended = (await connected.call_tool("task_cancel", {"task_id": task["task_id"]})).structured_content
    assert ended["status"] == "cancelled"
