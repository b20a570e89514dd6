"""The settings of the proposers with a language model: `model` (a provider's) and `sampling` (the client's)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from pursuit.core.base_model import Args, Flag, Number, Whole
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess

PRIORITIES = ("costPriority", "speedPriority", "intelligencePriority")
_MODEL_NAME = r"^[a-z][a-z0-9_-]*:\S+$"


def _model_name(value: object) -> object:
    if isinstance(value, str) and re.match(_MODEL_NAME, value) is None:
        raise ValueError("must be provider:name, such as anthropic:claude-haiku-4-5")
    return value


ModelName = Annotated[str, StringConstraints(pattern=_MODEL_NAME, max_length=200), BeforeValidator(_model_name)]


class AskedProposer(ProposerSettings):
    """The common settings of proposers with a language model; `max_tokens` limits one answer.

    With `turn = "agent"`, an iteration is a turn of up to `max_requests` requests; with `single`, it is one request.
    """

    LEARNS: ClassVar[bool] = True
    ASKS_MODEL: ClassVar[bool] = True

    max_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 4_096
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    instructions: Annotated[str, StringConstraints(max_length=8_192)] | None = None
    turn: Literal["agent", "single"] = "single"
    max_requests: Annotated[Whole, Field(ge=1, le=1_000)] = 8
    result_tokens: Annotated[Whole, Field(ge=100, le=1_000_000)] = 8_000
    """The maximum tokens of one result that the model gets."""
    window: Annotated[Whole, Field(ge=8_000, le=100_000_000)] | None = None
    """The model's context window in tokens, where it is not known."""

    def facts(self) -> ProposerFacts:
        return ProposerFacts(guarded=True)

    @property
    def max_requests_per_iteration(self) -> int | None:
        return self.max_requests if self.turn == "agent" else 1

    @property
    def result_room(self) -> int:
        return self.result_tokens

    @classmethod
    def upcast(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """A mission from before turns had several requests keeps one request for each iteration."""
        return stored if "turn" in stored else {**stored, "turn": "single"}


class ModelProposer(AskedProposer):
    """A provider's model, used directly: `anthropic:NAME`, `openai:NAME`, or any other of pydantic-ai.

    After repeated failures the models of `fallback` are asked. `settings` are passed to the provider.
    """

    INHERITED: ClassVar[bool] = True

    kind: Literal["model"] = "model"
    model: ModelName
    turn: Literal["agent", "single"] = "agent"
    fallback: Annotated[list[ModelName], Field(max_length=8)] = Field(default_factory=list[str])
    stream: Flag = True
    settings: Args = Field(default_factory=dict)

    @property
    def models(self) -> Sequence[str]:
        return (self.model, *self.fallback)

    def starts(self) -> Iterable[StartedProcess]:
        yield StartedProcess("model", [self.model])

    def with_model(self, name: str) -> Self:
        return self.model_copy(update={"model": name})


def _preferences(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """MCP's model preferences, checked; a hint may have further keys that a client knows."""
    for key, given in value.items():
        if key == "hints":
            rows = cast("list[Any]", given) if isinstance(given, list) else [None]
            names = [
                cast("Mapping[str, Any]", row).get("name", "") if isinstance(row, Mapping) else None for row in rows
            ]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("hints must be a list of objects, each with a name")
        elif key not in PRIORITIES:
            raise ValueError(f"{key[:80]!r} is not one of hints, {', '.join(PRIORITIES)}")
        elif isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ValueError(f"{key} must be a number from 0 to 1")
    return value


Preferences = Annotated[Args, AfterValidator(_preferences)]


class SamplingProposer(AskedProposer):
    """The model of the MCP client that drives the mission; `model_preferences` are those of MCP."""

    CHILDREN: ClassVar[str | None] = "clients do not drive children, so they cannot propose for them (sampling)"
    LENDS_MODEL: ClassVar[bool] = True
    USAGE_KNOWN: ClassVar[bool] = False  # MCP does not report the use of a client's model

    kind: Literal["sampling"] = "sampling"
    model_preferences: Preferences | None = None

    def preferences(self) -> Mapping[str, Any] | None:
        return self.model_preferences

    def with_preferences(self, preferences: Mapping[str, Any]) -> Self:
        return self.model_copy(update={"model_preferences": preferences})
