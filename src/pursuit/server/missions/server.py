"""Composes the MCP server of missions on the SDK's low-level server: the listing of tools, and what answers the rest.

`tests/meta/test_tool_listing.py` writes the listing, `tools.json`, from the models. So a server that a client starts
lists its tools at once, and loads what operates missions when that is needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp_types import (
    ListToolsResult,
    PaginatedRequestParams,
    ServerCapabilities,
    ServerTasksCapability,
    SetLevelRequestParams,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit import __version__
from pursuit.server.errors import CLIENT_NOTIFICATIONS, GREETINGS, TASKS, Context, one_page, shows_apps
from pursuit.upstream.tasks import EXTENSION

if TYPE_CHECKING:
    from pursuit.runtime import Runtime
    from pursuit.server.missions.handlers import Handlers
    from pursuit.server.tasks.promotion import PromotionSettings

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


STARTS_MISSIONS = "mission_start"
IDLE_SECONDS = 1.0
"""Seconds after which a server opens its runtime without a request that needs it."""
AT_ONCE = GREETINGS | CLIENT_NOTIFICATIONS | {"tools/list"}
"""The methods that need no open runtime; the middleware of missions passes them on."""


@asynccontextmanager
async def mission_server(runtime: Runtime, promotion: PromotionSettings | None = None) -> AsyncGenerator[Server[Any]]:
    """A server over an open runtime; its background runs continue until the block ends."""
    from pursuit.server.missions.handlers import open_handlers  # noqa: PLC0415 - see above

    async with open_handlers(runtime, lambda: server.server_info_stamp, promotion) as opened:

        async def handlers() -> Handlers:
            return opened

        server = _served(handlers, alone=runtime.only is not None, commands=opened.commands)
        yield server


@asynccontextmanager
async def opening_server(
    open_runtime: Callable[[], Runtime], idle_seconds: float = IDLE_SECONDS
) -> AsyncGenerator[Server[Any]]:
    """A server that opens its runtime for the first request that needs it, or after `idle_seconds`.

    The runtime serves all missions and has no commands.
    """
    wanted, opened, over = anyio.Event(), anyio.Event(), anyio.Event()
    found: list[Handlers] = []

    async def handlers() -> Handlers:
        if not found:
            wanted.set()
            await opened.wait()
        return found[0]

    async def open_when_wanted() -> None:
        with anyio.move_on_after(idle_seconds):
            await wanted.wait()
        if over.is_set():
            return
        from pursuit.server.missions.handlers import open_handlers  # noqa: PLC0415 - see above

        async with open_runtime() as runtime, open_handlers(runtime, lambda: server.server_info_stamp) as one:
            found.append(one)
            opened.set()
            await over.wait()

    server = _served(handlers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_when_wanted)
        yield server
        over.set()
        wanted.set()


@cache
def shipped_tools() -> list[Tool]:
    text = files(__package__ or "").joinpath("tools.json").read_bytes()
    return ListToolsResult.model_validate_json(text, by_name=False).tools


def _served(
    handlers: Callable[[], Awaitable[Handlers]], *, alone: bool = False, commands: Sequence[Tool] = ()
) -> Server[Any]:
    tools = [*(one for one in shipped_tools() if not alone or one.name != STARTS_MISSIONS), *commands]
    schemas = {tool.name: tool.input_schema for tool in tools}

    async def list_tools(ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        one_page(params)
        if shows_apps(ctx):
            return ListToolsResult(tools=tools)
        return ListToolsResult(tools=[tool.model_copy(update={"meta": None}) for tool in tools])

    def by(name: str) -> Any:
        find = attrgetter(name)

        async def answered(ctx: Context, params: Any) -> Any:
            return await find(await handlers())(ctx, params)

        return answered

    async def through(ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method not in AT_ONCE:
            for middleware in reversed((await handlers()).middleware):
                call_next = partial(middleware, call_next=call_next)
        return await call_next(ctx)

    server = _MissionServer(
        NAME,
        version=__version__,
        title="Pursuit",
        description="Pursues goals with checkable criteria, durably.",
        instructions=INSTRUCTIONS_FOR_ONE if alone else INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=by("dispatch.call"),
        on_list_resources=by("resources.list"),
        on_list_resource_templates=by("resources.templates"),
        on_read_resource=by("resources.read"),
        on_subscribe_resource=by("subscriptions.subscribe"),
        on_unsubscribe_resource=by("subscriptions.unsubscribe"),
        on_subscriptions_listen=by("subscriptions.listen"),
        on_list_prompts=by("prompts.list"),
        on_get_prompt=by("prompts.get"),
        on_completion=by("resources.complete"),
    )
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, by("levels.set"))
    server.middleware.append(through)
    return server


class _MissionServer(Server[Any]):
    """Corrects the SDK's declared capabilities: our lists do not notify of changes."""

    def get_capabilities(self, *given: Any, **named: Any) -> ServerCapabilities:
        """The capabilities; for 2026-07-28 the SDK declares `listChanged` of every list."""
        declared = super().get_capabilities(*given, **named)
        for fixed in (declared.tools, declared.prompts, declared.resources):
            if fixed is not None:
                fixed.list_changed = False
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            declared.extensions = {EXTENSION: {}}
        else:
            declared.tasks = ServerTasksCapability.model_validate(TASKS)
        return declared
