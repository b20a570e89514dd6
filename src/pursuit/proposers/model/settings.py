"""The settings of the proposers that ask a language model: `model`, a provider's, and `sampling`, the client's."""

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
    """What every proposer with a language model has; `max_tokens` bounds one answer.

    With `turn = "agent"` an iteration is a turn of up to `max_requests` requests; with `single` it is one request.
    """

    LEARNS: ClassVar[bool] = True
    ASKS_MODEL: ClassVar[bool] = True

    max_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 4_096
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    instructions: Annotated[str, StringConstraints(max_length=8_192)] | None = None
    turn: Literal["agent", "single"] = "single"
    max_requests: Annotated[Whole, Field(ge=1, le=1_000)] = 8
    result_tokens: Annotated[Whole, Field(ge=100, le=1_000_000)] = 8_000
    """How much of one result the model gets at once."""
    window: Annotated[Whole, Field(ge=8_000, le=100_000_000)] | None = None
    """The model's context window in tokens, where it is not known."""

    def facts(self) -> ProposerFacts:
        """A language model proposes, and the loop guard watches it."""
        return ProposerFacts(guarded=True)

    @property
    def max_requests_per_iteration(self) -> int | None:
        """The requests of a turn."""
        return self.max_requests if self.turn == "agent" else 1

    @property
    def result_room(self) -> int:
        """As the mission says."""
        return self.result_tokens

    @classmethod
    def upcast(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """A model that was asked before there were turns of several requests is asked once for each iteration."""
        return stored if "turn" in stored else {**stored, "turn": "single"}


class ModelProposer(AskedProposer):
    """A provider's model, asked directly: `anthropic:NAME`, `openai:NAME`, or any other of pydantic-ai.

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
        """The model and its fallbacks."""
        return (self.model, *self.fallback)

    def starts(self) -> Iterable[StartedProcess]:
        """The model is asked with the operator's key."""
        yield StartedProcess("model", [self.model])

    def with_model(self, name: str) -> Self:
        """The settings with another model."""
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

    CHILDREN: ClassVar[str | None] = "a child has no client that could propose (sampling)"
    LENDS_MODEL: ClassVar[bool] = True
    USAGE_KNOWN: ClassVar[bool] = False  # MCP does not say what a client's model uses

    kind: Literal["sampling"] = "sampling"
    model_preferences: Preferences | None = None

    def preferences(self) -> Mapping[str, Any] | None:
        """As the mission says."""
        return self.model_preferences

    def with_preferences(self, preferences: Mapping[str, Any]) -> Self:
        """The settings with these model preferences."""
        return self.model_copy(update={"model_preferences": preferences})
