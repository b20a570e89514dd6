"""Which proposer a mission gets.

Owns: the way from a mission's own word to the object that proposes. Knows every proposer, and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pursuit.model.events import ModelAnswer
from pursuit.model.mission import (
    AskedProposer,
    ClientProposer,
    Mission,
    ModelProposer,
    Proposal,
    RepeatProposer,
    ReplayProposer,
    SamplingProposer,
    ScriptProposer,
    ToolCall,
)
from pursuit.model.search import SearchProposer
from pursuit.proposers.asked import AskModel
from pursuit.proposers.contract import Proposer
from pursuit.proposers.language import LanguageModel, Means, ModelRequest, Models, NoAnswerYet, Terms
from pursuit.proposers.offer import ROOM
from pursuit.proposers.plain import HandedIn, Recorded, RepeatCall, ScriptAgain
from pursuit.proposers.prompt import LIMIT
from pursuit.proposers.search import Search, require_search


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Makes proposers; `prompt_bytes` is how long a prompt may be, `tools_bytes` all that is told of the tools."""

    models: Models
    prompt_bytes: int = LIMIT
    tools_bytes: int = ROOM

    async def ready(self, mission: Mission) -> None:
        """Raises before anything is spent if whoever is to propose cannot be asked from here."""
        if isinstance(mission.proposer, ModelProposer):
            await self.models.check(mission.proposer.model)
        if isinstance(mission.proposer, SearchProposer):
            require_search()

    def __call__(self, mission: Mission, proposal: Proposal | None, means: Means) -> Proposer:
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
                return self._asking(settings, self.models.open(settings.model), means)
            case SamplingProposer() as settings:
                return self._asking(settings, means.sampler or NobodyHere(), means)
            case _ as unknown:
                assert_never(unknown)

    def _asking(self, settings: AskedProposer, model: LanguageModel, means: Means) -> AskModel:
        return AskModel(
            settings,
            means.record(model),
            means.tools,
            lessons=means.lessons,
            limit=self.prompt_bytes,
            room=self.tools_bytes,
        )


@dataclass(frozen=True, slots=True)
class NobodyHere:
    """Stands in for the client's model while no client drives the mission."""

    name: str = "nobody"
    terms: Terms | None = None

    async def answer(self, request: ModelRequest) -> ModelAnswer:
        """Waits for a client."""
        raise NoAnswerYet(
            "the model of an MCP client is to propose: a client that declares sampling must call mission_iterate"
        )
