"""Answers of a client's model that ride in its next call, come twice, late or from a stranger; runs that are tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from mcp import Client
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageResultWithTools,
    InputRequiredResult,
)
from sampling_stage import (
    MODERN,
    begun,
    calls,
    done,
    mission,
    says,
    world,
)
from tasks_stage import EXTENSION, FIRST, GENERATIONS, Caller

from pursuit.core.events import ModelAnswered, ModelAsked
from pursuit.server.tasks.promotion import PromotionSettings

STEP = [{"type": "tool_use", "id": "0", "name": "world__step", "input": {"amount": 1}}]


async def test_an_operator_who_stops_it_meanwhile_wins(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
        name = await begun(client)
        asked = await leg(client, name)
        await here.runtime.runner.pause(name)
        paused = await leg(client, name, (asked, {"sampling-0-0": calls(1)}))
        assert paused.structured_content["status"] == "paused" and here.taken == []
        await here.runtime.runner.resume(name)
        going = await leg(client, name, (asked, {"sampling-0-0": calls(1)}))
        assert isinstance(going, InputRequiredResult) and here.taken == [1]
        await here.runtime.runner.abort(name)
        over = await leg(client, name, (going, {"sampling-1-0": calls(1)}))
        assert over.structured_content["status"] == "terminated" and here.taken == [1]


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
async def test_a_repeated_a_contradicting_and_a_simultaneous_answer_change_nothing(tmp_path: Path) -> None:
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


async def test_a_summary_and_the_turn_after_it_are_two_questions(tmp_path: Path) -> None:
    def answer(question: Any) -> Any:
        if "about to be cut" in str(question):
            return says("SUMMARY")
        return CreateMessageResultWithTools.model_validate(
            {**calls(1).model_dump(by_alias=True), "content": [{"type": "text", "text": "word " * 800}, *STEP]}
        )

    async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
        name = await begun(client, steps=9, proposer={"kind": "sampling", "window": 8_000, "max_tokens": 500})
        asked, names = await leg(client, name, count=20), []
        while isinstance(asked, InputRequiredResult) or asked.structured_content["status"] == "waiting":
            if not isinstance(asked, InputRequiredResult):
                asked = await leg(client, name, count=20)
                continue
            ((question, said),) = (asked.input_requests or {}).items()
            names.append(question)
            asked = await leg(client, name, (asked, {question: answer(said)}), count=20)
        assert asked.structured_content["status"] == "completed"
        assert sum("summary" in one for one in names) >= 2
        assert len(set(names)) == len(names)


@pytest.mark.guarantee("only-who-was-asked-answers")
async def test_only_who_was_asked_answers_for_its_model(tmp_path: Path) -> None:
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
            assert answer.is_error and "do not match a question" in str(answer.content)
        assert here.taken == [] and await here.events(victim, ModelAsked) == []


async def test_a_long_call_stays_below_the_rounds_of_a_client_and_says_to_call_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client(MODERN, "native", lambda _at: calls(1)) as client:
        name = await begun(client, steps=12)
        answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=15)
        assert (answer["status"], len(answer["iterations"]), len(here.asked)) == ("waiting", 8, 8)
        status = await done(client, "mission_status", session_id=name)
        assert status["waiting_for"] == "input" and "call mission_iterate again" in status["waiting_detail"]
        answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=15)
        assert (answer["status"], len(answer["iterations"]), len(here.taken)) == ("completed", 4, 12)


@pytest.mark.parametrize("era", GENERATIONS)
async def test_a_run_that_is_a_task_asks_the_model_of_whoever_follows_it(tmp_path: Path, era: str) -> None:
    quick = PromotionSettings(grace=60.0)  # also on a busy machine: what is quick becomes no task
    able = {"sampling": {"tools": {}}, **({} if era == FIRST else {"extensions": {EXTENSION: {}}})}
    said = calls(1).model_dump(mode="json", by_alias=True, exclude_none=True)
    async with world(tmp_path, promotion=quick) as here, anyio.create_task_group() as tasks:
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


async def _of_a_task(client: Caller, run: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Has the run as a task, and answers whatever is asked until its result comes."""
    task = client.task(await client.call("mission_iterate", run, task={}))
    results: list[dict[str, Any]] = []

    async def wait() -> None:
        results.append(await client.result("tasks/result", {"taskId": task["taskId"]}))
        both.cancel_scope.cancel()

    with anyio.fail_after(60):
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
