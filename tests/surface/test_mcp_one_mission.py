"""`pursuit serve --mission ID`: one mission for a client, and no other one that it could see or begin."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import HTTP, Place
from engine_stage import mission, repeat
from mcp import Client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_stage import ERAS, LEGACY, MODERN, UNKNOWN, opened, read, weigh
from mcp_types import CompletionArgument, PromptReference, ResourceTemplateReference

from pursuit import Budget, Runtime, metric
from pursuit.config.configuration import Configuration
from pursuit.errors import InvalidArgument, SessionNotFound
from pursuit.server.missions.server import mission_server


async def two_missions(folder: Path) -> tuple[str, str]:
    """A mission that waits for its client, and one that has ended and found something that nobody may know."""
    async with opened(folder) as runtime:
        light = metric("mass", source="weigh") <= 2
        own = await runtime.runner.start(
            mission(
                directive="Weigh mine", criteria=[light], budget=Budget(max_iterations=9), proposer={"kind": "client"}
            )
        )
        budget = Budget(max_iterations=2)
        other = mission(directive="Weigh yours", criteria=[light], budget=budget, proposer=repeat("weigh", kilos=271.5))
        report = await runtime.pursue(other)
        return own.session_id, report.session_id


@asynccontextmanager
async def serving(folder: Path, only: str, era: str) -> AsyncIterator[Client]:
    runtime = Runtime(state=folder / "ledger.db", config=Configuration(), servers={"demo": [weigh]}, only=only)
    async with runtime, mission_server(runtime) as server, Client(server, mode=era, cache=None) as client:
        yield client


async def refusal(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, given)
    assert answer.is_error and answer.structured_content is not None
    return answer.structured_content


@pytest.mark.guarantee("one-served-mission-hides-the-others")
@pytest.mark.parametrize("era", ERAS)
async def test_another_mission_is_as_unknown_to_every_tool_as_one_that_never_was(tmp_path: Path, era: str) -> None:
    own, other = await two_missions(tmp_path)
    async with serving(tmp_path, own, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "mission_start" not in tools and "mission_status" in tools
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("mission_start", {})
        about = [name for name, tool in tools.items() if "session_id" in tool.input_schema["properties"]]
        assert len(about) == 8
        for name in about:
            told = [json.dumps(await refusal(client, name, session_id=one)) for one in (other, UNKNOWN)]
            assert "session_not_found" in told[0] and told[0].replace(other, UNKNOWN) == told[1]
        lost = await refusal(client, "mission_iterate", session_id=other, after=0)
        assert lost["code"] == "session_not_found" and lost["iterations"] == []
        listed = await client.call_tool("mission_list", {})
        assert listed.structured_content is not None and "next_cursor" not in listed.structured_content
        assert [row["session_id"] for row in listed.structured_content["sessions"]] == [own]
        offered = await client.call_tool("mission_tools", {})
        assert [row["tool_name"] for row in offered.structured_content["tools"]] == ["demo.weigh"]
        calls = [{"tool_name": "demo.weigh", "args": {"kilos": 1}}]
        given = {"session_id": own, "proposal": {"tool_calls": calls}}
        done = await client.call_tool("mission_iterate", given)
        assert done.structured_content is not None and done.structured_content["status"] == "completed"


@pytest.mark.guarantee("one-served-mission-hides-the-others")
@pytest.mark.parametrize("era", ERAS)
async def test_no_resource_prompt_or_completion_tells_of_another_mission(tmp_path: Path, era: str) -> None:
    own, other = await two_missions(tmp_path)
    async with serving(tmp_path, own, era) as client:
        assert [one.name for one in (await client.list_resources()).resources] == [own]
        assert (await read(client, f"mission://{own}"))["session_id"] == own
        for uri in ("mission://{}", "mission://{}/report", "mission://{}/events", "mission://{}/events?after=0"):
            told: list[str] = []
            for one in (other, UNKNOWN):
                with pytest.raises(MCPError) as caught:
                    await client.read_resource(uri.format(one))
                told.append(f"{caught.value.error.code} {caught.value.error.message}")
            assert told[0].replace(other, UNKNOWN) == told[1] and "271.5" not in told[0]
        assert [one.name for one in (await client.list_prompts()).prompts] == ["review_mission"]
        with pytest.raises(MCPError, match="no mission"):
            await client.get_prompt("review_mission", {"session_id": other})
        with pytest.raises(MCPError, match="no such prompt"):
            await client.get_prompt("pursue", {"goal": "x"})
        for ref, name in (
            (ResourceTemplateReference(type="ref/resource", uri="mission://{id}"), "id"),
            (PromptReference(type="ref/prompt", name="review_mission"), "session_id"),
        ):
            found = await client.complete(ref, argument=CompletionArgument(name=name, value="mission-").model_dump())
            assert found.completion.values == [own] and found.completion.total == 1


async def subscribe(client: Client, uri: str) -> None:
    with pytest.warns(MCPDeprecationWarning):
        await client.subscribe_resource(uri)


@pytest.mark.guarantee("one-served-mission-hides-the-others")
async def test_nobody_can_subscribe_to_another_mission(tmp_path: Path) -> None:
    own, other = await two_missions(tmp_path)
    async with serving(tmp_path, own, LEGACY) as client:
        await subscribe(client, f"mission://{own}")
        with pytest.raises(MCPError, match="no mission exists"):
            await subscribe(client, f"mission://{other}")
    async with serving(tmp_path, own, MODERN) as client:
        with pytest.raises(MCPError, match="no mission exists"):
            async with client.listen(resource_subscriptions=[f"mission://{other}"]):
                pass


@pytest.mark.guarantee("one-served-mission-hides-the-others")
async def test_tasks_of_others_are_not_there_and_its_own_are(tmp_path: Path) -> None:
    own, other = await two_missions(tmp_path)
    async with opened(tmp_path) as runtime:
        store = runtime.tasks.store
        made = [
            await store.create(kind="mission", title="run", requestor="local", origin={"session_id": one})
            for one in (own, other)
        ]
        call = {"call_id": f"{other}:0:0", "server": "demo", "tool": "weigh"}
        hidden = await store.create(kind="call", title="demo.weigh", requestor="local", origin=call)
    async with serving(tmp_path, own, LEGACY) as client:
        listed = await client.call_tool("task_status", {})
        assert [row["task_id"] for row in listed.structured_content["tasks"]] == [made[0].task_id]
        for one in (made[1], hidden):
            assert (await refusal(client, "task_status", task_id=one.task_id))["code"] == "task_not_found"


@pytest.mark.damaged_ledger("edits the database")
async def test_a_mission_that_is_not_there_or_is_a_child_is_not_served(tmp_path: Path) -> None:
    own, _ = await two_missions(tmp_path)
    for name, kind in ((UNKNOWN, SessionNotFound), ("mission-x", InvalidArgument)):
        with pytest.raises(kind):
            async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), only=name):
                pass
    async with opened(tmp_path) as runtime:
        row = await runtime.runner.ledger.row(own)
        await runtime.runner.ledger.append(own, row.head.seq, [], summary={**row.summary, "parent": UNKNOWN})
    with pytest.raises(InvalidArgument, match=f"is a child of {UNKNOWN}"):
        async with Runtime(state=tmp_path / "ledger.db", config=Configuration(), only=own):
            pass


@pytest.mark.guarantee("one-served-mission-hides-the-others")
def test_the_command_serves_it_over_http_and_says_what_is_wrong_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    assert "no ledger" in place.ask("serve", "--mission", UNKNOWN, code=2)[1]
    assert not place.ledger.exists()
    place.ledger.parent.mkdir(exist_ok=True)
    own, other = anyio.run(two_missions, place.ledger.parent)
    assert f"no mission '{UNKNOWN}'" in place.ask("serve", "--mission", UNKNOWN, code=2)[1]
    assert "cannot be combined with --gateway" in place.ask("serve", "--mission", own, "--gateway", code=2)[1]
    running = place.begin("serve", *HTTP, "--mission", own, fresh=False)
    try:
        url = json.loads(running.until("listening"))["url"]

        async def main() -> None:
            for era in ERAS:
                async with Client(url, mode=era, cache=None) as client:
                    assert (await client.call_tool("mission_status", {"session_id": own})).is_error is False
                    assert (await refusal(client, "mission_status", session_id=other))["code"] == "session_not_found"

        anyio.run(main)
    finally:
        running.end(signal.SIGTERM)
