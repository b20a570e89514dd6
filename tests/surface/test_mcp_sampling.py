"""The model of an MCP client proposes, in both eras, with tools or with words alone."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    AudioContent,
    CallToolResult,
    ElicitResult,
    ErrorData,
    ImageContent,
    TextContent,
    ToolResultContent,
)
from sampling_stage import (
    ERAS,
    MODERN,
    MODES,
    Answer,
    begun,
    calls,
    done,
    mission,
    says,
    wants,
    world,
)

from pursuit.core.events import ModelAnswered


@pytest.mark.guarantee("clients-model-proposes")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
async def test_the_clients_model_completes_a_mission(tmp_path: Path, era: str, mode: str) -> None:
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
        for place, params in enumerate(here.asked):
            assert params.model_preferences is not None and params.max_tokens == 4_096
            assert params.model_preferences.model_dump(by_alias=True, exclude_none=True) == preferences
            assert params.system_prompt is not None and "criteria" in params.system_prompt
            roles = ["user", "assistant", "user", *(["user"] if mode == "native" else [])]
            assert [message.role for message in params.messages] == roles[: 1 if place == 0 else None]
            message = params.messages[0]
            assert isinstance(message.content, TextContent) and "Take steps" in message.content.text
            assert ('| {"tool": "world__step"' in message.content.text) == (mode == "words")
            assert [tool.name for tool in params.tools or ()] == (
                ["world__step", "pursuit__note", "pursuit__read_result", "do_nothing"] if mode == "native" else []
            )
        result, changes = [block for one in here.asked[1].messages[2:] for block in one.content_as_list]
        assert isinstance(result, ToolResultContent if mode == "native" else TextContent)
        assert isinstance(changes, TextContent) and "Iteration 2 begins." in changes.text
        answered = await here.events(name, ModelAnswered)
        assert [(one.answer.model, one.answer.text, one.tokens) for one in answered] == [("theirs", "onward", 0)] * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
async def test_what_the_clients_model_does_wrong_goes_back_to_it_with_the_reasons(
    tmp_path: Path, era: str, mode: str
) -> None:
    wrong = {"native": says("I would step."), "words": says('{"calls": [{"tool": "world__step", "args": ')}

    def answer(at: int) -> Answer:
        return [wrong[mode], wants(mode, "far"), wants(mode, 3)][at]

    async with world(tmp_path) as here, here.client(era, mode, answer) as client:
        name = await begun(client)
        told = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=3)
        assert told["status"] == "completed" and here.taken == [3]
        reasons = [getattr(params.messages[-1].content_as_list[-1], "text", "") for params in here.asked]
        assert ("text has no effect" if mode == "native" else "not a JSON object") in reasons[1]
        assert "amount" in reasons[2] and "far" in reasons[2]


@pytest.mark.guarantee("images-are-content")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("era", ERAS)
async def test_the_clients_model_sees_images_and_hears_sounds(tmp_path: Path, era: str, mode: str) -> None:
    """A result that has one is content of its own form; what no model takes is left out and named."""
    eye = MCPServer("eye")
    shown = {"image/png": b"\x89PNG\r\n\x1a\n" + bytes(90), "audio/wav": b"RIFF\0\0\0\0WAVEfmt ", "image/svg": b"<svg>"}

    @eye.tool()
    def picture(amount: int) -> CallToolResult:
        """Takes pictures."""
        blocks = [
            (ImageContent if name.startswith("image") else AudioContent)(
                data=base64.b64encode(data).decode(), mime_type=name
            )
            for name, data in shown.items()
        ]
        return CallToolResult(content=[TextContent(text="Click."), *blocks])

    def answer(at: int) -> Answer:
        return wants(mode, 3) if at else wants(mode, 1, name="eye__picture")

    async with world(tmp_path, eye=eye) as here, here.client(era, mode, answer) as client:
        name = await begun(client, tool_allowlist=["*"])
        told = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=3)
        assert told["status"] == "completed"
        content: list[Any] = here.asked[1].messages[2].content_as_list
        if mode == "native":
            (result,) = content
            content = result.content
        said, image, sound = content[:3]
        assert "Click." in said.text
        assert "[image/svg, 8 characters in base64, left out" in said.text
        for block, kind, (name, data) in zip((image, sound), ("image", "audio"), shown.items(), strict=False):
            assert (block.type, block.mime_type, base64.b64decode(block.data)) == (kind, name, data)


STEP = '{"calls": [{"tool": "world__step", "args": {"amount": 3}}]}'


WRONG = {
    "empty": "",
    "prose": "I am only a model, and I cannot take steps.",
    "unknown": '{"calls": [{"tool": "world__leap", "args": {}}]}',
    "misfit": '{"calls": [{"tool": "world__step", "args": {"amount": [[]]}}]}',
    "deep": "[" * 100_000,
    "none": '{"why": "done", "calls": []}',
    "quoted": f"The page says {STEP}, and I am not to do that.",
    "thought": f"<think>The page says\n```json\n{STEP}\n```\n</think>I am done.",
    "garbage": "{" * 5_000 + '"\ud800'.encode(errors="replace").decode(),
}
REFUSED = ErrorData(code=-1, message="User rejected sampling request")


@pytest.mark.guarantee("failing-sampler-ends")
@pytest.mark.parametrize(
    ("era", "answer"),
    [*((era, REFUSED) for era in ERAS), *((ERAS[0], says(text)) for text in WRONG.values())],
    ids=[*(f"refused in {era}" for era in ERAS), *WRONG],
)
async def test_a_failing_sampler_ends_in_proposer_failed(tmp_path: Path, era: str, answer: Answer) -> None:
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
        state = await here.runtime.runner.state(name)
        assert (state.status, state.verdict_reason, state.iteration_count) == ("terminated", "proposer_failed", 3)
        assert here.taken == [] and len(here.asked) <= 9


@pytest.mark.parametrize("era", ERAS)
async def test_who_proposes_is_as_use_sampling_says(tmp_path: Path, era: Any) -> None:
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
                        assert answer["code"] == "validation_error" and "does not declare sampling" in fault["reason"]
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
            assert "does not declare sampling" in later["warnings"][0]


@pytest.mark.parametrize("era", ERAS)
async def test_without_a_client_that_samples_the_mission_waits_for_one(tmp_path: Path, era: Any) -> None:
    async with world(tmp_path) as here:
        async with Client(here.server, mode=era, cache=None) as client:
            name = await begun(client, proposer="sampling")
            answer = await done(client, "mission_iterate", session_id=name)
            assert (answer["status"], answer["iterations"]) == ("waiting", [])
            status = await done(client, "mission_status", session_id=name)
            assert status["waiting_for"] == "input" and "declares sampling" in status["waiting_detail"]
            for _ in range(5):
                await here.runtime.runner.run(name)
        async with here.client(era, "native", lambda _at: calls(3)) as client:
            background = await done(client, "mission_iterate", session_id=name, background=True)
            assert background["status"] in ("running", "waiting")
            with anyio.fail_after(60):
                while (await here.runtime.runner.state(name)).waiting_for != "input":
                    await anyio.sleep(0.01)
            assert here.asked == [], "nobody is there while it runs in the background"
            answer = await done(client, "mission_iterate", session_id=name)
            assert answer["status"] == "completed" and len(here.asked) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_its_model_and_its_user_are_asked_in_one_call(tmp_path: Path, era: Any) -> None:
    async def yes(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "once"})

    async with world(tmp_path, mode="ask") as here:
        able = here.client(era, "native", lambda _at: calls(1))
        async with dataclasses.replace(able, elicitation_callback=yes) as client:
            name = await begun(client, steps=2)
            answer = await done(client, "mission_iterate", session_id=name, max_iterations_this_call=5)
        assert (answer["status"], len(answer["iterations"])) == ("completed", 2), answer
        assert here.taken == [1, 1] and len(here.asked) == 2
