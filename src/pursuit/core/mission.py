"""The input model of a mission: a directive, criteria, a budget, tools, a proposer; with limits and defaults.

Invariant: a `Mission` that exists is valid by itself; whether its tools exist is checked at the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError, field_validator

from pursuit.core.base_model import Args, Broken, Flag, InputModel, Name, Number, Text, Whole, faults_of
from pursuit.core.criteria import AnyCriterion
from pursuit.core.log_metrics import Take
from pursuit.core.patterns import checked_path, checked_pattern, checked_script
from pursuit.core.search import SearchProposer
from pursuit.errors import ValidationFailed

FLEET = "fleet"
SPAWN = f"{FLEET}.spawn"
"""The tool that starts a child."""
OWN_SERVER = "pursuit"
NOTE = f"{OWN_SERVER}.note"
READ_RESULT = f"{OWN_SERVER}.read_result"
"""The tools that every language model has: its notepad, and the rest of a long result."""
AGENT = "agent"
AGENT_TURN = f"{AGENT}.turn"
"""The tool that is one turn of a coding agent; what an agent asks permission for is `agent.KIND`."""
BEST_OF = "best_of"
FIRST, ALL = "first", "all"
"""The first agent that meets all criteria wins and ends the others; or all work to their ends, and the first listed of
those that met them wins. Any other word of `pick` is the id of a criterion."""
MAX_AGENTS = 16
MAX_CHILDREN = 1_000
MAX_DEPTH = 8
MAX_AT_ONCE = 64


class Fleet(InputModel):
    """The limits of the child missions that a mission may start.

    With a `max_depth` of 1 the children have no fleets of their own.
    """

    max_children: Annotated[Whole, Field(ge=1, le=MAX_CHILDREN)] = 8
    max_depth: Annotated[Whole, Field(ge=1, le=MAX_DEPTH)] = 1
    at_once: Annotated[Whole, Field(ge=1, le=MAX_AT_ONCE)] = 4
    restart: Literal["never", "on_failure"] = "never"
    max_restarts: Annotated[Whole, Field(ge=1, le=100)] = 3
    share_tools: Flag = False


MAX_CRITERIA = 64
QUEUE = "default"
"""The queue of a mission that names none."""
CAPS = ("max_iterations", "max_wall_clock_seconds", "max_tool_calls", "max_tokens", "max_cost_usd")
DEFAULT_STAGNATION = 3
MAX_STAGNATION = 1_000
PRIORITIES = ("costPriority", "speedPriority", "intelligencePriority")


class Budget(InputModel):
    """Caps, each a positive number or -1 for none; one of the first two must be real unless `unbounded`."""

    max_iterations: Whole = -1
    max_wall_clock_seconds: Number = -1
    max_tool_calls: Whole = -1
    max_tokens: Whole = -1
    max_cost_usd: Number = -1
    on_exhausted: Literal["stop", "wait"] = "stop"
    unbounded: Flag = False

    @field_validator(*CAPS)
    @classmethod
    def _positive_or_none(cls, value: float) -> float:
        if value != -1 and value <= 0:
            raise ValueError("must be a positive number, or -1 for no cap")
        return value

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """A mission has an end, unless it says that it has none."""
        open_ended = all(given.get(name, -1) == -1 for name in CAPS[:2])
        if open_ended and not given.get("unbounded"):
            yield Broken("give max_iterations or max_wall_clock_seconds, or set unbounded = true")


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
    """A checkpoint in each iteration that has the event."""

    kind: Literal["on_event"] = "on_event"
    event_name: Name


Cadence = Annotated[EveryIteration | EveryN | EverySeconds | OnEvent, Field(discriminator="kind")]


class Pace(InputModel):
    """The least time between iterations, growing while nothing changes."""

    seconds: Annotated[Number, Field(gt=0, le=86_400)]
    backoff: Annotated[Number, Field(ge=1, le=10)] = 1.5
    max_seconds: Annotated[Number, Field(gt=0, le=86_400)] | None = None


class ObserveRule(InputModel):
    """Lifts one metric out of a tool's result by JMESPath or by a regular expression.

    Of a command it reads the log first. `take` is which match counts: by default the last in a log, and the first in
    any other result.
    """

    tool: Name
    metric: Name
    jmespath: Annotated[Text, AfterValidator(checked_path)] | None = None
    regex: Annotated[Text, AfterValidator(checked_pattern)] | None = None
    take: Take | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """A rule has one way to find its value."""
        if (given.get("jmespath") is None) == (given.get("regex") is None):
            yield Broken("needs exactly one of jmespath and regex")


Script = Annotated[str, AfterValidator(checked_script)]


class ToolCall(InputModel):
    """One proposed call."""

    tool_name: Name
    args: Args = Field(default_factory=dict)


class Proposal(InputModel):
    """What to do in one iteration: calls, or a script; an empty list of calls is nothing to do."""

    tool_calls: Annotated[list[ToolCall], Field(max_length=256)] | None = None
    script: Script | None = None
    rationale: Annotated[str, StringConstraints(max_length=8_192)] | None = None

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """A proposal is calls or a script."""
        if (given.get("tool_calls") is None) == (given.get("script") is None):
            yield Broken("needs exactly one of tool_calls and script")


class MissionPolicy(InputModel):
    """What this mission may not do, or only after a question. It can only tighten the operator's policy."""

    deny: Annotated[list[Name], Field(max_length=1_000)] = Field(default_factory=list[str])
    ask: Annotated[list[Name], Field(max_length=1_000)] = Field(default_factory=list[str])
    mode: Literal["ask", "never"] | None = None


class RepeatProposer(InputModel):
    """The same call again and again."""

    kind: Literal["repeat"] = "repeat"
    tool_name: Name
    args: Args = Field(default_factory=dict)


class ScriptProposer(InputModel):
    """The operator's own script, run once for each iteration."""

    kind: Literal["script"] = "script"
    script: Script


class ClientProposer(InputModel):
    """The client that drives the mission hands in each proposal."""

    kind: Literal["client"] = "client"


_MODEL_NAME = r"^[a-z][a-z0-9_-]*:\S+$"


def _model_name(value: object) -> object:
    if isinstance(value, str) and re.match(_MODEL_NAME, value) is None:
        raise ValueError("must be provider:name, such as anthropic:claude-haiku-4-5")
    return value


ModelName = Annotated[str, StringConstraints(pattern=_MODEL_NAME, max_length=200), BeforeValidator(_model_name)]


class AskedProposer(InputModel):
    """What every proposer with a language model has; `max_tokens` bounds one answer.

    With `turn = "agent"` an iteration is a turn of up to `max_requests` requests; with `single` it is one request.
    """

    max_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 4_096
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    instructions: Annotated[str, StringConstraints(max_length=8_192)] | None = None
    turn: Literal["agent", "single"] = "single"
    max_requests: Annotated[Whole, Field(ge=1, le=1_000)] = 8
    result_tokens: Annotated[Whole, Field(ge=100, le=1_000_000)] = 8_000
    """How much of one result the model gets at once."""
    window: Annotated[Whole, Field(ge=8_000, le=100_000_000)] | None = None
    """The model's context window in tokens, where it is not known."""


class ModelProposer(AskedProposer):
    """A provider's model, asked directly: `anthropic:NAME`, `openai:NAME`, or any other of pydantic-ai.

    After repeated failures the models of `fallback` are asked. `settings` are passed to the provider.
    """

    kind: Literal["model"] = "model"
    model: ModelName
    turn: Literal["agent", "single"] = "agent"
    fallback: Annotated[list[ModelName], Field(max_length=8)] = Field(default_factory=list[str])
    stream: Flag = True
    settings: Args = Field(default_factory=dict)


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

    kind: Literal["sampling"] = "sampling"
    model_preferences: Preferences | None = None


class ReplayProposer(InputModel):
    """Recorded proposals, in order."""

    kind: Literal["replay"] = "replay"
    proposals: Annotated[list[Proposal], Field(min_length=1, max_length=100_000)]


Argv = Annotated[list[Text], Field(min_length=1, max_length=1_000)]


class AgentProposer(InputModel):
    """A coding agent: one iteration is one turn of it in the workspace.

    `command` speaks the Agent Client Protocol over stdio. `headless` gets the prompt on its standard input and asks
    for no permission, so it must be `unattended`.
    """

    kind: Literal["agent"] = "agent"
    name: Name | None = None
    """What reports and comparisons call it; by default its command."""
    command: Argv | None = None
    headless: Argv | None = None
    unattended: Flag = False
    inherit_env: Flag | Annotated[list[Name], Field(max_length=256)] = Field(default_factory=list[str])
    """Further variables of ours that the agent gets: all of them, or those that match a name or glob."""
    on_cut: Literal["keep", "rollback"] = "keep"
    """What a turn that was cut off leaves in the workspace: what it wrote, or the tree from before it."""
    turn_seconds: Annotated[Number, Field(gt=0, le=86_400)] = 3_600
    turn_idle_seconds: Annotated[Number, Field(gt=0, le=86_400)] = 600
    """Seconds without an update after which a turn is cut off."""
    permission_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 60
    """Seconds that a question of the agent is held; after them the answer is no, and the mission waits."""
    allow_unknown_cost: Flag = False
    """Whether a cap on tokens or cost may be set although the agent does not report them."""

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """One way to talk to it; without permissions it runs unattended."""
        if (given.get("command") is None) == (given.get("headless") is None):
            yield Broken("needs exactly one of command and headless")
        if given.get("headless") is not None and not given.get("unattended"):
            why = "must be true with headless: such an agent asks for no permission"
            yield Broken(why, "unattended")

    @property
    def argv(self) -> list[str]:
        """The words that start it."""
        return self.command or self.headless or []

    @property
    def label(self) -> str:
        """Its name."""
        return self.name or " ".join(self.argv)[:100]


class BestOfProposer(InputModel):
    """Several agents, each in a worktree and a child mission of its own; the first to meet all criteria wins.

    With the id of a metric criterion as `pick` all work to their end, and the best by that metric wins.
    """

    kind: Literal["best_of"] = "best_of"
    agents: Annotated[list[AgentProposer], Field(min_length=2, max_length=MAX_AGENTS)]
    pick: Name = FIRST

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """Each agent has a name of its own."""
        listed = given.get("agents")
        names = [_of(one, "name") for one in cast("list[Any]", listed)] if isinstance(listed, list) else []
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        if twice:
            yield Broken(f"each agent needs a name of its own; given twice: {', '.join(twice)}", "agents")


class Workspace(InputModel):
    """The git repository that an agent works in: in a worktree of its own, or `in_place`.

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


AnyProposer = Annotated[
    RepeatProposer
    | ScriptProposer
    | ClientProposer
    | ReplayProposer
    | SearchProposer
    | ModelProposer
    | SamplingProposer
    | AgentProposer
    | BestOfProposer,
    Field(discriminator="kind"),
]

GUARDED = frozenset({"client", "model", "sampling"})
"""The proposers whose calls the loop guard watches."""


def _threshold(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if 1 <= number <= MAX_STAGNATION and number == int(number):
        return int(number)  # 3.0 is a whole number in JSON
    if value is not None and value != "off":
        raise ValueError(f'must be a whole number from 1 to {MAX_STAGNATION}, or "off"')
    return value


NO_CRITERIA = (
    "a mission needs at least one criterion, such as "
    '{ criterion_id = "loss", kind = "metric_threshold", metric = "loss", op = "<", target = 0.1 }'
)


class Mission(InputModel):
    """A directive with everything that is needed to pursue it."""

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
    proposer: AnyProposer = Field(default_factory=ClientProposer)
    workspace: Workspace | None = None
    """Where an agent works; only for the proposer `agent`."""
    allow_scripted_strategies: Flag = False
    lessons: Flag = True
    """Whether a language model that proposes is shown what similar missions learned."""
    policy: MissionPolicy | None = None
    fleet: Fleet | None = None
    share: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list[str])
    """The tokens, by name, that may see and drive it beside its owner; `*` is all."""
    queue: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = QUEUE
    """The queue of the workers that drive it, on a ledger that several machines share."""

    @field_validator("pace", mode="before")
    @classmethod
    def _pace_in_seconds(cls, value: object) -> object:
        return {"seconds": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("proposer", mode="before")
    @classmethod
    def _proposer_by_kind(cls, value: object) -> object:
        if isinstance(value, str):
            return {"kind": "model", "model": value} if ":" in value else {"kind": value}
        return value

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        """Criteria have unique ids; tools are named in one way."""
        criteria = given.get("criteria")
        listed = cast("list[Any]", criteria) if isinstance(criteria, list | tuple) else []
        ids = [_id_of(criterion) for criterion in listed[:MAX_CRITERIA]]  # a longer list is refused for its length
        twice = sorted({name for name in ids if name is not None and ids.count(name) > 1})
        if twice:
            yield Broken(f"criterion_id must be unique; given twice: {', '.join(twice)}", "criteria")
        named, everything = given.get("tool_allowlist") is not None, bool(given.get("allow_all_tools"))
        agent = _kind_of(given.get("proposer")) in (AGENT, BEST_OF)
        if named == everything and (named or not agent):
            yield Broken("give exactly one of tool_allowlist and allow_all_tools = true", "tool_allowlist")
        yield from _agent_rules(given, agent=agent)

    @property
    def stagnation(self) -> int | None:
        """The threshold in force; `repeat` polls and `search` explores, so they have none by default."""
        if self.stagnation_threshold == "off":
            return None
        if self.stagnation_threshold is None:
            return None if isinstance(self.proposer, RepeatProposer | SearchProposer) else DEFAULT_STAGNATION
        return self.stagnation_threshold


def agents_of(mission: Mission) -> list[AgentProposer]:
    """The coding agents that a mission starts."""
    match mission.proposer:
        case AgentProposer() as agent:
            return [agent]
        case BestOfProposer(agents=agents):
            return agents
        case _:
            return []


def _kind_of(proposer: object) -> object:
    return proposer if isinstance(proposer, str) else _of(proposer, "kind")


def _agent_rules(given: Mapping[str, Any], *, agent: bool) -> Iterable[Broken]:
    """An agent has a workspace, and nothing else has; a tree that is not ours is not rolled back."""
    workspace, proposer = given.get("workspace"), given.get("proposer")
    if agent and workspace is None:
        yield Broken('the proposer agent works in a git repository: give [workspace] with path = "."', "workspace")
    if not agent and workspace is not None:
        yield Broken("only the proposers agent and best_of have a workspace; remove it", "workspace")
    if agent and _kind_of(proposer) == BEST_OF:
        yield from _best_of_rules(given, proposer)
    if not agent or not _of(workspace, "in_place"):
        return
    if _of(proposer, "on_cut") == "rollback":
        yield Broken('on_cut = "rollback" needs a worktree: it would overwrite your own files', "workspace")
    if _of(proposer, "headless") is not None:
        yield Broken("a headless agent asks for no permission, so it needs a worktree", "workspace")


def _best_of_rules(given: Mapping[str, Any], proposer: object) -> Iterable[Broken]:
    """Each agent has a worktree and at least one turn; a criterion that picks compares a metric."""
    if _of(given.get("workspace"), "in_place"):
        yield Broken("each agent of best_of works in a worktree of its own; remove in_place", "workspace")
    agents, cap = _of(proposer, "agents"), _of(given.get("budget"), "max_iterations")
    most = len(cast("list[Any]", agents)) if isinstance(agents, list) else 0
    if isinstance(cap, int) and 0 < cap <= most:
        yield Broken(f"must be at least {most + 1}: one turn for each agent, and one for the mission", "budget")
    pick, criteria = _of(proposer, "pick") or FIRST, given.get("criteria")
    listed = cast("list[Any]", criteria) if isinstance(criteria, list) else []
    chosen = [one for one in listed if _id_of(one) == pick]
    if pick not in (FIRST, ALL) and not any(_of(one, "op") in ("<", "<=", ">", ">=") for one in chosen):
        yield Broken(f'{pick!r} must be "first", "all" or the id of a metric_threshold with <, <=, > or >=', "proposer")


def _of(value: object, name: str) -> object:
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _id_of(criterion: object) -> str | None:
    if isinstance(criterion, Mapping):
        found = cast("Mapping[str, Any]", criterion).get("criterion_id")
    else:
        found = getattr(criterion, "criterion_id", None)
    return found.strip() if isinstance(found, str) else None


def parse_mission(data: Mapping[str, Any], *, source: str | None = None) -> Mission:
    """The mission in plain data, or every fault with the file it is in."""
    try:
        return Mission(**data)
    except ValidationFailed as failed:
        raise ValidationFailed([replace(fault, source=source) for fault in failed.faults]) from None


def parse_proposal(data: object) -> Proposal:
    """The proposal in plain data, or every fault."""
    try:
        return Proposal.model_validate(data)
    except ValidationError as error:
        raise ValidationFailed(faults_of(error, Proposal)) from None
