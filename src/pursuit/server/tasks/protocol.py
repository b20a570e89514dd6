"""The messages of both generations of MCP tasks.

The first generation is in the core of 2025-11-25 (SEP-1686); the second is an extension of 2026-07-28 (SEP-2663). They
are not compatible on the wire.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from pursuit.core.report import iso
from pursuit.core.tasks import TaskState
from pursuit.server.errors import Context, as_object, is_modern, sendable
from pursuit.tasks.store import TaskRecords
from pursuit.upstream.tasks import EXTENSION, RELATED

IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"
JsonObject = Mapping[str, Any]


def without_tasks(capabilities: JsonObject) -> dict[str, Any]:
    """Capabilities without the tasks of either generation: the tasks are those of the gateway."""
    given = {key: value for key, value in capabilities.items() if key != "tasks"}
    known = as_object(given.get("extensions"))
    if EXTENSION in known:
        given["extensions"] = {key: value for key, value in known.items() if key != EXTENSION}
        if not given["extensions"]:
            del given["extensions"]
    return given


def missing_extension() -> MCPError:
    """The error for a client that did not declare the extension on this request."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"the request must declare the extension {EXTENSION} in its capabilities",
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


def task_id_of(ctx: Context) -> str:
    """The task of a request; over HTTP a request of 2026-07-28 also names it in a header.

    A header with another id is refused. Clients must send the header; FastMCP 4.1 does not, and is served anyway.
    """
    task_id = (ctx.params or {}).get("taskId")
    if is_modern(ctx.protocol_version) and ctx.request is not None:
        named = decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER))
        if named is not None and named != task_id:
            raise MCPError(HEADER_MISMATCH, f"the header {MCP_NAME_HEADER} must be the request's taskId")
    if not isinstance(task_id, str):
        raise MCPError(INVALID_PARAMS, f"{ctx.method} needs a taskId")
    return task_id


# Seconds between two polls. A task that ends after 0.2 s is noticed soon after: the interval begins at 100 ms and grows
# to a fifth of the task's age, at most five seconds; at most one second while the task waits for an answer.
SHORTEST, LONGEST, WHILE_ASKING = 0.1, 5.0, 1.0
SHARE_OF_AGE = 0.2
MAX_HOLD = 0.5
MAX_TASKS = 4_096


def interval(state: TaskState, now: float) -> int:
    """Milliseconds until a client should poll again."""
    longest = WHILE_ASKING if state.status == "input_required" else LONGEST
    return round(1_000 * min(longest, max(SHORTEST, SHARE_OF_AGE * (now - state.created_at))))


class PollingLimiter:
    """Delays the results for clients that poll too often.

    The delay is at most half an interval and ends when the task changes; a client is never refused and misses nothing.
    """

    def __init__(self, store: TaskRecords) -> None:
        self._store = store
        self._answered: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def hold(self, state: TaskState) -> TaskState:
        """The task for the client: now, or once it has changed or half its interval is over."""
        last, seen = self._answered.get(state.task_id, (0.0, -1))
        if state.seq == seen and not state.terminal:
            due = last + min(MAX_HOLD, interval(state, self._store.now()) / 2_000)
            with anyio.move_on_after(max(0.0, due - time.monotonic())):
                state = await self._store.wait(state.task_id, lambda now: now.seq > seen)
        self._answered[state.task_id] = (time.monotonic(), state.seq)
        self._answered.move_to_end(state.task_id)
        while len(self._answered) > MAX_TASKS:
            self._answered.popitem(last=False)
        return state


STATUS = "notifications/tasks/status"


def v2025_task(state: TaskState, now: float) -> dict[str, Any]:
    """A task of the first generation. A tool's result with `isError` means a task that `failed`, with that result."""
    return _task(state, state.status, ttl="ttl", poll="pollInterval", now=now)


def _task(state: TaskState, status: str, *, ttl: str, poll: str, now: float) -> dict[str, Any]:
    """A task; the generations use different keys for its time to live and its poll interval."""
    body: dict[str, Any] = {
        "taskId": state.task_id,
        "status": status,
        "createdAt": iso(state.created_at),
        "lastUpdatedAt": iso(state.updated_at),
        ttl: None if state.ttl is None else max(1, round(state.ttl * 1_000)),
        poll: interval(state, now),
    }
    return body if state.message is None else {**body, "statusMessage": sendable(state.message)}


def v2025_created(state: TaskState, now: float) -> dict[str, Any]:
    words = f"{state.title} continues as the task {state.task_id}, which will have its result."
    return {"task": v2025_task(state, now), "_meta": {IMMEDIATE: sendable(words)}}


def related(body: JsonObject, task_id: str) -> dict[str, Any]:
    """A result, or the parameters of a request, with the task that it belongs to; used only around `tasks/result`."""
    return {**body, "_meta": {**as_object(body.get("_meta")), RELATED: {"taskId": task_id}}}


def payload(state: TaskState, result: JsonObject | None) -> dict[str, Any]:
    """The result of the plain call; raises the error of the plain call."""
    if state.error is not None:
        raise MCPError(state.error["code"], state.error["message"], state.error.get("data"))
    if result is not None:
        return related(result, state.task_id)
    words = f"the task was {state.status} without a result" + (f": {state.message}" if state.message else "")
    raise MCPError(INTERNAL_ERROR, sendable(words), {"taskId": state.task_id, "status": state.status})


COMPLETE: JsonObject = {"resultType": "complete"}
"""The result of `tasks/update` and `tasks/cancel`."""


def v2026_task(state: TaskState, now: float) -> dict[str, Any]:
    """A task of the second generation. `failed` is for JSON-RPC errors; a result with `isError` is `completed`."""
    has_result = state.error is None and (state.result is not None or state.blob is not None)
    status = "completed" if state.status == "failed" and has_result else state.status
    return _task(state, status, ttl="ttlMs", poll="pollIntervalMs", now=now)


def v2026_created(state: TaskState, now: float) -> dict[str, Any]:
    return {"resultType": "task", **v2026_task(state, now)}


def detailed(state: TaskState, asked: JsonObject, result: JsonObject | None, now: float) -> dict[str, Any]:
    """The task with its questions, its result or its error; `asked` holds the questions for this client."""
    body = {**COMPLETE, **v2026_task(state, now)}
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
