"""The proposer `best_of`: several agents, each in a worktree and a child mission; the fleet picks the winner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from pursuit.core.base_model import Broken, Name, value_in
from pursuit.core.budgets import POOLED
from pursuit.core.mission import ALL, FIRST, SPAWN, Fleet, Mission, Proposal, ToolCall, criterion_id_of
from pursuit.core.proposing import ProposerFacts, ProposerSettings, StartedProcess
from pursuit.core.state import MissionState
from pursuit.errors import InvalidArgument
from pursuit.proposers.agent.isolation import must_isolate
from pursuit.proposers.agent.kind import find_command
from pursuit.proposers.agent.settings import NOT_FOR_CLIENTS, SERVER, AgentProposer
from pursuit.proposers.agent.workspace import AgentWorkspace, WorkspaceFailed
from pursuit.proposers.contract import DrivingPlace, Failed, Proposed, Proposer, ProposerContext, SimpleKind

MAX_AGENTS = 16


class BestOfProposer(ProposerSettings):
    """Several agents, each in its own worktree and child mission; the first to meet all criteria wins.

    With the id of a metric criterion as `pick`, all agents work to their end, and the best by that metric wins.
    """

    WORKSPACE: ClassVar[bool] = True
    CLIENTS: ClassVar[str | None] = NOT_FOR_CLIENTS
    RESERVED: ClassVar[tuple[str, ...]] = (SERVER,)

    kind: Literal["best_of"] = "best_of"
    agents: Annotated[list[AgentProposer], Field(min_length=2, max_length=MAX_AGENTS)]
    pick: Name = FIRST

    @classmethod
    def between(cls, given: Mapping[str, Any]) -> Iterable[Broken]:
        listed = given.get("agents")
        names = [value_in(one, "name") for one in cast("list[Any]", listed)] if isinstance(listed, list) else []
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        if twice:
            yield Broken(f"each agent needs a unique name; given twice: {', '.join(twice)}", "agents")

    def facts(self) -> ProposerFacts:
        return ProposerFacts(authored=True)

    def starts(self) -> Iterable[StartedProcess]:
        return [one.started(f"agent {one.label}") for one in self.agents]

    def children(self) -> Sequence[ProposerSettings]:
        return self.agents

    @classmethod
    def describe_file(cls, definitions: dict[str, Any]) -> None:
        """Fixes the kind of the agents in the list."""
        agent = definitions[AgentProposer.__name__]
        rows = definitions[cls.__name__]["properties"]["agents"]
        rows["items"] = {key: value for key, value in agent.items() if key != "required"}

    @classmethod
    def rules(cls, mission: Mapping[str, Any]) -> Iterable[Broken]:
        """Each agent has a worktree and at least one turn; a criterion that picks compares a metric."""
        proposer = mission.get("proposer")
        if value_in(mission.get("workspace"), "in_place"):
            yield Broken("each agent of best_of works in its own worktree; remove in_place", "workspace")
        agents, cap = value_in(proposer, "agents"), value_in(mission.get("budget"), "max_iterations")
        most = len(cast("list[Any]", agents)) if isinstance(agents, list) else 0
        if isinstance(cap, int) and 0 < cap <= most:
            yield Broken(f"must be at least {most + 1}: one turn for each agent, and one for the mission", "budget")
        pick, criteria = value_in(proposer, "pick") or FIRST, mission.get("criteria")
        listed = cast("list[Any]", criteria) if isinstance(criteria, list) else []
        chosen = [one for one in listed if criterion_id_of(one) == pick]
        if pick not in (FIRST, ALL) and not any(value_in(one, "op") in ("<", "<=", ">", ">=") for one in chosen):
            why = f'{pick!r} must be "first", "all" or the id of a metric_threshold with <, <=, > or >='
            yield Broken(why, "proposer")


class BestOf(Proposer):
    def __init__(self, settings: BestOfProposer) -> None:
        self._settings = settings

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """Proposes all children together; they then run concurrently."""
        if reasons or state.iteration_count:
            return Failed("; ".join(reasons) or "all agents have ended", final=True)
        return Proposal(tool_calls=_children_of(state.mission, self._settings))


def _children_of(mission: Mission, settings: BestOfProposer) -> list[ToolCall]:
    """The same mission for each agent, with an equal share of the budget; the mission itself is one iteration."""
    own = {"max_iterations": 1, "max_tool_calls": len(settings.agents)}
    caps = {name: getattr(mission.budget, name) for name in POOLED if getattr(mission.budget, name) != -1}
    share = {name: (cap - own.get(name, 0)) / len(settings.agents) for name, cap in caps.items()}
    budget = {name: int(part) if name != "max_cost_usd" else part for name, part in share.items()}
    same = mission.model_dump(
        mode="json", include={"directive", "criteria", "checkpoint_cadence", "stagnation_threshold", "observe"}
    )
    same = {name: value for name, value in same.items() if value is not None}
    return [
        ToolCall(tool_name=SPAWN, args={**same, "budget": budget, "proposer": agent.model_dump(mode="json")})
        for agent in settings.agents
    ]


class BestOfKind(SimpleKind[BestOfProposer]):
    settings = BestOfProposer

    def complete(self, mission: Mission) -> Mission:
        settings = cast("BestOfProposer", mission.proposer)
        most = len(settings.agents)
        fleet = mission.fleet or Fleet(max_children=most, at_once=most)
        return mission.model_copy(update={"fleet": fleet.model_copy(update={"pick": settings.pick})})

    async def ready(
        self, settings: BestOfProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        for agent in settings.agents:
            find_command(agent)
        if why := must_isolate(place.agents):
            raise InvalidArgument(why, session_id=mission_id, field="proposer")
        try:
            if mission.workspace is not None:
                await AgentWorkspace(mission.workspace, mission_id, Path()).locate()
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="workspace.path") from None
        return {}

    def make(self, settings: BestOfProposer, context: ProposerContext) -> Proposer:
        return BestOf(settings)
