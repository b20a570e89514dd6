"""The tasks extension of the fixture server: calls that go on after they were answered.

Owns: the tasks, their tools and the methods that ask about them. Does not know: transports, except for the header that
the extension wants to be checked. Invariant: a task is there before its creation is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from fixture_call import Answers, Call, Context, Requests, ToolFailed, field, form, missing
from fixture_tools import TEXT, Tool, takes, text, tool
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

EXTENSION = "io.modelcontextprotocol/tasks"
TTL_MS = 600_000
SECOND = 0.1
"""How long a second of the suite lasts here: it waits for many."""


LONG = 1.0
"""A call that takes so many seconds is long."""


class TaskCall(Call):
    """A call that has become a task: what it asks waits in the task."""

    def __init__(self, ctx: Context, task: Task, gathered: Answers) -> None:
        super().__init__(ctx)
        self.gathered = gathered
        self._task = task

    async def answers(self, requests: Requests, state: str | None = None) -> Answers:
        return await self._task.ask(requests)


class Task:
    """One of them."""

    def __init__(self) -> None:
        self.id = token_hex(8)
        self.scope = anyio.CancelScope()
        self.pending: dict[str, Mapping[str, Any]] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._answered = anyio.Event()
        self._end: dict[str, Any] = {}
        self._status = "working"
        self._began = self._changed = _now()

    def created(self) -> dict[str, Any]:
        """What the call is answered with."""
        return {
            "taskId": self.id,
            "status": "input_required" if self.pending else self._status,
            "createdAt": self._began,
            "lastUpdatedAt": self._changed,
            "ttlMs": TTL_MS,
            "pollIntervalMs": 100,
        }

    def shown(self) -> dict[str, Any]:
        """What is to be known of it now."""
        return self.created() | self._end | ({"inputRequests": self.pending} if self.pending else {})

    def end(self, status: str, **outcome: Any) -> None:
        self.pending = {}
        self._status, self._end, self._changed = status, outcome, _now()

    async def ask(self, requests: Requests) -> Answers:
        self.pending = dict(requests)
        await self._answered.wait()
        return self._answers

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Takes what was asked for, and nothing else."""
        for name in responses.keys() & self.pending.keys():
            self._answers[name] = responses[name]
            del self.pending[name]
            self._changed = _now()
        if self._answers and not self.pending:
            self._answered.set()


class TaskParams(types.RequestParams):
    """The parameters of every method about a task."""

    task_id: str
    input_responses: dict[str, Any] | None = None


class Tasks:
    """All of them, for as long as the process lives."""

    def __init__(self, running: anyio.abc.TaskGroup, *, known: bool = True) -> None:
        self._running = running
        self._known = known
        self._tasks: dict[str, Task] = {}

    def offer(self, server: Server[Any]) -> None:
        """Adds the extension to a server, unless it is to know no tasks."""
        if not self._known:
            return
        server.extensions[EXTENSION] = {}
        for method, answer in (("get", self._get), ("update", self._update), ("cancel", self._cancel)):
            server.add_request_handler(f"tasks/{method}", TaskParams, self._checked(answer))

    async def begin(self, asked: Tool, call: Call) -> dict[str, Any] | None:
        """Makes a task of a call, if it is to be one."""
        if not self._known:
            return None
        able = call.modern and call.can(EXTENSION, within="extensions")
        if asked.task == "never" or not able:
            if asked.task == "must be":
                raise missing(extensions={EXTENSION: {}})
            return None
        gathered = await call.answers(asked.first) if asked.first else {}
        task = Task()
        self._tasks[task.id] = task
        self._running.start_soon(self._run, task, asked, TaskCall(call.ctx, task, gathered))
        return {"resultType": "task", **task.created()}

    async def _run(self, task: Task, asked: Tool, call: TaskCall) -> None:
        with task.scope:
            try:
                task.end("completed", result={"content": [text(str(await asked.body(call)))]})
            except ToolFailed as error:
                task.end("completed", result={"content": [text(str(error))], "isError": True})
            except MCPError as error:
                task.end("failed", error={"code": error.code, "message": error.message})
        if task.scope.cancelled_caught:
            task.end("cancelled")

    def _checked(self, answer: Callable[[Task, TaskParams], dict[str, Any]]) -> Callable[..., Awaitable[Any]]:
        async def handle(ctx: Context, params: TaskParams) -> dict[str, Any]:
            call = Call(ctx)
            if not call.modern:
                raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
            if ctx.request is not None and ctx.request.headers.get("mcp-name") != params.task_id:
                raise MCPError(types.HEADER_MISMATCH, "the header Mcp-Name is not the task's id")
            if not call.can(EXTENSION, within="extensions"):
                raise missing(extensions={EXTENSION: {}})
            if params.task_id not in self._tasks:
                raise MCPError(types.INVALID_PARAMS, "there is no such task")
            return answer(self._tasks[params.task_id], params)

        return handle

    def _get(self, task: Task, _params: TaskParams) -> dict[str, Any]:
        return task.shown()

    def _update(self, task: Task, params: TaskParams) -> dict[str, Any]:
        task.answer(params.input_responses or {})
        return {}

    def _cancel(self, task: Task, _params: TaskParams) -> dict[str, Any]:
        task.scope.cancel()
        return {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@tool({"type": "object", "properties": {"seconds": {"type": "number"}, "label": TEXT}}, task="may be")
async def slow_compute(call: Call) -> str:
    """Takes its time."""
    await anyio.sleep(call.arguments.get("seconds", 0) * SECOND)
    return f"computed: {call.arguments.get('label')}"


@tool(task="must be")
async def failing_job(call: Call) -> str:
    """Fails, after a while."""
    await anyio.sleep(SECOND)
    raise ToolFailed("this job always fails")


@tool(task="may be")
async def protocol_error_job(call: Call) -> str:
    """Breaks."""
    raise MCPError(types.INTERNAL_ERROR, "this job always breaks")


@tool(takes(filename=TEXT), task="may be")
async def confirm_delete(call: Call) -> str:
    """Asks before it deletes."""
    question = form(f"Delete {call.arguments['filename']}?", confirm={"type": "boolean"})
    answers = await call.answers({"confirm": question})
    return "deleted" if field(answers["confirm"], "confirm") else "kept"


@tool(task="may be")
async def multi_input(call: Call) -> str:
    """Asks two things at once."""
    answers = await call.answers({"first": form("The first?", name=TEXT), "second": form("The second?", name=TEXT)})
    return " and ".join(str(field(answers[name], "name")) for name in ("first", "second"))


@tool(task="must be", first={"user_name": form("What is your name?", name=TEXT)})
async def test_tool_with_task(call: Call) -> str:
    """Asks for a name, and goes on for a while: as a task, or where there are none within the call."""
    if isinstance(call, TaskCall):
        return f"Hello, {field(call.gathered['user_name'], 'name')}!"
    answers = await call.answers({"user_name": form("What is your name?", name=TEXT)})
    await anyio.sleep(LONG)
    return f"Hello, {field(answers['user_name'], 'name')}!"
