"""A task as the first generation has it: 2025-11-25, SEP-1686.

Owns: every message of that generation about a task. Pure: knows no store. Invariant: `related-task` stands where the
protocol wants it (what `tasks/result` gives and asks) and nowhere else.

Here a tool's result with `isError` is a task that `failed`; its payload is still that result.
"""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from pursuit.core.report import iso
from pursuit.core.tasks import TaskState
from pursuit.surfaces.mcp.failure import sendable
from pursuit.surfaces.mcp.tasks.pace import interval
from pursuit.surfaces.mcp.tasks.terms import IMMEDIATE, RELATED, JsonObject, obj

STATUS = "notifications/tasks/status"
CAPABILITY: JsonObject = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def task(state: TaskState, now: float) -> dict[str, Any]:
    """The task itself."""
    body: dict[str, Any] = {
        "taskId": state.task_id,
        "status": state.status,
        "createdAt": iso(state.created_at),
        "lastUpdatedAt": iso(state.updated_at),
        "ttl": None if state.ttl is None else max(1, round(state.ttl * 1_000)),
        "pollInterval": interval(state, now),
    }
    return body if state.message is None else {**body, "statusMessage": sendable(state.message)}


def created(state: TaskState, now: float) -> dict[str, Any]:
    """What a call that became a task is answered with, and what a model can be told meanwhile."""
    words = f"{state.title} goes on as the task {state.task_id}; its result is there when that has ended."
    return {"task": task(state, now), "_meta": {IMMEDIATE: sendable(words)}}


def related(body: JsonObject, task_id: str) -> dict[str, Any]:
    """A result, or the parameters of a request, with the task that it belongs to."""
    return {**body, "_meta": {**obj(body.get("_meta")), RELATED: {"taskId": task_id}}}


def payload(state: TaskState, result: JsonObject | None) -> dict[str, Any]:
    """What the call would have been answered with; raises the error that it would have got."""
    if state.error is not None:
        raise MCPError(state.error["code"], state.error["message"], state.error.get("data"))
    if result is not None:
        return related(result, state.task_id)
    words = f"the task was {state.status} and has no result" + (f": {state.message}" if state.message else "")
    raise MCPError(INTERNAL_ERROR, sendable(words), {"taskId": state.task_id, "status": state.status})
