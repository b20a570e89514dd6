"""Follows the tasks of a server to their results.

A server makes a task of a call in one of two generations of the protocol; both are polled with `tasks/get`. In the
first (2025-11-25) the caller asks for a task, and `tasks/result` gives its result once it has ended; the server holds
the response until then, and sends its requests to the client over the connection. In the second (2026-07-28,
an extension) the server decides, and results and questions come with the poll.

The caller gets the result that a plain call would have had, or the server's own error; cancelling the caller cancels
the task.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import anyio

from pursuit.core.tools import (
    AnswerFn,
    CallFailed,
    InitializeResult,
    NotifyFn,
    UpstreamError,
    as_object,
    without_meta,
)
from pursuit.errors import INTERNAL_ERROR, INVALID_PARAMS

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
FIRST_POLL = 0.2
MAX_POLL = 30.0
MAX_OWN_POLL = 5.0
CANCEL_SECONDS = 5.0
MAX_FAILURES = 20
LOST = "the server accepted the call as a task, and its outcome is not known"

Generation = Literal[1, 2]
OnTaskStatus = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Receives the task as the server shows it, after each poll."""


class Requests(Protocol):
    """Sends raw requests."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_notify: NotifyFn | None = None,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Sends one request and returns the raw result."""
        ...


@dataclass(frozen=True, slots=True)
class Handle:
    """A task of a server: its id there, and the generation of the protocol."""

    task_id: str
    generation: Generation

    def as_dict(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "generation": self.generation}


def handle_in(stored: object) -> Handle | None:
    """The stored handle, or None if it is malformed."""
    known = as_object(stored)
    task_id, generation = known.get("task_id"), known.get("generation")
    return Handle(task_id, generation) if isinstance(task_id, str) and generation in (1, 2) else None


def task_generation(about: InitializeResult) -> Generation | None:
    """The generation of tasks that a server declares, or None."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS  # noqa: PLC0415 - slow to import, and not needed without a server

    if about.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return 2 if isinstance(_part(about.capabilities, "extensions", EXTENSION), Mapping) else None
    return 1 if isinstance(_part(about.capabilities, "tasks", "requests", "tools", "call"), Mapping) else None


def task_support(definition: Mapping[str, Any]) -> str:
    """The support of a tool for tasks of the first generation: forbidden, optional or required."""
    said = _part(definition, "execution", "taskSupport")
    return said if said in ("optional", "required") else "forbidden"


def with_tasks_extension(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {**capabilities, "extensions": {EXTENSION: {}, **as_object(capabilities.get("extensions"))}}


def task_handle(result: Mapping[str, Any]) -> Handle | None:
    """The task in the answer to a call, or None if the answer is a result."""
    if result.get("resultType") == "task" and isinstance(result.get("taskId"), str):
        return Handle(result["taskId"], 2)
    task_id = _part(result, "task", "taskId")
    if isinstance(task_id, str) and "content" not in result:
        return Handle(task_id, 1)
    return None


async def follow_task(
    client: Requests,
    handle: Handle,
    *,
    told: OnTaskStatus | None = None,
    answer: AnswerFn | None = None,
    on_notify: NotifyFn | None = None,
    retry: float = 1.0,
) -> dict[str, Any]:
    """The raw result of a task, however long it takes. Raises `UpstreamError` if the task ended with an error.

    Raises `CallFailed` if the server cannot be asked about the task any more, or does not know it: the server took the
    call, and its outcome is not known.

    `answer` answers the questions of a server of the second generation. Cancelling the caller cancels the task.
    """
    try:
        return await _followed(client, handle, told=told, answer=answer, on_notify=on_notify, retry=retry)
    except CallFailed as error:
        if error.answered:
            raise
        # The error says whether the last poll was sent; the call itself was.
        raise CallFailed(f"{str(error).removeprefix('not sent: ')}; {LOST}") from None
    except anyio.get_cancelled_exc_class():
        with (
            anyio.CancelScope(shield=True),
            anyio.move_on_after(CANCEL_SECONDS),
            suppress(UpstreamError, CallFailed),
        ):
            await client.request("tasks/cancel", {"taskId": handle.task_id})
        raise


async def _followed(
    client: Requests,
    handle: Handle,
    *,
    told: OnTaskStatus | None,
    answer: AnswerFn | None,
    on_notify: NotifyFn | None,
    retry: float,
) -> dict[str, Any]:
    """Polls again after a failure: the task continues without us."""
    pause, failures, whose = FIRST_POLL, 0, {"taskId": handle.task_id}
    answered: set[str] = set()
    while True:
        await anyio.sleep(pause)
        try:
            task = await _get_task(client, whose)
            if handle.generation == 1 and (_is_over(task) or task.get("status") == "input_required"):
                result = await client.request("tasks/result", whose, on_notify=on_notify, progress=False)
                return without_meta(result, RELATED)  # as a plain call would have had it
        except _Forgotten:
            raise
        except CallFailed:
            failures += 1
            if failures > MAX_FAILURES:
                raise
            pause = min(retry * failures, MAX_POLL)
            continue
        failures = 0
        if told is not None:
            await told(task)
        if handle.generation == 2:
            if _is_over(task):
                return _ended_result(task)
            await _answer_questions(client, task, answer, answered)
        pause = _pause(task.get("pollInterval" if handle.generation == 1 else "pollIntervalMs"), pause)


class _Forgotten(CallFailed):
    """The server does not know the task: it was restarted, or dropped it."""


async def _get_task(client: Requests, whose: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await client.request("tasks/get", whose)
    except UpstreamError as error:
        raise _Forgotten(f"the server no longer has the task: {error.message}") from None


async def _answer_questions(
    client: Requests, task: Mapping[str, Any], answer: AnswerFn | None, answered: set[str]
) -> None:
    """Answers the questions of a task of the second generation, each once."""
    questions = task.get("inputRequests")
    if not isinstance(questions, Mapping):
        return
    new = {k: one for k, one in cast("Mapping[str, Any]", questions).items() if k not in answered}
    if not new:
        return
    if answer is None:
        raise CallFailed("its task requires user input, which is not available here", answered=True)
    responses: dict[str, Any] = {}
    failures: list[Exception] = []

    async def ask(key: str, question: Mapping[str, Any]) -> None:
        try:
            responses[key] = await answer(str(question.get("method", "")), question.get("params") or {})
        except (UpstreamError, CallFailed) as error:
            failures.append(error)  # raised below: the task group would wrap it
            asking.cancel_scope.cancel()

    odd = [key for key, question in new.items() if not isinstance(question, Mapping)]
    if odd:
        raise UpstreamError(INTERNAL_ERROR, f"the server asked something that is not a request: {odd[0]!r}")
    async with anyio.create_task_group() as asking:
        for key, question in new.items():
            asking.start_soon(ask, key, question)
    if failures:
        raise failures[0]
    answered.update(new)
    await client.request("tasks/update", {"taskId": task["taskId"], "inputResponses": responses})


def _is_over(task: Mapping[str, Any]) -> bool:
    return task.get("status") in ("completed", "failed", "cancelled")


def _ended_result(task: Mapping[str, Any]) -> dict[str, Any]:
    """The result of an ended task of the second generation; raises its error."""
    result, error = task.get("result"), task.get("error")
    if task.get("status") == "completed" and isinstance(result, Mapping):
        return {"resultType": "complete", **cast("Mapping[str, Any]", result)}
    if isinstance(error, Mapping):
        known = as_object(cast("object", error))
        code = known.get("code")
        code = code if isinstance(code, int) else INTERNAL_ERROR
        raise UpstreamError(code, str(known.get("message", "")), known.get("data"))
    said = task.get("statusMessage")
    why = f"the server's task ended as {task.get('status')}" + (f": {said}" if isinstance(said, str) else "")
    raise UpstreamError(INVALID_PARAMS if task.get("status") == "cancelled" else INTERNAL_ERROR, why)


def _pause(interval: object, before: float) -> float:
    """Seconds before the next poll: the server's interval in milliseconds, or a little longer each time."""
    if isinstance(interval, int | float) and not isinstance(interval, bool) and 0 <= interval < math.inf:
        return min(max(interval / 1000, 0.02), MAX_POLL)
    return min(before * 1.5, MAX_OWN_POLL)


def _part(whole: Mapping[str, Any], *path: str) -> object:
    part: object = whole
    for key in path:
        part = as_object(part).get(key)
    return part
