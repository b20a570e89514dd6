"""A language model reads a server's resources and prompts as tools, each a recorded call under policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, outcomes, stage
from mcp.server.mcpserver import MCPServer
from model_endpoint import ModelEndpoint, calls, transcript

from pursuit import Budget, Runtime, ValidationFailed, event
from pursuit.core.state import MissionState

MODEL = "openai:gpt-4o-mini"
OWN = ["pursuit__note", "pursuit__read_result", "do_nothing"]


def library() -> MCPServer:
    server = MCPServer("library")

    @server.resource("notes://beam", mime_type="text/plain")
    def beam() -> str:
        """What is known of the beam."""
        return "The beam must hold 6,000 lb."

    @server.prompt()
    def review(part: str) -> str:
        """How to review a part."""
        return f"Review the {part}."

    @server.tool()
    def shelve(book: str) -> str:
        """Puts a book away."""
        return f"shelved {book}"

    return server


def shown(endpoint: ModelEndpoint) -> list[str]:
    return [tool["function"]["name"] for tool in endpoint.seen[0]["body"]["tools"]]


async def pursued(
    folder: Path, monkeypatch: pytest.MonkeyPatch, endpoint: ModelEndpoint, **wanted: Any
) -> tuple[MissionState, list[tuple[str, str | None]]]:
    for name, value in endpoint.environment.items():
        monkeypatch.setenv(name, value)
    async with stage(folder, servers={"library": library()}) as runtime:
        started = await runtime.runner.start(mission(proposer=MODEL, criteria=[event("never")], **wanted))
        state = await runtime.runner.run(started.session_id)
        return state, await outcomes(runtime, started.session_id)


@pytest.mark.guarantee("models-may-read")
async def test_resources_and_prompts_are_read_as_recorded_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = calls(("library__resources_list", {}), ("library__prompts_list", {}))
    reads = calls(
        ("library__resources_read", {"uri": "notes://beam"}),
        ("library__prompts_get", {"name": "review", "arguments": {"part": "weld"}}),
        ("library__resources_read", {"uri": "notes://nothing"}),
    )
    with ModelEndpoint(looks, reads, calls(("do_nothing", {"why": "enough"}))) as endpoint:
        state, made = await pursued(tmp_path, monkeypatch, endpoint, budget=Budget(max_iterations=3))
    assert shown(endpoint)[:5] == [
        "library__resources_list",
        "library__resources_read",
        "library__prompts_list",
        "library__prompts_get",
        "library__shelve",
    ]
    assert made == [
        ("library.resources/list", "ok"),
        ("library.prompts/list", "ok"),
        ("library.resources/read", "ok"),
        ("library.prompts/get", "ok"),
        ("library.resources/read", "failed"),
    ]
    assert state.tool_calls == 5
    told = "".join(turn.text for turn in transcript(endpoint.seen[2]))
    assert '"uri":"notes://beam"' in told.replace(" ", "")
    assert "The beam must hold 6,000 lb." in told
    assert "Review the weld." in told


@pytest.mark.guarantee("models-may-read")
async def test_the_allowlist_and_policy_hold_for_reading_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelEndpoint(calls(("do_nothing", {"why": "-"}))) as endpoint:
        await pursued(tmp_path / "a", monkeypatch, endpoint, tool_allowlist=["library.shelve"])
        assert shown(endpoint) == ["library__shelve", *OWN]
    with ModelEndpoint(calls(("do_nothing", {"why": "-"}))) as endpoint:
        policy = {"deny": ["library.prompts/*"], "ask": [], "mode": None}
        await pursued(tmp_path / "b", monkeypatch, endpoint, tool_allowlist=["library.*"], policy=policy)
        assert shown(endpoint) == [
            "library__resources_list",
            "library__resources_read",
            "library__shelve",
            *OWN,
        ]


async def test_missions_without_a_model_have_no_such_tools(tmp_path: Path) -> None:
    async with Runtime(state=tmp_path / "l.db", servers={"library": library()}) as runtime:
        started = await runtime.runner.start(mission(allow_all_tools=True))
        assert (await runtime.runner.state(started.session_id)).tools == ("library.shelve",)
        with pytest.raises(ValidationFailed):
            await runtime.runner.start(mission(tool_allowlist=["library.resources/read"]))
