"""Tool calls as tasks, for callers that do not wait for the answer.

Invariant: an id begins one task, however often it is requested.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import anyio

from pursuit.core.tasks import UNKNOWN, TaskKind, TaskState
from pursuit.core.tools import NOT_KNOWN, CallFailed, CheckPlace, Resumable, Tool, ToolResult, Upstream
from pursuit.errors import Conflict, PursuitError, TaskNotFound, UpstreamUnavailable
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.host import TaskHost, Work
from pursuit.tasks.store import Ending

LOG_LINES = 10_000
"""Lines of a log that a mission's rules can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    work: Work
    kind: TaskKind = "call"
    total: float | None = None
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])


@runtime_checkable
class Jobs(Protocol):
    """An upstream that makes the task of a call itself."""

    def job(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, place: CheckPlace | None = None) -> TaskJob:
        """The task for this call, not started yet. Raises a `PursuitError` if the call is not possible."""
        ...


@dataclass(frozen=True, slots=True)
class HostedCalls:
    """Calls of `upstream`'s tools as tasks of this process's `host`, which opens with the first task.

    `tail` gives the last lines of a task's log.
    """

    host: Callable[[], Awaitable[TaskHost]]
    upstream: Callable[[str], Upstream]
    tail: Callable[[str, int], Awaitable[Sequence[str]]]

    async def begin(
        self, tool: Tool, arguments: Mapping[str, Any], *, task_id: str, call_id: str, place: CheckPlace | None = None
    ) -> None:
        """Begins the task with that id, unless it has begun. Raises `CallFailed` if it cannot begin."""
        host = await self.host()
        with suppress(TaskNotFound):
            await host.take_up(await host.store.get(task_id))
            return
        try:
            upstream = self.upstream(tool.server)
            if isinstance(upstream, Jobs):
                job = upstream.job(tool.name, arguments, call_id=call_id, place=place)
            else:
                job = TaskJob(work=_call_work(upstream, tool.name, arguments, call_id))
            await host.begin(
                job.work,
                kind=job.kind,
                title=tool.qualified,
                requestor="local",
                by=call_id,
                total=job.total,
                origin={"server": tool.server, "tool": tool.name, "call_id": call_id, **job.origin},
                task_id=task_id,
            )
        except Conflict:
            return  # another process has just begun it
        except PursuitError as error:
            raise CallFailed(error.message, sent=False) from None

    async def outcome(self, task_id: str, *, within: float = 0.0) -> ToolResult | None:
        """The task's result, or None while it runs. Raises `CallFailed` if it ended without a result."""
        host = await self.host()
        store = host.store
        try:
            state = await store.get(task_id)
            if not state.terminal and within > 0:
                with anyio.move_on_after(within):
                    state = await store.wait(task_id)
            result = await store.result(state) if state.terminal else None
        except TaskNotFound:
            raise CallFailed(f"its task {task_id} is no longer recorded; its effect is not known") from None
        if not state.terminal:
            await host.take_up(state)
            return None
        return as_answer(state, result)

    async def log(self, task_id: str) -> str:
        """The end of its command's output; empty for a task without a command, or one that is no longer recorded."""
        with suppress(TaskNotFound):
            return "".join(f"{line}\n" for line in await self.tail(task_id, LOG_LINES))
        return ""

    async def cancel(self, task_id: str, *, reason: str) -> None:
        """Requests its cancellation; an ended task stays as it is."""
        with suppress(TaskNotFound):
            await (await self.host()).cancel(task_id, reason=reason)

    def resume(self, state: TaskState) -> Work | None:
        """Resumes a call whose process died; possible only if the server runs the call as its own task."""
        handle, server, tool = (state.mark.get("handle"), state.origin.get("server"), state.origin.get("tool"))
        if not isinstance(handle, Mapping) or not isinstance(server, str) or not isinstance(tool, str):
            return None
        known = cast("Mapping[str, Any]", handle)

        async def work(ctx: TaskContext) -> Ending:
            async def progressed(_done: float, _total: float | None, message: str | None) -> None:
                await ctx.update_status(message)

            try:
                upstream = self.upstream(server)
                if not isinstance(upstream, Resumable):
                    raise CallFailed(f"server {server!r} no longer supports tasks; {NOT_KNOWN}")
                return _ending_of(await upstream.pick_up(tool, known, on_progress=progressed))
            except CallFailed as error:
                return _no_result(error)
            except UpstreamUnavailable as error:  # it took the call before
                return _no_result(CallFailed(f"{error.message}; {NOT_KNOWN}"))

        return work


def _call_work(upstream: Upstream, tool: str, arguments: Mapping[str, Any], call_id: str) -> Work:
    """The work of a call to a server without tasks: this process makes the call and waits for it."""

    async def work(ctx: TaskContext) -> Ending:
        async def progressed(done: float, total: float | None, message: str | None) -> None:
            await ctx.update_status(message, done=done, total=total)

        async def remember(handle: Mapping[str, Any]) -> None:
            await ctx.remember({"handle": handle})

        more: dict[str, Any] = {"on_handle": remember} if isinstance(upstream, Resumable) else {}
        try:
            return _ending_of(await upstream.call(tool, arguments, call_id=call_id, on_progress=progressed, **more))
        except (CallFailed, UpstreamUnavailable) as error:
            return _no_result(error)

    return work


def _ending_of(answer: ToolResult) -> Ending:
    return Ending(status="failed" if answer.is_error else "completed", result=answer.as_dict())


def _no_result(error: CallFailed | UpstreamUnavailable) -> Ending:
    """The end of a call without a result; the error's data tell if it may have taken effect."""
    unknown = isinstance(error, CallFailed) and error.outcome == "unknown"
    return Ending.failure(str(error), unknown=unknown)


def as_answer(state: TaskState, result: Mapping[str, Any] | None) -> ToolResult:
    """Converts an ended task to the result of its call. Raises `CallFailed` if it ended without a result."""
    if state.status == "cancelled":
        why = f"the task {state.task_id} was cancelled: {state.message or 'no reason given'}"
        raise CallFailed(why, answered=state.kind != "call")
    if result is None:
        known = state.error is None or state.error.get("data") != UNKNOWN
        raise CallFailed(state.message or f"the task {state.task_id} failed", answered=known)
    content = cast("list[Mapping[str, Any]]", result.get("content") or [])
    is_error = state.status == "failed" or result.get("isError") is True
    return ToolResult(content=content, structured=result.get("structuredContent"), is_error=is_error)
