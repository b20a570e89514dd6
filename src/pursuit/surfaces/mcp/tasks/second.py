"""A task as the second generation has it: the extension of 2026-07-28, SEP-2663.

Owns: every message of that generation about a task. Pure: knows no store. Invariant: what is inlined is there exactly
in the status that it belongs to, and no `related-task` goes out.

Here `failed` is for JSON-RPC errors alone: a tool's result with `isError` is a task that `completed`.
"""

from __future__ import annotations

from typing import Any

from mcp_types import INTERNAL_ERROR

from pursuit.core.report import iso
from pursuit.core.tasks import TaskState
from pursuit.surfaces.mcp.failure import sendable
from pursuit.surfaces.mcp.tasks.pace import interval
from pursuit.surfaces.mcp.tasks.terms import JsonObject

COMPLETE: JsonObject = {"resultType": "complete"}
"""How an update and a cancel are acknowledged."""


def task(state: TaskState, now: float) -> dict[str, Any]:
    """The task itself."""
    body: dict[str, Any] = {
        "taskId": state.task_id,
        "status": _status(state),
        "createdAt": iso(state.created_at),
        "lastUpdatedAt": iso(state.updated_at),
        "ttlMs": None if state.ttl is None else max(1, round(state.ttl * 1_000)),
        "pollIntervalMs": interval(state, now),
    }
    return body if state.message is None else {**body, "statusMessage": sendable(state.message)}


def created(state: TaskState, now: float) -> dict[str, Any]:
    """What a call that became a task is answered with."""
    return {"resultType": "task", **task(state, now)}


def detailed(state: TaskState, asked: JsonObject, result: JsonObject | None, now: float) -> dict[str, Any]:
    """The task with its questions, its result or its error; `asked` are the questions for this client."""
    body = {**COMPLETE, **task(state, now)}
    match body["status"]:
        case "input_required":
            return {**body, "inputRequests": asked}
        case "completed":
            return {**body, "result": {"content": []} if result is None else dict(result)}
        case "failed":
            why = {"code": INTERNAL_ERROR, "message": sendable(state.message or "the task failed")}
            return {**body, "error": why if state.error is None else dict(state.error)}
        case _:
            return body


def _status(state: TaskState) -> str:
    has_result = state.error is None and (state.result is not None or state.blob is not None)
    return "completed" if state.status == "failed" and has_result else state.status
