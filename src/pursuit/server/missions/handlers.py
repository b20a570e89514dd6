"""Opens everything behind the MCP server of missions that needs an open runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from mcp.server.context import ServerMiddleware
from mcp_types import Tool

from pursuit.runtime import Runtime
from pursuit.server.audited_reads import audited_reads
from pursuit.server.errors import caller_of, request_limits
from pursuit.server.missions.elicitation import Elicitation
from pursuit.server.missions.mission_tools import MissionTools
from pursuit.server.missions.prompts import OF_ONE_MISSION, PROMPTS, Prompts
from pursuit.server.missions.resources import Resources
from pursuit.server.missions.subscriptions import Subscriptions
from pursuit.server.missions.task_tools import CommandTools, LogLevels, TaskTools
from pursuit.server.missions.tool_dispatch import DetachedCall, ToolDispatch
from pursuit.server.signing import Signer
from pursuit.server.tasks.middleware import TaskMiddleware
from pursuit.server.tasks.promotion import PromotionSettings
from pursuit.service.approvals import Approvals
from pursuit.service.run_loop import background_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handlers of requests, the middleware around them, and the declarations of the operator's commands."""

    dispatch: ToolDispatch
    resources: Resources
    prompts: Prompts
    subscriptions: Subscriptions
    levels: LogLevels
    middleware: Sequence[ServerMiddleware[Any]]
    commands: Sequence[Tool]


@asynccontextmanager
async def open_handlers(
    runtime: Runtime, info: Callable[[], Mapping[str, Any]], promotion: PromotionSettings | None = None
) -> AsyncGenerator[Handlers]:
    """The handlers over an open runtime; its background runs continue until the block ends.

    If the runtime serves a single mission, they offer nothing that starts another or concerns anything else.
    """
    service, alone = runtime.runner, runtime.only is not None
    approvals = Approvals(service)

    def seal() -> Signer:
        return Signer.beside(runtime.state_path)

    async with AsyncExitStack() as stack:
        runs = await stack.enter_async_context(background_runs(service, runtime.use_servers_of))
        runtime.runs = runs
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        if runtime.notifier is not None and not alone:
            tasks.start_soon(runtime.notifier.watch, service)
        schedules = None if alone else runtime.schedules(runs.begin)
        if schedules is not None:
            tasks.start_soon(schedules.run)
        subscriptions = Subscriptions(service, tasks)
        stack.callback(subscriptions.close)
        commands = CommandTools(runtime, tasks)
        elicitation = Elicitation(approvals, seal, service.state, service.channels)
        missions = MissionTools(runtime, runs, approvals, elicitation, commands.levels.warn)
        offered = [] if alone else commands.tools()
        dispatch = ToolDispatch(
            [*missions.tools(), *TaskTools(runtime.tasks, commands.levels).tools(), *offered],
            lambda ctx, mission_id: service.require_visible(caller_of(ctx), mission_id),
        )
        runtime.tasks.resume["mission"] = missions.resume_run
        await runtime.tasks.maintain()
        middleware = TaskMiddleware(
            await runtime.tasks.host(),
            tasks,
            plan=dispatch.plan,
            performer=partial(DetachedCall, dispatch, elicitation),
            seal=seal,
            info=info,
            channels=service.channels,
            settings=promotion,
        )
        yield Handlers(
            dispatch=dispatch,
            resources=Resources(service),
            prompts=Prompts(service, OF_ONE_MISSION if alone else PROMPTS),
            subscriptions=subscriptions,
            levels=commands.levels,
            middleware=[*request_limits(service), *audited_reads(service.audit, dispatch.only_reads), middleware],
            commands=[tool.declared(tool.arguments) for tool in offered if isinstance(tool.arguments, dict)],
        )
