"""The six kinds of criteria, which must hold before a mission counts as done. `evaluate` decides them.

Invariant: every instance is well formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partialmethod
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints, model_serializer

from pursuit.core.base_model import Args, Broken, Flag, InputModel, Name, Number, Text, Whole, value_in
from pursuit.core.log_metrics import MetricRule, Take, checked_group
from pursuit.core.patterns import checked_expression, checked_path, checked_pattern

Comparison = Literal["<", "<=", ">", ">=", "==", "!="]
Direction = Literal["decreasing", "increasing", "non_increasing", "non_decreasing"]
MAX_WINDOW = 1_000
MAX_CONFIRM = 100
MAX_FACTOR = 8
"""The largest multiple of a number of fresh measurements. Each rejected winner was one more chance to be lucky, so it
doubles the number: otherwise a long search eventually wins by luck. At the true minimum, half a standard deviation
above its target, 8 % of searches win by luck, whatever their length (with 3, 4, 5, ... 20 it was 30 % of those with 60
trials, 39 % of those with 300)."""


class Criterion(InputModel):
    """The fields of every criterion."""

    criterion_id: Annotated[str, StringConstraints(min_length=1, max_length=128, strip_whitespace=True)]
    required: Flag = True

    def __bool__(self) -> bool:
        """Raises: for `0 <= metric("cost") <= 1` and `a and b`, Python would drop the first criterion."""
        instead = 'write one criterion for each limit: [metric("cost") >= 0, metric("cost") <= 1]'
        raise TypeError(f"the criterion {describe(self)!r} is neither true nor false; {instead}")

    def optional(self) -> Self:
        """The same criterion as an optional one, which is reported and never blocks."""
        return self.model_copy(update={"required": False})

    def named(self, criterion_id: str) -> Self:
        """The same criterion under another id."""
        fields: dict[str, Any] = {**self.model_dump(), "criterion_id": criterion_id}
        return type(self)(**fields)


def _bare_metric(value: str) -> str:
    bare = value.removeprefix("metrics.")
    if not bare:
        raise ValueError("does not name a metric; write metrics.NAME or NAME")
    return bare


def _stored_metric(bare: str) -> str:
    return f"metrics.{bare}" if bare.startswith("metrics.") else bare  # reading it again takes one prefix away


MetricName = Annotated[Name, AfterValidator(_bare_metric), PlainSerializer(_stored_metric)]


class MetricThreshold(Criterion):
    """The latest value of a metric compares with a number.

    With `hold` the last value still counts after a call of its tool that reports none. With `confirm` that many fresh
    measurements of the same call must meet it, by their mean, median or worst value. Criteria with `same_call` count
    only if one call meets them all.
    """

    kind: Literal["metric_threshold"] = "metric_threshold"
    metric: MetricName
    op: Comparison
    target: Number
    source: Name | None = None
    scope: Literal["mission", "iteration"] = "mission"
    hold: Flag = False
    confirm: Annotated[Whole, Field(ge=0, le=MAX_CONFIRM)] = 0
    confirm_by: Literal["mean", "median", "worst"] = "mean"
    same_call: Flag = False

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        if given.get("confirm_by", "mean") != "mean" and not given.get("confirm"):
            yield Broken("needs confirm, the number of fresh measurements", "confirm_by")
        if given.get("confirm") and given.get("confirm_by") == "worst" and given.get("op") in ("==", "!="):
            yield Broken("works only with < <= > >=: == and != do not have a worst value", "confirm_by")


class MetricTrend(Criterion):
    """The least-squares slope over the last points of a metric has the wanted direction."""

    kind: Literal["metric_trend"] = "metric_trend"
    metric: MetricName
    direction: Direction
    window: Annotated[Whole, Field(ge=2, le=MAX_WINDOW)] = MAX_WINDOW
    min_points: Annotated[Whole, Field(ge=2, le=MAX_WINDOW)] = 2
    source: Name | None = None
    tolerance: Annotated[Number, Field(ge=0, le=1)] = 1e-12
    """The largest slope that counts as flat: the change per point, as a fraction of the largest value."""
    hold: Flag = False

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        least, window = given.get("min_points", 2), given.get("window", MAX_WINDOW)
        if isinstance(least, int) and isinstance(window, int) and 2 <= window < least <= MAX_WINDOW:
            yield Broken(f"min_points ({least}) cannot exceed window ({window})")


class EventSeen(Criterion):
    """A tool reported an event of this name."""

    kind: Literal["event"] = "event"
    event_name: Name
    source: Name | None = None
    scope: Literal["mission", "iteration"] = "mission"


class ToolCallSucceeded(Criterion):
    """The runtime recorded enough successful calls of a tool."""

    kind: Literal["tool_call_succeeded"] = "tool_call_succeeded"
    tool_name: Name
    min_count: Annotated[Whole, Field(ge=1)] = 1


Expression = Annotated[str, AfterValidator(checked_expression)]
Pattern = Annotated[Name, AfterValidator(checked_pattern)]


class Predicate(Criterion):
    """One Python expression over `obs`, run in the sandbox."""

    kind: Literal["predicate"] = "predicate"
    expression: Expression


class Count(InputModel):
    """The number of matches that a result must have."""

    pattern: Pattern
    op: Comparison = ">="
    target: Annotated[Whole, Field(ge=0)] = 1


class Expectation(InputModel):
    """Conditions on the result of a check; all that are given must hold.

    An exit code in `never_exit_codes` means that the check can never be met; it ends the mission.
    """

    exit_code: Whole | None = None
    never_exit_codes: Annotated[list[Whole], Field(max_length=256)] = Field(default_factory=list[int])
    predicate: Expression | None = None
    file: Name | None = None
    count: Count | None = None
    text: Pattern | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        wanted, never = given.get("exit_code"), given.get("never_exit_codes")
        if isinstance(never, list) and (0 if wanted is None else wanted) in never:
            yield Broken("contains the exit code that meets the check", "never_exit_codes")


class CheckMetric(InputModel):
    """Where a metric is in the output of a check's command, or in a file that it writes."""

    pattern: Annotated[Name, AfterValidator(checked_group)] | None = None
    path: Annotated[Name, AfterValidator(checked_path)] | None = Field(None, alias="json")
    file: Name | None = None
    take: Take = "last"

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        if (given.get("pattern") is None) == (given.get("json") is None):
            yield Broken("give exactly one of pattern and json (a path into a JSON line)", "pattern")

    @model_serializer
    def _stored(self) -> dict[str, str | None]:
        """By the names in a mission file: `json` would hide a method of the model."""
        return {"pattern": self.pattern, "json": self.path, "file": self.file, "take": self.take}

    def rule(self, name: str) -> MetricRule:
        return MetricRule(name=name, pattern=self.pattern, json=self.path, file=self.file, take=self.take)


def _as_pattern(value: object) -> object:
    return {"pattern": value} if isinstance(value, str) else value


class Check(Criterion):
    """A call that the runtime makes itself, and the conditions on its result.

    With `after` the check waits until that tool was called, whatever the outcome. With `confirm` it is repeated
    immediately and must be met that many more times.
    """

    kind: Literal["check"] = "check"
    tool_name: Name | None = None
    args: Args = Field(default_factory=dict)
    command: Annotated[list[Text], Field(min_length=1, max_length=1_000)] | None = None
    cwd: Text | None = None
    network: Flag = False
    isolated: Flag = True
    """`network` and `isolated` are about the command of a check of an agent's files."""
    check: Name | None = None
    timeout: Annotated[Number, Field(gt=0, le=86_400)] | None = None
    idempotent: Flag = False
    expect: Expectation = Field(default_factory=Expectation)
    when: Literal["met", "checkpoint"] = "met"
    after: Name | None = None
    confirm: Annotated[Whole, Field(ge=0, le=MAX_CONFIRM)] = 0
    metrics: dict[Name, Annotated[CheckMetric, BeforeValidator(_as_pattern)]] = Field(
        default_factory=dict, max_length=100
    )
    """Metrics that the command reports; then the check does not wait for other criteria, which may need them."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        forms = [name for name in ("tool_name", "command", "check") if given.get(name) is not None]
        if len(forms) != 1:
            yield Broken("needs exactly one of tool_name, command and check" + (f", not {forms}" if forms else ""))
        if "command" not in forms and given.get("cwd") is not None:
            yield Broken("cwd requires command")
        if "command" not in forms and (given.get("network") or given.get("isolated") is False):
            yield Broken("network and isolated require command")
        if "tool_name" in forms and given.get("metrics"):
            yield Broken("metrics requires a command: a tool reports its metrics itself")
        if "tool_name" not in forms and given.get("args"):
            yield Broken("args requires tool_name")
        for name in ("exit_code", "never_exit_codes"):
            if "tool_name" in forms and value_in(given.get("expect"), name) not in (None, []):
                yield Broken(f"expect.{name} requires a command: tool calls do not have exit codes")


AnyCriterion = Annotated[
    MetricThreshold | MetricTrend | EventSeen | ToolCallSucceeded | Predicate | Check, Field(discriminator="kind")
]


def doubled(number: int, rejected: int) -> int:
    """The number of fresh measurements, doubled after each rejection up to `MAX_FACTOR` times."""
    return number * min(MAX_FACTOR, 1 << min(rejected, MAX_FACTOR))


def describe(criterion: Criterion) -> str:
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


# Criteria in Python: `metric("mass") <= 2.4`, `event("certified")`.


class MetricRef:
    """A metric by its path; comparing it with a number makes a criterion."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: str, **fields: Any) -> None:
        self._path = path
        self._fields = fields

    def _threshold(self, op: Comparison, target: object) -> MetricThreshold:
        number = f"{target:g}" if isinstance(target, int | float) else repr(target)
        return MetricThreshold(
            criterion_id=f"{self._path} {op} {number}"[:128],
            metric=self._path,
            op=op,
            target=cast("float", target),
            **self._fields,
        )

    __lt__ = partialmethod(_threshold, "<")
    __le__ = partialmethod(_threshold, "<=")
    __gt__ = partialmethod(_threshold, ">")
    __ge__ = partialmethod(_threshold, ">=")
    __eq__ = partialmethod(_threshold, "==")  # pyright: ignore[reportAssignmentType]
    __ne__ = partialmethod(_threshold, "!=")  # pyright: ignore[reportAssignmentType]

    def trend(
        self, direction: Direction, *, window: int = 1_000, min_points: int = 2, tolerance: float = 1e-12
    ) -> MetricTrend:
        """A criterion on the slope of the last points."""
        return MetricTrend(
            criterion_id=f"{self._path} {direction}"[:128],
            metric=self._path,
            direction=direction,
            window=window,
            min_points=min_points,
            tolerance=tolerance,
            source=self._fields["source"],
            hold=self._fields["hold"],
        )


def metric(
    path: str,
    *,
    source: str | None = None,
    scope: Literal["mission", "iteration"] = "mission",
    hold: bool = False,
    confirm: int = 0,
    confirm_by: Literal["mean", "median", "worst"] = "mean",
    same_call: bool = False,
) -> MetricRef:
    """A metric, optionally only as `source` (a tool glob) reports it."""
    fields = {"source": source, "scope": scope, "hold": hold, "same_call": same_call}
    return MetricRef(path, confirm=confirm, confirm_by=confirm_by, **fields)


def event(name: str, *, source: str | None = None, scope: Literal["mission", "iteration"] = "mission") -> EventSeen:
    """A criterion on an event that a tool must report."""
    return EventSeen(criterion_id=f"event {name}"[:128], event_name=name, source=source, scope=scope)


def predicate(expression: str) -> Predicate:
    """One Python expression over `obs`, run in the sandbox."""
    return Predicate(criterion_id=expression.strip()[:128] or "predicate", expression=expression)


def succeeded(tool_name: str, *, at_least: int = 1) -> ToolCallSucceeded:
    """A criterion on the number of successful calls of a tool, as the runtime recorded them."""
    return ToolCallSucceeded(criterion_id=f"{tool_name} succeeded"[:128], tool_name=tool_name, min_count=at_least)


def check(
    what: str | Sequence[str],
    args: Mapping[str, Any] | None = None,
    *,
    when: Literal["met", "checkpoint"] = "met",
    after: str | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
    confirm: int = 0,
    **expect: Any,
) -> Check:
    """A tool (by name) or a command (an argv) that the runtime runs itself; `expect` says what must hold."""
    tool, command = (what, None) if isinstance(what, str) else (None, list(what))
    return Check(
        criterion_id=f"check {tool or ' '.join(what)}"[:128],
        tool_name=tool,
        args=args or {},
        command=command,
        cwd=cwd,
        timeout=timeout,
        when=when,
        after=after,
        confirm=confirm,
        expect=Expectation(**expect),
    )
