"""The configured commands as tools of a mission, and calls that run as tasks.

Invariant: a command is under policy like any other tool; a trait that is not declared counts as the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from pursuit.config.commands import COMMANDS_SERVER, CommandConfig
from pursuit.core.tasks import TaskState
from pursuit.core.tools import CallFailed, ProgressFn, Tool, ToolResult, Upstream
from pursuit.errors import ApprovalNeeded, PolicyDenied, PursuitError
from pursuit.policy.rules import decide
from pursuit.policy.traits import traits
from pursuit.service.tasks import Tasks
from pursuit.upstream.host import ToolHost

if TYPE_CHECKING:
    from pursuit.tasks.calls import Job, TaskCalls
    from pursuit.tasks.host import Work


def command_tool(config: CommandConfig) -> Tool:
    """A command as a tool of the server `commands`."""
    schema = config.input_schema()
    description = config.description or config.title or ""
    return Tool(
        server=COMMANDS_SERVER,
        name=config.name,
        description=description,
        input_schema=schema,
        traits=traits(config.traits, None),
        definition={"name": config.name, "description": description, "inputSchema": schema},
        long=True,
    )


def permit_directly(host: ToolHost, tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Refuses a client's own call that policy denies, or that a rule wants asked about.

    Offering the command is the operator's yes where policy asks only because its traits are not declared.
    """
    layers = host.layers()
    ruling = decide(layers, tool, arguments)
    if ruling.decision == "deny":
        raise PolicyDenied(f"{tool.qualified} is denied: {ruling.reason}", tool=tool.qualified)
    asked = any(rule.decision == "ask" and rule.matches(tool, arguments) for rule in layers.operator.rules)
    if ruling.decision == "ask" and asked:
        why = f"{tool.qualified} needs a yes: {ruling.reason}; an operator can run it with `pursuit task run`"
        raise ApprovalNeeded(why, tool=tool.qualified)


class CommandUpstream:
    """The server `commands`; without tasks it can only be looked at."""

    name = COMMANDS_SERVER

    def __init__(self, commands: Mapping[str, CommandConfig], tasks: Tasks | None = None) -> None:
        self._tools = [command_tool(config) for config in commands.values()]
        self._tasks = tasks

    async def tools(self) -> Sequence[Tool]:
        """Every configured command."""
        return self._tools

    def job(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> Job:
        """The task that this call is; nothing has begun."""
        return self._open().job(tool, arguments)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        """Runs the command and waits for it; a cancelled wait stops it."""
        task_id = await self.begin(tool, arguments, call_id)
        tasks = self._open()
        try:
            async with tasks.kept_up(task_id):
                async for state in tasks.store.follow(task_id):
                    if on_progress is not None and not state.terminal:
                        await on_progress(state.done, state.total, state.message)
        except anyio.get_cancelled_exc_class():
            await tasks.stop(task_id, reason=f"its call {call_id} was given up")
            raise
        return await self.outcome(task_id)

    async def begin(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> str:
        """Starts the command as a task and returns its id. Raises `CallFailed` if it cannot be started."""
        try:
            return (await self._open().call(tool, arguments)).task_id
        except PursuitError as error:
            raise CallFailed(f"{call_id}: {error.message}", sent=False) from None

    async def outcome(self, task_id: str) -> ToolResult:
        """What an ended task came to. Raises `CallFailed` if it came to no result."""
        from pursuit.tasks.calls import as_answer  # noqa: PLC0415 - a process that only reads does without

        tasks = self._open()
        state = await tasks.wait(task_id)
        return as_answer(state, await tasks.store.result(state))

    async def aclose(self) -> None:
        """Nothing to close: the tasks go on."""

    def _open(self) -> Tasks:
        if self._tasks is None:
            raise CallFailed("commands can only be looked at here", sent=False)
        return self._tasks


class LaterCalls:
    """Calls whose answers come later, as tasks of this process's host, which opens with the first of them."""

    def __init__(self, tasks: Tasks, upstream: Callable[[str], Upstream]) -> None:
        self._tasks = tasks
        self._upstream = upstream
        tasks.resume["call"] = self._resume

    async def begin(self, tool: Tool, arguments: Mapping[str, Any], *, task_id: str, call_id: str) -> None:
        """Begins the task by that id, unless it has begun already. Raises `CallFailed` if it cannot begin."""
        await (await self._calls()).begin(tool, arguments, task_id=task_id, call_id=call_id)

    async def outcome(self, task_id: str, *, within: float = 0.0) -> ToolResult | None:
        """What it came to, or None if it is under way still after so many seconds."""
        return await (await self._calls()).outcome(task_id, within=within)

    async def cancel(self, task_id: str, *, reason: str) -> None:
        """Orders it stopped; one that has ended is left alone."""
        await (await self._calls()).cancel(task_id, reason=reason)

    def _resume(self, state: TaskState) -> Work | None:
        from pursuit.tasks.calls import resume_call  # noqa: PLC0415 - see below

        return resume_call(self._upstream)(state)

    async def _calls(self) -> TaskCalls:
        from pursuit.tasks.calls import TaskCalls  # noqa: PLC0415 - most runtimes have no long tool

        return TaskCalls(await self._tasks.host(), self._upstream)
