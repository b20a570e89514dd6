"""Follows the tasks of a server to their results.

A server makes a task of a call in one of two generations of the protocol. In the first (2025-11-25) the caller asks for
a task, and the server holds the response to `tasks/result` until the task ends; its requests to the client come
meanwhile over the connection. In the second (2026-07-28, an extension) the server decides, and results and questions
come by polling `tasks/get`.

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
LONGEST_POLL = 30.0
LONGEST_OWN_POLL = 5.0
CANCEL_SECONDS = 5.0
MOST_FAILURES = 20
LOST = "the server took the call as a task, and what became of it is not known"

Generation = Literal[1, 2]
OnTaskStatus = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Gets the task as the server shows it, after each poll."""


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
        """The handle as it is stored."""
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
    """Whether calls of a tool may be tasks of the first generation: forbidden, optional or required."""
    said = _part(definition, "execution", "taskSupport")
    return said if said in ("optional", "required") else "forbidden"


def with_tasks_extension(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """A client's capabilities with the tasks extension added."""
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
        if handle.generation == 2:
            return await _poll_result(client, handle.task_id, told, answer, retry)
        return await _await_result(client, handle.task_id, told, on_notify, retry)
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


async def _await_result(
    client: Requests, task_id: str, told: OnTaskStatus | None, on_notify: NotifyFn | None, retry: float
) -> dict[str, Any]:
    """The result of a task of the first generation; `told` gets its status meanwhile."""
    outcome: dict[str, Any] | Exception = CallFailed("cancelled")
    async with anyio.create_task_group() as both:
        if told is not None:
            both.start_soon(_report_status, client, task_id, told)
        try:
            outcome = await _held_result(client, task_id, on_notify, retry)
        except (UpstreamError, CallFailed) as error:
            outcome = error  # raised below: the task group would wrap it
        both.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _held_result(client: Requests, task_id: str, on_notify: NotifyFn | None, retry: float) -> dict[str, Any]:
    """The answer to `tasks/result`; a broken one is asked for again, since the task goes on without us."""
    failures = 0
    while True:
        try:
            result = await client.request("tasks/result", {"taskId": task_id}, on_notify=on_notify, progress=False)
            return without_meta(result, RELATED)  # as a plain call would have had it
        except UpstreamError:
            # The task ended with this error, or the server does not know the task: `tasks/get` tells which.
            await _get_task(client, task_id)
            raise
        except CallFailed:
            failures += 1
            if failures > MOST_FAILURES:
                raise
            await anyio.sleep(min(retry * failures, LONGEST_POLL))
            if _is_over(await _get_task(client, task_id)):
                # The result is there: two more tries, and no more.
                failures = max(failures, MOST_FAILURES - 2)


class _Forgotten(CallFailed):
    """The server does not know the task: it was restarted, or dropped it."""


async def _get_task(client: Requests, task_id: str) -> dict[str, Any]:
    """The task as the server shows it now."""
    try:
        return await client.request("tasks/get", {"taskId": task_id})
    except UpstreamError as error:
        raise _Forgotten(f"the server no longer has the task: {error.message}") from None


async def _report_status(client: Requests, task_id: str, told: OnTaskStatus) -> None:
    """Reports the status of the task, at the interval that the server asks for, until a poll fails."""
    pause = FIRST_POLL
    while True:
        await anyio.sleep(pause)
        try:
            task = await client.request("tasks/get", {"taskId": task_id})
        except (UpstreamError, CallFailed):
            return
        await told(task)
        pause = _pause(task.get("pollInterval"), pause)


async def _poll_result(
    client: Requests, task_id: str, told: OnTaskStatus | None, answer: AnswerFn | None, retry: float
) -> dict[str, Any]:
    """The result of a task of the second generation."""
    pause, failures = FIRST_POLL, 0
    answered: set[str] = set()
    while True:
        await anyio.sleep(pause)
        try:
            task = await _get_task(client, task_id)
        except _Forgotten:
            raise
        except CallFailed:
            failures += 1
            if failures > MOST_FAILURES:
                raise
            pause = min(retry * failures, LONGEST_POLL)
            continue
        failures = 0
        if told is not None:
            await told(task)
        if _is_over(task):
            return _ended_result(task)
        await _answer_questions(client, task, answer, answered)
        pause = _pause(task.get("pollIntervalMs"), pause)


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
        raise CallFailed("its task needs an answer from a person, and none can be asked here", answered=True)
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
        return min(max(interval / 1000, 0.02), LONGEST_POLL)
    return min(before * 1.5, LONGEST_OWN_POLL)


def _part(whole: Mapping[str, Any], *path: str) -> object:
    part: object = whole
    for key in path:
        part = as_object(part).get(key)
    return part
