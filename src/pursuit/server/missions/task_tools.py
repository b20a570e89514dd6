"""The four `task_*` tools, and the configured commands as tools that start tasks.

Invariants: a caller sees only the tasks of its own requestor; other ids are unknown to it, as if they did not exist.
The call of a command ends with its task: a caller that disconnects stops the command, a server that stops does not.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from mcp_types import EmptyResult, LoggingLevel, SetLevelRequestParams, ToolAnnotations
from pydantic import AfterValidator, Field

from pursuit.config.commands import CommandConfig
from pursuit.core.base_model import InputModel, Number, Whole
from pursuit.core.tasks import TaskState
from pursuit.runtime import Runtime
from pursuit.server.errors import LEVELS, Context, caller_of, is_modern, is_wanted, log_level, sendable
from pursuit.server.missions.mission_tools import PageArguments, Reason
from pursuit.server.missions.result_text import page_lines, task_line, task_lines
from pursuit.server.missions.tool_dispatch import (
    COUNT,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    Result,
    ServerTool,
    array,
    record,
    result,
)
from pursuit.server.tasks.promotion import TaskPlan
from pursuit.service.audit import Caller
from pursuit.service.command_tools import command_tool, permit_directly
from pursuit.service.tasks import Tasks, requestor_of
from pursuit.tasks.record import is_task_id

MAX_LINES = 10_000
MAX_WAIT = 86_400
USUAL_WAIT = 50.0
"""Seconds; most clients abandon a request after a minute."""
MAX_MESSAGE = 200

STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
TASK = record({"task_id": TEXT, "status": TEXT}, {"result": OBJECT})


def _task_id(value: str) -> str:
    if not is_task_id(value):
        raise ValueError("is not a task id: `task-` and 32 hex digits, as in task_status")
    return value


TaskId = Annotated[str, AfterValidator(_task_id), Field(json_schema_extra={"pattern": "^task-[0-9a-f]{32}$"})]


class StatusArguments(PageArguments):
    task_id: TaskId | None = Field(None, description="Only this task.")


class TaskArguments(InputModel):
    task_id: TaskId = Field(description="From the tool that started it, or from task_status.")


class TailArguments(TaskArguments):
    lines: Annotated[Whole, Field(ge=1, le=MAX_LINES)] = Field(100, description="How many.")


class CancelArguments(TaskArguments):
    reason: Reason | None = Field(None, description="Reason, recorded.")


class WaitArguments(TaskArguments):
    timeout_seconds: Annotated[Number, Field(gt=0, le=MAX_WAIT)] = Field(
        USUAL_WAIT, description="Maximum seconds to wait."
    )


class TaskTools:
    def __init__(self, tasks: Tasks, levels: LogLevels) -> None:
        self._tasks = tasks
        self._levels = levels

    def tools(self) -> list[ServerTool]:
        return [
            ServerTool.of(self.task_status, "The state of tasks", record({"tasks": OBJECTS}, {"next_cursor": TEXT})),
            ServerTool.of(self.task_tail, "The output of a task", record({"task_id": TEXT, "lines": array(TEXT)})),
            ServerTool.of(self.task_cancel, "Stop a task", TASK, annotations=STOPS),
            ServerTool.of(self.task_wait, "Wait for a task", TASK),
        ]

    async def task_status(self, ctx: Context, asked: StatusArguments) -> Result:
        """A task's status, progress and, once it has ended, its result; without task_id the list of your tasks."""
        requestor = requestor_of(caller_of(ctx))
        if asked.task_id is not None:
            shown = await self._tasks.show(asked.task_id, requestor=requestor)
            return result({"tasks": [shown]}, task_lines(shown))
        page = await self._tasks.list(requestor=requestor, cursor=asked.cursor)
        return result(
            page, page_lines([task_line(row) for row in page["tasks"]], page.get("next_cursor"), none="no tasks")
        )

    async def task_tail(self, ctx: Context, asked: TailArguments) -> Result:
        """The last lines of a command's output, standard output and standard error together."""
        lines = await self._tasks.tail(asked.task_id, asked.lines, requestor=requestor_of(caller_of(ctx)))
        return result({"task_id": asked.task_id, "lines": lines}, lines or ["the task has not written any output"])

    async def task_cancel(self, ctx: Context, asked: CancelArguments) -> Result:
        """Stop a task and all its processes: SIGTERM, a grace period, SIGKILL.

        An ended task does not change.
        """
        caller = caller_of(ctx)
        await self._tasks.get(asked.task_id, requestor=requestor_of(caller))
        await self._tasks.stop(asked.task_id, caller=caller, reason=asked.reason)
        shown = await self._tasks.show(asked.task_id)
        return result(shown, task_lines(shown))

    async def task_wait(self, ctx: Context, asked: WaitArguments) -> Result:
        """Wait until a task has ended and get its result; after timeout_seconds it is still `working`: call again."""
        requestor = requestor_of(caller_of(ctx))
        with anyio.move_on_after(asked.timeout_seconds):
            await _report_until_ended(ctx, self._tasks, self._levels, asked.task_id, requestor)
        shown = await self._tasks.show(asked.task_id, requestor=requestor)
        return result(shown, task_lines(shown))


async def _report_until_ended(ctx: Context, tasks: Tasks, levels: LogLevels, task_id: str, requestor: str) -> TaskState:
    """Reports progress and heartbeats to the client until the task has ended; returns the task's last state.

    A slow client gets only the latest progress.
    """
    state = await tasks.get(task_id, requestor=requestor)
    rising, changed, said = Rising(), state.updated_at, state.message
    async for state in tasks.store.follow(task_id, requestor=requestor):
        if state.message is not None and state.updated_at == changed and state.message != said:  # a heartbeat
            await levels.warn(ctx, task_id, state.message)
        changed, said = state.updated_at, state.message
        number = rising.next(state.done)
        if not state.terminal and state.message is not None:
            total = None if state.total is not None and number > state.total else state.total
            await ctx.session.report_progress(number, total, state.message[:MAX_MESSAGE])
    return state


class Rising:
    """Rising progress numbers, as MCP requires: between two units they approach the next."""

    def __init__(self) -> None:
        self._done = -1.0
        self._times = 0

    def next(self, done: float) -> float:
        if done > self._done:
            self._done, self._times = done, 0
            return done
        self._times += 1
        return self._done + 1 - 1 / (self._times + 1)


LEVEL: LoggingLevel = "info"
"""The level of a line on standard error: many programs write their progress there."""
MAX_LOG = 2_000
ALL_LINES = 1_000_000
"""Covers lines that a quick command writes before the server follows its output."""
LAST_LINES_SECONDS = 1.0
"""The time for the remaining lines after the task has ended."""
MAX_CONNECTIONS = 1_000

COMMAND = record(
    {"status": {"type": "string", "enum": ["completed", "failed", "cancelled"]}, "task_id": TEXT},
    {
        "exit_code": COUNT,
        "signal": TEXT,
        "units_done": COUNT,
        "units_total": NUMBER,
        "last_item": TEXT,
        "failure_lines": array(TEXT),
        "stderr_tail": array(TEXT),
        "output_tail": array(TEXT),
        "duration_seconds": NUMBER,
        "disclaimer": TEXT,
        "reason": TEXT,
    },
)


class CommandTools:
    """The commands of a runtime as tools; the task group ends when the server stops."""

    def __init__(self, runtime: Runtime, group: TaskGroup) -> None:
        self._runtime = runtime
        self.levels = LogLevels()
        self._stopping = False
        group.start_soon(self._notice_stop)

    async def _notice_stop(self) -> None:
        """Detects that the whole server stops; a handler cannot distinguish that from the end of its own request."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stopping = True

    def tools(self) -> list[ServerTool]:
        return [self._tool(config) for config in self._runtime.tasks.commands.values()]

    def _tool(self, config: CommandConfig) -> ServerTool:
        tool = command_tool(config)
        tasks, name = self._runtime.tasks, config.name

        async def call(ctx: Context, arguments: Mapping[str, Any]) -> Result:
            caller = caller_of(ctx)
            permit_directly(self._runtime.toolbox.host, tool, arguments, caller=caller)
            state = await tasks.call(name, arguments, caller=caller)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._log_errors, ctx, name, state.task_id)
                    state = await _report_until_ended(ctx, tasks, self.levels, state.task_id, requestor_of(caller))
                    group.cancel_scope.deadline = anyio.current_time() + LAST_LINES_SECONDS
            except anyio.get_cancelled_exc_class():
                await self._caller_gone(state.task_id, caller)
                raise
            found = await tasks.store.result(state)
            if found is None:
                text = state.message or "the command did not return a result"
                found = {"content": [{"type": "text", "text": text}], "isError": True}
            return {"resultType": "complete", **found}

        async def plan(ctx: Context, arguments: Mapping[str, Any]) -> TaskPlan:
            """Plans a task that any process can resume."""
            caller = caller_of(ctx)
            permit_directly(self._runtime.toolbox.host, tool, arguments, caller=caller)
            job = tasks.job(name, arguments, caller=caller)
            return TaskPlan(title=config.title or name, when="at once", kind=job.kind, origin=job.origin, work=job.work)

        purpose = config.description or config.title or f"Runs {name}."
        return ServerTool(
            name=name,
            title=config.title,
            description=f"{purpose} May take long: reports progress, and task_status, task_tail and task_cancel "
            "work on its task.",
            arguments=config.input_schema(),
            result=COMMAND,
            annotations=ToolAnnotations(
                read_only_hint=tool.traits.read_only,
                destructive_hint=tool.traits.destructive,
                idempotent_hint=tool.traits.idempotent,
                open_world_hint=True,
            ),
            handler=call,
            plan=plan,
        )

    async def _caller_gone(self, task_id: str, caller: Caller) -> None:
        """Stops the command of a disconnected caller; if the server stops, the command continues.

        In both cases the handler is cancelled. A stopping server cancels `_notice_stop` at the same time, so
        `_stopping` is set after a few passes of the event loop.
        """
        with anyio.CancelScope(shield=True):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        if not self._stopping:
            await self._runtime.tasks.stop(task_id, caller=caller, reason="the caller went away")

    async def _log_errors(self, ctx: Context, name: str, task_id: str) -> None:
        """Sends the command's standard error as log messages to a client that wants them."""
        if not self.levels.wanted(ctx, LEVEL, default=LEVELS[0]):
            return
        async for text in self._runtime.tasks.follow(task_id, ALL_LINES, errors=True):
            await _send_log(ctx, LEVEL, name, text)


class LogLevels:
    """The log levels that connections of the 2025 era set. In 2026-07-28 a request sets its own, in `_meta`."""

    def __init__(self) -> None:
        self._least: OrderedDict[int, str] = OrderedDict()

    async def set(self, ctx: Context, params: SetLevelRequestParams) -> EmptyResult:
        self._least[id(ctx.session.client_params)] = params.level
        while len(self._least) > MAX_CONNECTIONS:
            self._least.popitem(last=False)
        return EmptyResult()

    def wanted(self, ctx: Context, level: str, default: str | None = None) -> bool:
        """True if the client gets messages of this level; `default` applies to a 2025-era client that set no level."""
        if is_modern(ctx.protocol_version):
            return is_wanted(log_level(ctx.params or {}), {"level": level})
        least = self._least.get(id(ctx.session.client_params), default)
        return least is not None and LEVELS.index(least) <= LEVELS.index(level)

    async def warn(self, ctx: Context, logger: str, text: str) -> None:
        """Sends a warning to a client that set a log level."""
        if self.wanted(ctx, "warning"):
            await _send_log(ctx, "warning", logger, text)


async def _send_log(ctx: Context, level: LoggingLevel, logger: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Deprecated in 2026-07-28, but current clients read log messages.
        send = ctx.session.send_log_message  # pyright: ignore[reportDeprecated]
        sending = send(level, sendable(text[:MAX_LOG]), logger, ctx.request_id)
    await sending
