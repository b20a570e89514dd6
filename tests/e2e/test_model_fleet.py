"""A language model that starts children: they have its model, and their tokens come out of the parent's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, mission, stage
from model_endpoint import ModelEndpoint, Reply, calls

from pursuit import Budget, metric
from pursuit.core.events import CallSettled, MissionCreated

STEPS = {"criterion_id": "steps", "kind": "metric_threshold", "metric": "steps", "op": ">=", "target": 1}


def step(key: str = "a") -> dict[str, Any]:
    """Makes a step."""
    return {"key": key, "metrics": {"steps": 1}}


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"])
@pytest.mark.guarantee("fleet-never-over-spends")
async def test_a_models_child_is_asked_for_by_the_same_model_and_its_tokens_are_its_parents(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"directive": "Make a step", "criteria": [STEPS], "budget": {"max_iterations": 3, "max_tokens": 2_000}}
    replies = (
        calls(("fleet__spawn", wanted), tokens=(1_000, 50)),
        calls(("world__step", {"key": "b"}), tokens=(300, 20)),
    )
    with ModelEndpoint(*replies) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        async with stage(tmp_path, step) as runtime:
            parent = mission(
                criteria=[metric("steps", source="fleet.spawn") >= 1],
                budget=Budget(max_iterations=5, max_tokens=10_000),
                fleet={},
                proposer=model,
            )
            mission_id = (await runtime.runner.start(parent)).session_id
            state = await runtime.runner.run(mission_id)
            assert (state.status, state.tokens, state.lent["max_tokens"]) == ("completed", 1_050, 320)
            used = (await runtime.runner.status(mission_id)).as_json()["budget"]["used"]
            assert (used["tokens"], used["iterations"], used["tool_calls"]) == (1_370, 2, 2)
            (settled,) = await events_of(runtime, mission_id, CallSettled)
            assert settled.used["max_cost_usd"] > 0
            (made,) = await events_of(runtime, next(iter(state.children)), MissionCreated)
            assert made.mission["proposer"]["model"] == model
            assert not made.operators_own
        assert len(endpoint.seen) == 2


async def of_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, counted: int) -> tuple[Any, dict[str, Any]]:
    """A parent with two children whose model writes as much as it may, and counts so many tokens for ten bytes."""

    def reply(request: dict[str, Any]) -> Reply:
        sent = json.dumps(request["body"])
        read, wrote = int(len(sent) * counted / 10), request["body"]["max_completion_tokens"]
        if "fleet__spawn" in sent:
            return calls(("fleet__spawn", wanted), ("fleet__spawn", wanted), tokens=(1_000, 100))
        return calls(("world__look", {"key": str(len(endpoint.seen))}), tokens=(read, wrote))

    def look(key: str) -> str:
        """Looks."""
        return key

    budget = {"max_iterations": 20, "max_tokens": 12_000}
    proposer = {"kind": "model", "model": "openai:gpt-4o-mini", "max_tokens": 2_500}
    wanted = {"directive": "Look", "criteria": [STEPS], "budget": budget, "proposer": proposer}
    with ModelEndpoint(reply) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        async with stage(tmp_path, look) as runtime:
            parent = mission(
                criteria=[metric("steps", source="fleet.spawn") >= 1],
                budget=Budget(max_iterations=50, max_tokens=30_000),
                fleet={"share_tools": True},
                proposer=proposer,
            )
            mission_id = (await runtime.runner.start(parent)).session_id
            state = await runtime.runner.run(mission_id)
            return state, (await runtime.runner.status(mission_id)).as_json()["budget"]["used"]


@pytest.mark.guarantee("tokens-never-over-the-cap")
async def test_children_that_write_as_much_as_they_may_stay_within_their_parents_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, used = await of_children(monkeypatch, tmp_path, counted=3)
    spent = [child.used["max_tokens"] for child in state.children.values() if child.used is not None]
    assert len(spent) == 2
    assert all(8_000 < tokens <= 12_000 for tokens in spent)
    assert (state.verdict_reason, used["tokens"] <= 30_000) == ("max_tokens", True)


async def test_what_children_took_beyond_their_share_is_their_parents_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, used = await of_children(monkeypatch, tmp_path, counted=75)
    assert state.verdict_reason == "max_tokens"
    assert used["tokens"] == state.tokens + state.lent["max_tokens"] > 30_000, "told as it was"
    assert state.iteration_count <= 1, "and nothing was asked any more"
