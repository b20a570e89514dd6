"""Which language models an MCP client may have: the configured one, and those that the operator lets it name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from model_endpoint import ModelEndpoint, calls
from model_stage import ANTHROPIC, OPENAI, scripted, step

from pursuit import Runtime
from pursuit.config.configuration import Configuration
from pursuit.policy.rules import OperatorPolicy
from pursuit.server.missions.server import mission_server

pytestmark = pytest.mark.usefixtures("quick_python")

REACHED = {"criterion_id": "c", "kind": "metric_threshold", "metric": "steps", "op": ">=", "target": 1}
ASKED: dict[str, Any] = {
    "directive": "Make a step",
    "criteria": [{**REACHED, "required": True}],
    "budget": {"max_iterations": 3},
    "tool_allowlist": ["world.*"],
}


@asynccontextmanager
async def connected(folder: Path, era: Any, **configured: Any) -> AsyncIterator[tuple[Runtime, Client]]:
    settings = {"task_patience": 120.0}  # one turn goes on until a child has ended, however slow the machine is
    configuration = Configuration(policy=OperatorPolicy(mode="auto"), settings=settings, **configured)
    async with (
        Runtime(state=folder / "l.db", config=configuration, servers={"world": [step]}) as runtime,
        mission_server(runtime) as server,
        Client(server, mode=era, cache=None) as client,
    ):
        yield runtime, client


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_client_that_names_no_proposer_gets_the_configured_model(
    era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(monkeypatch, calls(("world__step", {}))):
        async with connected(tmp_path, era, model=ANTHROPIC) as (_runtime, client):
            started = (await client.call_tool("mission_start", ASKED)).structured_content
            assert started["proposer"] == "model"
            done = await client.call_tool("mission_iterate", {"session_id": started["session_id"]})
            assert done.structured_content["iterations"][0]["verdict_reason"] == "criteria_met"
            named = await client.call_tool("mission_start", {**ASKED, "proposer": {"kind": "client"}})
            assert named.structured_content["proposer"] == "client"


@pytest.mark.guarantee("clients-name-no-model-of-their-own")
async def test_a_client_names_only_the_models_that_the_operator_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(monkeypatch, calls(("world__step", {}))) as endpoint:
        for number, (configured, allowed) in enumerate(
            [
                ({}, []),
                ({"model": ANTHROPIC}, [ANTHROPIC]),
                ({"client_models": frozenset({OPENAI})}, [OPENAI]),
                ({"model": ANTHROPIC, "client_models": frozenset({OPENAI})}, [ANTHROPIC, OPENAI]),
            ]
        ):
            async with connected(tmp_path / str(number), "legacy", **configured) as (_runtime, client):
                for model in (ANTHROPIC, OPENAI):
                    for proposer in (model, {"kind": "model", "model": model}):
                        result = await client.call_tool("mission_start", {**ASKED, "proposer": proposer})
                        assert result.structured_content is not None
                        assert bool(result.is_error) == (model not in allowed)
                        if model not in allowed:
                            (fault,) = result.structured_content["details"]["faults"]
                            assert fault["field"] == "proposer.model"
                            assert f'client_models = ["{model}"] to pursuit.toml' in fault["reason"]
        assert endpoint.seen == []


@pytest.mark.guarantee("clients-name-no-model-of-their-own")
async def test_nor_does_a_child_that_a_client_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: str | None, endpoint: ModelEndpoint) -> None:
        child = {"directive": "Step", "criteria": [REACHED], "budget": {"max_iterations": 2}, "proposer": OPENAI}
        async with connected(tmp_path / str(model), "legacy", model=model) as (runtime, client):
            asked = {**ASKED, "proposer": "client", "fleet": {}}
            result = await client.call_tool("mission_start", asked)
            assert result.structured_content is not None, result
            name = result.structured_content["session_id"]
            spawn = {"tool_calls": [{"tool_name": "fleet.spawn", "args": child}]}
            await client.call_tool("mission_iterate", {"session_id": name, "proposal": spawn})
            (call,) = (await runtime.runner.history(name, full=True)).as_json()["iterations"][0]["calls"]
            if model is None:
                assert call["outcome"] == "failed"
                assert "client_models" in call["error"]
                assert endpoint.seen == []
            else:
                assert (call["outcome"], len(endpoint.seen)) == ("ok", 1)

    for model in (None, OPENAI):
        with scripted(monkeypatch, calls(("world__step", {}))) as endpoint:
            await scene(model, endpoint)
