"""The model of an MCP client proposes, in both eras, with tools or with words alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    SamplingCapability,
    SamplingToolsCapability,
    TextContent,
    ToolUseContent,
)
from tasks_stage import EXTENSION, FIRST, GENERATIONS, SECOND, Caller

from pursuit import Runtime
from pursuit.model.events import ModelAnswered, ModelAsked, decode
from pursuit.surfaces.mcp.arguments import Start
from pursuit.surfaces.mcp.server import mission_server
from pursuit.tools.configuration import Configuration
from pursuit.tools.policy import OperatorPolicy

LEGACY, MODERN = ERAS = ["legacy", "2026-07-28"]
WITH_TOOLS = SamplingCapability(tools=SamplingToolsCapability())
MODES = ["native", "words"]
Answer = CreateMessageResult | CreateMessageResultWithTools | ErrorData


def mission(steps: int = 3, **more: Any) -> dict[str, Any]:
    criterion = {
        "criterion_id": "enough",
        "kind": "metric_threshold",
        "metric": "steps",
        "op": ">=",
        "target": steps,
        "required": True,
    }
    return {
        "directive": "Take steps",
        "criteria": [criterion],
        "budget": {"max_iterations": 20},
        "tool_allowlist": ["world.*"],
        **more,
    }


def says(text: str, **more: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text=text), model="theirs", **more)


def calls(*amounts: Any, name: str = "world__step") -> CreateMessageResultWithTools:
    parts: list[Any] = [TextContent(text="onward")]
    parts += [ToolUseContent(name=name, id=str(at), input={"amount": one}) for at, one in enumerate(amounts)]
    return CreateMessageResultWithTools(role="assistant", content=parts, model="theirs", stop_reason="toolUse")


def wants(mode: str, *amounts: Any, name: str = "world__step") -> Answer:
    if mode == "native":
        return calls(*amounts, name=name)
    return says(json.dumps({"why": "onward", "calls": [{"tool": name, "args": {"amount": one}} for one in amounts]}))


class World:
    """A place to take steps in, a server over it, and clients whose models answer as they are told."""

    def __init__(self, runtime: Runtime, taken: list[int], server: Any, gate: anyio.Event) -> None:
        self.gate = gate
        self.runtime = runtime
        self.taken = taken
        self.server = server
        self.asked: list[CreateMessageRequestParams] = []

    def client(self, era: Any, mode: str, answer: Callable[[int], Answer]) -> Client:
        async def sample(_context: Any, params: CreateMessageRequestParams) -> Answer:
            self.asked.append(params)
            return answer(len(self.asked) - 1)

        able = WITH_TOOLS if mode == "native" else None
        return Client(self.server, mode=era, cache=None, sampling_callback=sample, sampling_capabilities=able)

    async def events(self, name: str, *kinds: type[Any]) -> list[Any]:
        rows = [decode(row.type, row.body) for row in await self.runtime.service.ledger.read(name)]
        return [row for row in rows if isinstance(row, kinds)]


@asynccontextmanager
async def world(folder: Path, mode: Any = "auto") -> AsyncIterator[World]:
    taken: list[int] = []

    gate = anyio.Event()

    async def step(amount: int = 1) -> dict[str, Any]:
        """Takes steps; a step of 7 waits until the gate is open."""
        taken.append(amount)
        if amount == 7:
            await gate.wait()
        return {"metrics": {"steps": sum(taken)}}

    config = Configuration(policy=OperatorPolicy(mode=mode))
    async with (
        Runtime(state=folder / "l.db", config=config, servers={"world": [step]}) as runtime,
        mission_server(runtime) as server,
    ):
        yield World(runtime, taken, server, gate)


async def done(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is not None and not result.is_error, result
    return result.structured_content


async def begun(client: Client, **more: Any) -> str:
    return (await done(client, "mission_start", **mission(**more)))["session_id"]


@pytest.mark.guarantee("clients-model-proposes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
def test_the_clients_model_completes_a_mission(tmp_path: Path, era: str, mode: str) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            async with here.client(era, mode, lambda at: wants(mode, *([1] if at == 0 else [1, 1]))) as client:
                preferences = {"hints": [{"name": "small"}], "costPriority": 0.5}
                started = await done(client, "mission_start", **mission(sampling_model_preferences=preferences))
                assert started["use_sampling"] is True
                assert (started["proposer"], started["sampling_backend_resolved"]) == ("sampling", "sampling")
                name = started["session_id"]
                answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=5)
            assert answer["status"] == "completed"
            assert [row["verdict_reason"] for row in answer["iterations"]] == ["in_progress", "criteria_met"]
            assert here.taken == [1, 1, 1] and len(here.asked) == 2
            for params in here.asked:
                assert params.model_preferences is not None and params.max_tokens == 4_096
                assert params.model_preferences.model_dump(by_alias=True, exclude_none=True) == preferences
                assert params.system_prompt is not None and "criteria" in params.system_prompt
                (message,) = params.messages
                assert isinstance(message.content, TextContent) and "Take steps" in message.content.text
                assert ('| {"tool": "world__step"' in message.content.text) == (mode == "words")
                assert [tool.name for tool in params.tools or ()] == (
                    ["world__step", "do_nothing"] if mode == "native" else []
                )
            answered = await here.events(name, ModelAnswered)
            assert [(one.answer.model, one.answer.text, one.tokens) for one in answered] == [
                ("theirs", "onward", 0)
            ] * 2

    anyio.run(main)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
def test_what_the_clients_model_does_wrong_goes_back_to_it_with_the_reasons(
    tmp_path: Path, era: str, mode: str
) -> None:
    wrong = {"native": says("I would step."), "words": says('{"calls": [{"tool": "world__step", "args": ')}

    def answer(at: int) -> Answer:
        return [wrong[mode], wants(mode, "far"), wants(mode, 3)][at]

    async def main() -> None:
        async with world(tmp_path) as here, here.client(era, mode, answer) as client:
            name = await begun(client)
            told = await done(client, "mission_iterate", session_id=name)
            assert told["status"] == "completed" and here.taken == [3]
            texts = [getattr(params.messages[0].content, "text", "") for params in here.asked]
            reasons = [text.partition("It was refused, for these reasons")[2] for text in texts]
            assert reasons[0] == "" and ("words alone" if mode == "native" else "no JSON object") in reasons[1]
            assert "amount" in reasons[2] and "far" in reasons[2]

    anyio.run(main)


@pytest.mark.guarantee("failing-sampler-ends")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ErrorData(code=-1, message="User rejected sampling request"), id="refused"),
        pytest.param(says(""), id="empty"),
        pytest.param(says("I am only a model, and I cannot take steps."), id="prose"),
        pytest.param(says('{"calls": [{"tool": "world__leap", "args": {}}]}'), id="unknown"),
        pytest.param(says('{"calls": [{"tool": "world__step", "args": {"amount": [[]]}}]}'), id="misfit"),
        pytest.param(says("[" * 100_000), id="deep"),
        pytest.param(says("{" * 5_000 + '"\ud800'.encode(errors="replace").decode()), id="garbage"),
    ],
)
@pytest.mark.parametrize("era", ERAS)
def test_a_failing_sampler_ends_in_proposer_failed(tmp_path: Path, era: str, answer: Answer) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(era, "words", lambda _at: answer) as client:
            name = await begun(client, budget={"max_iterations": 500})
            for _ in range(12):
                try:
                    told = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=100)
                except MCPError as refused:
                    assert era == MODERN and "rejected" in refused.message
                    continue
                if told["status"] == "terminated":
                    break
            state = await here.runtime.service.state(name)
            assert (state.status, state.verdict_reason, state.iteration_count) == ("terminated", "proposer_failed", 3)
            assert here.taken == [] and len(here.asked) <= 9

    anyio.run(main)


@pytest.mark.parametrize("era", ERAS)
def test_who_proposes_is_as_use_sampling_says(tmp_path: Path, era: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            able, unable = here.client(era, "native", lambda _at: calls(3)), Client(here.server, mode=era, cache=None)
            chosen: dict[tuple[bool, Any], Any] = {}
            async with able, unable:
                for client in (able, unable):
                    for use in (True, False, None):
                        result = await client.call_tool("mission_start", {**mission(), "use_sampling": use})
                        answer = result.structured_content
                        assert answer is not None
                        if result.is_error:
                            (fault,) = answer["details"]["faults"]
                            assert answer["code"] == "validation_error" and "declares no sampling" in fault["reason"]
                            chosen[client is able, use] = fault["field"]
                        else:
                            chosen[client is able, use] = (answer["proposer"], answer["sampling_backend_resolved"])
                            assert answer["use_sampling"] == (answer["proposer"] == "sampling")
                assert chosen == {
                    (True, True): ("sampling", "sampling"),
                    (True, False): ("client", None),
                    (True, None): ("sampling", "sampling"),
                    (False, True): "use_sampling",
                    (False, False): ("client", None),
                    (False, None): ("client", None),
                }
                named = await done(able, "mission_start", **mission(proposer={"kind": "client"}))
                assert (named["proposer"], named["use_sampling"]) == ("client", False)
                for use, proposer in [(True, {"kind": "client"}), (False, "sampling")]:
                    refused = await able.call_tool("mission_start", mission(use_sampling=use, proposer=proposer))
                    assert refused.is_error and "leave one of the two out" in str(refused.structured_content)
                capped = mission(budget={"max_iterations": 3, "max_tokens": 9})
                assert "max_tokens" in (await done(able, "mission_start", **capped))["warnings"][0]
                later = await done(unable, "mission_start", **mission(proposer="sampling"))
                assert "declares no sampling" in later["warnings"][0]

    anyio.run(main)


@pytest.mark.parametrize("era", ERAS)
def test_without_a_client_that_samples_the_mission_waits_for_one(tmp_path: Path, era: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            async with Client(here.server, mode=era, cache=None) as client:
                name = await begun(client, proposer="sampling")
                answer = await done(client, "mission_iterate", session_id=name)
                assert (answer["status"], answer["iterations"]) == ("waiting", [])
                status = await done(client, "mission_status", session_id=name)
                assert status["waiting_for"] == "input" and "declares sampling" in status["waiting_detail"]
                for _ in range(5):
                    await here.runtime.service.run(name)
            async with here.client(era, "native", lambda _at: calls(3)) as client:
                background = await done(client, "mission_iterate", session_id=name, background=True)
                assert background["status"] in ("running", "waiting")
                with anyio.fail_after(10):
                    while (await here.runtime.service.state(name)).waiting_for != "input":
                        await anyio.sleep(0.01)
                assert here.asked == [], "nobody is there while it runs in the background"
                answer = await done(client, "mission_iterate", session_id=name)
                assert answer["status"] == "completed" and len(here.asked) == 1

    anyio.run(main)


def test_the_clients_model_comes_before_the_configured_one() -> None:
    def proposer(*, able: bool, **more: Any) -> Any:
        chosen = Start.model_validate(mission(**more)).mission("openai:mine", sampling=able).proposer
        return getattr(chosen, "model", chosen.kind)

    assert proposer(able=True) == "sampling"
    assert proposer(able=False) == "openai:mine"
    assert proposer(able=True, use_sampling=False) == "openai:mine"
    assert proposer(able=True, use_sampling=True) == "sampling"
    assert proposer(able=True, proposer="openai:other") == "openai:other"
    assert proposer(able=False, proposer="sampling") == "sampling"


@pytest.mark.parametrize("era", ERAS)
def test_its_model_and_its_user_are_asked_in_one_call(tmp_path: Path, era: Any) -> None:
    async def yes(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "once"})

    async def main() -> None:
        async with world(tmp_path, mode="ask") as here:
            able = here.client(era, "native", lambda _at: calls(1))
            async with dataclasses.replace(able, elicitation_callback=yes) as client:
                name = await begun(client, steps=2)
                answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=5)
            assert (answer["status"], len(answer["iterations"])) == ("completed", 2), answer
            assert here.taken == [1, 1] and len(here.asked) == 2

    anyio.run(main)


def test_an_operator_who_stops_it_meanwhile_wins(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
            name = await begun(client)
            asked = await leg(client, name)
            await here.runtime.service.pause(name)
            paused = await leg(client, name, (asked, {"sampling-0-0": calls(1)}))
            assert paused.structured_content["status"] == "paused" and here.taken == []
            await here.runtime.service.resume(name)
            going = await leg(client, name, (asked, {"sampling-0-0": calls(1)}))
            assert isinstance(going, InputRequiredResult) and here.taken == [1]
            await here.runtime.service.abort(name)
            over = await leg(client, name, (going, {"sampling-1-0": calls(1)}))
            assert over.structured_content["status"] == "terminated" and here.taken == [1]

    anyio.run(main)


async def leg(client: Client, name: str, brought: Any = None, count: int = 3) -> Any:
    """One request of the new era; `brought` is the question before and what is answered to it."""
    params: dict[str, Any] = {
        "name": "mission_iterate",
        "arguments": {"session_id": name, "max_iterations_this_call": count},
    }
    if brought is not None:
        before, answers = brought
        params |= {"inputResponses": answers, "requestState": before.request_state}
    return await client.session.call_tool(
        params["name"],
        params["arguments"],
        input_responses=params.get("inputResponses"),
        request_state=params.get("requestState"),
        allow_input_required=True,
    )


@pytest.mark.guarantee("sampled-once")
def test_a_repeated_a_contradicting_and_a_simultaneous_answer_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
            name = await begun(client, steps=4)
            first = await leg(client, name)
            assert isinstance(first, InputRequiredResult) and list(first.input_requests or ()) == ["sampling-0-0"]
            again = await leg(client, name)
            assert isinstance(again, InputRequiredResult) and again.input_requests == first.input_requests
            second = await leg(client, name, (first, {"sampling-0-0": calls(1)}))
            assert isinstance(second, InputRequiredResult) and list(second.input_requests or ()) == ["sampling-1-0"]
            for other in (calls(1), calls(100), calls(100)):
                repeated = await leg(client, name, (first, {"sampling-0-0": other}))
                assert isinstance(repeated, InputRequiredResult)
                assert repeated.input_requests == second.input_requests, "the question at hand, once more"
            assert here.taken == [1]
            results: list[Any] = []

            async def retry(amount: int) -> None:
                results.append(await leg(client, name, (second, {"sampling-1-0": calls(amount)})))

            async with anyio.create_task_group() as both:
                both.start_soon(retry, 1)
                both.start_soon(retry, 2)
            assert len(here.taken) == 2, results
            third = next(one for one in results if isinstance(one, InputRequiredResult))
            for one in results:
                assert isinstance(one, InputRequiredResult) or one.structured_content["code"] == "conflict", one
            last = await leg(client, name, (third, {"sampling-2-0": calls(9)}))
            assert isinstance(last, CallToolResult) and last.structured_content is not None
            assert last.structured_content["status"] == "completed"
            assert [row["iteration_index"] for row in last.structured_content["iterations"]] == [0, 1, 2]
            late = await leg(client, name, (third, {"sampling-2-0": calls(50)}))
            assert late.structured_content == last.structured_content and here.taken[-1] == 9
            answered = await here.events(name, ModelAnswered)
            assert [(one.iteration, one.attempt) for one in answered] == [(0, 0), (1, 0), (2, 0)]

    anyio.run(main)


def test_a_last_answer_that_comes_twice_begins_no_further_iteration(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
            name = await begun(client)
            asked = await leg(client, name, count=1)
            for _ in range(2):
                ended = await leg(client, name, (asked, {"sampling-0-0": calls(1)}), count=1)
                assert isinstance(ended, CallToolResult) and ended.structured_content is not None
                assert [row["iteration_index"] for row in ended.structured_content["iterations"]] == [0]
            state = await here.runtime.service.state(name)
            assert (state.status, state.iteration_count, here.taken) == ("running", 1, [1])

    anyio.run(main)


@pytest.mark.guarantee("only-who-was-asked-answers")
def test_only_who_was_asked_answers_for_its_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
            victim, own = await begun(client), await begun(client)
            asked = await leg(client, own)
            for state in (None, asked.request_state, "bm8.bm8"):
                params: Any = {
                    "name": "mission_iterate",
                    "arguments": {"session_id": victim},
                    "inputResponses": {"sampling-0-0": calls(9).model_dump(by_alias=True, exclude_none=True)},
                    **({} if state is None else {"requestState": state}),
                }
                request: Any = CallToolRequest(params=CallToolRequestParams.model_validate(params))
                answer = await client.session.send_request(request, CallToolResult)
                assert answer.is_error and "belong to no question" in str(answer.content)
            assert here.taken == [] and await here.events(victim, ModelAsked) == []

    anyio.run(main)


def test_a_long_call_stays_below_the_rounds_of_a_client_and_says_to_call_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
            name = await begun(client, steps=12)
            answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=15)
            assert (answer["status"], len(answer["iterations"]), len(here.asked)) == ("waiting", 8, 8)
            status = await done(client, "mission_status", session_id=name)
            assert status["waiting_for"] == "input" and "call mission_iterate again" in status["waiting_detail"]
            answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=15)
            assert (answer["status"], len(answer["iterations"]), len(here.taken)) == ("completed", 4, 12)

    anyio.run(main)


@pytest.mark.parametrize("era", GENERATIONS)
def test_a_run_that_is_a_task_asks_the_model_of_whoever_follows_it(tmp_path: Path, era: str) -> None:
    able = {"sampling": {"tools": {}}, **({} if era == FIRST else {"extensions": {EXTENSION: {}}})}
    said = calls(1).model_dump(mode="json", by_alias=True, exclude_none=True)

    async def main() -> None:
        async with world(tmp_path) as here, anyio.create_task_group() as tasks:
            client = Caller(cast("Any", here), era, able)
            tasks.start_soon(client.serve)
            tasks.start_soon(client.read)
            await client.hello()
            name = (await client.call("mission_start", mission(steps=12)))["structuredContent"]["session_id"]
            run = {"session_id": name, "max_iterations_this_call": 15}
            if era == FIRST:
                answer = await _of_a_task(client, run, said)
                assert len(here.taken) == 12
            else:
                answer = await _in_rounds(client, run, said)
                assert len(here.taken) == 8
            assert answer["structuredContent"]["status"] == ("completed" if era == FIRST else "waiting")
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_a_call_that_becomes_a_task_between_two_questions_asks_the_second_there(tmp_path: Path) -> None:
    able = {"sampling": {"tools": {}}, "extensions": {EXTENSION: {}}}
    slow, last = (calls(amount).model_dump(mode="json", by_alias=True, exclude_none=True) for amount in (7, 1))

    async def main() -> None:
        async with world(tmp_path) as here, anyio.create_task_group() as tasks:
            client = Caller(cast("Any", here), SECOND, able)
            tasks.start_soon(client.serve)
            tasks.start_soon(client.read)
            await client.hello()
            name = (await client.call("mission_start", mission(steps=8)))["structuredContent"]["session_id"]
            run = {"session_id": name, "max_iterations_this_call": 5}
            asked = await client.call("mission_iterate", run)
            more: Any = {"inputResponses": {"sampling-0-0": slow}, "requestState": asked["requestState"]}
            task = client.task(await client.call("mission_iterate", run, **more))
            assert task["status"] == "working", task
            here.gate.set()
            asks = await client.until_status(task["taskId"], "input_required")
            (key,) = asks["inputRequests"]
            assert asks["inputRequests"][key]["method"] == "sampling/createMessage"
            await client.result("tasks/update", {"taskId": task["taskId"], "inputResponses": {key: last}})
            ended = await client.until_status(task["taskId"])
            body = ended["result"]["structuredContent"]
            assert (body["status"], len(body["iterations"]), here.taken) == ("completed", 2, [7, 1]), ended
            tasks.cancel_scope.cancel()

    anyio.run(main)


async def _of_a_task(client: Caller, run: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Has the run as a task, and answers whatever is asked until its result comes."""
    task = client.task(await client.call("mission_iterate", run, task={}))
    results: list[dict[str, Any]] = []

    async def wait() -> None:
        results.append(await client.result("tasks/result", {"taskId": task["taskId"]}))
        both.cancel_scope.cancel()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as both:
            both.start_soon(wait)
            while True:
                question = await client.question()
                assert question["method"] == "sampling/createMessage"
                await client.reply(question, said)
    return results[0]


async def _in_rounds(client: Caller, run: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Calls again with answers for as long as it is asked; what is quick becomes no task."""
    result = await client.call("mission_iterate", run)
    while result.get("resultType") == "input_required":
        answers = dict.fromkeys(result["inputRequests"], said)
        more: Any = {"inputResponses": answers, "requestState": result["requestState"]}
        result = await client.call("mission_iterate", run, **more)
    return result
