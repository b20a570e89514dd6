"""The configured commands as tools of a mission.

Invariant: policy applies to a command as to any other tool; an undeclared trait has its most cautious value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from pursuit.config.commands import COMMANDS_SERVER, CommandConfig
from pursuit.core.tools import CallFailed, CheckPlace, ProgressFn, Tool, ToolResult
from pursuit.errors import ApprovalNeeded, PolicyDenied, PursuitError, advice
from pursuit.policy.rules import decide_request
from pursuit.policy.traits import traits
from pursuit.service.audit import Caller
from pursuit.service.tasks import Tasks
from pursuit.tasks.calls import TaskJob, as_answer
from pursuit.upstream.host import ToolHost


def command_tool(config: CommandConfig) -> Tool:
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
        metrics=tuple(config.metrics),
        cwd=config.folder(os.environ),
    )


def permit_directly(host: ToolHost, tool: Tool, arguments: Mapping[str, Any], *, caller: Caller) -> None:
    """Refuses a client's own call that policy denies, or that needs approval by a rule.

    Where policy asks only because traits are undeclared, the operator has approved by offering the command.
    """
    layers = host.layers(None, None, *host.caller_layers(caller.credential))
    ruling = decide_request(layers, tool, arguments)
    if ruling.decision == "deny":
        raise PolicyDenied(f"{tool.qualified} is denied: {ruling.reason}", tool=tool.qualified)
    if ruling.decision == "ask":
        remedy = f"operator: `{advice('pursuit task run {}', tool.name)}`"
        why = f"{tool.qualified} needs approval: {ruling.reason}; {remedy}"
        raise ApprovalNeeded(why, tool=tool.qualified)


class CommandUpstream:
    """The server `commands`; without tasks it can only be listed."""

    name = COMMANDS_SERVER

    def __init__(self, commands: Mapping[str, CommandConfig], tasks: Tasks | None = None) -> None:
        self._tools = [command_tool(config) for config in commands.values()]
        self._tasks = tasks

    async def tools(self) -> Sequence[Tool]:
        return self._tools

    def job(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, place: CheckPlace | None = None) -> TaskJob:
        """The task for this call, not started yet."""
        return self._open().job(tool, arguments, place=place)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, call_id: str, on_progress: ProgressFn | None = None
    ) -> ToolResult:
        tasks = self._open()
        try:
            task_id = (await tasks.call(tool, arguments)).task_id
        except PursuitError as error:
            raise CallFailed(f"{call_id}: {error.message}", sent=False) from None
        try:
            async with tasks.kept_up(task_id):
                async for state in tasks.store.follow(task_id):
                    if on_progress is not None and not state.terminal:
                        await on_progress(state.done, state.total, state.message)
        except anyio.get_cancelled_exc_class():
            await tasks.stop(task_id, reason=f"its call {call_id} was abandoned")
            raise
        state = await tasks.wait(task_id)
        return as_answer(state, await tasks.store.result(state))

    async def aclose(self) -> None:
        """Closes nothing: the tasks continue."""

    def _open(self) -> Tasks:
        if self._tasks is None:
            raise CallFailed("commands can only be listed here", sent=False)
        return self._tasks
