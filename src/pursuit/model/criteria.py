"""The six kinds of criteria: what a mission may ask of the world before it counts as done.

Owns: their shape and their limits. Does not decide them (`evaluate`). Invariant: a criterion that
exists is well formed, so deciding one never has to ask whether it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from pursuit.model.expressions import checked_expression

Name = Annotated[str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=False)]
Comparison = Literal["<", "<=", ">", ">=", "==", "!="]
MAX_WINDOW = 1_000


class Shape(BaseModel):
    """A frozen input shape that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Criterion(Shape):
    """What every criterion has."""

    criterion_id: Annotated[str, StringConstraints(min_length=1, max_length=128, strip_whitespace=True)]
    required: bool = True

    def optional(self) -> Self:
        """The same criterion, reported but never blocking."""
        return self.model_copy(update={"required": False})

    def named(self, criterion_id: str) -> Self:
        """The same criterion under another id."""
        return type(self).model_validate({**self.model_dump(), "criterion_id": criterion_id})


def _bare_metric(value: str) -> str:
    return value.removeprefix("metrics.")


class MetricThreshold(Criterion):
    """The latest value of a metric compares with a number."""

    kind: Literal["metric_threshold"] = "metric_threshold"
    metric: Name
    op: Comparison
    target: Number
    source: Name | None = None
    scope: Literal["mission", "iteration"] = "mission"

    _strip = field_validator("metric")(_bare_metric)

    @field_validator("target", mode="before")
    @classmethod
    def _no_booleans(cls, value: object) -> object:
        if isinstance(value, bool | str):
            raise ValueError("must be a number")
        return value


class MetricTrend(Criterion):
    """The least-squares slope over the last points of a metric has a sign."""

    kind: Literal["metric_trend"] = "metric_trend"
    metric: Name
    direction: Literal["decreasing", "increasing", "non_increasing", "non_decreasing"]
    window: Annotated[int, Field(ge=2, le=MAX_WINDOW)] = MAX_WINDOW
    min_points: Annotated[int, Field(ge=2, le=MAX_WINDOW)] = 2
    source: Name | None = None

    _strip = field_validator("metric")(_bare_metric)

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.min_points > self.window:
            raise ValueError(f"min_points ({self.min_points}) cannot exceed window ({self.window})")
        return self


class EventSeen(Criterion):
    """A tool reported an event of this name."""

    kind: Literal["event"] = "event"
    event_name: Name
    source: Name | None = None
    scope: Literal["mission", "iteration"] = "mission"


class ToolCallSucceeded(Criterion):
    """The runtime's own records hold enough successful calls of a tool."""

    kind: Literal["tool_call_succeeded"] = "tool_call_succeeded"
    tool_name: Name
    min_count: Annotated[int, Field(ge=1)] = 1


class Predicate(Criterion):
    """One Python expression over `obs`, run in the sandbox."""

    kind: Literal["predicate"] = "predicate"
    expression: str

    _checked = field_validator("expression")(checked_expression)


class Count(Shape):
    """How many matches a result must have."""

    pattern: Name
    op: Comparison = ">="
    target: Annotated[int, Field(ge=0)] = 1

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        return checked_pattern(value)


class Expectation(Shape):
    """What the result of a check must satisfy; everything that is given must hold."""

    exit_code: int | None = None
    predicate: str | None = None
    file: Name | None = None
    count: Count | None = None
    text: Name | None = None

    @field_validator("predicate")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        return None if value is None else checked_expression(value)

    @field_validator("text")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        return None if value is None else checked_pattern(value)


class Check(Criterion):
    """A call that the runtime makes itself, and what its result must satisfy."""

    kind: Literal["check"] = "check"
    tool_name: Name | None = None
    args: Mapping[str, Any] = Field(default_factory=dict)
    command: Annotated[list[str], Field(min_length=1, max_length=1_000)] | None = None
    cwd: str | None = None
    check: Name | None = None
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    idempotent: bool = False
    expect: Expectation = Expectation()
    when: Literal["met", "checkpoint"] = "met"

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [name for name in ("tool_name", "command", "check") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of tool_name, command and check" + (f", not {given}" if given else ""))
        if self.command is None and self.cwd is not None:
            raise ValueError("cwd goes with command")
        if self.tool_name is None and self.args:
            raise ValueError("args goes with tool_name")
        if self.tool_name is not None and self.expect.exit_code is not None:
            raise ValueError("expect.exit_code goes with a command: a tool call has no exit code")
        return self


AnyCriterion = Annotated[
    MetricThreshold | MetricTrend | EventSeen | ToolCallSucceeded | Predicate | Check, Field(discriminator="kind")
]


def checked_pattern(value: str) -> str:
    """The pattern itself if it compiles, else a ValueError that says why not."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return value


def describe(criterion: Criterion) -> str:
    """One line for people."""
    match criterion:
        case MetricThreshold():
            return f"{criterion.metric} {criterion.op} {criterion.target:g}"
        case MetricTrend():
            return f"{criterion.metric} is {criterion.direction.replace('_', '-')} over {criterion.window} points"
        case EventSeen():
            return f"event {criterion.event_name}"
        case ToolCallSucceeded():
            return f"{criterion.tool_name} succeeded {criterion.min_count} time{'s' * (criterion.min_count != 1)}"
        case Predicate():
            return criterion.expression
        case Check():
            what = criterion.tool_name or criterion.check or " ".join(criterion.command or ())
            return f"check {what}"
        case _:
            return criterion.criterion_id
