"""Wrong input to every tool is refused with the place that is wrong; nothing is stored and the server lives."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from good_input import COMMANDS, EXAMPLES, GOOD, ID, RULES, START, TASK, start
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.shared.exceptions import MCPError
from wrong_input import Wrong, wrong_variants

from pursuit import Runtime
from pursuit.core.base_model import MAX_FAULTS, MAX_NUMBER, InputModel
from pursuit.core.caps import CAPS, NO_CAP
from pursuit.core.mission import MAX_STAGNATION
from pursuit.core.patterns import MAX_EXPRESSION, MAX_PATH, MAX_PATTERN, MAX_SCRIPT
from pursuit.server.missions import mission_tools, task_tools
from pursuit.server.missions.server import mission_server

LEGACY, MODERN = "legacy", "2026-07-28"
LEAST_CASES = 1_000
MAX_LISTED = 16_000
"""Bytes of all tools in `tools/list`: a client hands them to its model with every question."""
SPREAD = {LEGACY: 1, MODERN: 7} if os.environ.get("PURSUIT_SOAK") else {LEGACY: 11, MODERN: 41}
"""Every so many cases are tried: what looks at arguments is the same in both eras, and `make soak` tries them all."""
MODELS = {
    "mission_start": mission_tools.StartArguments,
    "mission_tools": mission_tools.ToolsArguments,
    "mission_status": mission_tools.SessionArguments,
    "mission_iterate": mission_tools.IterateArguments,
    "mission_checkpoint": mission_tools.SessionArguments,
    "mission_complete": mission_tools.CompleteArguments,
    "mission_abort": mission_tools.AbortArguments,
    "mission_resume": mission_tools.SessionArguments,
    "mission_history": mission_tools.HistoryArguments,
    "mission_list": mission_tools.ListArguments,
    "task_status": task_tools.StatusArguments,
    "task_tail": task_tools.TailArguments,
    "task_cancel": task_tools.CancelArguments,
    "task_wait": task_tools.WaitArguments,
}
"""What parses the arguments of each tool that is not a command."""
# The lengths that validators in `core` check and pydantic cannot put into a schema: definition, field, least, most.
LENGTHS = (
    ("Predicate", "expression", 1, MAX_EXPRESSION),
    ("Expectation", "predicate", 1, MAX_EXPRESSION),
    ("ScriptProposer", "script", 1, MAX_SCRIPT),
    ("Proposal", "script", 1, MAX_SCRIPT),
    ("ObserveRule", "regex", 0, MAX_PATTERN),
    ("ObserveRule", "jmespath", 1, MAX_PATH),
)


# Bounds beside a validator of ours keep pydantic's own names in its schema.
KEYWORDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def exact_schema(model: type[InputModel]) -> dict[str, Any]:
    """What the model takes, in the keywords of JSON Schema alone."""
    schema = plain(model.model_json_schema())
    for definition in schema.get("$defs", {}).values():
        if "const" in definition["properties"].get("kind", {}):
            definition["required"] = ["kind", *definition.get("required", ())]
    return schema


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    bounds = {key: item for key, item in value.items() if not (key in KEYWORDS and abs(item) >= MAX_NUMBER)}
    return {KEYWORDS.get(key, key): plain(item) for key, item in bounds.items()}


def weigh(kilos: float = 3, note: dict[str, Any] | None = None) -> dict[str, Any]:
    """Says what it weighs."""
    return {"metrics": {"mass": kilos}}


def ship() -> str:
    """Sends it off."""
    return "gone"


class Stage:
    """A server with one mission that waits for its client to propose."""

    def __init__(self, runtime: Runtime, client: Client, mission_id: str, task_id: str) -> None:
        self.runtime, self.client, self.mission_id, self.task_id = runtime, client, mission_id, task_id

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        if arguments.get("session_id") == ID:
            arguments = {**arguments, "session_id": self.mission_id}
        if arguments.get("task_id") == TASK:
            arguments = {**arguments, "task_id": self.task_id}
        try:
            result = await self.client.call_tool(tool, arguments)
        except MCPError as error:
            return True, {"code": error.error.code, "message": error.error.message}
        body = result.structured_content
        assert isinstance(body, dict)
        return result.is_error, body

    async def root(self) -> str:
        return await self.runtime.runner.ledger.root()


@asynccontextmanager
async def stage(folder: Path, era: str) -> AsyncIterator[Stage]:
    (folder / "pursuit.toml").write_text(f"{COMMANDS}[limits]\nunbounded = true\n", encoding="utf-8")
    here = Runtime(state=folder / "ledger.db", config=folder / "pursuit.toml", servers={"demo": [weigh, ship]})
    async with here as runtime, mission_server(runtime) as server, Client(server, mode=era) as client:
        known = START["criteria"][:1]
        mission = start(criteria=known, proposer="client", pace=None, policy=None, allow_scripted_strategies=False)
        mission["checkpoint_cadence"] = {"kind": "every_iteration"}
        started = await client.call_tool("mission_start", mission)
        assert started.structured_content is not None
        ended = await runtime.tasks.call("shout", {"word": "hello"})
        await runtime.tasks.wait(ended.task_id)
        yield Stage(runtime, client, started.structured_content["session_id"], ended.task_id)


async def listed(client: Client) -> dict[str, Any]:
    return {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}


async def exact(client: Client) -> dict[str, Any]:
    """What each tool really takes; `tools/list` shows a shorter schema, without bounds."""
    schemas = await listed(client)
    for name, model in MODELS.items():
        schemas[name] = exact_schema(model)
        for definition, field, least, most in LENGTHS:
            if definition in schemas[name].get("$defs", {}):
                declared = schemas[name]["$defs"][definition]["properties"][field]
                text = next((form for form in declared.get("anyOf", ()) if form["type"] == "string"), declared)
                text.update(minLength=least, maxLength=most)
    take_short_forms(schemas["mission_start"])
    return schemas


def take_short_forms(schema: dict[str, Any]) -> None:
    """Adds what validators take beside what pydantic declares: a pace and a proposer in short, bounds of caps."""
    fields, definitions = schema["properties"], schema["$defs"]
    fields["pace"] = {"anyOf": [*fields["pace"]["anyOf"], definitions["Pace"]["properties"]["seconds"]]}
    fields["proposer"] = {"oneOf": [*fields["proposer"]["oneOf"], {"const": "client"}]}
    steps = {"type": "integer", "minimum": 1, "maximum": MAX_STAGNATION}
    fields["stagnation_threshold"] = {"anyOf": [steps, {"const": "off"}, {"type": "null"}]}
    caps = definitions["Budget"]["properties"]
    for cap in CAPS:
        number = {"type": caps[cap].get("type", "number"), "exclusiveMinimum": 0}
        caps[cap] = {"anyOf": [number, {"const": NO_CAP}]}


async def corpus(client: Client) -> list[Wrong]:
    """What is wrong by each tool's own schema, and by the rules that no schema holds."""
    schemas = await exact(client)
    assert schemas.keys() == EXAMPLES.keys()
    made = [case for name in schemas for case in wrong_variants(name, schemas[name], EXAMPLES[name])]
    # To a command a blank is a word like any other.
    made = [case for case in made if not (case.tool == "shout" and case.how.endswith("nothing but blanks"))]
    made += [Wrong(tool=tool, how=word, arguments=given, field=at, word=word) for tool, given, at, word in RULES]
    return made


def complaint(case: Wrong, failed: bool, body: dict[str, Any]) -> str | None:
    """What is wrong with how a wrong call was refused."""
    if not failed:
        return "was accepted"
    if body["code"] != "validation_error":
        return f"has code {body['code']}"
    faults = body["details"]["faults"]
    here = [fault["reason"] for fault in faults if fault["field"] == case.field]
    if not any(case.word in reason for reason in here):
        return f"says nothing of {case.field} ({case.word}), but {faults[:3]}"
    if len(json.dumps(body)) > 20_000:
        return f"is told at length: {len(json.dumps(body))}"
    return None


@pytest.mark.guarantee("wrong-input-stores-nothing")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_wrong_input_to_every_tool_is_refused_by_name_and_stores_nothing(era: str, tmp_path: Path) -> None:
    complaints: list[str] = []
    async with stage(tmp_path, era) as here:
        cases = await corpus(here.client)
        assert len(cases) >= LEAST_CASES
        assert {case.tool for case in cases} == EXAMPLES.keys()
        before = await here.root()
        for case in cases[:: SPREAD[era]]:
            wrong = complaint(case, *await here.call(case.tool, case.arguments))
            if await here.root() != before:
                wrong, before = f"{wrong or ''} has stored something", await here.root()
            if wrong is not None:
                complaints.append(f"{case.tool} {case.how}: {wrong}"[:500])
        missions = (await here.call("mission_list", {}))[1]
        assert [row["session_id"] for row in missions["sessions"]] == [here.mission_id]
    assert not complaints, "\n".join([f"{len(complaints)} of {len(cases)}", *complaints[:40]])


async def test_a_flood_of_faults_is_told_in_few_words(tmp_path: Path) -> None:
    async with stage(tmp_path, LEGACY) as here:
        keys = {f"directiv{number}": number for number in range(20_000)}
        failed, body = await here.call("mission_start", {**START, **keys})
        assert failed
        *first, last = body["details"]["faults"]
        assert len(first) == MAX_FAULTS
        assert first[0] == {"field": "directiv0", "reason": "is not a known key; did you mean 'directive'?"}
        assert last == {"field": "(input)", "reason": "there are 19500 more faults; fix these first"}


async def test_what_a_schema_takes_is_not_refused_as_wrong(tmp_path: Path) -> None:
    async with stage(tmp_path, MODERN) as here:
        schemas = await exact(here.client)
        assert {tool for tool, _ in GOOD} == schemas.keys()
        started: list[str] = []
        for tool, arguments in GOOD:
            assert Draft202012Validator(schemas[tool]).is_valid(arguments), arguments
            failed, body = await here.call(tool, arguments)
            assert not failed, (tool, str(arguments)[:300], body)
            started += [body["session_id"]] if tool == "mission_start" else []
        # What was accepted can be driven, told and read, whatever its arguments were.
        for mission_id in started:
            for tool in ("mission_iterate", "mission_status", "mission_history"):
                failed, body = await here.call(tool, {"session_id": mission_id})
                assert not failed, (tool, body)


async def test_the_schemas_that_clients_get_are_short_and_take_every_good_call(tmp_path: Path) -> None:
    async with stage(tmp_path, MODERN) as here:
        tools = (await here.client.list_tools()).tools
        ours = [tool for tool in tools if tool.name in MODELS]
        sent = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in ours]
        assert len(json.dumps(sent, separators=(",", ":"))) <= MAX_LISTED
        for tool in ours:  # each field is there, as a property or in words
            shown = json.dumps(tool.input_schema)
            exactly = exact_schema(MODELS[tool.name])
            for part in (exactly, *exactly.get("$defs", {}).values()):
                assert [name for name in part["properties"] if not re.search(rf"\b{name}\b", shown)] == []
        for tool in tools:
            for example in EXAMPLES[tool.name]:
                given = {**example, "pace": {"seconds": 2}} if example.get("pace") == 2 else example
                assert Draft202012Validator(tool.input_schema).is_valid(given), (tool.name, given)
