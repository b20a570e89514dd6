"""The model of a connected client completes a real mission: every client that people have, both eras and transports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from front_door import TRANSPORTS, House, mcp1_python, talked
from mcp import Client
from mcp_types import (
    CreateMessageResult,
    CreateMessageResultWithTools,
    InputRequiredResult,
    SamplingCapability,
    SamplingToolsCapability,
    TextContent,
    ToolUseContent,
)
from sampling_mission import MISSION, STEPS, TOOL, args_for, in_words
from sdk_client import ERAS, client

from pursuit.core.events import ModelAnswered

ONE_THIRTY = "mcp-1.30"
MODES = ("native", "words")
LINES = [f"{word} k{number}" for number in range(STEPS) for word in ("begun", "done")]
IN_CI = {
    ("legacy", "stdio", "words"),
    ("legacy", "http", "native"),
    ("2026-07-28", "stdio", "native"),
    ("2026-07-28", "http", "words"),
    (ONE_THIRTY, "stdio", "words"),
}
"""Each client, each transport and each way of both eras; `make soak` runs all combinations."""
EVERY = [
    pytest.param(which, transport, mode, marks=() if (which, transport, mode) in IN_CI else pytest.mark.soak)
    for which in (*ERAS, ONE_THIRTY)
    for transport in TRANSPORTS
    for mode in MODES
]


def use(number: int) -> CreateMessageResultWithTools:
    part = ToolUseContent(name=TOOL, id=str(number), input=args_for(number))
    return CreateMessageResultWithTools(role="assistant", content=[part], model="sdk", stop_reason="toolUse")


def sampling(target: str, era: str, mode: str, asked: list[dict[str, Any]]) -> Client:
    """A client whose model takes one step in each answer."""

    async def sample(_context: Any, params: Any) -> CreateMessageResult | CreateMessageResultWithTools:
        number = len(asked)
        asked.append(params.model_dump(mode="json", by_alias=True, exclude_none=True))
        if params.tools:
            return use(number)
        return CreateMessageResult(role="assistant", content=TextContent(text=in_words(number)), model="sdk")

    able = SamplingCapability(tools=SamplingToolsCapability()) if mode == "native" else None
    return client(target, era, sampling_callback=sample, sampling_capabilities=able)


async def through_sdk(era: str, target: str, mode: str) -> dict[str, Any]:
    asked: list[dict[str, Any]] = []
    async with sampling(target, era, mode, asked) as connected:
        started = (await connected.call_tool("mission_start", MISSION)).structured_content
        run = {"session_id": started["session_id"], "max_iterations_this_call": 10}
        answer = (await connected.call_tool("mission_iterate", run)).structured_content
    return {"started": started, "answer": answer, "asked": asked}


@pytest.mark.slow
@pytest.mark.guarantee("clients-model-proposes")
@pytest.mark.parametrize(("which", "transport", "mode"), EVERY)
async def test_the_model_of_every_client_completes_a_mission(
    which: str, transport: str, mode: str, tmp_path: Path
) -> None:
    house = House(tmp_path)
    with house.target(transport) as target:
        seen = (
            talked(house, mcp1_python(), "mcp1_sampling.py", target, mode)
            if which == ONE_THIRTY
            else await through_sdk(which, target, mode)
        )
    assert (seen["started"]["proposer"], seen["started"]["use_sampling"]) == ("sampling", True)
    assert seen["answer"]["status"] == "completed", seen["answer"]
    assert [row["iteration_index"] for row in seen["answer"]["iterations"]] == list(range(STEPS))
    assert house.lines("sampled") == LINES
    assert len(seen["asked"]) == STEPS
    for params in seen["asked"]:
        assert params["modelPreferences"] == {"hints": [{"name": "tiny"}], "speedPriority": 1}
        names = [tool["name"] for tool in params.get("tools", ())]
        assert (TOOL in names) == (mode == "native")


@pytest.mark.slow
@pytest.mark.guarantee("sampled-once")
async def test_killed_between_the_question_and_the_answer_it_goes_on_at_the_same_iteration(tmp_path: Path) -> None:
    house = House(tmp_path)
    modern = ERAS[1]

    async def leg(url: str, name: str | None, before: InputRequiredResult | None, number: int) -> tuple[str, Any]:
        """One request to a server that did not ask the question that it answers."""
        async with sampling(url, modern, "native", []) as connected:
            if name is None:
                started = await connected.call_tool("mission_start", MISSION)
                name = str(started.structured_content["session_id"])
            answers: Any = None if before is None else {f"sampling-{number}-0": use(number)}
            result = await connected.session.call_tool(
                "mission_iterate",
                {"session_id": name, "max_iterations_this_call": 10},
                input_responses=answers,
                request_state=None if before is None else before.request_state,
                allow_input_required=True,
            )
            return name, result

    name: str | None = None
    before: Any = None
    for number in range(-1, STEPS):
        with house.serving() as served:
            name, result = await leg(served.url, name, before, number)
            assert isinstance(result, InputRequiredResult) == (number < STEPS - 1), result
            before = result
            served.kill()
        assert house.lines("sampled") == LINES[: 2 * (number + 1)]
    assert before.structured_content["status"] == "completed"
    assert [row["iteration_index"] for row in before.structured_content["iterations"]] == list(range(STEPS))
    answered = [event for event in await house.events(name) if isinstance(event, ModelAnswered)]
    assert [(event.iteration, event.attempt) for event in answered] == [(number, 0) for number in range(STEPS)]
