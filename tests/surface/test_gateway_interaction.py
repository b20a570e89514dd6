"""Questions of a server reach the client whose call they belong to, and its answers come back, across both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateway_stage import (
    ABLE,
    ENVELOPE,
    ERAS,
    LEGACY,
    MODERN,
    Client,
    Message,
    asked_of,
    each_way,
    hostile,
    house,
    pairs,
    told,
    words,
)

from pursuit.server.gateway.upstreams import GatewayLimits

FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


def reply(name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a client answers, with a field that nobody knows."""
    if method == "elicitation/create":
        assert params == FORM
        return {"action": "accept", "content": {"name": name}, "x": None}
    if method == "roots/list":
        return {"roots": [{"uri": f"file:///{name}", "x": None}]}
    assert method == "sampling/createMessage"
    assert params["x-odd"] is None
    return {"role": "assistant", "content": {"type": "text", "text": name}, "model": "m", "x": None}


ROUNDS = 10
"""The SDK's client gives up on a call that comes back with questions more often."""


async def through(client: Client, tool: str, name: str, **more: Any) -> Message:
    """Calls a tool; a client of the new era comes back with answers while it is asked."""
    result = await client.call(tool, **more)
    rounds = 0
    while result.get("resultType") == "input_required":
        rounds += 1
        assert rounds <= ROUNDS
        questions = result["inputRequests"]
        answers = {key: reply(name, one["method"], one.get("params", {})) for key, one in questions.items()}
        client.asked += [one["method"] for one in questions.values()]
        result = await client.call(tool, inputResponses=answers, requestState=result["requestState"], **more)
    return result


def upstream(server: str, *args: str, **more: Any) -> Any:
    return hostile(*args, *([MODERN] if server == MODERN else []), **more)


@each_way
async def test_elicitation_sampling_and_roots_go_through(
    client_era: str, server_era: str, alone: bool, tmp_path: Path
) -> None:
    async with house(tmp_path, upstream(server_era), alone=alone) as stage:
        client = await stage.client(client_era, ABLE, partial(reply, "ann"))
        for tool, method in (
            ("elicit", "elicitation/create"),
            ("sample", "sampling/createMessage"),
            ("roots", "roots/list"),
        ):
            result = await through(client, tool, "ann")
            assert json.loads(words(result)) == reply("ann", method, FORM if tool == "elicit" else {"x-odd": None})
            assert client.asked.pop() == method
        assert client.asked == []


@pairs
async def test_a_server_that_was_connected_before_its_client_came_asks_it_all_the_same(
    client_era: str, server_era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(server_era, f"log={log}", required=True)) as stage:
        await stage.runtime.toolbox.host.pool.connect_required()
        client = await stage.client(client_era, ABLE, partial(reply, "ann"))
        result = await through(client, "elicit", "ann")
        assert json.loads(words(result)) == reply("ann", "elicitation/create", FORM)
    if server_era == LEGACY:
        # It was told what the client can: servers show more to clients that can do more.
        assert asked_of(log, "initialize")[-1]["params"]["capabilities"] == ABLE


@pairs
async def test_each_client_is_asked_about_its_own_call(client_era: str, server_era: str, tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(4)]
    async with house(tmp_path, upstream(server_era), alone=False) as stage:
        clients = {name: await stage.client(client_era, ABLE, partial(reply, name)) for name in names}
        answers: dict[str, Any] = {}

        async def one(name: str) -> None:
            answers[name] = json.loads(words(await through(clients[name], "elicit", name)))

        async with anyio.create_task_group() as calling:
            for name in names:
                calling.start_soon(one, name)
        assert {name: answer["content"]["name"] for name, answer in answers.items()} == {name: name for name in names}


async def test_progress_rises_where_the_server_begins_again(tmp_path: Path) -> None:
    async with house(tmp_path, upstream(MODERN)) as stage:
        client = await stage.client(LEGACY, ABLE, partial(reply, "ann"))
        await client.call("twice", _meta={"progressToken": 7})
        steps = [one["progress"] for one in told(client, "notifications/progress")]
        assert steps == [1, 2, 3, 4]


async def test_a_client_that_comes_back_twice_gets_the_same_result_and_the_server_one_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(LEGACY, f"log={log}")) as stage:
        client = await stage.client(MODERN, ABLE)
        asking = await client.call("elicit")
        (key,) = asking["inputRequests"]
        more = {"inputResponses": {key: reply("a", "elicitation/create", FORM)}}
        more["requestState"] = asking["requestState"]
        first = await client.call("elicit", **more)
        again = await client.call(
            "elicit", inputResponses={key: {"action": "decline"}}, requestState=more["requestState"]
        )
        assert again == first
        other = await client.request("tools/call", {"name": "elicit", "arguments": {"x": 1}, **more})
        assert "different parameters" in other["error"]["message"]
        unknown = await client.request("tools/call", {"name": "elicit", "arguments": {}, "requestState": "nobody's"})
        assert "its effect is not known" in unknown["error"]["message"]
    assert len(asked_of(log, "tools/call")) == 1


async def test_a_question_that_nobody_answers_is_declined(tmp_path: Path) -> None:
    async with house(tmp_path, upstream(LEGACY), limits=GatewayLimits(ask_seconds=0.05)) as stage:
        client = await stage.client(MODERN, ABLE)
        asking = await client.call("elicit")
        # The call goes on without an answer; who comes back in the end reads what came of it.
        while (result := await client.call("elicit", requestState=asking["requestState"])).get("inputRequests"):
            assert result["requestState"] == asking["requestState"]
        assert json.loads(words(result)) == {"action": "decline"}


async def test_a_client_that_cannot_be_asked_is_not_asked(tmp_path: Path) -> None:
    async with house(tmp_path, upstream(LEGACY)) as stage:
        for era in ERAS:
            client = await stage.client(era, {})
            answer = json.loads(words(await client.call("elicit")))
            assert answer["code"] == -32601, answer


async def test_a_failing_answer_of_a_client_reaches_the_server(tmp_path: Path) -> None:
    async with house(tmp_path, upstream(LEGACY)) as stage:
        client = await stage.client(LEGACY, ABLE)

        async def refuse(message: Message) -> None:
            if message.get("method") == "sampling/createMessage":
                await client.send({"id": message["id"], "error": {"code": -1, "message": "no", "data": {"n": None}}})
                return
            await take(message)

        take = client.take
        client.take = refuse  # type: ignore[method-assign]
        answer = json.loads(words(await client.call("sample")))
        assert answer == {"code": -1, "message": "no", "data": {"n": None}}


async def test_calls_of_a_client_without_sessions_come_to_the_same_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house(tmp_path, upstream(LEGACY, f"log={log}"), alone=False) as stage:
        client = await stage.client(MODERN, ABLE)
        await client.call("grow")
        await through(client, "elicit", "ann")
        assert words(await client.call("grow")) == "2"
        # What one process keeps, another one does not: so there is one for the lists and one for the calls.
        assert len(asked_of(log, "initialize")) == 2


@pytest.mark.guarantee("one-process-of-a-server-over-stdio")
async def test_the_only_client_has_one_process_of_a_server_whatever_it_asks_for(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    changes, level = {"toolsListChanged": True, "resourceSubscriptions": ["x://hostile"]}, f"{ENVELOPE}logLevel"
    async with house(tmp_path, upstream(LEGACY, f"log={log}")) as stage:
        client = await stage.client(MODERN, ABLE, hello=False)
        waiting = await client.begin("tools/call", {"name": "logs", "arguments": {"gate": str(gate)}})
        await client.begin("subscriptions/listen", {"notifications": changes})
        await client.until(lambda: told(client, "notifications/resources/updated"))
        assert words(await client.call("grow")) == "1"
        await client.until(lambda: told(client, "notifications/tools/list_changed"))
        assert "grown1" in {one["name"] for one in await client.entries("tools/list", "tools")}
        # Questions of concurrent calls reach the client while the first call is still under way.
        for tool in ("elicit", "sample", "roots"):
            await through(client, tool, "ann")
        assert words(await client.call("logs", _meta={level: "debug"})) == "debug"
        assert [one["level"] for one in told(client, "notifications/message")] == ["debug", "error"]
        client.capabilities = {"roots": {}}
        assert words(await client.call("grow")) == "2"
        gate.touch()
        await client.ended(waiting)
        client.capabilities = ABLE
        assert words(await client.call("grow")) == "3"
    (hello,) = asked_of(log, "initialize")
    assert hello["params"]["capabilities"] == ABLE


async def test_no_call_of_the_only_client_is_asked_about_a_call_of_the_operator(tmp_path: Path) -> None:
    log, first = tmp_path / "log", tmp_path / "first"
    async with house(tmp_path, upstream(LEGACY, f"log={log}")) as stage:
        client = await stage.client(MODERN, ABLE)
        await client.begin("tools/call", {"name": "logs", "arguments": {"gate": str(first)}})
        asking = await client.begin("tools/call", {"name": "elicit", "arguments": {"gate": str(first)}})
        with anyio.fail_after(60):
            while len(asked_of(log, "tools/call")) < 2:
                await anyio.sleep(0.01)
        await stage.gateway.call_as_operator(None, "steps", {})
        first.touch()
        result = (await client.ended(asking))["result"]
        assert json.loads(words(result))["message"] == "elicitation/create: there is no client to ask here"


async def test_each_of_many_clients_has_its_own_connection_up_to_a_limit(tmp_path: Path) -> None:
    limits = GatewayLimits(own_connections=12)
    async with house(tmp_path, upstream(LEGACY), alone=False, limits=limits) as stage:
        for number in range(12):
            client = await stage.client(LEGACY, ABLE, partial(reply, f"n{number}"))
            answer = json.loads(words(await client.call("elicit")))
            assert answer["content"] == {"name": f"n{number}"}
        late = await stage.client(LEGACY, ABLE)
        result = await late.call("steps")
        assert result["isError"] is True and "12 clients already have their own process" in words(result)
        # Who needs no connection of its own is served.
        assert words(await (await stage.client(LEGACY)).call("steps")) == "without"


async def test_a_client_of_the_old_era_is_not_asked_what_it_says_it_cannot(tmp_path: Path) -> None:
    async with house(tmp_path, upstream(MODERN)) as stage:
        client = await stage.client(LEGACY, {"sampling": {}}, partial(reply, "ann"))
        refused = await client.request("tools/call", {"name": "elicit", "arguments": {}})
        assert refused["error"]["code"] == -32600
        assert "needs elicitation/create before it answers" in refused["error"]["message"]
        assert json.loads(words(await client.call("roots"))) == {"roots": []}
        assert json.loads(words(await client.call("sample")))["model"] == "m"
        assert client.asked == ["sampling/createMessage"]


@pytest.mark.parametrize("question", [[], {"method": 7}, {"method": "elicitation/create", "params": []}, None])
async def test_a_malformed_question_is_an_error_in_words(
    question: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, upstream(MODERN)) as stage:
        client = await stage.client(LEGACY, ABLE)
        failed = await client.request("tools/call", {"name": "puzzle", "arguments": {"question": question}})
        assert failed["error"]["message"] == "the server's question is malformed"
        assert words(await client.call("steps")) == "without"
    assert "Traceback" not in caplog.text
