"""The input model of a mission: a directive, criteria, a budget, tools, a proposer; with limits and defaults.

Invariant: every `Mission` instance is valid by itself; whether its tools exist is checked at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError, field_validator

from pursuit.core.base_model import Args, Broken, Flag, InputModel, Name, Number, Text, Whole, faults_of, value_in
from pursuit.core.caps import Budget
from pursuit.core.criteria import AnyCriterion
from pursuit.core.log_metrics import Take
from pursuit.core.patterns import checked_path, checked_pattern, checked_script
from pursuit.core.proposing import DEFAULT_KIND, ByKind, ProposerFacts, ProposerSettings, read_settings, settings_type
from pursuit.errors import Fault, ValidationFailed

FLEET = "fleet"
SPAWN = f"{FLEET}.spawn"
"""The tool that starts a child."""
OWN_SERVER = "pursuit"
NOTE = f"{OWN_SERVER}.note"
READ_RESULT = f"{OWN_SERVER}.read_result"
"""The tools that every language model has: to write notes, and to read the rest of a long result."""
FIRST, ALL = "first", "all"
"""`first`: the first child that meets all criteria wins and ends the others. `all`: all children run to their ends, and
the first in the list that met them wins. Any other value of `pick` is the id of a criterion."""
MAX_CHILDREN = 1_000
MAX_DEPTH = 8
MAX_AT_ONCE = 64


class Fleet(InputModel):
    """The limits of the child missions that a mission may start.

    With a `max_depth` of 1 the children cannot start children.
    """

    max_children: Annotated[Whole, Field(ge=1, le=MAX_CHILDREN)] = 8
    max_depth: Annotated[Whole, Field(ge=1, le=MAX_DEPTH)] = 1
    at_once: Annotated[Whole, Field(ge=1, le=MAX_AT_ONCE)] = 4
    restart: Literal["never", "on_failure"] = "never"
    max_restarts: Annotated[Whole, Field(ge=1, le=100)] = 3
    share_tools: Flag = False
    pick: Name | None = None
    """Selects the child whose results decide the mission's criteria; None if the mission decides them itself."""


MAX_CRITERIA = 64
QUEUE = "default"
"""The default queue of a mission."""
DEFAULT_STAGNATION = 3
MAX_STAGNATION = 1_000


class EveryIteration(InputModel):
    """A checkpoint after each iteration."""

    kind: Literal["every_iteration"] = "every_iteration"


class EveryN(InputModel):
    """A checkpoint after each n-th iteration."""

    kind: Literal["every_n_iterations"] = "every_n_iterations"
    n: Annotated[Whole, Field(ge=1, le=1_000_000)]


class EverySeconds(InputModel):
    """A checkpoint at the first iteration, then t seconds after the last one."""

    kind: Literal["every_t_seconds"] = "every_t_seconds"
    t: Annotated[Number, Field(gt=0)]


class OnEvent(InputModel):
    """A checkpoint in each iteration in which the event occurs."""

    kind: Literal["on_event"] = "on_event"
    event_name: Name


Cadence = Annotated[EveryIteration | EveryN | EverySeconds | OnEvent, Field(discriminator="kind")]


class Pace(InputModel):
    """The minimum time between iterations, which grows while nothing changes."""

    seconds: Annotated[Number, Field(gt=0, le=86_400)]
    backoff: Annotated[Number, Field(ge=1, le=10)] = 1.5
    max_seconds: Annotated[Number, Field(gt=0, le=86_400)] | None = None


class ObserveRule(InputModel):
    """Extracts one metric from a tool's result by JMESPath or by a regular expression.

    For a command it reads the log first. `take` says which match counts: by default the last in a log, and the first
    in any other result.
    """

    tool: Name
    metric: Name
    jmespath: Annotated[Text, AfterValidator(checked_path)] | None = None
    regex: Annotated[Text, AfterValidator(checked_pattern)] | None = None
    take: Take | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        if (given.get("jmespath") is None) == (given.get("regex") is None):
            yield Broken("needs exactly one of jmespath and regex")


Script = Annotated[str, AfterValidator(checked_script)]


class ToolCall(InputModel):
    """One proposed call."""

    tool_name: Name
    args: Args = Field(default_factory=dict)


class Proposal(InputModel):
    """The actions of one iteration: calls, or a script; an empty list of calls means nothing to do."""

    tool_calls: Annotated[list[ToolCall], Field(max_length=256)] | None = None
    script: Script | None = None
    rationale: Annotated[str, StringConstraints(max_length=8_192)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        if (given.get("tool_calls") is None) == (given.get("script") is None):
            yield Broken("needs exactly one of tool_calls and script")


class MissionPolicy(InputModel):
    """The calls that this mission may not make, or only with approval. It can only tighten the operator's policy."""

    deny: Annotated[list[Name], Field(max_length=1_000)] = Field(default_factory=list[str])
    ask: Annotated[list[Name], Field(max_length=1_000)] = Field(default_factory=list[str])
    mode: Literal["ask", "never"] | None = None


class Workspace(InputModel):
    """The git repository that an agent works in: in a separate worktree, or `in_place`.

    Changes to files that match `protect` never count. The ignored files in `link` are linked into each worktree.
    """

    path: Text = "."
    protect: Annotated[list[Name], Field(max_length=256)] = Field(default_factory=list[str])
    link: Annotated[list[Name], Field(max_length=64)] = Field(default_factory=list[str])
    in_place: Flag = False

    @field_validator("protect", "link")
    @classmethod
    def _inside(cls, value: list[str]) -> list[str]:
        for one in value:
            if one.startswith(("/", ":", "~")) or ".." in one.split("/"):
                raise ValueError(f"{one!r} must be a path inside the repository, such as tests/**")
        return value


def _threshold(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if 1 <= number <= MAX_STAGNATION and number == int(number):
        return int(number)  # 3.0 is a whole number in JSON
    if value is not None and value != "off":
        raise ValueError(f'must be a whole number from 1 to {MAX_STAGNATION}, or "off"')
    return value


ONE_WAY = "give exactly one of tool_allowlist and allow_all_tools = true"
NO_CRITERIA = (
    "a mission needs at least one criterion, such as "
    '{ criterion_id = "loss", kind = "metric_threshold", metric = "loss", op = "<", target = 0.1 }'
)


class Mission(InputModel):
    """A directive with everything needed to pursue it."""

    NEEDED = {"criteria": NO_CRITERIA}  # noqa: RUF012 - a ClassVar of the base

    directive: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=8_192)]
    criteria: Annotated[list[AnyCriterion], Field(min_length=1, max_length=MAX_CRITERIA)]
    budget: Budget
    tool_allowlist: Annotated[list[Name], Field(min_length=1, max_length=1_000)] | None = None
    allow_all_tools: Flag = False
    checkpoint_cadence: Cadence = Field(default_factory=EveryIteration)
    stagnation_threshold: Annotated[int | Literal["off"] | None, BeforeValidator(_threshold)] = None
    pace: Pace | None = None
    observe: Annotated[list[ObserveRule], Field(max_length=256)] = Field(default_factory=list[ObserveRule])
    proposer: Annotated[ProposerSettings, ByKind()] = Field(default_factory=lambda: read_settings(DEFAULT_KIND))
    workspace: Workspace | None = None
    """The agent's workspace; only for the proposer `agent`."""
    allow_scripted_strategies: Flag = False
    lessons: Flag = True
    """True if a proposing language model is shown the lessons of similar missions."""
    policy: MissionPolicy | None = None
    fleet: Fleet | None = None
    share: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list[str])
    """The names of the tokens that may see and drive it besides its owner; `*` means all."""
    queue: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = QUEUE
    """The queue of the workers that drive it, if several machines share the ledger."""

    @field_validator("pace", mode="before")
    @classmethod
    def _pace_in_seconds(cls, value: object) -> object:
        return {"seconds": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        criteria = given.get("criteria")
        listed = cast("list[Any]", criteria) if isinstance(criteria, list | tuple) else []
        ids = [
            criterion_id_of(criterion) for criterion in listed[:MAX_CRITERIA]
        ]  # a longer list fails the length check
        twice = sorted({name for name in ids if name is not None and ids.count(name) > 1})
        if twice:
            yield Broken(f"criterion_id must be unique; given twice: {', '.join(twice)}", "criteria")
        named, everything = given.get("tool_allowlist") is not None, bool(given.get("allow_all_tools"))
        kind = settings_type(given.get("proposer"))
        works = kind is not None and kind.WORKSPACE
        if named and everything:
            yield Broken(ONE_WAY, "tool_allowlist")
        if works and given.get("workspace") is None:
            yield Broken('the proposer agent works in a git repository: give [workspace] with path = "."', "workspace")
        if not works and given.get("workspace") is not None:
            yield Broken("only the proposers agent and best_of have a workspace; remove it", "workspace")
        if kind is not None:
            yield from kind.rules(given)

    @property
    def names_no_tools(self) -> bool:
        """True if the program that starts it must choose its tools; a proposer with a workspace may do without."""
        return self.tool_allowlist is None and not self.allow_all_tools and not self.proposer.WORKSPACE

    def with_model(self, name: str) -> Mission:
        """The mission with another language model; raises `ValidationFailed` if its proposer is not one."""
        return self.model_copy(update={"proposer": self.proposer.with_model(name)})

    @property
    def picks(self) -> bool:
        return self.fleet is not None and self.fleet.pick is not None

    def stagnation(self, facts: ProposerFacts) -> int | None:
        """The threshold in force; for some proposers it is off by default."""
        if self.stagnation_threshold == "off":
            return None
        if self.stagnation_threshold is None:
            return DEFAULT_STAGNATION if facts.stagnates else None
        return self.stagnation_threshold


def criterion_id_of(criterion: object) -> str | None:
    found = value_in(criterion, "criterion_id")
    return found.strip() if isinstance(found, str) else None


def parse_mission(data: Mapping[str, Any], *, source: str | None = None) -> Mission:
    """Validates a mission in plain data; raises every fault, with the name of the file."""
    broken = list(without_tools(data))
    faults = [Fault(field=str(one.field), reason=one.reason) for one in broken]
    try:
        mission = Mission(**data)
    except ValidationFailed as failed:
        faults += failed.faults
    else:
        if not faults:
            return mission
    raise ValidationFailed([replace(fault, source=source) for fault in faults])


def without_tools(given: Mapping[str, Any]) -> Iterable[Broken]:
    """Yields a fault if a mission without a starting program names no tools; proposers with a workspace are exempt."""
    kind = settings_type(given.get("proposer", DEFAULT_KIND))
    named = given.get("tool_allowlist") is not None or given.get("allow_all_tools")
    if not named and (kind is None or not kind.WORKSPACE):
        yield Broken(ONE_WAY, "tool_allowlist")


def parse_proposal(data: object) -> Proposal:
    try:
        return Proposal.model_validate(data)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, Proposal)) from None
