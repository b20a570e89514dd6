"""The MCP server: tools, resources and prompts put together on the SDK's low-level server.

Owns: the wiring and what the server says of itself. Knows no transport.
Invariant: what a model should read is a tool's answer; only what breaks the protocol is a protocol error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp_types import ServerCapabilities, ServerTasksCapability, SetLevelRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit import __version__
from pursuit.runtime import Runtime
from pursuit.server.missions.command_tools import CommandTools
from pursuit.server.missions.dispatch import MissionCalls, ToolDispatch, mission_tasks
from pursuit.server.missions.handlers import Missions
from pursuit.server.missions.prompts import OF_ONE_MISSION as OF_ONE_MISSION_PROMPTS
from pursuit.server.missions.prompts import PROMPTS, Prompts
from pursuit.server.missions.resources import Completions, Resources
from pursuit.server.missions.subscriptions import Updates
from pursuit.server.missions.task_tools import task_tools
from pursuit.server.missions.tools import OF_ONE_MISSION, TOOLS
from pursuit.server.signing import Seal
from pursuit.server.tasks import protocol
from pursuit.server.tasks.middleware import TaskDoor
from pursuit.server.tasks.protocol import EXTENSION
from pursuit.service.background import BackgroundRuns

NAME = "pursuit"
INSTRUCTIONS = (
    "Pursuit works at a goal until criteria that a machine can check are met, the budget is spent, or it is stuck. "
    "Start a mission with mission_start (goal, criteria, budget, tools). Then drive it with mission_iterate: each "
    "iteration proposes calls, runs them, observes metrics and events, and evaluates the criteria; no model judges. "
    "With the proposer client you propose: read mission_status, then call mission_iterate with the next `proposal`. "
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
async def mission_server(runtime: Runtime) -> AsyncGenerator[Server[Any]]:
    """A server over an open runtime; its background runs go on until the block is left.

    Where the runtime knows one mission only, nothing is offered that begins another or is about something else.
    """
    service, alone = runtime.service, runtime.only is not None
    async with AsyncExitStack() as stack:
        runs = await stack.enter_async_context(BackgroundRuns(service, runtime.use_servers_of))
        updates = await stack.enter_async_context(Updates(service))
        resources = Resources(service)
        prompts = Prompts(service, OF_ONE_MISSION_PROMPTS if alone else PROMPTS)
        missions = Missions(runtime, runs)
        commands = await stack.enter_async_context(CommandTools(runtime))
        offered = () if alone else commands.tools
        desk = ToolDispatch(missions, OF_ONE_MISSION if alone else TOOLS, [*task_tools(runtime.tasks), *offered])
        calls = MissionCalls(runtime, desk, offered)
        runtime.tasks.resume["mission"] = mission_tasks(runtime, missions.asking).resume
        await runtime.tasks.tend()
        server = _MissionServer(
            NAME,
            version=__version__,
            title="Pursuit",
            description="Pursues goals with checkable criteria, durably.",
            instructions=INSTRUCTIONS_FOR_ONE if alone else INSTRUCTIONS,
            get_tool_input_schema=desk.input_schema,
            on_list_tools=desk.list,
            on_call_tool=cast("Any", desk.call),  # a plain dict is a result too, and costs half of a model
            on_list_resources=updates.with_list_changes(resources.list),
            on_list_resource_templates=resources.templates,
            on_read_resource=resources.read,
            on_subscribe_resource=updates.subscribe,
            on_unsubscribe_resource=updates.unsubscribe,
            on_subscriptions_listen=updates.listen,
            on_list_prompts=prompts.list,
            on_get_prompt=prompts.get,
            on_completion=Completions(service).complete,
        )
        if offered:  # what they write to standard error goes to clients as log messages
            server.add_request_handler("logging/setLevel", SetLevelRequestParams, commands.levels.set)
        door = TaskDoor(
            await runtime.tasks.host(),
            plan=calls.plan,
            performer=calls.performer,
            seal=lambda: Seal.beside(runtime.state_path),
            info=lambda: server.server_info_stamp,
        )
        server.middleware.append(await stack.enter_async_context(door))
        yield server


class _MissionServer(Server[Any]):
    """What the SDK declares for us, made true: of our lists only that of the resources ever changes."""

    def get_capabilities(self, *given: Any, **named: Any) -> ServerCapabilities:
        """What is offered; since 2026-07-28 the SDK takes it for granted that every list changes."""
        declared = super().get_capabilities(*given, **named)
        for fixed in (declared.tools, declared.prompts):
            if fixed is not None:
                fixed.list_changed = False
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            declared.extensions = {EXTENSION: {}}
        else:
            declared.tasks = ServerTasksCapability.model_validate(protocol.CAPABILITY)
        return declared

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What is declared at a handshake, over each transport."""
        told = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(told, experimental_capabilities, extensions)
