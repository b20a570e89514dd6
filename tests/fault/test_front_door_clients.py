"""Clients that die in the middle of a call leave a mission that another client goes on with."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import psutil
import pytest
from front_door import House, gone
from journey import AN_HOUR, Traveller, calls
from mission_files import mission_file, threshold
from sdk_client import ERAS, SdkPort, client

MISSION = mission_file("workshop.*", threshold("steps", ">=", 2), iterations=5, proposer="client")


@pytest.mark.slow
@pytest.mark.guarantee("killed-client-continues")
@pytest.mark.parametrize(
    ("era", "transport"),
    [
        (ERAS[0], "http"),
        (ERAS[1], "stdio"),
        pytest.param(ERAS[0], "stdio", marks=pytest.mark.soak),
        pytest.param(ERAS[1], "http", marks=pytest.mark.soak),
    ],
)
def test_a_killed_client_leaves_a_mission_that_another_continues(era: str, transport: str, tmp_path: Path) -> None:
    house = House(tmp_path, fresh=True)
    mission = house.json("start", house.write("mission.toml", MISSION))["session_id"]
    proposal = calls("log", ("a", 0), ("b", AN_HOUR), ("c", 0))
    with house.target(transport) as target:
        with house.client(era, target, "mission_iterate", session_id=mission, proposal=proposal) as first:
            house.until_logged("log", "begun b")
            its_own = psutil.Process(first.pid).children(recursive=True)
            first.send_signal(signal.SIGKILL)
            first.wait(timeout=120)
        gone(its_own)
        if (era, transport) != ("legacy", "http"):  # there a lost connection is no cancellation, says the protocol
            house.until_logged("log", "cancelled b")
        anyio.run(_go_on, house, era, target, mission)
    assert house.lines("log") == ["begun a", "done a", "begun b", "cancelled b", "begun c", "done c"]


async def _go_on(house: House, era: str, target: str, mission: str) -> None:
    async with client(target, era) as second:
        me = Traveller(SdkPort(second), house.logs)
        driven = (era, target.startswith("http")) == ("legacy", True)
        status = (await me.done("mission_status", session_id=mission))["status"]
        assert status == ("running" if driven else "interrupted")
        if "cancelled b" not in house.lines("log"):
            await me.refused("conflict", "mission_iterate", session_id=mission, after=0)
            await me.done("mission_abort", session_id=mission, pause=True)
            await me.until_let_go(mission)
            await me.done("mission_resume", session_id=mission)
        answer = await me.until_free(mission, after=0)
        assert [row["iteration_index"] for row in answer["iterations"]] == [0]
        assert answer["status"] == "completed"
        (only,) = (await me.done("mission_history", session_id=mission, format="full"))["iterations"]
        assert [call["outcome"] for call in only["calls"]] == ["ok", "cancelled", "ok"]
