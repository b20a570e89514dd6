"""Policy holds at the gateway, a person is asked where it says so, and what may write is in the trail before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import ERAS, LEGACY, MODERN, Client, House, Message, asked_of, hostile, house, words

from pursuit.core.tools import ToolOverride
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals
from pursuit.service.audit import Caller
from pursuit.service.gateway_journal import gateway_lines

ABLE: dict[str, Any] = {"elicitation": {}}
ASK = OperatorPolicy(mode="ask")


def upstream(era: str, log: Path) -> Any:
    reads = {"steps": ToolOverride(read_only=True)}
    return hostile(f"log={log}", *([MODERN] if era == MODERN else []), tools=reads)


async def lines(stage: House) -> list[tuple[str, str]]:
    found = await gateway_lines(stage.runtime.runner.ledger)
    return [(line["tool"], line["outcome"]) for line in found if "tool" in line]


def called(log: Path) -> list[str]:
    return [one["params"]["name"] for one in asked_of(log, "tools/call")] if log.exists() else []


async def answering(client: Client, answer: str | None, tool: str, arguments: Any = None, **more: Any) -> Message:
    """Calls a tool as a client whose person answers the gateway's question like this; None dismisses it."""
    said: dict[str, Any] = {"action": "cancel"}
    if answer is not None:
        said = {"action": "accept", "content": {"answer": answer}}
    client.handler = lambda _method, _params: said
    result = await client.call(tool, arguments, **more)
    if result.get("resultType") != "input_required":
        return result
    ((key, question),) = result["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    client.asked.append(question["method"])
    state = result["requestState"]
    return await client.call(tool, arguments, inputResponses={key: said}, requestState=state, **more)


@pytest.mark.parametrize("era", ERAS)
async def test_a_denied_call_is_a_tool_error_and_is_not_sent(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    policy = OperatorPolicy(mode="auto", rules=(Rule(decision="deny", tool="hostile.echo", reason="not today"),))
    async with house(tmp_path, upstream(era, log), policy=policy) as stage:
        client = await stage.client(era)
        result = await client.call("echo", {"a": 1})
        assert result["isError"] is True
        assert words(result) == "hostile.echo is denied by policy: not today"
        assert "structuredContent" not in result, "what it must fit is the server's own output schema"
        assert await lines(stage) == [("hostile.echo", "refused")]
    assert called(log) == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_read_leaves_no_trail_and_a_write_is_there_before_and_after(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(era, log)) as stage:
        client = await stage.client(era)
        ledger = stage.runtime.runner.ledger
        await client.call("steps")
        assert not (await ledger.streams(kind="gateway")).rows
        ident = await client.begin("tools/call", {"name": "slow", "arguments": {}})
        with anyio.fail_after(60):
            while "slow" not in called(log):
                await anyio.sleep(0.01)
        assert await lines(stage) == [("hostile.slow", "unknown")]
        await client.send({"method": "notifications/cancelled", "params": {"requestId": ident}})
        await client.call("echo", {"password": "hunter2", "n": 1})
        await client.call("wrong")
        await client.request("tools/call", {"name": "refuse", "arguments": {}})
        await client.call("die")
        assert await lines(stage) == [
            ("hostile.slow", "cancelled"),
            ("hostile.echo", "ok"),
            ("hostile.wrong", "failed"),
            ("hostile.refuse", "failed"),
            ("hostile.die", "unknown"),
        ]
        written = [line["arguments"] for line in await gateway_lines(ledger)]
        assert written[1] == {"password": "[redacted]", "n": 1}
        assert (await ledger.verify()).ok


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_behind_the_client_is_asked_once_for_each_call(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(era, log), policy=ASK) as stage:
        client = await stage.client(era, ABLE)
        assert "resultType" not in await client.call("steps") or era == MODERN
        assert client.asked == []
        for number in (1, 2):
            result = await answering(client, "once", "echo", {"n": None})
            assert result["structuredContent"]["arguments"] == {"n": None}
            assert len(client.asked) == number
        result = await answering(client, "denied", "echo", {"n": None})
        assert result["isError"] is True and "was denied by" in words(result)
        result = await answering(client, None, "echo", {"n": None})
        assert "pursuit approve approval-" in words(result)
    assert called(log) == ["steps", "echo", "echo"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_yes_for_arguments_or_for_the_tool_is_remembered_for_just_that(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(era, log), policy=ASK) as stage:
        client = await stage.client(era, ABLE)
        await answering(client, "arguments", "echo", {"n": 1})
        await answering(client, "denied", "echo", {"n": 1})
        assert len(client.asked) == 1
        await answering(client, "mission", "echo", {"n": 2})
        assert len(client.asked) == 2
        await answering(client, "denied", "echo", {"n": 3})
        assert len(client.asked) == 2
        await answering(client, "denied", "image")
        assert len(client.asked) == 3
    assert called(log) == ["echo", "echo", "echo", "echo"]


@pytest.mark.parametrize("era", ERAS)
async def test_an_operator_can_say_yes_from_elsewhere(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(era, log), policy=ASK) as stage:
        client = await stage.client(era)
        refused = await client.call("echo", {"n": 1})
        assert refused["isError"] is True
        desk = Approvals(stage.runtime.runner)
        (row,) = await desk.open()
        assert f"`pursuit approve {row.approval_id}`" in words(refused)
        assert "n: 1" in row.description
        assert words(await client.call("echo", {"n": 1})) == words(refused)
        await desk.answer(row.approval_id, "once", caller=Caller(who="ann", transport="terminal"))
        (line,) = [line for line in await stage.runtime.runner.audited() if line["verb"] == "approve"]
        assert (line["who"], line["transport"], line["session_id"]) == ("ann", "terminal", row.stream)
        assert line["arguments"].items() >= {"answer": "once", "channel": "terminal", "tool": "hostile.echo"}.items()
        assert await desk.open() == []
        assert (await client.call("echo", {"n": 1}))["structuredContent"]["arguments"] == {"n": 1}
        assert (await client.call("echo", {"n": 1}))["isError"] is True
    assert called(log) == ["echo"]


@pytest.mark.parametrize("answer", ["once", "mission", "denied"])
async def test_an_answer_that_came_after_the_gateway_had_ended_counts_once(answer: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(LEGACY, log), policy=ASK) as stage:
        client = await stage.client(LEGACY)
        assert "pursuit approve" in words(await client.call("echo", {"n": 1}))
    async with house(tmp_path, upstream(LEGACY, log), policy=ASK) as stage:
        desk = Approvals(stage.runtime.runner)
        (row,) = await desk.open()
        await desk.answer(row.approval_id, answer)
    async with house(tmp_path, upstream(LEGACY, log), policy=ASK) as stage:
        client = await stage.client(LEGACY)
        assert "needs a person's approval" in words(await client.call("echo", {"n": 2})), "that was another call"
        first = await client.call("echo", {"n": 1})
        assert "needs a person's approval" in words(await client.call("echo", {"n": 1})), "it was for one call"
    if answer == "denied":
        assert "was denied by" in words(first)
    else:
        assert first["structuredContent"]["arguments"] == {"n": 1}
    async with house(tmp_path, upstream(LEGACY, log), policy=ASK) as stage:
        client = await stage.client(LEGACY)
        assert "needs a person's approval" in words(await client.call("echo", {"n": 1}))


@pytest.mark.parametrize("server_era", ERAS)
@pytest.mark.parametrize("client_era", ERAS)
async def test_the_gateways_question_and_the_servers_own_go_together(
    client_era: str, server_era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(server_era, log), policy=ASK) as stage:
        client = await stage.client(client_era, ABLE)
        result = await answering(client, "once", "elicit")
        if client_era == MODERN:
            ((key, question),) = result["inputRequests"].items()
            assert question["params"]["message"] == "Who?"
            answers = {key: {"action": "accept", "content": {"name": "x"}}}
            result = await client.call("elicit", inputResponses=answers, requestState=result["requestState"])
        assert '"action": "accept"' in words(result)
        approvals = [one for one in await stage.runtime.runner.audited() if one["verb"] == "approve"]
        assert len(approvals) == 1


@pytest.mark.guarantee("a-yes-covers-what-was-said")
@pytest.mark.parametrize("tool", ["elicit", "forgetful"])
async def test_a_yes_for_one_call_is_no_yes_for_the_next_however_it_is_worded(tool: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(MODERN, log), policy=ASK) as stage:
        client = await stage.client(MODERN, ABLE)
        asking = await answering(client, "once", tool)
        (key,) = asking["inputRequests"]
        again = {
            "inputResponses": {key: {"action": "accept", "content": {}}},
            "requestState": asking["requestState"],
        }
        assert "accept" in words(await client.call(tool, **again))
        for state in (again["requestState"], again["requestState"].partition("+")[0]):
            replayed = await client.call(tool, **{**again, "requestState": state})
            assert replayed["requestState"].startswith("pursuit-asked-"), "the person is asked again"
    assert len(called(log)) == 2


@pytest.mark.parametrize(("elicitation", "asked"), [({}, True), ({"form": {}}, True), ({"url": {}}, False)])
@pytest.mark.parametrize("era", ERAS)
async def test_only_who_can_show_a_form_is_asked(
    era: str, elicitation: dict[str, Any], asked: bool, tmp_path: Path
) -> None:
    async with house(tmp_path, upstream(era, tmp_path / "log"), policy=ASK) as stage:
        client = await stage.client(era, {"elicitation": elicitation})
        result = await answering(client, None, "echo")
        assert bool(client.asked) == asked
        assert "pursuit approve" in words(result)


async def test_a_tool_that_is_not_listed_is_not_called_unless_everything_is_allowed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(LEGACY, log), policy=ASK) as stage:
        client = await stage.client(LEGACY)
        answer = await client.request("tools/call", {"name": "hidden", "arguments": {}})
        assert answer["error"]["code"] == -32602
    assert called(log) == []
