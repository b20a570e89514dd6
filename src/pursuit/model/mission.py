"""What a mission is: a goal in words, criteria, a budget, tools, and who proposes.

Owns: the input shape, its limits and its defaults. Knows no storage and no servers.
Invariant: a `Mission` that exists is valid by itself; whether its tools exist is asked at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from pursuit.errors import Fault, ValidationFailed
from pursuit.model.criteria import AnyCriterion, Check, Name, Shape, checked_pattern
from pursuit.model.expressions import checked_script
from pursuit.model.faults import faults_of

CAPS = ("max_iterations", "max_wall_clock_seconds", "max_tool_calls", "max_tokens", "max_cost_usd")
DEFAULT_STAGNATION = 3


class Budget(Shape):
    """Caps, each a positive number or -1 for none; one of the first two must be real unless `unbounded`."""

    max_iterations: int = -1
    max_wall_clock_seconds: float = -1
    max_tool_calls: int = -1
    max_tokens: int = -1
    max_cost_usd: float = -1
    on_exhausted: Literal["stop", "wait"] = "stop"
    unbounded: bool = False

    @field_validator(*CAPS)
    @classmethod
    def _positive_or_none(cls, value: float) -> float:
        if value != -1 and not 0 < value < float("inf"):
            raise ValueError("must be a positive number, or -1 for no cap")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.max_iterations == -1 and self.max_wall_clock_seconds == -1 and not self.unbounded:
            raise ValueError("give max_iterations or max_wall_clock_seconds, or say unbounded = true")
        return self


class EveryIteration(Shape):
    """A checkpoint after each iteration."""

    kind: Literal["every_iteration"] = "every_iteration"


class EveryN(Shape):
    """A checkpoint after each n-th iteration."""

    kind: Literal["every_n_iterations"] = "every_n_iterations"
    n: Annotated[int, Field(ge=1, le=1_000_000)]


class EverySeconds(Shape):
    """A checkpoint at the first iteration, then t seconds after the last one."""

    kind: Literal["every_t_seconds"] = "every_t_seconds"
    t: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class OnEvent(Shape):
    """A checkpoint in each iteration that saw the event."""

    kind: Literal["on_event"] = "on_event"
    event_name: Name


Cadence = Annotated[EveryIteration | EveryN | EverySeconds | OnEvent, Field(discriminator="kind")]


class Pace(Shape):
    """The least time between iterations, growing while nothing changes."""

    seconds: Annotated[float, Field(gt=0, le=86_400)]
    backoff: Annotated[float, Field(ge=1, le=10)] = 1.5
    max_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None


class ObserveRule(Shape):
    """Lifts one metric out of a tool's result by JMESPath or by a regular expression."""

    tool: Name
    metric: Name
    jmespath: str | None = None
    regex: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.jmespath is None) == (self.regex is None):
            raise ValueError("needs exactly one of jmespath and regex")
        if self.regex is not None:
            checked_pattern(self.regex)
        if self.jmespath is not None:
            try:
                jmespath.compile(self.jmespath)
            except JMESPathError as error:
                raise ValueError(f"jmespath does not parse: {error}") from None
        return self


class ToolCall(Shape):
    """One call that somebody proposes."""

    tool_name: Name
    args: Mapping[str, Any] = Field(default_factory=dict)


class Proposal(Shape):
    """What to do in one iteration: calls, or a script; an empty list of calls is nothing to do."""

    tool_calls: Annotated[list[ToolCall], Field(max_length=256)] | None = None
    script: str | None = None
    rationale: Annotated[str, StringConstraints(max_length=8_192)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.tool_calls is None) == (self.script is None):
            raise ValueError("needs exactly one of tool_calls and script")
        if self.script is not None:
            checked_script(self.script)
        return self


class RepeatProposer(Shape):
    """The same call again and again."""

    kind: Literal["repeat"] = "repeat"
    tool_name: Name
    args: Mapping[str, Any] = Field(default_factory=dict)


class ScriptProposer(Shape):
    """The operator's own script, run once for each iteration."""

    kind: Literal["script"] = "script"
    script: str

    _checked = field_validator("script")(checked_script)


class ClientProposer(Shape):
    """Whoever drives the mission hands in each proposal."""

    kind: Literal["client"] = "client"


class ReplayProposer(Shape):
    """Recorded proposals, in order."""

    kind: Literal["replay"] = "replay"
    proposals: Annotated[list[Proposal], Field(min_length=1, max_length=100_000)]


AnyProposer = Annotated[RepeatProposer | ScriptProposer | ClientProposer | ReplayProposer, Field(discriminator="kind")]


class Mission(Shape):
    """A directive with everything that is needed to pursue it."""

    directive: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=8_192)]
    criteria: Annotated[list[AnyCriterion], Field(min_length=1, max_length=64)]
    budget: Budget
    tool_allowlist: Annotated[list[Name], Field(min_length=1, max_length=1_000)] | None = None
    allow_all_tools: bool = False
    checkpoint_cadence: Cadence = EveryIteration()
    stagnation_threshold: Annotated[int, Field(ge=1, le=1_000)] | Literal["off"] | None = None
    pace: Pace | None = None
    observe: Annotated[list[ObserveRule], Field(max_length=256)] = Field(default_factory=list[ObserveRule])
    proposer: AnyProposer = ClientProposer()
    allow_scripted_strategies: bool = False

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ValidationFailed(faults_of(error, type(self))) from None

    @field_validator("pace", mode="before")
    @classmethod
    def _pace_in_seconds(cls, value: object) -> object:
        return {"seconds": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("proposer", mode="before")
    @classmethod
    def _proposer_by_kind(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("criteria")
    @classmethod
    def _unique_ids(cls, value: list[AnyCriterion]) -> list[AnyCriterion]:
        seen: set[str] = set()
        twice = sorted({c.criterion_id for c in value if c.criterion_id in seen or seen.add(c.criterion_id)})
        if twice:
            raise ValueError(f"criterion_id must be unique; given twice: {', '.join(twice)}")
        return value

    @model_validator(mode="after")
    def _one_allowlist(self) -> Self:
        if (self.tool_allowlist is not None) == self.allow_all_tools:
            raise ValueError("give exactly one of tool_allowlist and allow_all_tools = true")
        return self

    @property
    def stagnation(self) -> int | None:
        """The threshold in force; `repeat` polls, so it has none unless asked for."""
        if self.stagnation_threshold == "off":
            return None
        if self.stagnation_threshold is None:
            return None if isinstance(self.proposer, RepeatProposer) else DEFAULT_STAGNATION
        return self.stagnation_threshold

    @property
    def command_checks(self) -> list[Check]:
        """The checks that would run an argv."""
        return [c for c in self.criteria if isinstance(c, Check) and c.command is not None]


def parse_mission(data: Mapping[str, Any], *, source: str | None = None) -> Mission:
    """The mission in plain data, or every fault with the file it is in."""
    try:
        return Mission(**data)
    except ValidationFailed as failed:
        raise ValidationFailed([_with_source(fault, source) for fault in failed.faults]) from None


def parse_proposal(data: object) -> Proposal:
    """The proposal in plain data, or every fault."""
    try:
        return Proposal.model_validate(data)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, Proposal)) from None


def _with_source(fault: Fault, source: str | None) -> Fault:
    return Fault(field=fault.field, reason=fault.reason, source=source, line=fault.line, column=fault.column)
