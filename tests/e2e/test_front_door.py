"""Every client that people have goes the whole way of a mission, in both eras and over both transports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import front_door
import jsonschema
import pytest
from front_door import TRANSPORTS, House, mcp1_python, talked
from journey import AN_HOUR, CODES, TOOLS, Traveller, calls, journey
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from sdk_client import ERAS, SdkPort, client

ONE_THIRTY = "mcp-1.30"
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", ONE_THIRTY: "2025-11-25"}
IN_CI = {("legacy", "stdio"), ("2026-07-28", "http"), (ONE_THIRTY, "stdio")}
"""Each client and each transport once; `make soak` runs all pairs."""
EVERY = [
    pytest.param(which, transport, marks=() if (which, transport) in IN_CI else pytest.mark.soak)
    for which in (*ERAS, ONE_THIRTY)
    for transport in TRANSPORTS
]


async def through_sdk(house: House, era: str, target: str) -> dict[str, Any]:
    async with client(target, era) as connected:
        tools = await connected.list_tools()
        me = await journey(SdkPort(connected), house.logs)
        return {
            "protocol": connected.protocol_version,
            "tools": {tool.name: tool.output_schema for tool in tools.tools},
            "answers": me.answers,
        }


@pytest.mark.slow
@pytest.mark.guarantee("front-door-journey")
@pytest.mark.parametrize(("which", "transport"), EVERY)
async def test_every_client_goes_the_whole_way(which: str, transport: str, tmp_path: Path) -> None:
    house = House(tmp_path, fresh=which == ONE_THIRTY)
    with house.target(transport) as target:
        seen = (
            talked(house, mcp1_python(), "mcp1_client.py", target, house.logs)
            if which == ONE_THIRTY
            else await through_sdk(house, which, target)
        )
    assert seen["protocol"] == VERSIONS[which]
    assert seen["tools"].keys() == TOOLS == {name for name, _, _ in seen["answers"]}
    met: set[str] = set()
    for name, is_error, answer in seen["answers"]:
        if is_error:
            met.add(answer["code"])
            assert answer["message"] and isinstance(answer["details"], dict), (name, answer)
            assert isinstance(answer.get("iterations", None), list) == (name == "mission_iterate"), (name, answer)
        else:
            jsonschema.validate(answer, seen["tools"][name])
    assert met == CODES


@pytest.mark.slow
async def test_a_client_that_cancelled_a_call_leaves_without_waiting_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long has a server to leave by itself, however slow the machine is, before the SDK tells it to.
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60.0)
    house = House(tmp_path, fresh=True)
    patient = "from pursuit.server import stdio; stdio.LAST_ANSWERS = 3600.0; "
    server = json.loads(house.stdio)
    assert server["args"][0] == "-c"
    server["args"][1] = patient + server["args"][1]
    with (tmp_path / "notes").open("w") as notes:
        async with Client(stdio_client(StdioServerParameters(**server), errlog=notes), mode=ERAS[0]) as connected:
            me = Traveller(SdkPort(connected), house.logs)
            mission = await me.start("cancelled", steps=1)
            asked = {"session_id": mission, "proposal": calls("log", ("a", AN_HOUR))}
            await me.port.call_and_cancel("mission_iterate", asked, lambda: me.until_logged("log", "begun a"))
    # A server that does not leave by itself is told to by the SDK: its last word is then another one.
    assert "the client has gone" in (tmp_path / "notes").read_text().splitlines()[-1]


def test_a_missing_environment_fails_and_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "MCP1", tmp_path / "python")
    with pytest.raises(AssertionError, match="make test"):
        mcp1_python()
