"""The person behind an MCP client is asked, in both eras, and only if the client says that there is one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, ElicitResult
from tasks_stage import MISSION

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.ledger.contract import ANY, Draft
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.server.missions.server import mission_server
from pursuit.service.approvals import Approvals

ERAS = ["legacy", "2026-07-28"]
ASKS = Configuration(policy=OperatorPolicy(rules=(Rule(decision="ask", tool="write"),)))


class World:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []

    def write(self, text: str) -> None:
        self.done.append(text)

    def answering(self, *answers: ElicitResult) -> Callable[..., Awaitable[ElicitResult]]:
        left = list(answers)

        async def answer(_context: Any, params: Any) -> ElicitResult:
            self.asked.append(params.message)
            return left.pop(0)

        return answer


def yes(width: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"answer": width})


async def _begin(client: Client, **more: Any) -> str:
    started = await client.call_tool("mission_start", {**MISSION, **more})
    assert started.structured_content is not None and not started.is_error, started
    return started.structured_content["session_id"]


def proposing(text: str) -> dict[str, Any]:
    return {"proposal": {"tool_calls": [{"tool_name": "write", "args": {"text": text}}]}}


@pytest.mark.parametrize("era", ERAS)
async def test_the_person_behind_the_client_answers_in_the_middle_of_a_call(tmp_path: Path, era: Any) -> None:
    world = World()
    async with Runtime(state=tmp_path / "l.db", config=ASKS, servers={"world": [world.write]}) as runtime:
        answers = (yes("once"), ElicitResult(action="decline"), yes("arguments"))
        async with (
            mission_server(runtime) as server,
            Client(server, mode=era, elicitation_callback=world.answering(*answers)) as client,
        ):
            name = await _begin(client)
            first = await client.call_tool("mission_iterate", {"session_id": name, **proposing("a")})
            assert [row["iteration_index"] for row in first.structured_content["iterations"]] == [0]
            assert world.done == ["a"] and len(world.asked) == 1 and '"a"' in world.asked[0]
            await client.call_tool("mission_iterate", {"session_id": name, **proposing("b")})
            assert world.done == ["a"], "declined"
            for _ in range(2):
                await client.call_tool("mission_iterate", {"session_id": name, **proposing("c")})
            assert world.done == ["a", "c", "c"] and len(world.asked) == 3
            lines = await runtime.runner.audited(name)
            assert [line["transport"] for line in lines if line["verb"] in ("approve", "deny")] == ["elicitation"] * 3


@pytest.mark.parametrize("era", ERAS)
async def test_a_dismissed_question_and_a_client_without_a_person_leave_it_open(tmp_path: Path, era: Any) -> None:
    world = World()
    async with (
        Runtime(state=tmp_path / "l.db", config=ASKS, servers={"world": [world.write]}) as runtime,
        mission_server(runtime) as server,
    ):
        async with Client(server, mode=era) as client:
            name = await _begin(client)
            answer = await client.call_tool("mission_iterate", {"session_id": name, **proposing("a")})
            assert (answer.structured_content["status"], world.done) == ("waiting", [])
            status = await client.call_tool("mission_status", {"session_id": name})
            assert len(status.structured_content["pending_approvals"]) == 1
        dismissed = world.answering(*[ElicitResult(action="cancel")] * 20)
        async with Client(server, mode=era, elicitation_callback=dismissed) as client:
            with anyio.fail_after(60):
                await client.call_tool("mission_iterate", {"session_id": name})
        (row,) = await Approvals(runtime.runner).open(name)
        await Approvals(runtime.runner).answer(row.approval_id, "once")
        async with Client(server, mode=era) as client:
            answer = await client.call_tool("mission_iterate", {"session_id": name})
            assert len(answer.structured_content["iterations"]) == 1
        assert world.done == ["a"]


@pytest.mark.parametrize("era", ERAS)
async def test_an_error_of_mission_iterate_keeps_the_iterations_before_it(tmp_path: Path, era: Any) -> None:
    names: list[str] = []

    async def write(text: str) -> None:
        if text == "b":  # an event of another driver, which ends this one
            stored = await runtime.runner.ledger.read(names[0])
            copied = next(one for one in stored if one.type == "CallSettled")
            await runtime.runner.ledger.append(names[0], ANY, [Draft(copied.type, copied.body)])

    script = {"kind": "script", "script": 'world.write(text="aab"[state.iteration])'}
    async with (
        Runtime(state=tmp_path / "l.db", config=Configuration(), servers={"world": [write]}, mode="auto") as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era) as client,
    ):
        names.append(await _begin(client, proposer=script))
        answer = await client.call_tool("mission_iterate", {"session_id": names[0], "max_iterations_this_call": 9})
    assert answer.is_error and answer.structured_content["code"] == "conflict"
    assert [row["iteration_index"] for row in answer.structured_content["iterations"]] == [0, 1]


@pytest.mark.guarantee("only-who-was-asked-answers")
@pytest.mark.parametrize("era", ERAS)
async def test_nobody_answers_a_question_that_it_was_not_asked(tmp_path: Path, era: Any) -> None:
    world = World()
    async with (
        Runtime(state=tmp_path / "l.db", config=ASKS, servers={"world": [world.write]}) as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era) as client,
    ):
        victim, own = await _begin(client), await _begin(client)
        for name in (victim, own):
            await client.call_tool("mission_iterate", {"session_id": name, **proposing(name)})
        desk = Approvals(runtime.runner)
        ids = {name: (await desk.open(name))[0].approval_id for name in (victim, own)}
        answer = {"action": "accept", "content": {"answer": "mission"}}
        for target, state in [(victim, None), (own, None), (own, "1"), (own, "bm8.bm8")]:
            params: dict[str, Any] = {
                "name": "mission_iterate",
                "arguments": {"session_id": own},
                "inputResponses": {ids[target]: answer},
                **({} if state is None else {"requestState": state}),
            }
            request: Any = CallToolRequest(params=CallToolRequestParams.model_validate(params))
            with suppress(MCPError):
                await client.session.send_request(request, CallToolResult)
        assert world.done == []
        assert {row.stream for row in await desk.open()} == {victim, own}


async def test_a_call_with_several_questions_tells_all_its_iterations(tmp_path: Path) -> None:
    world = World()
    async with (
        Runtime(state=tmp_path / "l.db", config=ASKS, servers={"world": [world.write]}) as runtime,
        mission_server(runtime) as server,
        Client(server, mode="2026-07-28", elicitation_callback=world.answering(*[yes("once")] * 3)) as client,
    ):
        repeat = {"kind": "repeat", "tool_name": "world.write", "args": {"text": "r"}}
        name = await _begin(client, proposer=repeat)
        answer = await client.call_tool("mission_iterate", {"session_id": name, "max_iterations_this_call": 3})
        assert [row["iteration_index"] for row in answer.structured_content["iterations"]] == [0, 1, 2]
