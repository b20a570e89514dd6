"""Missions whose proposer is a language model behind a stand-in of its provider's endpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, history, outcomes, play, stage
from model_endpoint import ModelEndpoint, Reply

from pursuit import Mission, metric
from pursuit.core.events import (
    CallRefused,
    ConversationCompacted,
    IterationProposed,
    ModelAnswered,
    ModelAsked,
    TurnContinued,
    WaitBegan,
)
from pursuit.core.state import MissionState
from pursuit.proposers.language import Patience, Retries
from pursuit.proposers.model.provider import Providers
from pursuit.service.service import Service

OPENAI, ANTHROPIC = "openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"
RESPONSES = "openai-responses:gpt-5-mini"
BOTH = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
ALL = pytest.mark.parametrize("model", [OPENAI, RESPONSES, ANTHROPIC])
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
QUICK = Retries(first_pause=0.01)
PATIENCE = Patience(first_pause=0.05, longest_pause=0.2)
DONE = [metric("steps") >= 1]


def step(key: str = "a", amount: int = 1) -> dict[str, Any]:
    """Makes a step."""
    return {"key": key, "metrics": {"steps": amount}}


def look(at: str) -> str:
    """Looks."""
    return f"saw {at}"


def scripted(monkeypatch: pytest.MonkeyPatch, *replies: Reply | Callable[[dict[str, Any]], Reply]) -> ModelEndpoint:
    """An endpoint that the providers' libraries will come to."""
    endpoint = ModelEndpoint(*replies)
    for name, value in endpoint.environment.items():
        monkeypatch.setenv(name, value)
    return endpoint


Scripted = Callable[..., ModelEndpoint]
"""The fixture of this name: `scripted` for the environment of one test."""


def quickly(service: Service, retries: Retries = QUICK, patience: Patience = PATIENCE) -> Service:
    """The service with short pauses before a model is asked again; its runtime closes the models."""
    place = service.driver.place
    models = place.access.models
    assert isinstance(models, Providers)
    retries = replace(retries, stall=min(retries.stall, models.retries.stall))
    access = replace(place.access, models=replace(models, retries=retries), patience=patience)
    driver = replace(service.driver, place=replace(place, access=access))
    return replace(service, models=access.models, driver=driver)


def pursued(
    folder: Path,
    wanted: Mission,
    *tools: Callable[..., Any],
    servers: dict[str, Any] | None = None,
    settings: dict[str, float] | None = None,
    retries: Retries = QUICK,
    patience: Patience = PATIENCE,
) -> tuple[MissionState, dict[type[Any], list[Any]], list[dict[str, Any]], list[tuple[str, str | None]]]:
    """The state at the end, the events by kind, the iterations, and every call with its outcome."""

    async def scene() -> Any:
        async with stage(folder, *(tools or (step, look)), servers=servers, settings=settings) as runtime:
            service = quickly(runtime.runner, retries, patience)
            started = await service.start(wanted)
            state = await service.run(started.session_id)
            kinds = (
                *(ModelAsked, ModelAnswered, ConversationCompacted, IterationProposed),
                *(TurnContinued, CallRefused, WaitBegan),
            )
            found = {kind: await events_of(runtime, started.session_id, kind) for kind in kinds}
            rows = await history(runtime, started.session_id)
            return state, found, rows, await outcomes(runtime, started.session_id)

    return play(scene)
