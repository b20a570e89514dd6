"""The kind `tree`: it proposes nothing, so that the criteria are decided on the files as they are, or at a commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Literal

import anyio

from pursuit.core.base_model import Flag, Name
from pursuit.core.mission import Mission, Workspace
from pursuit.core.proposing import ProposerFacts, ProposerSettings
from pursuit.core.state import MissionState
from pursuit.core.tools import CheckPlace
from pursuit.errors import InvalidArgument
from pursuit.proposers.agent.settings import NOT_FOR_CLIENTS
from pursuit.proposers.agent.workspace import AgentWorkspace, WorkspaceFailed
from pursuit.proposers.contract import (
    ChecksImpossible,
    DrivingPlace,
    Proposed,
    Proposer,
    ProposerContext,
    SimpleKind,
    Turn,
)


class TreeProposer(ProposerSettings):
    """Makes no call: the checks decide on a throw-away copy of the repository, at a commit if one is named."""

    WORKSPACE: ClassVar[bool] = True
    CLIENTS: ClassVar[str | None] = NOT_FOR_CLIENTS
    CHILDREN: ClassVar[str | None] = "a child must propose something, and a tree proposes nothing"

    kind: Literal["tree"] = "tree"
    commit: Name | None = None
    here: Flag = False
    """Whether the commands run in the folders that they name, without a copy."""

    def facts(self) -> ProposerFacts:
        return ProposerFacts(authored=True, stagnates=False)


class TreeChecks(Proposer):
    """Makes no call, and lets the commands of the checks run in a copy of the tree."""

    def __init__(self, settings: TreeProposer, workspace: AgentWorkspace) -> None:
        self._settings = settings
        self._workspace = workspace

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        return Turn(ends=True)

    @asynccontextmanager
    async def before_checks(self, *, running: Callable[[], bool]) -> AsyncGenerator[CheckPlace | None]:
        if self._settings.here:
            yield None
            return
        workspace = self._workspace
        try:
            await workspace.prepare()
            commit = self._settings.commit
            await workspace.open_checks(of=None if commit is None else await workspace.commit(commit))
            yield CheckPlace(workspace.checked_folder)
        except WorkspaceFailed as error:
            raise ChecksImpossible(str(error)) from None
        finally:
            if not running():
                with anyio.CancelScope(shield=True), suppress(WorkspaceFailed):
                    await workspace.drop()


class TreeKind(SimpleKind[TreeProposer]):
    settings = TreeProposer

    async def ready(
        self, settings: TreeProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        try:
            if settings.commit is not None:
                workspace = self._workspace(mission, mission_id, place)
                await workspace.locate()
                await workspace.commit(settings.commit)
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="proposer.commit") from None
        return {}

    def make(self, settings: TreeProposer, context: ProposerContext) -> Proposer:
        return TreeChecks(settings, self._workspace(context.mission, context.mission_id, context.place))

    @staticmethod
    def _workspace(mission: Mission, mission_id: str, place: DrivingPlace) -> AgentWorkspace:
        """The user's own tree is where the copy comes from, so there is no other worktree."""
        own = (mission.workspace or Workspace()).model_copy(update={"in_place": True, "protect": []})
        return AgentWorkspace(own, mission_id, place.workspaces / mission_id)
