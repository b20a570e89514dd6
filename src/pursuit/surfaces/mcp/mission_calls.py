"""Calls of our own tools as tasks.

Owns: which tool can be one, how it is called without its client waiting, and how a mission's run is taken up again.
Does not know: generations or messages about tasks. Invariant: a run's task remembers what it takes to go on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, InputRequiredResult
from pydantic import ValidationError

from pursuit.runtime import Runtime
from pursuit.service.audit import Caller
from pursuit.service.background import MissionRun, MissionTasks
from pursuit.surfaces.mcp import answers
from pursuit.surfaces.mcp.arguments import Iterate, parse
from pursuit.surfaces.mcp.asking import Asking
from pursuit.surfaces.mcp.callers import may_approve
from pursuit.surfaces.mcp.command_tools import CommandTool
from pursuit.surfaces.mcp.desk import ToolDesk
from pursuit.surfaces.mcp.failure import Context, sendable
from pursuit.surfaces.mcp.tasks.carrying import Plan, answers_to
from pursuit.surfaces.mcp.tasks.detached import DetachedSession, detached
from pursuit.surfaces.mcp.tasks.terms import capabilities_of
from pursuit.tasks.execution import TaskContext

ITERATE = "mission_iterate"


class MissionCalls:
    """Our tools, for the door of tasks."""

    def __init__(self, runtime: Runtime, desk: ToolDesk, commands: Sequence[CommandTool] = ()) -> None:
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

    def __init__(self, desk: ToolDesk, ctx: Context, asking: Asking) -> None:
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


def mission_tasks(runtime: Runtime, asking: Asking) -> MissionTasks:
    """How runs that are tasks go on after their process died."""

    async def ask(task: TaskContext, mission_id: str) -> bool:
        async def put(questions: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
            return await answers_to(task, questions, lambda: asking.until_answered(mission_id, questions))

        return await asking.ask_later(put, mission_id, Caller(who=task.state.requestor, transport="task"))

    def words(answer: Mapping[str, Any]) -> Mapping[str, Any]:
        lines: Sequence[str] = answers.iterated(answer)
        return {key: value for key, value in answers.result(answer, list(lines)).items() if key != "resultType"}

    return MissionTasks(runtime.service, runtime.use_servers_of, ask=ask, words=words)


def _params(params: Mapping[str, Any]) -> CallToolRequestParams:
    try:
        given = {key: value for key, value in params.items() if key != "task"}
        return CallToolRequestParams.model_validate(given, by_name=False)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "Invalid request parameters", "") from None
