"""The four tools about tasks: look, tail, cancel, wait.

Owns: names, words, schemas, and how each becomes a verb of the service. Knows no wire.
Invariant: a caller sees the tasks of its own requestor; somebody else's id is as unknown as one that never was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
from mcp_types import Tool, ToolAnnotations
from pydantic import AfterValidator, Field

from pursuit.core.base_model import InputModel, Number, Whole
from pursuit.core.tasks import TASK_STATUSES, TaskState
from pursuit.server.errors import Context, caller_of
from pursuit.server.missions import arguments, tools
from pursuit.server.missions.arguments import COUNT, NUMBER, TEXT, TIME, Cursor, Reason, listed, parse, record
from pursuit.server.missions.tools import READS
from pursuit.service.tasks import Tasks, requestor_of
from pursuit.tasks.record import is_task_id

# What a client may say to the tools about tasks.
# Invariant: wrong arguments are refused with every fault at once.

MOST_LINES = 10_000
LONGEST_WAIT = 86_400
USUAL_WAIT = 50.0
"""Less than the minute after which most clients give a request up."""


def _a_task_id(value: str) -> str:
    if not is_task_id(value):
        raise ValueError("is no task id; one is `task-` and 32 hex digits, as task_status says")
    return value


TaskId = Annotated[str, AfterValidator(_a_task_id), Field(json_schema_extra={"pattern": "^task-[0-9a-f]{32}$"})]


class OfTask(InputModel):
    """A task by its id."""

    task_id: TaskId


class Look(InputModel):
    """One task, or all."""

    task_id: TaskId | None = None
    cursor: Cursor | None = None


class Tail(OfTask):
    """How much of the output."""

    lines: Annotated[Whole, Field(ge=1, le=MOST_LINES)] = 100


class Cancel(OfTask):
    """Why."""

    reason: Reason | None = None


class Wait(OfTask):
    """For how long."""

    timeout_seconds: Annotated[Number, Field(gt=0, le=LONGEST_WAIT)] = USUAL_WAIT


# Progress of a task, told to the client whose request waits for it.
# Invariant: a slow client gets the latest word, and never holds up the work.

LONGEST_MESSAGE = 200


async def told_to_the_end(ctx: Context, tasks: Tasks, task_id: str, requestor: str) -> TaskState:
    """Tells the client of each change until the task has ended; its last state."""
    state = await tasks.get(task_id, requestor=requestor)
    rising = Rising()
    async for state in tasks.store.follow(task_id, requestor=requestor):
        number = rising.next(state.done)
        if not state.terminal and state.message is not None:
            await ctx.session.report_progress(number, state.total, state.message[:LONGEST_MESSAGE])
    return state


class Rising:
    """Numbers for MCP, where each must be above the one before: between two units they creep towards the next."""

    def __init__(self) -> None:
        self._done = -1.0
        self._times = 0

    def next(self, done: float) -> float:
        """The number to tell for so many units done."""
        if done > self._done:
            self._done, self._times = done, 0
            return done
        self._times += 1
        return self._done + 1 - 1 / (self._times + 1)


STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
TASK = "The task's id, from a tool that started it or from task_status."
MOST_TEXT_LINES = 20
TASK_ID: arguments.Schema = {"type": "string", "pattern": "^task-[0-9a-f]{32}$"}
RECORD = record(
    {
        "task_id": TASK_ID,
        "kind": TEXT,
        "title": TEXT,
        "status": {"type": "string", "enum": list(TASK_STATUSES)},
        "created_at": TIME,
        "updated_at": TIME,
    },
    {
        "message": TEXT,
        "units_done": NUMBER,
        "units_total": NUMBER,
        "current_item": TEXT,
        "ended_at": TIME,
        "exit_code": {"type": "integer"},
        "error": {"type": "object"},
        "cancel_ordered": {"type": "boolean"},
        "input_requests": {"type": "object"},
        "log_position": COUNT,
        "result": {"type": "object", "description": "What the tool call answered, once it has ended."},
    },
)

Result = dict[str, Any]


class TaskVerbs:
    """What the tools do."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def status(self, ctx: Context, asked: Look) -> Result:
        """One task with its result, or the list."""
        requestor = requestor_of(caller_of(ctx))
        if asked.task_id is not None:
            return {"tasks": [await self._tasks.show(asked.task_id, requestor=requestor)]}
        return await self._tasks.list(requestor=requestor, cursor=asked.cursor)

    async def tail(self, ctx: Context, asked: Tail) -> Result:
        """The end of what a command wrote."""
        lines = await self._tasks.tail(asked.task_id, asked.lines, requestor=requestor_of(caller_of(ctx)))
        return {"task_id": asked.task_id, "lines": lines}

    async def cancel(self, ctx: Context, asked: Cancel) -> Result:
        """Stops it, and waits a while for its end."""
        caller = caller_of(ctx)
        await self._tasks.get(asked.task_id, requestor=requestor_of(caller))
        await self._tasks.stop(asked.task_id, caller=caller, reason=asked.reason)
        return await self._tasks.show(asked.task_id)

    async def wait(self, ctx: Context, asked: Wait) -> Result:
        """The task once it has ended, or as it stands when the time is over; progress is passed on."""
        requestor = requestor_of(caller_of(ctx))
        with anyio.move_on_after(asked.timeout_seconds):
            await told_to_the_end(ctx, self._tasks, asked.task_id, requestor)
        return await self._tasks.show(asked.task_id, requestor=requestor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTool:
    """One tool: `answer` is its verb, `lines` what people read of the answer."""

    name: str
    title: str
    description: str
    shape: type[InputModel]
    gives: arguments.Schema
    annotations: ToolAnnotations
    answer: Callable[[TaskVerbs, Context, Any], Awaitable[Result]]
    lines: tools.Lines
    words: dict[str, str] = field(default_factory=dict[str, str])


class BoundTaskTool:
    """A tool with the tasks that it is about."""

    refused: Mapping[str, Any] = {}

    def __init__(self, tool: TaskTool, verbs: TaskVerbs) -> None:
        self._tool = tool
        self._verbs = verbs
        self.name = tool.name

    def declared(self) -> Tool:
        """The tool as clients see it."""
        tool = self._tool
        return Tool(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=arguments.input_schema(tool.shape, tool.words),
            output_schema=tool.gives,
            annotations=tool.annotations,
        )

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a call."""
        answer = await self._tool.answer(self._verbs, ctx, parse(self._tool.shape, arguments))
        return tools.result(answer, self._tool.lines(answer))


def task_tools(tasks: Tasks) -> Sequence[BoundTaskTool]:
    """The tools about these tasks."""
    verbs = TaskVerbs(tasks)
    return [BoundTaskTool(tool, verbs) for tool in TASK_TOOLS]


def _lines_of(answer: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = answer["tasks"]
    lines = [line for row in rows[: tools.MOST_ROWS] for line in _task_lines(row)]
    if len(rows) > tools.MOST_ROWS:
        lines.append(f"… and {len(rows) - tools.MOST_ROWS} more on this page")
    if "next_cursor" in answer:
        lines.append(f"next_cursor: {answer['next_cursor']}")
    return lines or ["no tasks"]


def _task_lines(row: Mapping[str, Any]) -> list[str]:
    units = f", {row['units_done']} of {row['units_total']} units" if "units_total" in row else ""
    said = f": {row['message']}" if "message" in row else ""
    head = f"{row['task_id']} ({row['title'][:80]}) is {row['status']}{units}{said}"
    failed: Mapping[str, Any] = row.get("result", {}).get("structuredContent") or {}
    return [head, *(f"stderr: {line}" for line in failed.get("stderr_tail", ())[-MOST_TEXT_LINES:])]


def _tail_lines(answer: Mapping[str, Any]) -> list[str]:
    return answer["lines"] or ["it has written nothing"]


TASK_TOOLS = (
    TaskTool(
        name="task_status",
        title="How tasks stand",
        description="A task's status, progress and, once it has ended, its result; without task_id the list of your "
        "tasks, newest first.",
        shape=Look,
        gives=record({"tasks": listed(RECORD)}, {"next_cursor": TEXT}),
        annotations=READS,
        answer=TaskVerbs.status,
        lines=_lines_of,
        words={"task_id": TASK, "cursor": "next_cursor of the page before."},
    ),
    TaskTool(
        name="task_tail",
        title="What a task wrote",
        description="The last lines of a command's output, standard output and standard error together.",
        shape=Tail,
        gives=record({"task_id": TASK_ID, "lines": listed(TEXT)}),
        annotations=READS,
        answer=TaskVerbs.tail,
        lines=_tail_lines,
        words={"task_id": TASK, "lines": "How many."},
    ),
    TaskTool(
        name="task_cancel",
        title="Stop a task",
        description="Stop a task with every process that it started: SIGTERM, some seconds of grace, SIGKILL. One that "
        "has ended stays as it is.",
        shape=Cancel,
        gives=RECORD,
        annotations=STOPS,
        answer=TaskVerbs.cancel,
        lines=_task_lines,
        words={"task_id": TASK, "reason": "Why; it is kept."},
    ),
    TaskTool(
        name="task_wait",
        title="Wait for a task",
        description="Wait until a task has ended and get its result; if timeout_seconds are over first, it is still "
        "`working`: call again.",
        shape=Wait,
        gives=RECORD,
        annotations=READS,
        answer=TaskVerbs.wait,
        lines=_task_lines,
        words={"task_id": TASK, "timeout_seconds": "How long to wait at most."},
    ),
)
