"""The files of a problem for agents that can only call tools: clients of missions, by the brief's tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
from cli_stage import Place
from mcp import Client

from pursuit import Problem, Runtime
from pursuit.config.configuration import Configuration
from pursuit.policy.rules import OperatorPolicy
from pursuit.problems.missions import server_of
from pursuit.server.missions.server import mission_server


def test_a_client_that_proposes_reads_a_file_of_the_problem_by_a_call(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    begun = json.loads(place.ask("problem", "attempt", "pangram", "--proposer", "client", "--json", code=4)[0])
    tool = f"{server_of(begun['attempt_id'])}.design_brief"
    words = (Problem.shipped("pangram").manifest.folder / "words.txt").read_text(encoding="utf-8")

    async def main() -> None:
        config = Configuration(policy=OperatorPolicy(mode="auto"))
        async with (
            Runtime(state=place.ledger, config=config) as runtime,
            mission_server(runtime) as server,
            Client(server, mode="legacy", cache=None) as agent,
        ):
            told: list[str] = []
            for name in ("letters.txt", "words.txt"):
                calls = [{"tool_name": tool, "args": {"asset": name}}]
                given: dict[str, Any] = {"session_id": begun["session_id"], "proposal": {"tool_calls": calls}}
                told.append(json.dumps((await agent.call_tool("mission_iterate", given)).structured_content))
            assert "words.txt" in told[0], "an unknown name is answered with those that there are"
            asked = {"session_id": begun["session_id"], "format": "full"}
            history = json.dumps((await agent.call_tool("mission_history", asked)).structured_content)
            assert json.dumps(words)[1:-1] in history, history

    anyio.run(main)
    (found,) = place.json("problem", "compare", "pangram")["problems"]
    assert [one["calls"] for one in found["attempts"]] in ([], [0]), "reading is free"
