"""The configured commands as tools of the front door: started as tasks, with progress, log messages and a result.

Owns: what such a tool says of itself, and what becomes of its task when the caller goes away. Knows no wire.
Invariant: a call ends with its task; a caller that gives up stops its command, a server that is stopped does not.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, get_args

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from mcp_types import EmptyResult, LoggingLevel, SetLevelRequestParams, Tool, ToolAnnotations, ToolExecution

from pursuit.config.commands import CommandConfig
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, caller_of, sendable
from pursuit.server.missions import arguments
from pursuit.server.missions.arguments import COUNT, NUMBER, TEXT, listed, record
from pursuit.server.missions.task_tools import TASK_ID, told_to_the_end
from pursuit.server.tasks.promotion import Plan
from pursuit.service.command_tools import command_tool, permit_directly
from pursuit.service.tasks import requestor_of

LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
LEVEL: LoggingLevel = "info"
"""Of a line on standard error: many programs write their progress there."""
MOST_LOG = 2_000
FROM_THE_FIRST = 1_000_000
"""Lines: a quick command has written before anybody listens."""
LAST_LINES = 1.0
"""Seconds for the rest of them once the task has ended."""
MOST_CONNECTIONS = 1_000
GIVES = record(
    {"status": {"type": "string", "enum": ["completed", "failed", "cancelled"]}, "task_id": TASK_ID},
    {
        "exit_code": {"type": "integer"},
        "signal": TEXT,
        "units_done": COUNT,
        "units_total": NUMBER,
        "last_item": TEXT,
        "failure_lines": listed(TEXT),
        "stderr_tail": listed(TEXT),
        "duration_seconds": NUMBER,
        "disclaimer": TEXT,
        "reason": TEXT,
    },
)


class CommandTools:
    """The commands of a runtime as tools. Use it as an async context manager around serving."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.levels = Levels()
        self.closing = False
        self.tools = [CommandTool(runtime, config, self) for config in runtime.tasks.commands.values()]
        self._group: TaskGroup

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._notice)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, value, trace)

    async def _notice(self) -> None:
        """Notices that the whole server is being stopped, which no handler can tell from its own request's end."""
        try:
            await anyio.sleep_forever()
        finally:
            self.closing = True

    async def given_up(self, task_id: str, caller: Any) -> None:
        """Stops the command of a caller that has gone; when it is we who go, it is left running."""
        with anyio.CancelScope(shield=True):
            for _ in range(3):  # until everybody has heard of the same cancellation
                await anyio.lowlevel.checkpoint()
        if not self.closing:
            await self._runtime.tasks.stop(task_id, caller=caller, reason="the caller went away")


class CommandTool:
    """One command."""

    refused: Mapping[str, Any] = {}

    def __init__(self, runtime: Runtime, config: CommandConfig, tools: CommandTools) -> None:
        self._runtime = runtime
        self._config = config
        self._tools = tools
        self._tool = command_tool(config)
        self.name = config.name

    def declared(self) -> Tool:
        """The tool as clients see it."""
        traits = self._tool.traits
        return Tool(
            name=self.name,
            title=self._config.title,
            description=_description(self._config),
            input_schema=self._config.input_schema(),
            output_schema=GIVES,
            annotations=ToolAnnotations(
                read_only_hint=traits.read_only,
                destructive_hint=traits.destructive,
                idempotent_hint=traits.idempotent,
                open_world_hint=True,
            ),
            execution=ToolExecution(task_support="optional"),
        )

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Runs it and waits for its end."""
        permit_directly(self._runtime.toolbox.host, self._tool, arguments)
        tasks, caller = self._runtime.tasks, caller_of(ctx)
        state = await tasks.call(self.name, arguments, caller=caller)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pass_on_errors, ctx, state.task_id)
                state = await told_to_the_end(ctx, tasks, state.task_id, requestor_of(caller))
                group.cancel_scope.deadline = anyio.current_time() + LAST_LINES
        except anyio.get_cancelled_exc_class():
            await self._tools.given_up(state.task_id, caller)
            raise
        return {"resultType": "complete", **(await tasks.store.result(state) or _without_result(state.message))}

    def plan(self, ctx: Context, arguments: Mapping[str, Any]) -> Plan:
        """What a call is as a task: one from its beginning, which any process can go on with."""
        permit_directly(self._runtime.toolbox.host, self._tool, arguments)
        job = self._runtime.tasks.job(self.name, arguments, caller=caller_of(ctx))
        title = self._config.title or self.name
        return Plan(title=title, when="at once", kind=job.kind, origin=job.origin, work=job.work)

    async def _pass_on_errors(self, ctx: Context, task_id: str) -> None:
        """Sends what the command writes to standard error as log messages, to a client that wants them."""
        if not self._tools.levels.wanted(ctx):
            return
        async for text in self._runtime.tasks.follow(task_id, FROM_THE_FIRST, errors=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Deprecated in the new era, and what the clients of today read.
                send = ctx.session.send_log_message  # pyright: ignore[reportDeprecated]
                sending = send(LEVEL, sendable(text[:MOST_LOG]), self.name, ctx.request_id)
            await sending


class Levels:
    """Which log messages each connection of the older era wants; all, until it says otherwise."""

    def __init__(self) -> None:
        self._least: OrderedDict[int, LoggingLevel] = OrderedDict()

    async def set(self, ctx: Context, params: SetLevelRequestParams) -> EmptyResult:
        """Answers `logging/setLevel`."""
        self._least[id(ctx.session.client_params)] = params.level
        while len(self._least) > MOST_CONNECTIONS:
            self._least.popitem(last=False)
        return EmptyResult()

    def wanted(self, ctx: Context) -> bool:
        """Whether a connection wants lines of standard error."""
        least = self._least.get(id(ctx.session.client_params), LEVELS[0])
        return LEVELS.index(least) <= LEVELS.index(LEVEL)


def _description(config: CommandConfig) -> str:
    said = config.description or config.title or f"Runs {config.name}."
    return f"{said} It may take long: progress is told, and task_status, task_tail and task_cancel know its task."


def _without_result(message: str | None) -> arguments.Schema:
    return {"content": [{"type": "text", "text": message or "it came to no result"}], "isError": True}
