"""The port of proposers: the hooks of a kind, the answers of a proposer, and the arguments of both.

A `ProposerKind` has the hooks outside of runs: it admits a mission, prepares, opens a proposer. A `Proposer` lives for
one run. It reads the state; the engine makes the calls, except those of the proposer's own tools.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec

from pursuit.config.configuration import AgentsTable
from pursuit.config.process_environment import USUAL_ENVIRONMENT, ProcessEnvironment
from pursuit.core.catalogue import Catalogue
from pursuit.core.events import AnyEvent, ConversationCompacted, Outcome, WaitingFor, WorkspaceChange
from pursuit.core.mission import Mission, Proposal
from pursuit.core.proposing import ProposerSettings, find_kind
from pursuit.core.state import CallRecord, MissionState
from pursuit.core.tools import CheckPlace, Tool
from pursuit.errors import Fault, InvalidArgument, ModelUnavailable
from pursuit.proposers.language import LanguageModel, ModelAccess, ModelRequest, Models, OfferedTool
from pursuit.reports.report import Report

Past = Callable[[int], Awaitable[Sequence[tuple[int, AnyEvent]]]]
"""Reads the mission's events after a sequence number, each with its own number."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A proposal is not possible yet: the mission waits for something outside."""

    waiting_for: WaitingFor
    detail: str | None = None
    until: float | None = None
    """Seconds until the next attempt."""
    fallback: int | None = None
    lost: int = 0
    """Requests to a model that were sent without an answer."""
    after: float | None = None
    """Seconds until the provider accepts requests again."""
    window: int | None = None
    """The maximum tokens that the model accepts, if it refused a request as too long."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The proposer could not propose; `final` if asking it again for this iteration cannot help."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """A call in a model's answer: its tool, or the reason why it does not name one."""

    tool: str
    args: dict[str, Any]
    wanted_id: str
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A language model's answer, as calls or as a script; `ends` if the model's turn is over after them.

    A faulty call does not discard the others. `failed` says why the answer is unusable.
    """

    calls: Sequence[AnswerCall] = ()
    script: str | None = None
    rationale: str | None = None
    ends: bool = False
    failed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """The proposer cannot work until the operator repairs something, such as a key; `lost` as in `Waiting`."""

    reason: str
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The proposer has finished: the mission ends as `proposer_done`."""

    reason: str


Proposed = Proposal | Turn | Waiting | Failed | Blocked | Done


class Performed(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a call that the proposer performed itself.

    `used` has the known amounts, by the names of caps. `change` identifies the result that the call left behind.
    """

    outcome: Outcome
    error: str | None = None
    said: dict[str, Any] = {}
    used: dict[str, float] = {}
    change: WorkspaceChange | None = None
    blobs: dict[str, bytes] = {}


class ChecksImpossible(Exception):
    """The checks of this iteration cannot run; the text says why."""


class Proposer(ABC):
    """Suggests the calls of the next iteration; opened for one run of a mission."""

    keeps_result: ClassVar[bool] = False
    """True if `completed` publishes a result."""
    memory: Mapping[str, Any] = MappingProxyType({})
    """JSON values, at most 64 KiB, that are stored with each answer, and are `state.remembered` from then on."""

    @abstractmethod
    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The next proposal; `reasons` say why the previous one for this iteration was refused."""

    def after_calls(self, state: MissionState) -> bool:
        """True if it is asked again in the open iteration, after the calls so far."""
        return False

    def tries_again(self, state: MissionState) -> bool:
        """True if it is asked again in the open iteration even though none of its calls can be made."""
        return False

    async def perform(self, call: CallRecord, services: Services) -> Performed:
        """Performs a call of one of its own tools."""
        raise NotImplementedError(call.tool)

    def interrupted(self) -> Performed | None:
        """The outcome of the call that was just cancelled; None if it had not begun."""
        return None

    async def recover(self, call: CallRecord) -> Performed | None:
        """The outcome of a call to a tool of the proposer that a crash left unfinished; None if it is unknown."""
        return None

    @asynccontextmanager
    async def before_checks(self, *, running: Callable[[], bool]) -> AsyncGenerator[CheckPlace | None]:
        """Surrounds the checks of an iteration; yields where their commands run. Raises `ChecksImpossible`.

        `running` tells if a check still runs as a task.
        """
        yield None

    async def completed(self, state: MissionState) -> Mapping[str, str]:
        """Publishes the result of a completed mission, even if called again; returns warnings with their codes."""
        return {}

    def notes(self) -> Mapping[str, str]:
        """Warnings about the run so far, with their codes."""
        return {}


class SameProposal(Proposer):
    """Makes the same proposal in each iteration; a refusal is a failure."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The proposal again."""
        return Failed("; ".join(reasons)) if reasons else self._proposal


class ModelAsker(Proposer):
    """A proposer that holds a conversation with a language model; its settings set `ASKS_MODEL`."""

    @abstractmethod
    async def request(self, state: MissionState, *, said: str | None = None) -> ModelRequest:
        """The next request; `said` is the text at its end, if it is known."""


class Services(Protocol):
    """Services of a run for a proposer that performs calls itself."""

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], *, unattended: bool, seconds: float) -> bool | None:
        """True if policy, or a person within these seconds, allows a step; None if nobody answered in time."""
        ...

    async def call(self, tool: Tool, arguments: dict[str, Any], *, seconds: float) -> Mapping[str, Any]:
        """Makes a call of the mission, and returns its MCP result; waits these seconds for an approval."""
        ...

    def offered(self) -> Mapping[str, Tool]:
        """The tools of the mission that a proposer may call, by their full names."""
        ...


class NoModels:
    """Opens no language model."""

    def open(self, name: str) -> LanguageModel:
        """Raises `ModelUnavailable`."""
        raise ModelUnavailable(f"{name} cannot be used from here")

    async def check(self, name: str) -> None:
        """Raises `ModelUnavailable`."""
        self.open(name)

    async def aclose(self) -> None:
        """Does nothing."""

    def priced(self, name: str) -> bool:
        """Returns False."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivingPlace:
    """Where missions run: the access to models, the folder for workspaces and the environment of commands."""

    access: ModelAccess = field(default_factory=lambda: ModelAccess(models=NoModels()))
    workspaces: Path = Path("workspaces")
    process_environment: ProcessEnvironment = USUAL_ENVIRONMENT
    agents: AgentsTable = field(default_factory=AgentsTable)
    agents_now: Callable[[], AgentsTable] | None = None
    handed: dict[str, Any] = field(default_factory=dict[str, Any])
    """The objects that the program passed as proposers, by mission."""
    callables: set[str] = field(default_factory=set[str])
    """The Python code that proposers may load: of trusted mission files and of the configuration."""
    client_kinds: frozenset[str] = frozenset()
    """The kinds of other packages that an MCP client may name."""


async def _no_past(_after: int) -> Sequence[tuple[int, AnyEvent]]:
    return ()


async def _no_blob(_digest: str) -> bytes | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerContext:
    """The context of a proposer in one run.

    `tools` are the mission's, by their full names. A model that `record` wraps answers each request once, even across
    a crash, and its use is counted. `past` reads the events so far, `blob` their blobs, and `compact` records that a
    conversation was cut. `sampler` is the model of the driving client, if it has one. `lessons` are those of similar
    missions: data, not instructions. `proposal` is that of the driving client.
    """

    mission: Mission
    mission_id: str = ""
    tools: Callable[[], Sequence[OfferedTool]] = tuple
    record: Callable[[LanguageModel], LanguageModel] = field(default=lambda model: model)
    past: Past = _no_past
    blob: Callable[[str], Awaitable[bytes | None]] = _no_blob
    compact: Callable[[ConversationCompacted], Awaitable[None]] | None = None
    now: Callable[[], float] = time.time
    sampler: LanguageModel | None = None
    lessons: Sequence[str] = ()
    proposal: Proposal | None = None
    services: Services | None = None
    place: DrivingPlace = field(default_factory=DrivingPlace)


class MissionAdmission(Protocol):
    """A mission during admission: it resolves names and collects faults."""

    mission: Mission
    row: dict[str, Any]
    """The settings as plain data, where resolved names are stored."""
    tools: Sequence[str]
    catalogue: Catalogue
    models: Models | None
    among: Collection[str] | None
    """The models that the mission may use; None allows any."""
    faults: list[Fault]
    warnings: list[str]

    def fault(self, field: str, reason: str) -> None:
        """Adds a fault."""
        ...

    def tool(self, field: str, name: str) -> str:
        """The full name of a tool of the mission."""
        ...

    def arguments(self, field: str, tool: str, args: Mapping[str, Any]) -> None:
        """Adds the faults of a call's arguments by the tool's schema."""
        ...


S = TypeVar("S", bound=ProposerSettings)


class ProposerKind(ABC, Generic[S]):
    """The hooks of a kind outside of runs; each gets the settings of the mission."""

    settings: type[S]

    def tools(self, settings: S) -> Sequence[Tool]:
        """The tools that its proposer performs itself."""
        return ()

    def complete(self, mission: Mission) -> Mission:
        """The mission with this kind's additions at the start, such as a fleet."""
        return mission

    def require(self) -> None:
        """Raises `ExtraMissing` if a required package is missing."""

    async def admit(self, settings: S, admission: MissionAdmission) -> None:
        """Checks the settings at the start of a mission, and resolves the names in them."""

    def started(self, settings: S, mission_id: str, place: DrivingPlace) -> None:
        """Called when a mission was started here, with the original settings."""

    async def ready(self, settings: S, mission_id: str, mission: Mission, place: DrivingPlace) -> Mapping[str, str]:
        """Raises if it cannot work from here, before any budget is used; returns warnings with their codes."""
        return {}

    @abstractmethod
    def open(self, settings: S, context: ProposerContext) -> AbstractAsyncContextManager[Proposer]:
        """Opens the proposer of one run for the block."""

    def report(self, mission: Mission, settings: S, report: Report) -> Mapping[str, Any]:
        """The additions to a report."""
        return {}


class SimpleKind(ProposerKind[S]):
    """A kind whose proposer needs neither set-up nor clean-up."""

    @abstractmethod
    def make(self, settings: S, context: ProposerContext) -> Proposer:
        """The proposer of one run."""

    @asynccontextmanager
    async def open(self, settings: S, context: ProposerContext) -> AsyncGenerator[Proposer]:
        """The proposer that `make` makes."""
        yield self.make(settings, context)


@cache
def kind_of(name: str) -> ProposerKind[Any]:
    """The kind of proposers with this name. Raises `InvalidArgument` if it is not installed."""
    found = find_kind(name)
    if found is None:
        raise InvalidArgument(
            f"the proposer {name!r} is not installed here; install the package that has it", field="proposer"
        )
    return cast("ProposerKind[Any]", found)
