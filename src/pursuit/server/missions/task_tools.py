"""The four `task_*` tools, and the configured commands as tools that start tasks.

Invariants: a caller sees the tasks of its own requestor only; another requestor's id is as unknown as one that never
existed. The call of a command ends with its task: a caller that goes away stops the command, a server that stops does
not.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any, get_args

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from mcp_types import EmptyResult, LoggingLevel, SetLevelRequestParams, ToolAnnotations
from pydantic import AfterValidator, Field

from pursuit.config.commands import CommandConfig
from pursuit.core.base_model import InputModel, Number, Whole
from pursuit.core.tasks import TaskState
from pursuit.runtime import Runtime
from pursuit.server.errors import Context, caller_of, sendable
from pursuit.server.missions.mission_tools import CURSOR, Cursor, Reason
from pursuit.server.missions.result_text import page_lines, task_line, task_lines
from pursuit.server.missions.tool_dispatch import (
    COUNT,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    Result,
    Schema,
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

MOST_LINES = 10_000
LONGEST_WAIT = 86_400
USUAL_WAIT = 50.0
"""Seconds; most clients give a request up after a minute."""
LONGEST_MESSAGE = 200

STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
TASK_ID: Schema = {"type": "string", "pattern": "^task-[0-9a-f]{32}$"}
TASK = record({"task_id": TEXT, "status": TEXT}, {"result": OBJECT})


def _task_id(value: str) -> str:
    if not is_task_id(value):
        raise ValueError("is no task id; one is `task-` and 32 hex digits, as task_status says")
    return value


TaskId = Annotated[str, AfterValidator(_task_id), Field(json_schema_extra={"pattern": TASK_ID["pattern"]})]


class StatusArguments(InputModel):
    """One task, or all."""

    task_id: TaskId | None = None
    cursor: Cursor | None = None


class TailArguments(InputModel):
    """How much of the output."""

    task_id: TaskId
    lines: Annotated[Whole, Field(ge=1, le=MOST_LINES)] = 100


class CancelArguments(InputModel):
    """Which task, and why."""

    task_id: TaskId
    reason: Reason | None = None


class WaitArguments(InputModel):
    """For how long."""

    task_id: TaskId
    timeout_seconds: Annotated[Number, Field(gt=0, le=LONGEST_WAIT)] = USUAL_WAIT


class TaskTools:
    """The handlers of the tools about tasks."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def tools(self) -> list[ServerTool]:
        """The declarations, in the order of `tools/list`."""
        task = {"task_id": "From the tool that started it, or from task_status."}
        return [
            ServerTool(
                name="task_status",
                title="How tasks stand",
                description="A task's status, progress and, once it has ended, its result; without task_id the list of "
                "your tasks, newest first.",
                arguments=StatusArguments,
                result=record({"tasks": OBJECTS}, {"next_cursor": TEXT}),
                handler=self._status,
                descriptions={**task, **CURSOR},
            ),
            ServerTool(
                name="task_tail",
                title="What a task wrote",
                description="The last lines of a command's output, standard output and standard error together.",
                arguments=TailArguments,
                result=record({"task_id": TEXT, "lines": array(TEXT)}),
                handler=self._tail,
                descriptions={**task, "lines": "How many."},
            ),
            ServerTool(
                name="task_cancel",
                title="Stop a task",
                description="Stop a task with every process that it started: SIGTERM, some seconds of grace, SIGKILL. "
                "One that has ended stays as it is.",
                arguments=CancelArguments,
                result=TASK,
                annotations=STOPS,
                handler=self._cancel,
                descriptions={**task, "reason": "Why; it is kept."},
            ),
            ServerTool(
                name="task_wait",
                title="Wait for a task",
                description="Wait until a task has ended and get its result; if timeout_seconds are over first, it is "
                "still `working`: call again.",
                arguments=WaitArguments,
                result=TASK,
                handler=self._wait,
                descriptions={**task, "timeout_seconds": "How long to wait at most."},
            ),
        ]

    async def _status(self, ctx: Context, asked: StatusArguments) -> Result:
        requestor = requestor_of(caller_of(ctx))
        if asked.task_id is not None:
            shown = await self._tasks.show(asked.task_id, requestor=requestor)
            return result({"tasks": [shown]}, task_lines(shown))
        page = await self._tasks.list(requestor=requestor, cursor=asked.cursor)
        return result(
            page, page_lines([task_line(row) for row in page["tasks"]], page.get("next_cursor"), none="no tasks")
        )

    async def _tail(self, ctx: Context, asked: TailArguments) -> Result:
        lines = await self._tasks.tail(asked.task_id, asked.lines, requestor=requestor_of(caller_of(ctx)))
        return result({"task_id": asked.task_id, "lines": lines}, lines or ["it has written nothing"])

    async def _cancel(self, ctx: Context, asked: CancelArguments) -> Result:
        caller = caller_of(ctx)
        await self._tasks.get(asked.task_id, requestor=requestor_of(caller))
        await self._tasks.stop(asked.task_id, caller=caller, reason=asked.reason)
        shown = await self._tasks.show(asked.task_id)
        return result(shown, task_lines(shown))

    async def _wait(self, ctx: Context, asked: WaitArguments) -> Result:
        requestor = requestor_of(caller_of(ctx))
        with anyio.move_on_after(asked.timeout_seconds):
            await _report_until_ended(ctx, self._tasks, asked.task_id, requestor)
        shown = await self._tasks.show(asked.task_id, requestor=requestor)
        return result(shown, task_lines(shown))


async def _report_until_ended(ctx: Context, tasks: Tasks, task_id: str, requestor: str) -> TaskState:
    """Reports progress to the client until the task has ended; its last state. A slow client gets the latest one."""
    state = await tasks.get(task_id, requestor=requestor)
    rising = Rising()
    async for state in tasks.store.follow(task_id, requestor=requestor):
        number = rising.next(state.done)
        if not state.terminal and state.message is not None:
            total = None if state.total is not None and number > state.total else state.total
            await ctx.session.report_progress(number, total, state.message[:LONGEST_MESSAGE])
    return state


class Rising:
    """Progress numbers for MCP, where each must exceed the one before: between two units they approach the next."""

    def __init__(self) -> None:
        self._done = -1.0
        self._times = 0

    def next(self, done: float) -> float:
        """The number to report for so many units done."""
        if done > self._done:
            self._done, self._times = done, 0
            return done
        self._times += 1
        return self._done + 1 - 1 / (self._times + 1)


LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
LEVEL: LoggingLevel = "info"
"""Of a line on standard error: many programs write their progress there."""
LONGEST_LOG = 2_000
ALL_LINES = 1_000_000
"""A quick command has written lines before the server follows its output."""
LAST_LINES_SECONDS = 1.0
"""For the rest of the lines once the task has ended."""
MOST_CONNECTIONS = 1_000

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
    """The commands of a runtime as tools; the group that it is given ends when the server stops."""

    def __init__(self, runtime: Runtime, group: TaskGroup) -> None:
        self._runtime = runtime
        self.levels = LogLevels()
        self._stopping = False
        group.start_soon(self._notice_stop)

    async def _notice_stop(self) -> None:
        """Notices that the whole server stops; a handler cannot tell that from the end of its own request."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stopping = True

    def tools(self) -> list[ServerTool]:
        """The declarations, in the order of the configuration."""
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
                    state = await _report_until_ended(ctx, tasks, state.task_id, requestor_of(caller))
                    group.cancel_scope.deadline = anyio.current_time() + LAST_LINES_SECONDS
            except anyio.get_cancelled_exc_class():
                await self._caller_gone(state.task_id, caller)
                raise
            found = await tasks.store.result(state)
            if found is None:
                text = state.message or "the command has no result"
                found = {"content": [{"type": "text", "text": text}], "isError": True}
            return {"resultType": "complete", **found}

        async def plan(ctx: Context, arguments: Mapping[str, Any]) -> TaskPlan:
            """A task from its beginning, which any process can resume."""
            caller = caller_of(ctx)
            permit_directly(self._runtime.toolbox.host, tool, arguments, caller=caller)
            job = tasks.job(name, arguments, caller=caller)
            return TaskPlan(title=config.title or name, when="at once", kind=job.kind, origin=job.origin, work=job.work)

        purpose = config.description or config.title or f"Runs {name}."
        return ServerTool(
            name=name,
            title=config.title,
            description=f"{purpose} It may take long: it reports progress, and task_status, task_tail and task_cancel "
            "know its task.",
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
        """Stops the command of a caller that has gone; when the server stops, the command runs on.

        Both look the same to a handler: it is cancelled. A server that stops cancels `_notice_stop` in the same
        moment, so a few passes of the event loop later `_stopping` is set.
        """
        with anyio.CancelScope(shield=True):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        if not self._stopping:
            await self._runtime.tasks.stop(task_id, caller=caller, reason="the caller went away")

    async def _log_errors(self, ctx: Context, name: str, task_id: str) -> None:
        """Sends what the command writes to standard error as log messages, to a client that wants them."""
        if not self.levels.wanted(ctx):
            return
        async for text in self._runtime.tasks.follow(task_id, ALL_LINES, errors=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Deprecated in 2026-07-28, and what the clients of today read.
                send = ctx.session.send_log_message  # pyright: ignore[reportDeprecated]
                sending = send(LEVEL, sendable(text[:LONGEST_LOG]), name, ctx.request_id)
            await sending


class LogLevels:
    """Which log messages each connection of the 2025 era wants; all, unless it says otherwise."""

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
