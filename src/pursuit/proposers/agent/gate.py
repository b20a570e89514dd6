"""The kind `gate`: an agent that Pursuit did not start works in place, and each of its attempts to stop is a turn.

`pursuit gate` drives it from the agent's hooks. A turn is a snapshot of the tree that the agent leaves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Literal

from pursuit.core.mission import Mission
from pursuit.core.proposing import ProposerFacts, ProposerSettings
from pursuit.core.state import MissionState
from pursuit.core.tools import CallFailed, Tool
from pursuit.errors import InvalidArgument
from pursuit.proposers.agent.acp import TurnUpdates
from pursuit.proposers.agent.kind import AgentKind, AgentWork
from pursuit.proposers.agent.settings import NOT_FOR_CLIENTS, SERVER, TURN, AgentProposer
from pursuit.proposers.agent.workspace import WorkspaceFailed
from pursuit.proposers.contract import (
    AnswerCall,
    DrivingPlace,
    Performed,
    Proposed,
    Proposer,
    ProposerContext,
    ProposerKind,
    Services,
    Turn,
)

_NOT_STARTED = AgentProposer(command=["-"])
"""The agent is already running: its hooks start Pursuit."""


class GateProposer(ProposerSettings):
    """An agent that works in its own terminal; its hooks ask whether it may stop."""

    WORKSPACE: ClassVar[bool] = True
    CLIENTS: ClassVar[str | None] = NOT_FOR_CLIENTS
    RESERVED: ClassVar[tuple[str, ...]] = (SERVER,)
    CHILDREN: ClassVar[str | None] = "a child cannot wait for the hooks of an agent"

    kind: Literal["gate"] = "gate"

    def facts(self) -> ProposerFacts:
        return ProposerFacts(tools=(TURN,))


class GateWork(AgentWork):
    """Takes a snapshot of the agent's tree."""

    keeps_result = False

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        return Turn(calls=[AnswerCall(tool=TURN, args={"prompt": "The agent wants to stop."}, wanted_id="")], ends=True)

    def after_calls(self, state: MissionState) -> bool:
        return False

    async def _turn(self, prompt: str, iteration: int, services: Services) -> Performed:
        try:
            await self.prepare()
            before = await self.workspace.find("last") or self.workspace.start
        except WorkspaceFailed as error:
            raise CallFailed(str(error), sent=False) from None
        return await self._ended("ok", None, before, TurnUpdates())

    async def completed(self, state: MissionState) -> Mapping[str, str]:
        return {}

    def notes(self) -> Mapping[str, str]:
        return self.workspace.notes


class GateKind(ProposerKind[GateProposer]):
    settings = GateProposer

    def tools(self, settings: GateProposer) -> Sequence[Tool]:
        return AgentKind().tools(_NOT_STARTED)

    async def ready(
        self, settings: GateProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        """Takes the snapshot of the start, once."""
        work = GateWork(_NOT_STARTED, mission_id, mission, place)
        try:
            await work.prepare()
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="workspace.path") from None
        return work.notes()

    @asynccontextmanager
    async def open(self, settings: GateProposer, context: ProposerContext) -> AsyncGenerator[Proposer]:
        yield GateWork(_NOT_STARTED, context.mission_id, context.mission, context.place)
