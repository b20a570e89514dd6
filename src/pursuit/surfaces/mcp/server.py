"""The MCP server: tools, resources and prompts put together on the SDK's low-level server.

Owns: the wiring and what the server says of itself. Knows no transport.
Invariant: what a model should read is a tool's answer; only what breaks the protocol is a protocol error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    ServerCapabilities,
)

from pursuit import __version__
from pursuit.app import Runtime
from pursuit.errors import PursuitError
from pursuit.service.background import BackgroundRuns
from pursuit.surfaces.mcp import answers
from pursuit.surfaces.mcp.arguments import parse
from pursuit.surfaces.mcp.asking import AskClient
from pursuit.surfaces.mcp.completions import Completions
from pursuit.surfaces.mcp.failure import Context, one_page
from pursuit.surfaces.mcp.missions import Missions
from pursuit.surfaces.mcp.prompts import Prompts
from pursuit.surfaces.mcp.resources import Resources
from pursuit.surfaces.mcp.tools import TOOLS, MissionTool
from pursuit.surfaces.mcp.updates import Updates

NAME = "pursuit"
INSTRUCTIONS = (
    "Pursuit works at a goal until criteria that a machine can check are met, the budget is spent, or it is stuck. "
    "Start a mission with mission_start (goal, criteria, budget, tools). Then drive it with mission_iterate: each "
    "iteration proposes calls, runs them, observes metrics and events, and evaluates the criteria; no model judges. "
    "With the proposer client you propose: read mission_status, then call mission_iterate with the next `proposal`. "
    "With background=true the server drives on by itself while you watch mission_status or subscribe to "
    "mission://ID. Every step is durable: after a crash or a lost answer call mission_iterate again with `after` set "
    "to the iterations you know of. End with mission_complete or mission_abort, and read mission://ID/report."
)


@asynccontextmanager
async def mission_server(runtime: Runtime) -> AsyncGenerator[Server[Any]]:
    """A server over an open runtime; its background runs go on until the block is left."""
    service = runtime.service
    async with BackgroundRuns(service, runtime.use_servers_of) as runs, Updates(service) as updates:
        resources, prompts = Resources(service), Prompts(service)
        desk = _ToolDesk(Missions(runtime, runs))
        yield _MissionServer(
            NAME,
            version=__version__,
            title="Pursuit",
            description="Pursues goals with checkable criteria, durably.",
            instructions=INSTRUCTIONS,
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


class _MissionServer(Server[Any]):
    """What the SDK declares for us, made true: of our lists only that of the resources ever changes."""

    def get_capabilities(self, *given: Any, **named: Any) -> ServerCapabilities:
        """What is offered; since 2026-07-28 the SDK takes it for granted that every list changes."""
        declared = super().get_capabilities(*given, **named)
        for fixed in (declared.tools, declared.prompts):
            if fixed is not None:
                fixed.list_changed = False
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


class _ToolDesk:
    """Finds the tool, checks the arguments, answers."""

    def __init__(self, missions: Missions) -> None:
        self._missions = missions
        self._tools = {tool.name: tool for tool in TOOLS}
        self._declared: ListToolsResult | None = None

    async def list(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """All nine, on one page."""
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
            return await self._answer(tool, ctx, params)
        except (PursuitError, AskClient, BaseExceptionGroup) as error:
            found = _ours(error)
            if found is None:
                raise
            return found.result() if isinstance(found, AskClient) else answers.refusal(found, tool.refused)

    async def _answer(self, tool: MissionTool, ctx: Context, params: CallToolRequestParams) -> dict[str, Any]:
        asked = parse(tool.shape, params.arguments or {})
        answer = await tool.answer(self._missions, ctx, asked)
        return answers.result(answer, tool.lines(answer))

    def _listing(self) -> ListToolsResult:
        if self._declared is None:
            self._declared = ListToolsResult(tools=[tool.declared() for tool in TOOLS])
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
