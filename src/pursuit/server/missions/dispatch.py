"""Calls of our tools: found, checked, answered.

Owns: the order of the steps. Knows no transport. Invariant: what is refused is an answer too; only what breaks the
protocol is a protocol error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError

from pursuit.errors import PursuitError
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, may_approve, one_page, sendable
from pursuit.server.missions import tools
from pursuit.server.missions.arguments import Iterate, parse
from pursuit.server.missions.command_tools import CommandTool
from pursuit.server.missions.elicitation import AskClient, Elicitation
from pursuit.server.missions.handlers import Missions
from pursuit.server.missions.tools import MissionTool
from pursuit.server.tasks.promotion import DetachedSession, Plan, answers_to, detached
from pursuit.server.tasks.protocol import capabilities_of
from pursuit.service.audit import Caller
from pursuit.service.background import MissionRun, MissionTasks
from pursuit.tasks.execution import TaskContext


class DispatchedTool(Protocol):
    """A tool that answers by itself; `refused` is what a refusal of it has besides."""

    name: str

    @property
    def refused(self) -> Mapping[str, Any]:
        """What a refusal has unless the error knows more."""
        ...

    def declared(self) -> Tool:
        """The tool as clients see it."""
        ...

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a call; raises what refuses it."""
        ...


class BoundMissionTool:
    """A tool about missions, with them."""

    def __init__(self, tool: MissionTool, missions: Missions) -> None:
        self.name = tool.name
        self.refused: Mapping[str, Any] = tool.refused
        self.declared = tool.declared
        self._tool = tool
        self._missions = missions

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checks the arguments, and answers."""
        asked = parse(self._tool.shape, arguments)
        answer = await self._tool.answer(self._missions, ctx, asked)
        return tools.result(answer, self._tool.lines(answer))


class ToolDispatch:
    """Finds the tool and answers; those about missions come first."""

    def __init__(self, missions: Missions, tools: Sequence[MissionTool], more: Sequence[DispatchedTool] = ()) -> None:
        self.asking = missions.asking
        found: list[DispatchedTool] = [*(BoundMissionTool(tool, missions) for tool in tools), *more]
        self._tools = {tool.name: tool for tool in found}
        self._declared: ListToolsResult | None = None

    async def list(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """All of them, on one page."""
        one_page(params)
        return self._listing()

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """What a tool takes; None for one that is not here."""
        return next((tool.input_schema for tool in self._listing().tools if tool.name == name), None)

    async def call(self, ctx: Context, params: CallToolRequestParams) -> dict[str, Any] | InputRequiredResult:
        """Answers a call; what is refused is an answer too."""
        tool = self._tools.get(params.name)
        if tool is None:
            known = ", ".join(self._tools)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:100]!r}; there are {known}")
        try:
            return await tool.call(ctx, params.arguments or {})
        except (PursuitError, AskClient, BaseExceptionGroup) as error:
            found = _ours(error)
            if found is None:
                raise
            return found.result() if isinstance(found, AskClient) else tools.refusal(found, tool.refused)

    def _listing(self) -> ListToolsResult:
        if self._declared is None:
            self._declared = ListToolsResult(tools=[tool.declared() for tool in self._tools.values()])
        return self._declared


def _ours(error: BaseException) -> PursuitError | AskClient | None:
    """What a client can be told, out of the groups that concurrent work wrapped it in."""
    match error:
        case PursuitError() | AskClient():
            return error
        case BaseExceptionGroup(exceptions=(inner,)):
            return _ours(inner)
        case _:
            return None


# Calls of our own tools as tasks.
# Invariant: a run's task remembers what it takes to go on with it.

ITERATE = "mission_iterate"


class MissionCalls:
    """Our tools, for the door of tasks."""

    def __init__(self, runtime: Runtime, desk: ToolDispatch, commands: Sequence[CommandTool] = ()) -> None:
        self._runtime = runtime
        self._asking = desk.asking
        self._desk = desk
        self._commands = {command.name: command for command in commands}

    async def plan(self, ctx: Context) -> Plan:
        """What a call would be as a task: a command always, driving a mission unless it is a background run already."""
        params = _params(ctx.params or {})
        command = self._commands.get(params.name)
        if command is not None:
            return command.plan(ctx, params.arguments or {})
        if self._desk.input_schema(params.name) is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {sendable(params.name[:100])!r}")
        if params.name != ITERATE:
            return Plan(title=params.name[:100], when="never")
        asked = parse(Iterate, params.arguments or {})
        if asked.background:
            return Plan(title=params.name, when="never")
        state = await self._runtime.service.state(asked.session_id)
        run = MissionRun(
            session_id=asked.session_id,
            first=state.iteration_count if asked.after is None else asked.after,
            iterations=asked.max_iterations_this_call,
            proposal=asked.proposal,
            asks=may_approve(ctx) and capabilities_of(ctx).get("elicitation") is not None,
        )
        return Plan(title=f"{params.name} {asked.session_id}", kind="mission", origin=run.origin())

    def performer(self, ctx: Context) -> Calling:
        """How the call of a request is made."""
        return Calling(self._desk, ctx, self._asking)


class Calling:
    """One call, made as often as it takes answers to end it."""

    def __init__(self, desk: ToolDispatch, ctx: Context, asking: Elicitation) -> None:
        self._desk = desk
        self._asking = asking
        self._ctx = ctx
        self._session = DetachedSession(ctx.session)
        self.long = anyio.Event()

    def attach(self, task: TaskContext) -> None:
        """From here on this task hears of progress."""
        self._session.task = task

    async def answered_elsewhere(self, questions: Mapping[str, Any]) -> None:
        """Returns when the mission waits for none of these any more."""
        arguments = _params(self._ctx.params or {}).arguments or {}
        await self._asking.until_answered(str(arguments.get("session_id")), questions)

    async def perform(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes the call."""
        result = await self._desk.call(detached(self._ctx, self._session, params), _params(params))
        if isinstance(result, InputRequiredResult):
            return result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return result


def mission_tasks(runtime: Runtime, asking: Elicitation) -> MissionTasks:
    """How runs that are tasks go on after their process died."""

    async def ask(task: TaskContext, mission_id: str) -> bool:
        async def put(questions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
            return await answers_to(task, questions, lambda: asking.until_answered(mission_id, questions))

        return await asking.ask_later(put, mission_id, Caller(who=task.state.requestor, transport="task"))

    def words(answer: Mapping[str, Any]) -> Mapping[str, Any]:
        lines: Sequence[str] = tools.iterated(answer)
        return {key: value for key, value in tools.result(answer, list(lines)).items() if key != "resultType"}

    return MissionTasks(runtime.service, runtime.use_servers_of, ask=ask, words=words)


def _params(params: Mapping[str, Any]) -> CallToolRequestParams:
    try:
        given = {key: value for key, value in params.items() if key != "task"}
        return CallToolRequestParams.model_validate(given, by_name=False)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "Invalid request parameters", "") from None
