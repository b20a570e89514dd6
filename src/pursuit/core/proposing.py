"""Kinds of proposers: the base class of their settings, the facts that other code reads, and the look-up by name. Pure.

A kind is a folder or module below `proposers/`, or a package that registers itself. Code outside of it does not depend
on the kind: it reads facts from the kind's settings. A kind is imported only when it is named.

Invariant: the facts that the fold, the guard or a verdict reads are stored with the mission. So an upgrade of a kind
never changes the meaning of a stored mission, and a mission whose kind is not installed can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, Union, cast

import msgspec
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from pursuit.core.base_model import Broken, InputModel, lines_of
from pursuit.errors import Fault, ValidationFailed, advice

GROUP = "pursuit.proposers"
"""The entry-point group by which a package adds kinds; provisional until 1.0."""
BUILT_IN = {
    "repeat": "pursuit.proposers.repeat:RepeatKind",
    "script": "pursuit.proposers.script:ScriptKind",
    "client": "pursuit.proposers.client:ClientKind",
    "replay": "pursuit.proposers.replay:ReplayKind",
    "search": "pursuit.proposers.search.kind:SearchKind",
    "model": "pursuit.proposers.model.asking:ModelKind",
    "sampling": "pursuit.proposers.model.asking:SamplingKind",
    "agent": "pursuit.proposers.agent.kind:AgentKind",
    "tree": "pursuit.proposers.agent.tree:TreeKind",
    "gate": "pursuit.proposers.agent.gate:GateKind",
    "best_of": "pursuit.proposers.best_of:BestOfKind",
    "python": "pursuit.proposers.python:PythonKind",
}
DEFAULT_KIND = "client"
NAMES_A_MODEL = "model"
"""The kind that a text with a colon selects, such as `anthropic:claude-haiku-4-5`."""
IS_CODE = "python"
"""The kind that a function, or an object with `propose`, selects."""
LENDS_A_MODEL = "sampling"
"""The kind for a client that wants its own model to be asked."""
PATIENCE = 3
"""Consecutive equal failures of the operator's script or command after which the mission ends."""


class StoredObjective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The objective of a search: the tool that it calls, the metric and its direction, and the limits that count.

    `noise` is true if equal calls give different values; None while that is not known.
    """

    tool: str
    metric: str | None = None
    direction: Literal["minimize", "maximize"] | None = None
    constraints: list[str] | None = None
    noise: bool | None = None


class ProposerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of a proposer that are stored with its mission."""

    authored: bool = False
    """True if the operator wrote what it proposes."""
    guarded: bool = False
    """True if the loop guard watches its calls."""
    stagnates: bool = True
    """True if the default threshold of stagnation holds."""
    reports_metrics: bool = False
    """True if its scripts report metrics."""
    proposed_by_client: bool = False
    """True if each iteration waits for a proposal from the driving client."""
    tools: tuple[str, ...] = ()
    """The tools that it performs itself; answers to their questions are kept for later turns."""
    later_tools: tuple[str, ...] = ()
    """The tools that it calls only at the end."""
    failures: Literal["script", "calls", "calls_without_pace"] | None = None
    """The calls or script that the operator is responsible for: consecutive equal failures end the mission."""
    patience: int = PATIENCE
    """The minimum number of calls before equal failures end the mission."""
    objective: StoredObjective | None = None


class StartedProcess(NamedTuple):
    """A process that a proposer starts, or a service that it contacts; the operator must trust it."""

    name: str
    words: Sequence[str]
    details: Mapping[str, Any] = {}


class ProposerSettings(InputModel):
    """The base of the settings of a kind. Class variables are facts that need no values."""

    kind: Any
    """The name of the kind: a `Literal` in each class."""

    WORKSPACE: ClassVar[bool] = False
    """True if it works in a git repository; then it does not need tools."""
    CLIENTS: ClassVar[str | None] = None
    """Why an MCP client may not name it; None if a client may."""
    LEARNS: ClassVar[bool] = False
    """True if it is shown the lessons of similar missions."""
    LENDS_MODEL: ClassVar[bool] = False
    """True if the client that drives the mission lends its model."""
    FROM_FILE: ClassVar[bool] = False
    """True if a process needs the mission's file to continue a mission."""
    RESERVED: ClassVar[tuple[str, ...]] = ()
    """Names that servers may not have if this kind is used."""
    CHILDREN: ClassVar[str | None] = None
    """Why a parent mission may not name it for a child; None if it may."""
    AUTHORS: ClassVar[str | None] = None
    """Why only a mission that the operator wrote may name it for a child; None if any may."""
    ASKS_MODEL: ClassVar[bool] = False
    """True if it is a conversation with a language model."""
    USAGE_KNOWN: ClassVar[bool] = True
    """True if tokens and cost of its requests are known, so that caps on them hold."""
    REPEATS: ClassVar[bool] = False
    """True if each iteration is the same call."""
    INHERITED: ClassVar[bool] = False
    """True if a child without a proposer inherits this one."""

    def facts(self) -> ProposerFacts:
        """The facts that are stored with the mission."""
        return ProposerFacts()

    @property
    def label(self) -> str:
        """The proposer's name in reports and comparisons."""
        return str(self.kind)

    @property
    def models(self) -> Sequence[str]:
        """The providers' models that it asks, in order of preference."""
        return ()

    @property
    def max_requests_per_iteration(self) -> int | None:
        """The most requests to a language model in one iteration; None if it does not ask one."""
        return None

    @property
    def needs_client(self) -> bool:
        """True if only an MCP client can drive the mission: it proposes, or lends its model."""
        return self.LENDS_MODEL or self.facts().proposed_by_client

    @property
    def result_room(self) -> int:
        """The number of tokens of one result that it is shown at a time."""
        return 8_000

    def starts(self) -> Iterable[StartedProcess]:
        """The processes that it starts and the services that it asks."""
        return ()

    def children(self) -> Sequence[ProposerSettings]:
        """The proposers of the children that it starts itself."""
        return ()

    def calls(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """The calls in the settings, each as tool and arguments."""
        return ()

    def with_model(self, name: str) -> Self:
        """The settings with another language model."""
        raise ValidationFailed([Fault(field="model", reason=f"the proposer is {self.kind}, not a model")])

    def preferences(self) -> Mapping[str, Any] | None:
        """MCP's model preferences, for a client that lends its model."""
        return None

    def with_preferences(self, preferences: Mapping[str, Any]) -> Self:
        """The settings with these model preferences, if the client lends its model."""
        return self

    @classmethod
    def chosen(cls, tag: str) -> type[InputModel] | None:
        """The settings class of the kind named in a fault's location."""
        return settings_type(tag) if cls is ProposerSettings else None

    @classmethod
    def rules(cls, mission: Mapping[str, Any]) -> Iterable[Broken]:  # noqa: ARG003 - for kinds that have rules
        """Yields the broken rules between the settings and the rest of a mission, from raw input."""
        return ()

    @classmethod
    def in_file(cls, table: dict[str, Any], folder: Path) -> Iterable[Broken]:  # noqa: ARG003 - for kinds that read
        """Reads files that the table in a mission file names, relative to `folder`; changes the table."""
        return ()

    @classmethod
    def describe_file(cls, definitions: dict[str, Any]) -> None:
        """Adds the keys that are allowed only in a mission file to the JSON Schema of the settings."""

    @classmethod
    def upcast(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Converts stored settings of an earlier release to the current form."""
        return stored


class MissingKind(ProposerSettings):
    """The stored settings of a kind that is not installed here: the mission can be read but not driven."""

    model_config = ConfigDict(extra="allow")


class Kind(Protocol):
    """The part of a registered kind that the core needs; `proposers/contract.py` has its hooks."""

    settings: type[ProposerSettings]


@cache
def _others() -> Mapping[str, Any]:
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in BUILT_IN}


def kinds() -> list[str]:
    return [*BUILT_IN, *sorted(_others())]


@cache
def find_kind(name: str) -> Kind | None:
    """Imports and returns the kind with this name; None if there is none."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast("Kind", getattr(import_module(module), attribute)())
    found = _others().get(name)
    return None if found is None else cast("Kind", found.load()())


def refused_to_clients(settings: ProposerSettings, allowed: Collection[str], *, child: bool = False) -> str | None:
    """Why a client (or, for a `child`, its parent) may not name this proposer; None if it may.

    Kinds of other packages must be in `allowed`. The call that starts a child checks the other rules for children.
    """
    if settings.CLIENTS is not None and not child:
        return settings.CLIENTS
    if settings.kind in BUILT_IN or settings.kind in allowed:
        return None
    add = advice('`clients = ["{}"]` in `[proposers]`', settings.kind)
    who = "a parent mission" if child else "a client"
    return f"{who} cannot name a proposer of another package; the operator can allow it: {add} of pursuit.toml"


def settings_type(proposer: object) -> type[ProposerSettings] | None:
    """The settings class that raw input names; None if it is unknown."""
    if isinstance(proposer, ProposerSettings):
        return type(proposer)
    if callable(proposer) or callable(getattr(proposer, "propose", None)):
        proposer = IS_CODE
    proposer = spelled_out(proposer)
    name = cast("Mapping[str, Any]", proposer).get("kind") if isinstance(proposer, Mapping) else None
    found = find_kind(name) if isinstance(name, str) else None
    return None if found is None else found.settings


def spelled_out(proposer: object) -> object:
    """Expands a text that names a kind or a language model to a table."""
    if not isinstance(proposer, str):
        return proposer
    return {"kind": NAMES_A_MODEL, "model": proposer} if ":" in proposer else {"kind": proposer}


def read_settings(value: object) -> ProposerSettings:
    """Validates settings in plain data by their kind; raises pydantic's errors, with the kind in their locations."""
    if isinstance(value, ProposerSettings):
        return value
    if callable(value) or callable(getattr(value, "propose", None)):
        return cast("Any", find_kind(IS_CODE)).settings.of(value)
    value = spelled_out(value)
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "Input should be a valid dictionary")
    data = cast("Mapping[str, Any]", value)
    if "kind" not in data:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    found = settings_type(data)
    if found is None:
        expected = ", ".join(f"'{name}'" for name in kinds())
        tag = str(data["kind"]).encode(errors="replace").decode()
        context = {"discriminator": "'kind'", "tag": tag, "expected_tags": expected}
        raise PydanticKnownError("union_tag_invalid", context)
    try:
        return found.model_validate(dict(data))
    except ValidationError as error:
        raise ValidationError.from_exception_data(found.__name__, lines_of(error, str(data["kind"]))) from None


class ByKind:
    """Annotates a field that accepts the settings of any kind; the named kind validates it."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validates with `read_settings`; serializes any class."""
        return core_schema.no_info_plain_validator_function(read_settings)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A union of all kinds; assembled only when a schema is printed."""
        found = [kind.settings for name in kinds() if (kind := find_kind(name)) is not None]
        for one in found:
            one.model_rebuild()
        union: Any = Annotated[Union[tuple(found)], Field(discriminator="kind")]  # noqa: UP007 - made of a list
        return handler(TypeAdapter[Any](union).core_schema)


def stored_settings(stored: Mapping[str, Any]) -> ProposerSettings:
    """The settings in a stored mission; left as they are if the kind is missing or rejects them."""
    found = settings_type(stored)
    if found is None:
        return MissingKind.model_validate(dict(stored))
    try:
        return found.model_validate(dict(found.upcast(stored)))
    except ValidationError:
        if stored["kind"] in BUILT_IN:
            raise
        return MissingKind.model_validate(dict(stored))


def facts_before(stored: Mapping[str, Any]) -> ProposerFacts:
    """The facts of a mission that was stored before missions stored them. Frozen: never change this."""
    made = _BEFORE.get(str(stored.get("kind")))
    return ProposerFacts() if made is None else made(stored)


def _search_before(stored: Mapping[str, Any]) -> ProposerFacts:
    parameters = cast("Mapping[str, Mapping[str, Any]]", stored.get("parameters") or {})
    columns = sum(len(one.get("choices") or (None,)) for one in parameters.values())
    noise = stored.get("noise")
    return ProposerFacts(
        authored=True,
        stagnates=False,
        later_tools=(stored["then"],) if stored.get("then") else (),
        failures="calls",
        patience=len(parameters) + columns + 2,
        objective=StoredObjective(
            tool=str(stored.get("tool_name")),
            metric=stored.get("objective"),
            direction=stored.get("direction"),
            constraints=stored.get("constraints"),
            noise=None if noise is None else bool(noise),
        ),
    )


_BEFORE: Mapping[str, Callable[[Mapping[str, Any]], ProposerFacts]] = {
    "repeat": lambda _: ProposerFacts(authored=True, stagnates=False, failures="calls_without_pace"),
    "script": lambda _: ProposerFacts(authored=True, reports_metrics=True, failures="script"),
    "client": lambda _: ProposerFacts(guarded=True, proposed_by_client=True),
    "search": _search_before,
    "model": lambda _: ProposerFacts(guarded=True),
    "sampling": lambda _: ProposerFacts(guarded=True),
    "agent": lambda _: ProposerFacts(tools=("agent.turn",)),
    "best_of": lambda _: ProposerFacts(authored=True),
}


def mission_before(mission: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts a stored mission to the current form, except its proposer: `pick` moved from `best_of` to the fleet."""
    proposer, fleet = cast("Mapping[str, Any]", mission["proposer"]), mission.get("fleet")
    picked = "agents" in proposer and "pick" in proposer
    if not picked or not isinstance(fleet, Mapping) or "pick" in fleet:
        return mission
    return {**mission, "fleet": {**cast("Mapping[str, Any]", fleet), "pick": proposer["pick"]}}
