"""The task tool of a public server, through the gateway: for clients of every sort, whatever they know of tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import LEGACY, MODERN, Client, House, house, told, words
from public_servers import SERVERS

TOOL = "simulate-research-query"
STAGES = ["Gathering sources...", "Analyzing content...", "Synthesizing findings...", "Generating report..."]
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ANSWER = {"action": "accept", "content": {"interpretation": "technical"}}

pytestmark = pytest.mark.slow


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[House]:
    world = folder / "world"
    SERVERS["everything"].fresh(world)
    config = folder / "pursuit.toml"
    config.write_text(f'[policy]\nmode = "auto"\n{SERVERS["everything"].table(world)}', encoding="utf-8")
    async with house(folder, config=config, alone=False) as here:
        yield here


async def followed(client: Client, task_id: str) -> Mapping[str, Any]:
    """Polls a task of the second generation to its end, and answers what it asks."""
    with anyio.fail_after(120):
        while True:
            task = await client.result("tasks/get", {"taskId": task_id})
            if task["status"] not in ("working", "input_required"):
                return task
            answers = dict.fromkeys(task.get("inputRequests", {}), ANSWER)
            if answers:
                await client.result("tasks/update", {"taskId": task_id, "inputResponses": answers})
            await anyio.sleep(task["pollIntervalMs"] / 1_000)


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_plain_caller_gets_the_result_and_progress(era: str, tmp_path: Path) -> None:
    async with everything(tmp_path) as here:
        client = await here.client(era)
        result = await client.call(TOOL, {"topic": "bees"}, _meta={"progressToken": "p"})
        assert "Research Report: bees" in words(result)
        said = [one["message"] for one in told(client, "notifications/progress")]
        assert said == [stage for stage in STAGES if stage in said] and len(said) > 1
        assert told(client, "notifications/tasks/status") == [], "the server's own task is not the client's"


async def test_a_first_generation_caller_gets_a_task_of_ours(tmp_path: Path) -> None:
    def answer(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert method == "elicitation/create" and "_meta" in params
        return ANSWER

    async with everything(tmp_path) as here:
        client = await here.client(LEGACY, {"elicitation": {"form": {}}}, answer)
        made = await client.call(TOOL, {"topic": "python", "ambiguous": True}, task={"ttl": 60_000})
        task_id = made["task"]["taskId"]
        result = await client.result("tasks/result", {"taskId": task_id})
        assert "python (technical)" in words(result), json.dumps(result)
        assert client.asked == ["elicitation/create"]
        statuses = [one["status"] for one in told(client, "notifications/tasks/status")]
        assert statuses[-1] == "completed" and "input_required" in statuses
        assert {one["taskId"] for one in told(client, "notifications/tasks/status")} == {task_id}


async def test_a_second_generation_caller_gets_a_task_of_ours(tmp_path: Path) -> None:
    async with everything(tmp_path) as here:
        client = await here.client(MODERN, {**TASKS, "elicitation": {"form": {}}})
        made = await client.call(TOOL, {"topic": "python", "ambiguous": True})
        assert made["resultType"] == "task" and made["taskId"].startswith("task-")
        ended = await followed(client, made["taskId"])
        assert ended["status"] == "completed" and "python (technical)" in words(ended["result"])
