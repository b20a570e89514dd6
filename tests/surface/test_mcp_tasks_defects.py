"""Defects that task support elsewhere has had, one by one: none of them is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import told
from tasks_stage import FIRST, GENERATIONS, SECOND, Caller, stage

from pursuit.core.tasks import decode_task
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.limits import TaskLimits
from pursuit.tasks.store import Ending

YES = {"action": "accept", "content": {"answer": "once"}}


async def lives(client: Caller) -> None:
    """The connection still answers."""
    assert (await client.result("tools/list"))["tools"]


async def events(stage_: Any, task_id: str) -> list[str]:
    stored = await stage_.runtime.runner.ledger.read(task_id)
    return [type(decode_task(one.body)).__name__ for one in stored]


@pytest.mark.guarantee("tasks-never-kill-a-session")
@pytest.mark.parametrize("era", GENERATIONS)
async def test_work_that_finishes_after_cancel(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here:
        here.world.stubborn = True
        client = await here.client(era)
        task_id = await client.begin_work(task={"ttl": 60_000})
        await client.result("tasks/cancel", {"taskId": task_id})
        cancelled = await client.until_status(task_id)
        assert cancelled["status"] == "cancelled"
        here.world.go.set()
        await anyio.wait_all_tasks_blocked()
        assert here.world.done == ["work"], "it went on to its end"
        assert await client.get(task_id) == {**cancelled, **changing(await client.get(task_id))}
        await lives(client)


def changing(task: dict[str, Any]) -> dict[str, Any]:
    """What may differ between two looks at an ended task: how long to wait for the next."""
    return {key: task[key] for key in ("pollInterval", "pollIntervalMs") if key in task}


@pytest.mark.guarantee("tasks-never-kill-a-session")
async def test_a_time_to_live_that_ends_while_working(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(FIRST)
        task_id = await client.begin_work(task={"ttl": 300})
        error = await client.refused("tasks/result", {"taskId": task_id})
        assert "time to live" in error["message"]
        ended = await client.get(task_id)
        assert (ended["status"], ended["ttl"]) == ("failed", 300)
        here.world.go.set()
        await anyio.wait_all_tasks_blocked()
        assert here.world.done == [], "the work was stopped"
        await lives(client)


@pytest.mark.guarantee("tasks-never-kill-a-session")
async def test_a_late_answer_to_a_cancelled_question(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client, other = await here.client(FIRST, elicits=True), await here.client(SECOND)
        task_id = await client.begin_work("write", text="a")
        waiting = await client.begin("tasks/result", {"taskId": task_id})
        question = await client.question()
        assert question["method"] == "elicitation/create"
        await other.result("tasks/cancel", {"taskId": task_id})
        assert "cancelled" in (await client.ended(waiting))["error"]["message"]
        await client.reply(question, YES)
        assert await other.result("tasks/update", {"taskId": task_id, "inputResponses": {"x": YES}})
        await lives(client)
        assert here.world.done == []
        assert (await events(here, task_id))[-1] == "WordDropped", "what came too late is on record"


@pytest.mark.guarantee("every-mcp-waiter-wakes")
async def test_a_task_that_completes_while_a_queued_message_is_delivered(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client, other = await here.client(FIRST, elicits=True), await here.client(SECOND)
        task_id = await client.begin_work("write", text="a")
        waiting = await client.begin("tasks/result", {"taskId": task_id})
        question = await client.question()
        asked = await other.get(task_id)
        answers = dict.fromkeys(asked["inputRequests"], YES)
        await other.result("tasks/update", {"taskId": task_id, "inputResponses": answers})
        result = (await client.ended(waiting))["result"]
        assert not result["isError"] and here.world.done == ["a"]
        (taken_back,) = told(client, "notifications/cancelled")
        assert taken_back["requestId"] == question["id"]
        await lives(client)


@pytest.mark.parametrize("era", GENERATIONS)
async def test_a_raised_error_whose_result_is_empty(tmp_path: Path, era: str) -> None:
    async def breaks(_task: TaskContext) -> Ending:
        raise RuntimeError("the disk is full")

    async with stage(tmp_path) as here:
        host = await here.runtime.tasks.host()
        client = await here.client(era)
        task_id = (await host.begin(breaks, kind="work", title="t", requestor="local")).task_id
        ended = await client.until_status(task_id)
        assert ended["status"] == "failed" and "the disk is full" in ended["statusMessage"]
        error = ended["error"] if era == SECOND else await client.refused("tasks/result", {"taskId": task_id})
        assert error["code"] == -32603 and "the disk is full" in error["message"]


@pytest.mark.guarantee("tasks-outlive-connections")
@pytest.mark.parametrize("era", GENERATIONS)
async def test_a_task_is_reached_after_a_reconnect(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(era)
        task_id = await client.begin_work()
        await client.leave()
        again, other = await here.client(era), await here.client(FIRST)
        assert [task["taskId"] for task in await other.entries("tasks/list", "tasks")] == [task_id]
        assert (await again.get(task_id))["status"] == "working"
        here.world.go.set()
        assert (await again.until_status(task_id))["status"] == "completed"
        result = await other.result("tasks/result", {"taskId": task_id})
        assert [row["iteration_index"] for row in result["structuredContent"]["iterations"]] == [0]


@pytest.mark.guarantee("wrong-input-starts-nothing")
async def test_a_bogus_cursor(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(FIRST)
        for bogus in ("x", "", 7, "0", "eyJhIjoxfQ.AAAA", ["a"]):
            error = await client.refused("tasks/list", {"cursor": bogus})
            assert error["code"] == -32602 and "cursor" in error["message"], bogus


@pytest.mark.guarantee("tasks-are-limited")
async def test_two_thousand_tasks_from_one_client_are_not_all_accepted(tmp_path: Path) -> None:
    most = 12
    assert TaskLimits().concurrent_each < 2_000

    async def _driving(client: Caller) -> dict[str, Any]:
        call = {"session_id": await client.mission(), "proposal": {"tool_calls": [{"tool_name": "work"}]}}
        return {"name": "mission_iterate", "arguments": call, "task": {}}

    async with stage(tmp_path, tasks_each=most) as here:
        client = await here.client(FIRST)
        answers = [await client.request("tools/call", await _driving(client)) for _ in range(most + 3)]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(answers) - len(refused) == most and len(refused) == 3
        assert all(f"{most} tasks" in error["message"] and "tasks_each" in error["message"] for error in refused)
        assert {error["data"]["code"] for error in refused} == {"too_many_tasks"}
        assert here.world.began <= most
        here.world.go.set()
        assert (await client.result("tasks/result", {"taskId": answers[0]["result"]["task"]["taskId"]}))["content"]
        assert await client.begin_work()
