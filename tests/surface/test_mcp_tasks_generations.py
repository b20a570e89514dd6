"""What the two generations of MCP tasks say of one record, and where they differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import told
from tasks_stage import ENDS, FIRST, GENERATIONS, NOBODY, RELATED, SECOND, stage

from pursuit.core.tasks import TaskState
from pursuit.server.tasks import protocol
from pursuit.server.tasks.protocol import interval
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.store import Ending

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|\+00:00)")
YES = {"action": "accept", "content": {"answer": "once"}}
WRONG = {"content": [{"type": "text", "text": "no more paper"}], "isError": True}


def state(**given: Any) -> TaskState:
    about: dict[str, Any] = {"task_id": NOBODY, "kind": "call", "title": "t", "requestor": "local", "by": "me"}
    return TaskState(**{**about, "owner": None, "origin": {}, "created_at": 100.0, "updated_at": 101.5, **given})


def test_the_same_record_in_the_words_of_each() -> None:
    one = state(ttl=60.0, message="half way")
    assert protocol.v2025_task(one, 100.0) == {
        "taskId": NOBODY,
        "status": "working",
        "createdAt": "1970-01-01T00:01:40.000+00:00",
        "lastUpdatedAt": "1970-01-01T00:01:41.500+00:00",
        "ttl": 60_000,
        "pollInterval": 100,
        "statusMessage": "half way",
    }
    shown = protocol.detailed(one, one.asked, None, 100.0)
    assert (shown["ttlMs"], shown["pollIntervalMs"], shown["resultType"]) == (60_000, 100, "complete")
    assert not {"ttl", "pollInterval", "result", "error", "inputRequests", "requestState"} & shown.keys()
    assert protocol.v2026_created(one, 100.0)["resultType"] == "task"
    assert protocol.v2025_task(state(), 100.0)["ttl"] is None and protocol.v2026_task(state(), 100.0)["ttlMs"] is None


def test_a_result_that_is_an_error_is_failed_in_the_first_and_completed_in_the_second() -> None:
    one = state(status="failed", result=WRONG)
    assert protocol.v2025_task(one, 100.0)["status"] == "failed"
    assert protocol.payload(one, WRONG) == {**WRONG, "_meta": {RELATED: {"taskId": NOBODY}}}
    assert protocol.detailed(one, one.asked, WRONG, 100.0)["status"] == "completed"
    assert protocol.detailed(one, one.asked, WRONG, 100.0)["result"] == WRONG
    other = state(status="failed", error={"code": -32000, "message": "broken"})
    assert protocol.detailed(other, other.asked, None, 100.0)["error"] == {"code": -32000, "message": "broken"}
    assert "result" not in protocol.detailed(other, other.asked, None, 100.0)


def test_poll_intervals_begin_short_and_grow() -> None:
    ages = [interval(state(), 100.0 + age) for age in (0, 0.2, 1, 10, 100, 10_000)]
    assert ages == sorted(ages) and ages[:2] == [100, 100] and ages[-1] == 5_000
    assert interval(state(status="input_required"), 10_000.0) == 1_000
    assert interval(state(), 0.0) == 100, "a clock that was put back"


async def test_a_first_generation_task_from_its_creation_to_its_result(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(FIRST)
        mission = await client.mission()
        call = {"session_id": mission, "proposal": {"tool_calls": [{"tool_name": "work"}]}}
        made = await client.call("mission_iterate", call, task={"ttl": 60_000})
        assert made.keys() == {"task", "_meta"}
        task_id = made["task"]["taskId"]
        assert task_id in made["_meta"]["io.modelcontextprotocol/model-immediate-response"]
        assert RELATED not in made["_meta"]
        shown = await client.get(task_id)
        assert "_meta" not in shown and ISO.fullmatch(shown["createdAt"])
        await client.until(lambda: here.world.began)
        shown = await client.get(task_id)
        assert (await client.get(task_id))["lastUpdatedAt"] == shown["lastUpdatedAt"], "nothing has changed"
        here.world.go.set()
        result = await client.result("tasks/result", {"taskId": task_id})
        assert result["_meta"] == {RELATED: {"taskId": task_id}}
        assert result["structuredContent"]["session_id"] == mission
        await client.until(lambda: [one for one in told(client, protocol.STATUS) if one["status"] == "completed"])
        assert all(one["taskId"] == task_id and "_meta" not in one for one in told(client, protocol.STATUS))
        error = await client.refused("tasks/cancel", {"taskId": task_id})
        assert error["code"] == -32602 and "completed" in error["message"]


async def test_a_second_generation_call_is_a_task_when_it_takes_long_and_plain_when_not(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(SECOND)
        mission = await client.mission()
        quick = {"session_id": mission, "proposal": {"tool_calls": []}}
        plain = await client.call("mission_iterate", quick, task={"ttl": 1})
        assert plain["resultType"] == "complete" and "taskId" not in plain
        assert plain["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "pursuit"
        made = await client.drive(mission)
        assert made["resultType"] == "task" and not {"result", "error", "inputRequests"} & made.keys()
        here.world.go.set()
        ended = await client.until_status(made["taskId"])
        assert ended["resultType"] == "complete" and RELATED not in ended["result"].get("_meta", {})
        ack = await client.result("tasks/cancel", {"taskId": made["taskId"]})
        assert {key for key in ack if key != "_meta"} == {"resultType"} and ack["resultType"] == "complete"
        assert (await client.get(made["taskId"]))["status"] == "completed", "it stays what it is"
        assert here.world.began == 1


@pytest.mark.parametrize("era", GENERATIONS)
async def test_questions_are_asked_once_and_what_was_done_before_is_not_done_again(tmp_path: Path, era: str) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(era, elicits=True)
        calls = [{"tool_name": "write", "args": {"text": text}} for text in ("a", "b")]
        arguments = {"session_id": await client.mission(), "proposal": {"tool_calls": calls}}
        if era == FIRST:
            made = await client.call("mission_iterate", arguments, task={})
            task_id = made["task"]["taskId"]
            waiting = await client.begin("tasks/result", {"taskId": task_id})
            for _ in range(2):
                question = await client.question()
                assert question["params"]["_meta"][RELATED] == {"taskId": task_id}
                assert (await client.get(task_id))["status"] == "input_required"
                await client.reply(question, YES)
            result = (await client.ended(waiting))["result"]
        else:
            # Nothing has become a task yet, so it is asked in results, as of any other call.
            result = await client.call("mission_iterate", arguments)
            while result["resultType"] == "input_required":
                answers = dict.fromkeys(result["inputRequests"], YES)
                again = {"inputResponses": answers, "requestState": result["requestState"]}
                result = await client.call("mission_iterate", arguments, **again)
        assert not result["isError"] and here.world.done == ["a", "b"]


async def test_answers_come_one_by_one_and_what_was_not_asked_is_ignored(tmp_path: Path) -> None:
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}

    async def asks(task: TaskContext) -> Ending:
        said = await task.ask({"one": question, "two": question})
        return Ending(status="completed", result={"content": [], "structuredContent": dict(said)})

    async with stage(tmp_path) as here:
        host = await here.runtime.tasks.host()
        client = await here.client(SECOND)
        task_id = (await host.begin(asks, kind="work", title="t", requestor="local")).task_id
        assert (await client.until_status(task_id, "input_required"))["inputRequests"].keys() == {"one", "two"}
        await client.result("tasks/update", {"taskId": task_id, "inputResponses": {"one": YES, "three": YES}})
        assert (await client.get(task_id))["inputRequests"].keys() == {"two"}
        await client.result("tasks/update", {"taskId": task_id, "inputResponses": {"one": {}, "two": YES}})
        ended = await client.until_status(task_id)
        assert ended["result"]["structuredContent"] == {"one": YES, "two": YES}, "the first answer counts"


@pytest.mark.guarantee("wrong-input-starts-nothing")
async def test_a_wrong_time_to_live_starts_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(FIRST)
        call = {"session_id": await client.mission(), "proposal": {"tool_calls": [{"tool_name": "work"}]}}
        for task in (
            {"ttl": -1},
            {"ttl": 0},
            {"ttl": float("nan")},
            {"ttl": float("inf")},
            {"ttl": "long"},
            {"ttl": True},
            {"ttl": [1]},
            "yes",
            7,
        ):
            params = {"name": "mission_iterate", "arguments": call, "task": task}
            error = await client.refused("tools/call", params)
            assert error["code"] == -32602 and "task" in error["message"], task
        for arguments in ({}, {"session_id": "x"}, {"session_id": "mission-0123456789abcdef"}):
            params = {"name": "mission_iterate", "arguments": arguments, "task": {}}
            assert (await client.refused("tools/call", params))["code"] == -32602, arguments
        assert (await client.refused("tools/call", {"name": "mission_list", "task": {}}))["code"] == -32601
        assert (await client.refused("tools/call", {"name": 7, "task": {}}))["code"] == -32602
        unknown = await client.refused("tools/call", {"name": "no_such_tool", "task": {}})
        assert unknown["code"] == -32602 and "Unknown tool" in unknown["message"]
        assert here.world.began == 0 and await client.entries("tasks/list", "tasks") == []


@pytest.mark.guarantee("wrong-input-starts-nothing")
@pytest.mark.parametrize("era", GENERATIONS)
async def test_ids_that_are_none_and_methods_of_the_other_generation(tmp_path: Path, era: str) -> None:
    mine = {FIRST: ("get", "cancel", "result"), SECOND: ("get", "cancel", "update")}
    theirs = {FIRST: ("update",), SECOND: ("list", "result")}
    async with stage(tmp_path) as here:
        client = await here.client(era)
        for method in mine[era]:
            for wrong in (NOBODY, "x", "", "../../etc", 7, None, ["a"]):
                error = await client.refused(f"tasks/{method}", {"taskId": wrong, "inputResponses": {}})
                assert error["code"] == -32602, (method, wrong)
        for method in theirs[era]:
            assert (await client.refused(f"tasks/{method}", {"taskId": NOBODY}))["code"] == -32601


async def test_a_request_without_the_extension_gets_no_task(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.world.go.set()
        client = await here.client(SECOND, extension=False)
        for method in ("get", "update", "cancel"):
            error = await client.refused(f"tasks/{method}", {"taskId": NOBODY, "inputResponses": {}})
            assert error["code"] == -32021
            assert error["data"]["requiredCapabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
        listening = {"notifications": {"taskIds": [NOBODY]}}
        assert (await client.refused("subscriptions/listen", listening))["code"] == -32021
        assert (await client.drive(await client.mission()))["resultType"] == "complete"


async def test_a_list_has_pages_and_a_cursor_is_for_one_requestor(tmp_path: Path) -> None:
    async def nothing(_task: TaskContext) -> Ending:
        return Ending(status="completed", result={"content": []})

    async with stage(tmp_path) as here:
        host = await here.runtime.tasks.host()
        for number in range(120):
            requestor = "client:other" if number % 10 == 0 else "local"
            await host.begin(nothing, kind="work", title=str(number), requestor=requestor)
        client = await here.client(FIRST)
        page = await client.result("tasks/list")
        found = await client.entries("tasks/list", "tasks")
        assert len(found) == len({task["taskId"] for task in found}) == 108 > len(page["tasks"])
        forged = page["nextCursor"][:-2] + "AA"
        assert (await client.refused("tasks/list", {"cursor": forged}))["code"] == -32602


async def test_a_fast_poller_is_answered_late_and_at_once_when_something_changes(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client(SECOND)
        task_id = await client.begin_work()
        began, looks = anyio.current_time(), 0
        while anyio.current_time() - began < 0.5:
            assert (await client.get(task_id))["status"] == "working"
            looks += 1
        assert looks <= 20, "each was held for half an interval"
        looking = await client.begin("tasks/get", {"taskId": task_id})
        here.world.go.set()
        assert (await client.ended(looking))["result"]["status"] in (*ENDS, "working")
        assert (await client.until_status(task_id))["status"] == "completed"
