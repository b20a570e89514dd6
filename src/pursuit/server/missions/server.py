"""Composes the MCP server of missions: tools, resources and prompts on the SDK's low-level server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
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
INSTRUCTIONS = (
    "Pursuit works at a goal until criteria that a machine can check are met, the budget is spent, or it is stuck. "
    "mission_tools lists the tools there are. Start a mission with mission_start (goal, criteria, budget, tools). Then "
    "drive it with mission_iterate: each iteration proposes calls, runs them, observes metrics and events, and "
    "evaluates the criteria; no model judges. With the proposer client you propose: read mission_status, then call "
    "mission_iterate with the next `proposal`. "
    "With background=true the server drives on by itself while you watch mission_status or subscribe to "
    "mission://ID. Every step is durable: after a crash or a lost answer call mission_iterate again with `after` set "
    "to the iterations you know of. End with mission_complete or mission_abort, and read mission://ID/report. "
    "What takes long is a task and goes on by itself: task_status, task_tail, task_wait and task_cancel are for those."
)

INSTRUCTIONS_FOR_ONE = (
    "Pursuit works at a goal until criteria that a machine can check are met, the budget is spent, or it is stuck. "
    "This server serves one mission, which mission_list names. Read mission_status, then drive it with "
    "mission_iterate: each iteration proposes calls, runs them, observes metrics and events, and evaluates the "
    "criteria; no model judges. With the proposer client you propose: call mission_iterate with the next `proposal`. "
    "Every step is durable: after a crash or a lost answer call mission_iterate again with `after` set to the "
    "iterations you know of. "
    "What takes long is a task and goes on by itself: task_status, task_tail, task_wait and task_cancel are for those."
)


@asynccontextmanager
async def mission_server(runtime: Runtime, promotion: PromotionSettings | None = None) -> AsyncGenerator[Server[Any]]:
    """A server over an open runtime; its background runs go on until the block is left.

    Where the runtime knows one mission only, the server offers nothing that starts another or is about something else.
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
        missions = MissionTools(runtime, runs, approvals, elicitation)
        offered = [] if alone else commands.tools()
        dispatch = ToolDispatch(
            [*missions.tools(), *TaskTools(runtime.tasks).tools(), *offered],
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
            on_list_resources=subscriptions.with_list_changes(resources.list),
            on_list_resource_templates=resources.templates,
            on_read_resource=resources.read,
            on_subscribe_resource=subscriptions.subscribe,
            on_unsubscribe_resource=subscriptions.unsubscribe,
            on_subscriptions_listen=subscriptions.listen,
            on_list_prompts=prompts.list,
            on_get_prompt=prompts.get,
            on_completion=resources.complete,
        )
        if offered:  # clients get what a command writes to standard error as log messages
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
    """Corrects what the SDK declares for us: of our lists only that of the resources ever changes."""

    def get_capabilities(self, *given: Any, **named: Any) -> ServerCapabilities:
        """The capabilities; for 2026-07-28 the SDK declares `listChanged` of every list."""
        declared = super().get_capabilities(*given, **named)
        for fixed in (declared.tools, declared.prompts):
            if fixed is not None:
                fixed.list_changed = False
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            declared.extensions = {protocol.EXTENSION: {}}
        else:
            declared.tasks = ServerTasksCapability.model_validate(protocol.CAPABILITY)
        return declared

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What the server declares at a handshake, over each transport."""
        options = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)
