"""Error codes, exit codes and the names of JSON fields stay as `frozen_names.json` says.

Real missions are run: one with a script, one that repeats, one that searches, one that asks a person, one that a client
drives, one that is paused. Every place in which a field occurs is a line of the file, such as `budget.used.tokens`;
`[]` is an element of a list. With `PURSUIT_FREEZE=1` the file is written for the source as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from cli_stage import Place
from mcp import Client

from pursuit import Budget, Mission, PursuitError, Runtime, event, metric
from pursuit.config.configuration import Configuration
from pursuit.server.missions.server import mission_server

FILE = Path(__file__).with_name("frozen_names.json")

SCRIPT_FILE = """
directive = "Report a number"
allow_all_tools = true
[[criteria]]
criterion_id = "level"
kind = "metric_threshold"
metric = "level"
op = ">="
target = {target}
[budget]
max_iterations = {cap}
[proposer]
kind = "script"
script = "mission.observe('level', 5)"
"""


def weigh(width: float = 3) -> dict[str, Any]:
    """Says what it weighs."""
    return {"metrics": {"mass": width * width, "stress": 10 / width}, "events": [{"event_name": "weighed"}]}


def ship() -> str:
    """Sends it off."""
    raise RuntimeError("the road is closed")


def calls(*names: str) -> dict[str, Any]:
    return {"tool_calls": [{"tool_name": name, "args": {}} for name in names], "rationale": "try it"}


def mission(**given: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "directive": "Weigh it",
        "criteria": [metric("mass", source="lab.weigh") <= 1, event("weighed")],
        "budget": Budget(max_iterations=3, max_tool_calls=9),
        "allow_all_tools": True,
        "stagnation_threshold": "off",
    }
    return {**plain, **given}


SEARCH = {
    "kind": "search",
    "tool_name": "lab.weigh",
    "parameters": {"width": {"low": 0.5, "high": 4.0}},
    "objective": "mass",
    "seed": 1,
}
MISSIONS: dict[str, dict[str, Any]] = {
    "script": mission(proposer={"kind": "script", "script": "lab.weigh(width=0.5)"}, allow_scripted_strategies=True),
    "failure": mission(proposer={"kind": "repeat", "tool_name": "lab.ship", "args": {}}),
    "search": mission(proposer=SEARCH, criteria=[metric("mass") <= 0.1, metric("stress") <= 5]),
    "approval": mission(
        proposer={"kind": "replay", "proposals": [calls("lab.weigh", "lab.ship"), calls("lab.weigh")]},
        policy={"ask": ["lab.ship"]},
    ),
    "pause": mission(proposer={"kind": "repeat", "tool_name": "lab.weigh", "args": {}}),
    "client": mission(proposer={"kind": "client"}),
}


class Collected:
    """The documents and exit codes that the surfaces gave."""

    def __init__(self, folder: Path) -> None:
        self.documents: dict[str, list[Any]] = {}
        self.exit_codes: dict[str, int] = {}
        self.place = Place(folder)
        self.place.write("pursuit.toml", '[policy]\nmode = "auto"\n[commands.nothing]\nargv = ["true"]\n')

    def add(self, name: str, *documents: Any) -> None:
        self.documents.setdefault(name, []).extend(documents)

    def run(self, *words: str, code: int = 0, case: str = "") -> Any:
        """The JSON document of a command, the last one if it prints several; `case` says how it ends."""
        text = self.place.ask(*words, "--state", "ledger.db", "--json", code=code)[0]
        found = [json.loads(line) for line in text.splitlines()]
        name = " ".join([words[0], *(word for word in words if word == "--full"), *([case] if case else [])])
        self.add(f"pursuit {name}", *found)
        self.exit_codes[name] = code
        return found[-1]

    async def ask(self, client: Client, tool: str, **given: Any) -> dict[str, Any]:
        """The structured result of an MCP tool."""
        answer = await client.call_tool(tool, given)
        assert answer.structured_content is not None
        self.add(tool, answer.structured_content)
        return answer.structured_content

    @property
    def fields(self) -> dict[str, list[str]]:
        return {name: sorted({*places(found, "")}) for name, found in sorted(self.documents.items())}


def places(documents: list[Any], prefix: str) -> Iterator[str]:
    """Each place in which a field occurs."""
    for value in documents:
        if isinstance(value, dict):
            for key, inside in cast("dict[str, Any]", value).items():
                yield f"{prefix}{key}"
                yield from places([inside], f"{prefix}{key}.")
        elif isinstance(value, list):
            yield from places(cast("list[Any]", value), f"{prefix}[].")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Runtime, Client]]:
    configuration = Configuration(settings={"task_patience": 0.05})
    runtime = Runtime(state=folder / "ledger.db", config=configuration, servers={"lab": [weigh, ship]})
    async with runtime, mission_server(runtime) as server, Client(server, mode="2026-07-28", cache=None) as client:
        yield runtime, client


async def run_missions(collected: Collected) -> dict[str, str]:
    """Runs the missions and asks the MCP server about them; their ids by their names."""
    async with opened(collected.place.folder) as (runtime, client):
        service = runtime.runner
        ids = {
            name: (await service.start(Mission(**one))).session_id for name, one in MISSIONS.items() if name != "client"
        }
        for name in ("script", "failure", "search", "approval"):
            await service.run(ids[name])
        await service.iterate(ids["pause"])
        await service.pause(ids["pause"], reason="look at it")
        criteria = [
            {"criterion_id": "light", "kind": "metric_threshold", "metric": "mass", "op": "<=", "target": 1},
            {"criterion_id": "weighed", "kind": "event", "event_name": "weighed"},
        ]
        started = {**MISSIONS["client"], "criteria": [{**one, "required": True} for one in criteria]}
        started["budget"] = {"max_iterations": 3}
        ids["client"] = (await collected.ask(client, "mission_start", **started))["session_id"]
        own = {"session_id": ids["client"]}
        await collected.ask(client, "mission_iterate", **own)
        await collected.ask(client, "mission_iterate", **own, proposal=calls("lab.weigh", "lab.ship"))
        await collected.ask(client, "mission_checkpoint", **own)
        await collected.ask(client, "mission_complete", **own, reason="good enough")
        await collected.ask(client, "mission_iterate", **own)
        await collected.ask(client, "mission_list")
        await collected.ask(client, "mission_tools", names=["lab.*"])
        await collected.ask(client, "mission_resume", session_id=ids["pause"])
        await collected.ask(client, "mission_iterate", session_id=ids["pause"], background=True)
        await collected.ask(client, "mission_abort", session_id=ids["pause"], pause=True, reason="wait")
        for one in ids.values():
            await collected.ask(client, "mission_status", session_id=one)
            await collected.ask(client, "mission_history", session_id=one, format="full")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools if tool.name.startswith("mission_")}
        for name, tool in tools.items():
            collected.add(f"output schema of {name}", tool.output_schema)
    return ids


def run_commands(collected: Collected, ids: dict[str, str]) -> None:
    """Runs the commands that look and those that steer."""
    run = collected.run
    for name, one in ids.items():
        for words in (["status"], ["history"], ["history", "--full"], ["report"], ["logs"], ["watch"]):
            if name not in ("approval", "pause") or words[0] not in ("logs", "watch"):
                run(*words, one)
    run("list")
    run("approvals", ids["approval"])
    run("approve", run("approvals")["approvals"][0]["approval_id"])
    run("pause", ids["approval"])
    run("extend", ids["pause"], "--max-iterations", "9", "--max-tool-calls", "20")
    run("abort", ids["approval"], "--reason", "enough")
    run("report", ids["approval"])
    run("complete", ids["pause"])
    run("verify")
    run("status", "mission-0123456789abcdef", code=2, case="of an unknown mission")
    collected.place.write("met.toml", SCRIPT_FILE.format(target=1, cap=3))
    collected.place.write("unmet.toml", SCRIPT_FILE.format(target=9, cap=1))
    run("run", "met.toml", case="to success")
    run("run", "unmet.toml", code=3, case="to its cap")
    run("start", "met.toml")
    run("run", "ledger.db", code=2, case="of no mission file")


def errors() -> dict[str, list[Any]]:
    """The code and the exit code of each error."""
    found, left = dict[str, list[Any]](), [PursuitError]
    while left:
        one = left.pop()
        left += one.__subclasses__()
        if one.__module__ == "pursuit.errors":
            found[one.__name__] = [one.code, one.exit_code]
    return dict(sorted(found.items()))


def frozen(folder: Path) -> dict[str, Any]:
    collected = Collected(folder)
    run_commands(collected, anyio.run(run_missions, collected))
    return {"errors": errors(), "exit_codes": collected.exit_codes, "fields": collected.fields}


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = frozen(tmp_path_factory.mktemp("frozen"))
    if os.environ.get("PURSUIT_FREEZE"):
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def was() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_codes_are_frozen(now: dict[str, Any]) -> None:
    assert {name: now["errors"].get(name) for name in was()["errors"]} == was()["errors"]
    assert now["exit_codes"] == was()["exit_codes"]


def test_fields_are_frozen(now: dict[str, Any]) -> None:
    before, after = was()["fields"], now["fields"]
    assert set(after) == set(before)
    gone = {name: sorted({*fields} - {*after[name]}) for name, fields in before.items()}
    new = {name: sorted({*fields} - {*before[name]}) for name, fields in after.items()}
    assert not any(gone.values()), {name: fields for name, fields in gone.items() if fields}
    assert not any(new.values()), {name: fields for name, fields in new.items() if fields}
