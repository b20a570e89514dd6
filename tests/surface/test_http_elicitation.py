"""Over HTTP no client answers an approval: it is not asked, and an answer that it brings is not taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from asker_stage import YES, asker
from gateway_stage import LEGACY, hostile, house
from gateway_stage import Client as RawClient
from http_stage import http
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from plain_http import TASKS, post
from problem_stage import ERAS, attempts, text
from tasks_stage import FIRST, GENERATIONS, SECOND, stage
from test_problem_http import serving

from pursuit import Runtime
from pursuit.policy.rules import OperatorPolicy
from pursuit.server.bind import HttpBinding
from pursuit.server.http import serve_http
from pursuit.server.signing import Signer
from pursuit.server.tokens import Tokens
from pursuit.service.approvals import Approvals

ACCEPT = {"action": "accept", "content": {"answer": "once"}}
ABLE = {"elicitation": {"form": {}}}


@asynccontextmanager
async def over_http(server: Server[Any], tokens: Tokens | None = None) -> AsyncIterator[str]:
    urls: list[str] = []
    told = anyio.Event()

    def listening(url: str) -> None:
        urls.append(url)
        told.set()

    async with anyio.create_task_group() as tasks:
        door = HttpBinding(host="127.0.0.1", port=0, tokens=tokens)
        tasks.start_soon(partial(serve_http, server, door, listening=listening))
        await told.wait()
        yield urls[0]
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def agent(url: str, era: str, token: str | None, asked: list[str]) -> AsyncIterator[Client]:
    """A client that says that it has a person, who says yes to everything; `asked` is what it was asked."""

    async def yes(_context: Any, params: Any) -> Any:
        asked.append(params.message)
        return YES

    async with (
        http(token) as wire,
        Client(streamable_http_client(url, http_client=wire), mode=era, cache=None, elicitation_callback=yes) as client,
    ):
        yield client


async def forged(url: str, call: dict[str, Any], approval_id: str, state: str, **more: Any) -> dict[str, Any]:
    """The same call as a client would repeat it that had been asked and says yes."""
    params = {**call, "inputResponses": {approval_id: ACCEPT}, "requestState": state}
    return await anyio.to_thread.run_sync(partial(post, url, "tools/call", params, **more))


def says_how(words: str, approval_id: str) -> bool:
    return f"`pursuit approve {approval_id}`" in words and f"`POST /approvals/{approval_id}`" in words


@pytest.mark.guarantee("no-approval-by-elicitation-over-http")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_missions_approves_nothing(era: str, tmp_path: Path) -> None:
    tokens = Tokens.beside(tmp_path / "ledger.db")
    token, asked = tokens.make("ann"), list[str]()
    async with stage(tmp_path) as here, over_http(here.server, tokens) as url:
        proposal = {"tool_calls": [{"tool_name": "write", "args": {"text": "a"}}]}
        async with agent(url, era, token, asked) as client:
            mission = {"directive": "Write", "criteria": [], "budget": {"max_iterations": 9}}
            criteria = [{"criterion_id": "c", "kind": "event", "event_name": "never", "required": True}]
            mission |= {"criteria": criteria, "tool_allowlist": ["world.*"], "stagnation_threshold": "off"}
            started = (await client.call_tool("mission_start", mission)).structured_content
            name = started["session_id"]
            waits = await client.call_tool("mission_iterate", {"session_id": name, "proposal": proposal})
            assert waits.structured_content is not None and waits.structured_content["status"] == "waiting"
            (row,) = waits.structured_content["pending_approvals"]
            approval_id = row["approval_id"]
            assert says_how(text(waits), approval_id)
            assert says_how(text(await client.call_tool("mission_status", {"session_id": name})), approval_id)

            call = {"name": "mission_iterate", "arguments": {"session_id": name}}
            said = {"mission": name, "who": "ann", "questions": [approval_id], "first": 0, "rounds": 1}
            sealed = Signer.beside(tmp_path / "ledger.db").closed(said)
            for able in (ABLE, {**ABLE, **TASKS}):
                answer = (await forged(url, call, approval_id, sealed, token=token, able=able))["result"]
                assert answer["structuredContent"]["code"] == "invalid_argument"
                assert says_how(answer["structuredContent"]["message"], approval_id)
            assert (asked, here.world.done) == ([], [])

            (row,) = await Approvals(here.runtime.runner).open(name)
            await Approvals(here.runtime.runner).answer(row.approval_id, "once")
            await client.call_tool("mission_iterate", {"session_id": name})
            assert (asked, here.world.done) == ([], ["a"])


@pytest.mark.guarantee("no-approval-by-elicitation-over-http")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_the_gateway_approves_nothing(era: str, tmp_path: Path) -> None:
    tokens = Tokens.beside(tmp_path / "ledger.db")
    token, asked = tokens.make("ann"), list[str]()
    upstream = hostile("modern", "tidy", f"log={tmp_path / 'log'}")
    async with (
        house(tmp_path, upstream, policy=OperatorPolicy(mode="ask")) as here,
        over_http(here.server, tokens) as url,
        agent(url, era, token, asked) as client,
    ):
        desk = Approvals(here.runtime.runner)
        refused = await client.call_tool("elicit", {})
        (row,) = await desk.open()
        approval_id = row.approval_id
        assert refused.is_error and says_how(text(refused), approval_id)

        for able in (ABLE, {**ABLE, **TASKS}):
            call, state = {"name": "elicit", "arguments": {}}, f"pursuit-asked-{approval_id}"
            answer = (await forged(url, call, approval_id, state, token=token, able=able))["result"]
            assert answer["isError"] and says_how(answer["content"][0]["text"], approval_id)
        assert asked == [] and (await desk.open()) == [row]
        assert "tools/call" not in (tmp_path / "log").read_text()

        # The operator's yes passes the call, and what the server itself asks reaches the client.
        await desk.answer(approval_id, "once")
        assert not (await client.call_tool("elicit", {})).is_error
        assert asked == ["Who?"]


@pytest.mark.guarantee("no-approval-by-elicitation-over-http")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_a_problem_approves_nothing(era: str, tmp_path: Path) -> None:
    one, asked = asker(tmp_path, "modern"), list[str]()
    async with (
        serving(one, tmp_path, mode="ask", attempt_id="attempt-1") as url,
        agent(url, era, None, asked) as client,
        Runtime(state=tmp_path / "ledger.db") as runtime,
    ):
        desk = Approvals(runtime.runner)
        refused = await client.call_tool("probe", {"x": 1})
        (row,) = await desk.open()
        assert refused.is_error and says_how(text(refused), row.approval_id)
        refused = await client.call_tool("submit_final", {"x": 3})
        (row,) = [one for one in await desk.open() if one.tool.endswith("submit_final")]
        approval_id = row.approval_id
        assert refused.is_error and says_how(text(refused), approval_id)
        call = {"name": "submit_final", "arguments": {"x": 3}}
        answer = await forged(url, call, approval_id, f"pursuit-asked-{approval_id}", able=ABLE)
        assert answer["result"]["isError"], answer
        assert asked == [] and not (tmp_path / "log").exists(), "nothing was called"

        await desk.answer(approval_id, "once")
        assert not (await client.call_tool("submit_final", {"x": 3})).is_error
        assert len(asked) == 1, "the server's own question"
    (state,) = await attempts(tmp_path)
    assert state.scored is not None and state.scored.solved


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[RawClient]:
    """A client of the first generation of tasks over HTTP, by hand."""
    async with http() as wire, streamable_http_client(url, http_client=wire) as (incoming, outgoing, *_):

        async def send(message: dict[str, Any]) -> None:
            said = json.dumps({"jsonrpc": "2.0", **message})
            await outgoing.send(SessionMessage(jsonrpc_message_adapter.validate_json(said, by_name=False)))

        client = RawClient(send, LEGACY, ABLE)

        async def read() -> None:
            async for item in incoming:
                assert isinstance(item, SessionMessage)
                await client.take(json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await client.hello()
            yield client
            tasks.cancel_scope.cancel()


@pytest.mark.guarantee("no-approval-by-elicitation-over-http")
@pytest.mark.parametrize("era", GENERATIONS)
async def test_the_question_of_a_task_that_was_begun_over_stdio_is_not_answered_over_http(
    era: str, tmp_path: Path
) -> None:
    # Without tokens all of this machine's clients are one requestor, so this task is the HTTP client's own, too.
    async with stage(tmp_path) as here, over_http(here.server) as url:
        local = await here.client(FIRST, elicits=True)
        task_id = await local.begin_work("write", text="a")
        await local.until_status(task_id, "input_required")
        (row,) = await Approvals(here.runtime.runner).open()
        if era == SECOND:
            ask = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
            shown = await ask(partial(post, url, "tasks/get", {"taskId": task_id}))
            assert (shown["result"]["status"], shown["result"]["inputRequests"]) == ("input_required", {})
            said = {"taskId": task_id, "inputResponses": {row.approval_id: ACCEPT}}
            assert "result" in await ask(partial(post, url, "tasks/update", said))
            assert here.world.done == [] and await Approvals(here.runtime.runner).open() == [row]
            other = await here.client(SECOND)
            await other.result("tasks/update", said)
            await other.until_status(task_id)
        else:
            async with raw_client(url) as remote:
                waiting = await remote.begin("tasks/result", {"taskId": task_id})
                await remote.result("ping")
                await Approvals(here.runtime.runner).answer(row.approval_id, "once")
                assert "result" in await remote.ended(waiting) and remote.asked == []
        assert here.world.done == ["a"]
