"""The four tools about tasks: look, tail, cancel, wait.

Owns: names, words, schemas, and how each becomes a verb of the service. Knows no wire.
Invariant: a caller sees the tasks of its own requestor; somebody else's id is as unknown as one that never was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp_types import Tool, ToolAnnotations

from pursuit.core.base_model import InputModel
from pursuit.core.tasks import TASK_STATUSES
from pursuit.service.tasks import Tasks, requestor_of
from pursuit.surfaces.mcp import answers, schemas
from pursuit.surfaces.mcp import task_arguments as given
from pursuit.surfaces.mcp.arguments import parse
from pursuit.surfaces.mcp.callers import caller_of
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.schemas import COUNT, NUMBER, TEXT, TIME, listed, record
from pursuit.surfaces.mcp.task_progress import told_to_the_end
from pursuit.surfaces.mcp.tools import READS

STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
TASK = "The task's id, from a tool that started it or from task_status."
MOST_TEXT_LINES = 20
TASK_ID: schemas.Schema = {"type": "string", "pattern": "^task-[0-9a-f]{32}$"}
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

Answer = dict[str, Any]


class TaskVerbs:
    """What the tools do."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def status(self, ctx: Context, asked: given.Look) -> Answer:
        """One task with its result, or the list."""
        requestor = requestor_of(caller_of(ctx))
        if asked.task_id is not None:
            return {"tasks": [await self._tasks.show(asked.task_id, requestor=requestor)]}
        return await self._tasks.list(requestor=requestor, cursor=asked.cursor)

    async def tail(self, ctx: Context, asked: given.Tail) -> Answer:
        """The end of what a command wrote."""
        lines = await self._tasks.tail(asked.task_id, asked.lines, requestor=requestor_of(caller_of(ctx)))
        return {"task_id": asked.task_id, "lines": lines}

    async def cancel(self, ctx: Context, asked: given.Cancel) -> Answer:
        """Stops it, and waits a while for its end."""
        caller = caller_of(ctx)
        await self._tasks.get(asked.task_id, requestor=requestor_of(caller))
        await self._tasks.stop(asked.task_id, caller=caller, reason=asked.reason)
        return await self._tasks.show(asked.task_id)

    async def wait(self, ctx: Context, asked: given.Wait) -> Answer:
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
    gives: schemas.Schema
    annotations: ToolAnnotations
    answer: Callable[[TaskVerbs, Context, Any], Awaitable[Answer]]
    lines: answers.Lines
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
            input_schema=schemas.input_schema(tool.shape, tool.words),
            output_schema=tool.gives,
            annotations=tool.annotations,
        )

    async def call(self, ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a call."""
        answer = await self._tool.answer(self._verbs, ctx, parse(self._tool.shape, arguments))
        return answers.result(answer, self._tool.lines(answer))


def task_tools(tasks: Tasks) -> Sequence[BoundTaskTool]:
    """The tools about these tasks."""
    verbs = TaskVerbs(tasks)
    return [BoundTaskTool(tool, verbs) for tool in TASK_TOOLS]


def _lines_of(answer: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = answer["tasks"]
    lines = [line for row in rows[: answers.MOST_ROWS] for line in _task_lines(row)]
    if len(rows) > answers.MOST_ROWS:
        lines.append(f"… and {len(rows) - answers.MOST_ROWS} more on this page")
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
        shape=given.Look,
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
        shape=given.Tail,
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
        shape=given.Cancel,
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
        shape=given.Wait,
        gives=RECORD,
        annotations=READS,
        answer=TaskVerbs.wait,
        lines=_task_lines,
        words={"task_id": TASK, "timeout_seconds": "How long to wait at most."},
    ),
)
