"""Makes the proposer that a mission names; the proposers without a model are here: script, repeat, replay, client."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pursuit.core.events import ModelAnswer
from pursuit.core.mission import (
    AgentProposer,
    AskedProposer,
    BestOfProposer,
    ClientProposer,
    Mission,
    ModelProposer,
    Proposal,
    RepeatProposer,
    ReplayProposer,
    SamplingProposer,
    ScriptProposer,
    ToolCall,
    agents_of,
)
from pursuit.core.search import SearchProposer
from pursuit.core.state import MissionState
from pursuit.errors import UpstreamUnavailable
from pursuit.proposers.agent import AgentTurn, BestOf
from pursuit.proposers.contract import Failed, Proposer, Waiting
from pursuit.proposers.conversation import Prefixes
from pursuit.proposers.language import ROOM, LanguageModel, ModelRequest, Models, NoAnswerYet, ProposerContext, Terms
from pursuit.proposers.model import AskModel, Patience
from pursuit.proposers.search import Search, require_search


@dataclass(frozen=True, slots=True)
class ScriptAgain:
    """The operator's script, once for each iteration."""

    script: str
    operators_own: bool = True

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The same script; what it does depends on the state that it is given."""
        return Proposal(script=self.script)


@dataclass(frozen=True, slots=True)
class RepeatCall:
    """The same call in each iteration, for missions that poll."""

    proposal: Proposal
    operators_own: bool = True

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The call again; a call that does not fit is a failure."""
        return Failed("; ".join(reasons)) if reasons else self.proposal


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded proposals of another mission, in order."""

    proposals: Sequence[Proposal]
    operators_own: bool = False

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The proposal for this iteration; a failure once they are used up."""
        if state.iteration_count >= len(self.proposals):
            return Failed(f"the {len(self.proposals)} recorded proposals are used up")
        return Failed("; ".join(reasons)) if reasons else self.proposals[state.iteration_count]


class HandedIn:
    """One proposal of the client that drives the mission; then the mission waits for the next."""

    operators_own = False

    def __init__(self, proposal: Proposal | None = None) -> None:
        self._proposal = proposal

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposal | Waiting | Failed:
        """The proposal that was handed in, once."""
        proposal, self._proposal = self._proposal, None
        return Waiting("proposal") if proposal is None else proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Makes proposers; `tools_bytes` bounds the description of all tools."""

    models: Models
    tools_bytes: int = ROOM
    patience: Patience = field(default_factory=Patience)
    prefixes: Prefixes = field(default_factory=Prefixes)

    async def ready(self, mission: Mission) -> None:
        """Raises before anything is spent if the proposer cannot work from here."""
        if isinstance(mission.proposer, ModelProposer):
            for name in (mission.proposer.model, *mission.proposer.fallback):
                await self.models.check(name)
        if isinstance(mission.proposer, SearchProposer):
            require_search()
        for agent in agents_of(mission):
            if shutil.which(agent.argv[0]) is None:
                raise UpstreamUnavailable(f"the command of the agent, {agent.argv[0]!r}, was not found")

    def __call__(self, mission: Mission, proposal: Proposal | None, means: ProposerContext) -> Proposer:
        """The proposer that a mission names."""
        match mission.proposer:
            case ScriptProposer(script=script):
                return ScriptAgain(script)
            case RepeatProposer(tool_name=name, args=args):
                return RepeatCall(Proposal(tool_calls=[ToolCall(tool_name=name, args=args)]))
            case ReplayProposer(proposals=proposals):
                return Recorded(proposals)
            case SearchProposer() as search:
                return Search(mission, search, means.past, means.tools)
            case ClientProposer():
                return HandedIn(proposal)
            case ModelProposer() as settings:
                opened = [self.models.open(name) for name in (settings.model, *settings.fallback)]
                return self._asking(settings, opened, means)
            case AgentProposer() as settings:
                return AgentTurn(settings, means.lessons)
            case BestOfProposer() as settings:
                return BestOf(settings)
            case SamplingProposer() as settings:
                return self._asking(settings, [means.sampler or NoSampler()], means)
            case _ as unknown:
                assert_never(unknown)

    def _asking(self, settings: AskedProposer, models: Sequence[LanguageModel], means: ProposerContext) -> AskModel:
        recorded = [means.record(model) for model in models]
        return AskModel(
            settings, recorded, means, room=self.tools_bytes, patience=self.patience, prefixes=self.prefixes
        )


@dataclass(frozen=True, slots=True)
class NoSampler:
    """Stands in for the client's model while no client drives the mission."""

    name: str = "(no client)"
    terms: Terms | None = None

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Waits for a client."""
        raise NoAnswerYet(
            "this mission needs the model of an MCP client: a client that declares sampling must call mission_iterate"
        )
