"""Composes the MCP server of missions: tools, resources and prompts on the SDK's low-level server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
from mcp.server.lowlevel import Server
from mcp_types import ServerCapabilities, ServerTasksCapability, SetLevelRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit import __version__
from pursuit.runtime import Runtime
from pursuit.server.audited_reads import audited_reads
from pursuit.server.errors import caller_of, request_limits
from pursuit.server.missions.elicitation import Elicitation
from pursuit.server.missions.mission_tools import MissionTools
from pursuit.server.missions.prompts import OF_ONE_MISSION, PROMPTS, Prompts
from pursuit.server.missions.resources import Resources
from pursuit.server.missions.subscriptions import Subscriptions
from pursuit.server.missions.task_tools import CommandTools, TaskTools
from pursuit.server.missions.tool_dispatch import DetachedCall, ToolDispatch
from pursuit.server.signing import Signer
from pursuit.server.tasks import protocol
from pursuit.server.tasks.middleware import TaskMiddleware
from pursuit.server.tasks.promotion import PromotionSettings
from pursuit.service.approvals import Approvals
from pursuit.service.run_loop import background_runs

NAME = "pursuit"
_GOAL = "Pursuit works on a goal until its machine-checkable criteria are met, the budget is spent, or it is stuck. "
_ITERATION = (
    "mission_iterate: each iteration proposes calls, runs them, observes metrics and events, and evaluates the "
    "criteria; no model judges. With the proposer client you propose: "
)
_DURABLE = (
    "Every step is durable: after a crash or a lost answer call mission_iterate again with `after` set to the "
    "iterations you know of. "
)
_TASKS = "Long work becomes a task and continues by itself: see task_status, task_tail, task_wait and task_cancel."
INSTRUCTIONS = (
    f"{_GOAL}mission_tools lists the tools. Start a mission with mission_start (goal, criteria, budget, "
    f"tools). Then drive it with {_ITERATION}read mission_status, then call mission_iterate with the next `proposal`. "
    "With background=true the server continues by itself while you watch mission_status or subscribe to "
    f"mission://ID. {_DURABLE}End with mission_complete or mission_abort, and read mission://ID/report. {_TASKS}"
)
INSTRUCTIONS_FOR_ONE = (
    f"{_GOAL}This server serves one mission, which mission_list names. Read mission_status, then drive it with "
    f"{_ITERATION}call mission_iterate with the next `proposal`. {_DURABLE}{_TASKS}"
)


@asynccontextmanager
async def mission_server(runtime: Runtime, promotion: PromotionSettings | None = None) -> AsyncGenerator[Server[Any]]:
    """A server over an open runtime; its background runs continue until the block ends.

    If the runtime serves a single mission, the server offers nothing that starts another or concerns anything else.
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
        resources = Resources(service)
        prompts = Prompts(service, OF_ONE_MISSION if alone else PROMPTS)
        elicitation = Elicitation(approvals, seal, service.state, service.channels)
        missions = MissionTools(runtime, runs, approvals, elicitation, commands.levels.warn)
        offered = [] if alone else commands.tools()
        dispatch = ToolDispatch(
            [*missions.tools(), *TaskTools(runtime.tasks, commands.levels).tools(), *offered],
            lambda ctx, mission_id: service.require_visible(caller_of(ctx), mission_id),
        )
        runtime.tasks.resume["mission"] = missions.resume_run
        await runtime.tasks.maintain()
        server = _MissionServer(
            NAME,
            version=__version__,
            title="Pursuit",
            description="Pursues goals with checkable criteria, durably.",
            instructions=INSTRUCTIONS_FOR_ONE if alone else INSTRUCTIONS,
            get_tool_input_schema=dispatch.input_schema,
            on_list_tools=dispatch.list,
            on_call_tool=cast("Any", dispatch.call),  # the SDK takes a plain dict as a result, too
            on_list_resources=resources.list,
            on_list_resource_templates=resources.templates,
            on_read_resource=resources.read,
            on_subscribe_resource=subscriptions.subscribe,
            on_unsubscribe_resource=subscriptions.unsubscribe,
            on_subscriptions_listen=subscriptions.listen,
            on_list_prompts=prompts.list,
            on_get_prompt=prompts.get,
            on_completion=resources.complete,
        )
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, commands.levels.set)
        middleware = TaskMiddleware(
            await runtime.tasks.host(),
            tasks,
            plan=dispatch.plan,
            performer=partial(DetachedCall, dispatch, elicitation),
            seal=seal,
            info=lambda: server.server_info_stamp,
            channels=service.channels,
            settings=promotion,
        )
        server.middleware.extend([*request_limits(service), *audited_reads(service.audit, dispatch.only_reads)])
        server.middleware.append(middleware)
        yield server


class _MissionServer(Server[Any]):
    """Corrects the SDK's declared capabilities: our lists do not notify of changes."""

    def get_capabilities(self, *given: Any, **named: Any) -> ServerCapabilities:
        """The capabilities; for 2026-07-28 the SDK declares `listChanged` of every list."""
        declared = super().get_capabilities(*given, **named)
        for fixed in (declared.tools, declared.prompts, declared.resources):
            if fixed is not None:
                fixed.list_changed = False
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            declared.extensions = {protocol.EXTENSION: {}}
        else:
            declared.tasks = ServerTasksCapability.model_validate(protocol.CAPABILITY)
        return declared
