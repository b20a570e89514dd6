"""Calls through the gateway as tasks of ours: servers of both eras that know none, one or several of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import ERAS, LEGACY, MODERN, Client, hostile, house, told, words

from pursuit.core.tasks import TaskKind
from pursuit.core.tools import ToolOverride
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals
from pursuit.service.gateway_journal import gateway_lines

EXTENSION = "io.modelcontextprotocol/tasks"
ABLE = {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}}
ALLOW_ONCE = {"action": "accept", "content": {"answer": "once"}}


def server(era: str, **tools: ToolOverride) -> Any:
    return hostile(*([MODERN] if era == MODERN else []), tools=tools)


async def made(client: Client, tool: str, arguments: Any = None) -> str:
    """The id of a task that this call has become."""
    more = {} if client.era == MODERN else {"task": {"ttl": 60_000}}
    result = await client.call(tool, arguments, **more)
    return (result if client.era == MODERN else result["task"])["taskId"]


async def ended(client: Client, task_id: str, answer: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The task's end, as `tasks/get` has it; a client of the second generation answers with `answer`."""
    with anyio.fail_after(60):
        while True:
            task = await client.result("tasks/get", {"taskId": task_id})
            if task["status"] not in ("working", "input_required"):
                return task
            questions = task.get("inputRequests", {})
            if questions and answer is not None:
                answers = dict.fromkeys(questions, answer)
                await client.result("tasks/update", {"taskId": task_id, "inputResponses": answers})
            await anyio.sleep(task.get("pollInterval", task.get("pollIntervalMs")) / 1_000)


async def logged(log: Path, words: str) -> None:
    with anyio.fail_after(60):
        while not log.exists() or words not in log.read_text(encoding="utf-8"):
            await anyio.sleep(0.02)


LONG = ToolOverride(long=True)


@pytest.mark.parametrize("behind", ERAS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_as_a_task_gives_what_the_plain_call_gives(era: str, behind: str, tmp_path: Path) -> None:
    async with house(tmp_path, server(behind, echo=LONG, wrong=LONG, refuse=LONG), alone=False) as here:
        client, plain = await here.client(era, ABLE), await here.client(LEGACY)
        for tool in ("echo", "wrong"):
            expected = await plain.call(tool, {"a": 1})
            task_id = await made(client, tool, {"a": 1})
            end = await ended(client, task_id)
            failed = expected.get("isError") is True
            assert end["status"] == ("failed" if failed and era == LEGACY else "completed")
            result = end["result"] if era == MODERN else await client.result("tasks/result", {"taskId": task_id})
            bare = {key: value for key, value in result.items() if key != "_meta"}
            assert bare == {key: value for key, value in expected.items() if key != "_meta"}
        error = (await plain.request("tools/call", {"name": "refuse"}))["error"]
        task_id = await made(client, "refuse")
        end = await ended(client, task_id)
        assert end["status"] == "failed"
        found = end["error"] if era == MODERN else (await client.request("tasks/result", {"taskId": task_id}))["error"]
        assert found == error


@pytest.mark.parametrize("able", [{}, ABLE], ids=["plain", "tasks"])
async def test_a_modern_result_of_the_gateways_own_tools_says_that_it_is_complete(able: Any, tmp_path: Path) -> None:
    async with house(tmp_path, server(MODERN), search=True) as here:
        client = await here.client(MODERN, able)
        for query, failed in (("echo", False), (1, True)):
            result = await client.call("tools.search", {"query": query})
            assert (result["resultType"], result["isError"]) == ("complete", failed)
            assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "pursuit-gateway"


@pytest.mark.parametrize("behind", ERAS)
async def test_what_a_server_asks_is_a_question_of_the_task(behind: str, tmp_path: Path) -> None:
    async with house(tmp_path, server(behind, elicit=LONG), alone=False) as here:
        client = await here.client(MODERN, ABLE)
        answer = {"action": "accept", "content": {"name": "Ann"}}
        end = await ended(client, await made(client, "elicit"), answer)
        assert json.loads(words(end["result"])) == answer

        def reply(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            assert method == "elicitation/create" and "io.modelcontextprotocol/related-task" in params["_meta"]
            return answer

        older = await here.client(LEGACY, {"elicitation": {"form": {}}}, reply)
        task_id = await made(older, "elicit")
        result = await older.result("tasks/result", {"taskId": task_id})
        assert json.loads(words(result)) == answer and older.asked == ["elicitation/create"]


@pytest.mark.parametrize("era", ERAS)
async def test_cancel_reaches_the_server(era: str, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    async with house(tmp_path, hostile(f"log={log}"), alone=False) as here:
        client = await here.client(era, ABLE)
        task_id = await made(client, "slow")
        await logged(log, '"slow"')
        await client.result("tasks/cancel", {"taskId": task_id})
        assert (await ended(client, task_id))["status"] == "cancelled"
        await logged(log, "notifications/cancelled")
        assert [line["outcome"] for line in await gateway_lines(here.runtime.runner.ledger)] == ["cancelled"]


@pytest.mark.parametrize("era", ERAS)
async def test_policy_holds_for_tasks(era: str, tmp_path: Path) -> None:
    rules = (Rule(decision="deny", tool="wrong", reason="no"), Rule(decision="ask", tool="echo", reason="look"))

    def reply(_method: str, _params: Mapping[str, Any]) -> Mapping[str, Any]:
        return ALLOW_ONCE

    tools = {"echo": LONG, "wrong": LONG}
    policy = OperatorPolicy(mode="ask", rules=rules)
    async with house(tmp_path, hostile(tools=tools), policy=policy, alone=False) as here:
        client = await here.client(era, ABLE, reply)
        task_id = await made(client, "echo", {"x": 1})
        if era == LEGACY:
            result = await client.result("tasks/result", {"taskId": task_id})
        else:
            result = (await ended(client, task_id, ALLOW_ONCE))["result"]
        assert "isError" not in result or not result["isError"], result
        denied = await ended(client, await made(client, "wrong"))
        assert denied["status"] == ("failed" if era == LEGACY else "completed")
        outcomes = [line.get("outcome") for line in await gateway_lines(here.runtime.runner.ledger)]
        assert outcomes.count("ok") == 1 and outcomes.count("refused") == 1


async def test_what_the_operator_answers_is_answered(tmp_path: Path) -> None:
    policy = OperatorPolicy(mode="ask", rules=(Rule(decision="ask", tool="echo", reason="look"),))
    async with house(tmp_path, hostile(tools={"echo": LONG}), policy=policy, alone=False) as here:
        client = await here.client(MODERN, ABLE)
        task_id = await made(client, "echo", {"x": 1})
        desk = Approvals(here.runtime.runner)
        with anyio.fail_after(60):
            while not (rows := await desk.open()):
                await anyio.sleep(0.02)
        await desk.answer(rows[0].approval_id, "once")
        assert (await ended(client, task_id))["result"]["structuredContent"]["arguments"] == {"x": 1}


async def test_of_what_a_dead_process_left_a_gateway_ends_calls_and_leaves_missions_to_who_serves_them(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, hostile()) as here:
        store, host = here.runtime.tasks.store, await here.runtime.tasks.host()
        kinds: tuple[TaskKind, ...] = ("call", "mission")
        left = {
            kind: (await store.create(kind=kind, title="t", requestor="local", owner="owner-0123456789abcdef"))
            for kind in kinds
        }
        await store.wait(left["call"].task_id)
        await host.take_up_all()
        client = await here.client(MODERN, ABLE)
        failed = await client.result("tasks/get", {"taskId": left["call"].task_id})
        assert failed["status"] == "failed" and "not known" in failed["error"]["message"]
        assert (await store.get(left["mission"].task_id)).status == "working"


async def test_a_tool_that_must_be_a_task_is_refused_to_those_who_cannot(tmp_path: Path) -> None:
    async with house(tmp_path, hostile(tools={"echo": ToolOverride(task_only=True)}), alone=False) as here:
        new, old = await here.client(MODERN), await here.client(LEGACY)
        error = (await new.request("tools/call", {"name": "echo"}))["error"]
        assert error["code"] == -32021 and EXTENSION in json.dumps(error["data"])
        assert (await old.request("tools/call", {"name": "echo"}))["error"]["code"] == -32601
        assert (await ended(old, await made(old, "echo")))["status"] == "completed"
        assert told(old, "notifications/tasks/status")


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_may_take_longer_than_a_call_that_somebody_waits_for(era: str, tmp_path: Path) -> None:
    async with house(tmp_path, server(LEGACY), settings={"call_timeout": 0.3}, alone=False) as here:
        plain, client = await here.client(LEGACY), await here.client(era, ABLE)
        assert "no answer within 0.3 s" in words(await plain.call("nap", {"s": 2}))
        end = await ended(client, await made(client, "nap", {"s": 2}))
        assert end["status"] == "completed"


@pytest.mark.guarantee("tasks-never-kill-a-session")
@pytest.mark.parametrize("behind", ERAS)
@pytest.mark.parametrize("era", ERAS)
async def test_words_and_numbers_that_are_none_harm_no_other_task(era: str, behind: str, tmp_path: Path) -> None:
    async with house(tmp_path, server(behind, broken_text=LONG, slow=LONG), alone=False) as here:
        client = await here.client(era, ABLE)
        steady = await made(client, "slow")
        task_id = await made(client, "broken_text")
        end = await ended(client, task_id)
        assert end["status"] == "completed", end
        result = end["result"] if era == MODERN else await client.result("tasks/result", {"taskId": task_id})
        assert result["content"] == [{"type": "text", "text": "?"}]
        (row,) = [row for row in (await here.runtime.tasks.list())["tasks"] if row["task_id"] == task_id]
        assert (row["units_done"], row["units_total"]) in ((2, 3), (1, 3), (0, 3))
        assert (await client.result("tasks/get", {"taskId": steady}))["status"] == "working"
        await client.result("tasks/cancel", {"taskId": steady})
