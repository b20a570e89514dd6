"""The kind `agent`: one iteration is one turn of a coding agent in its workspace."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio

from pursuit.core.events import CallSettled
from pursuit.core.mission import Mission, Proposal, ToolCall
from pursuit.core.state import CallRecord, MissionState
from pursuit.core.tools import CallFailed, Tool, Traits
from pursuit.errors import InvalidArgument, UpstreamUnavailable
from pursuit.proposers.agent.acp import Question
from pursuit.proposers.agent.prompt import cannot_be_kept, not_asked, prompt_of
from pursuit.proposers.agent.settings import SERVER, TURN, AgentProposer
from pursuit.proposers.agent.tool_server import ToolServer
from pursuit.proposers.agent.turns import AgentTurns
from pursuit.proposers.agent.workspace import AgentWorkspace, WorkspaceFailed
from pursuit.proposers.contract import (
    Blocked,
    ChecksImpossible,
    DrivingPlace,
    Moved,
    Performed,
    Proposed,
    Proposer,
    ProposerContext,
    ProposerKind,
    Services,
)

READS = frozenset({"read", "search", "think"})
WRITES = frozenset({"edit", "delete", "move"})
_DESCRIPTION = "One turn of the mission's coding agent in its workspace."
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string"}},
    "required": ["prompt"],
    "additionalProperties": False,
}


def turn_tool(settings: AgentProposer) -> Tool:
    """A turn as a call of an internal server: neither read-only nor idempotent, so it is never repeated."""
    return Tool(
        server=SERVER,
        name=TURN.partition(".")[2],
        description=_DESCRIPTION,
        input_schema=_SCHEMA,
        traits=Traits(timeout=settings.turn_seconds),
        definition={"name": "turn", "description": _DESCRIPTION, "inputSchema": _SCHEMA},
        metrics=(),
        allowed_because="the operator wrote the agent's command; what it asks is decided",
    )


def find_command(settings: AgentProposer) -> None:
    """Raises `UpstreamUnavailable` if the command of an agent is not installed."""
    if shutil.which(settings.argv[0]) is None:
        raise UpstreamUnavailable(f"the command of the agent, {settings.argv[0]!r}, was not found")


class AgentWork(Proposer):
    """Proposes the turns of one run, and performs them."""

    keeps_result = True

    def __init__(
        self, settings: AgentProposer, turns: AgentTurns, context: ProposerContext, server: ToolServer | None
    ) -> None:
        self._settings = settings
        self._turns = turns
        self._lessons = context.lessons
        self._server = server
        if server is not None:  # it gives the sessions of the agent the tools of the mission
            turns.servers = server.described
        self._proposed = False

    async def propose(self, state: MissionState, reasons: Sequence[str]) -> Proposed:
        """The call of the turn, unless the operator must repair something first.

        That is an agent that could not be asked in this run, or a cap on what the agent does not report.
        """
        why = not_asked(state) if self._proposed else None
        if (why := why or cannot_be_kept(state, self._settings)) is not None:
            return Blocked(why)
        self._proposed = True
        return Proposal(tool_calls=[ToolCall(tool_name=TURN, args={"prompt": prompt_of(state, self._lessons)})])

    def continues(self, state: MissionState) -> bool:
        """A turn that a stop cut off costs no iteration."""
        iteration = state.open
        return iteration is not None and bool(iteration.calls) and list(iteration.calls.values())[-1].cut

    async def perform(self, call: CallRecord, services: Services) -> Performed:
        """A turn. What a turn that was cut off did is not known, whatever cut it off."""
        ended: Performed | None = None
        async with anyio.create_task_group() as tasks:
            if self._server is not None:
                self._server.turn = tasks
            try:
                ended = await self._turns.take(
                    str(call.args["prompt"]), call.iteration, partial(self._answer, services)
                )
            except CallFailed as error:
                ended = Performed(outcome=error.outcome, error=str(error))
            finally:
                if self._server is not None:
                    self._server.turn = None
            tasks.cancel_scope.cancel()
        return ended or Performed(outcome="unknown")

    def interrupted(self) -> Performed | None:
        """The end of the turn that was cancelled."""
        return self._turns.last_end

    async def recover(self, call: CallRecord) -> Performed | None:
        """Ends the processes of the turn, and keeps its changes or rolls them back."""
        return await self._turns.recover(call.iteration)

    @asynccontextmanager
    async def before_checks(self, *, running: Callable[[], bool]) -> AsyncGenerator[Moved | None]:
        """Commands run in a throw-away worktree with the protected files of the start; the agent is stopped."""
        turns = self._turns
        try:
            await turns.prepare()
            async with turns.stopped():
                tree = await turns.workspace.open_checks(again=not running())
                try:
                    yield lambda cwd: turns.workspace.moved(cwd, tree)
                except BaseException:  # a check runs on, as a task: the agent may not go on before its end
                    with anyio.CancelScope(shield=True):
                        await turns.aclose(at_once=True)
                    raise
        except WorkspaceFailed as error:
            raise ChecksImpossible(str(error)) from None
        finally:
            if not running():
                with anyio.CancelScope(shield=True):
                    await turns.workspace.close_checks()

    async def completed(self, state: MissionState) -> Mapping[str, str]:
        """Leaves the result as a branch; a branch that cannot be made is a warning."""
        try:
            await self._turns.prepare()
            await self._turns.workspace.write_branch(state.mission.directive, again=not state.terminal)
        except WorkspaceFailed as error:
            return {f"the branch of the result was not made: {error}": "no_branch"}
        return {}

    def notes(self) -> Mapping[str, str]:
        """The warnings of the workspace."""
        return self._turns.workspace.notes

    async def _answer(self, services: Services, question: Question) -> bool | None:
        """Whether the agent may; None if no person answered in time, so that the turn must end."""
        return await services.ask(
            self._step(question),
            dict(question.arguments),
            unattended=self._settings.unattended,
            seconds=self._settings.permission_seconds,
        )

    def _step(self, question: Question) -> Tool:
        """A step of the agent, as a tool for policy. Work inside the workspace is its own, and is recorded."""
        paths = question.arguments.get("paths")
        reads, inside = question.kind in READS and not paths, self._is_inside(paths)
        traits = Traits()
        if reads or (inside and question.kind in READS | WRITES):
            only_reads = question.kind in READS
            why = "the agent says that it only reads" if only_reads else "it only writes inside the workspace"
            traits = Traits(read_only=True, destructive=False, why={"read_only": why})
        description = question.title or question.kind
        return Tool(
            server=SERVER, name=question.kind, description=description, input_schema={}, definition={}, traits=traits
        )

    def _is_inside(self, paths: object) -> bool:
        if not isinstance(paths, list) or not paths:
            return False
        workspace = self._turns.workspace
        tree = workspace.tree.resolve()
        places = [(workspace.agent_folder / str(one)).resolve() for one in cast("list[object]", paths)]
        return all(place.is_relative_to(tree) and ".git" not in place.relative_to(tree).parts for place in places)


class AgentKind(ProposerKind[AgentProposer]):
    """The kind `agent`."""

    settings = AgentProposer

    def tools(self, settings: AgentProposer) -> Sequence[Tool]:
        """Its turn."""
        return [turn_tool(settings)]

    async def ready(
        self, settings: AgentProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        """The agent is installed, and its workspace is made."""
        find_command(settings)
        turns = _turns_of(settings, mission_id, mission, place)
        try:
            await turns.prepare()
        except WorkspaceFailed as error:
            raise InvalidArgument(str(error), session_id=mission_id, field="workspace.path") from None
        return turns.workspace.notes

    @asynccontextmanager
    async def open(self, settings: AgentProposer, context: ProposerContext) -> AsyncGenerator[Proposer]:
        """The agent, with the tools of the mission for as long as the run."""
        turns = _turns_of(settings, context.mission_id, context.mission, context.place)
        if not turns.workspace.settings.in_place:
            settled = [event for _, event in await context.past(0) if isinstance(event, CallSettled)]
            turns.workspace.known_start = next((one.change.before for one in settled if one.change is not None), "")
        try:
            if context.services is None:
                yield AgentWork(settings, turns, context, None)
                return
            async with ToolServer.serving(context.services, settings.permission_seconds) as server:
                yield AgentWork(settings, turns, context, server)
        finally:
            await turns.aclose()


def _turns_of(settings: AgentProposer, mission_id: str, mission: Mission, place: DrivingPlace) -> AgentTurns:
    assert mission.workspace is not None  # noqa: S101 - a rule of missions
    inherit = settings.inherit_env if isinstance(settings.inherit_env, bool) else tuple(settings.inherit_env)
    around = replace(place.surroundings, inherit=inherit or place.surroundings.inherit)
    return AgentTurns(settings, AgentWorkspace(mission.workspace, mission_id, place.workspaces / mission_id), around)
