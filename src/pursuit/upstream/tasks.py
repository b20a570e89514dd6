"""Tasks of a server, followed to their result.

Owns: both generations of tasks as a client speaks them: how a call is offered as a task, what its answer means, and
how the result is got. Does not know: connections, and who keeps the handle. Invariant: whoever asked for a result gets
the one that a plain call would have had, or the server's own error; giving up reaches the server.

The first generation (2025-11-25) lets the caller decide, and holds `tasks/result` until there is one; questions are
pushed meanwhile. In the second (2026-07-28, an extension) the server decides, and results and questions come by asking.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import anyio

from pursuit.core.tools import About, AnswerFn, CallFailed, NotifyFn, UpstreamError
from pursuit.errors import INTERNAL_ERROR, INVALID_PARAMS

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
FIRST_LOOK = 0.2
LONGEST_LOOK = 30.0
BETWEEN = 1.0
CANCEL_SECONDS = 5.0
MOST_FAILURES = 20
LOST = "the server took the call as a task, and what became of it is not known"

Generation = Literal[1, 2]
ToldFn = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Gets the task as the server shows it, whenever that was looked at."""


class Asks(Protocol):
    """What raw requests go through."""

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
    """A task of a server: its id there, and the generation that it is spoken of in."""

    task_id: str
    generation: Generation

    def as_dict(self) -> dict[str, Any]:
        """As it is remembered."""
        return {"task_id": self.task_id, "generation": self.generation}


def handle_in(remembered: object) -> Handle | None:
    """The handle that was remembered, or None."""
    if not isinstance(remembered, Mapping):
        return None
    known = cast("Mapping[str, Any]", remembered)
    task_id, generation = known.get("task_id"), known.get("generation")
    return Handle(task_id, generation) if isinstance(task_id, str) and generation in (1, 2) else None


def generation_of(about: About) -> Generation | None:
    """The tasks that a server speaks of, or None."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS  # noqa: PLC0415 - slow, and there is no server yet

    if about.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return 2 if isinstance(_part(about.capabilities, "extensions", EXTENSION), Mapping) else None
    return 1 if isinstance(_part(about.capabilities, "tasks", "requests", "tools", "call"), Mapping) else None


def support(definition: Mapping[str, Any]) -> str:
    """What a tool of the first generation says of itself: forbidden, optional or required."""
    said = _part(definition, "execution", "taskSupport")
    return said if said in ("optional", "required") else "forbidden"


def declared(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """A client's capabilities, with those of one that follows tasks."""
    extensions = capabilities.get("extensions")
    known = dict(cast("Mapping[str, Any]", extensions)) if isinstance(extensions, Mapping) else {}
    return {**capabilities, "extensions": {EXTENSION: {}, **known}}


def handle_of(result: Mapping[str, Any]) -> Handle | None:
    """The task that a call was answered with, or None if it was answered with a result."""
    if result.get("resultType") == "task" and isinstance(result.get("taskId"), str):
        return Handle(result["taskId"], 2)
    task_id = _part(result, "task", "taskId")
    if isinstance(task_id, str) and "content" not in result:
        return Handle(task_id, 1)
    return None


async def followed(
    talk: Asks,
    handle: Handle,
    *,
    told: ToldFn | None = None,
    answer: AnswerFn | None = None,
    on_notify: NotifyFn | None = None,
) -> dict[str, Any]:
    """The raw result of a task, however long it takes. Raises `UpstreamError`, which is what the task came to.

    Raises `CallFailed` if the server cannot be asked about the task any more, or does not know it: the server took the
    call, and what became of it is not known.

    `answer` answers the questions of a server of the second generation; one of the first pushes them over its
    connection. Cancelling the caller cancels the task.
    """
    try:
        if handle.generation == 2:
            return await _second(talk, handle.task_id, told, answer)
        return await _first(talk, handle.task_id, told, on_notify)
    except CallFailed as error:
        if error.answered:
            raise
        # It says whether the last look was sent: the call itself was.
        raise CallFailed(f"{str(error).removeprefix('not sent: ')}; {LOST}") from None
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS):
            await cancelled(talk, handle)
        raise


async def cancelled(talk: Asks, handle: Handle) -> None:
    """Tells the server that nobody wants the task any more; one that is over stays as it is."""
    try:
        await talk.request("tasks/cancel", {"taskId": handle.task_id})
    except (UpstreamError, CallFailed):
        return


async def _first(talk: Asks, task_id: str, told: ToldFn | None, on_notify: NotifyFn | None) -> dict[str, Any]:
    """The server holds the answer to `tasks/result` until there is one; beside it we look how the task stands."""
    outcome: list[dict[str, Any] | Exception] = []
    async with anyio.create_task_group() as both:
        if told is not None:
            both.start_soon(_watched, talk, task_id, told)
        try:
            outcome.append(await _held(talk, task_id, on_notify))
        except (UpstreamError, CallFailed) as error:
            outcome.append(error)  # raised below: it would come out wrapped
        both.cancel_scope.cancel()
    (found,) = outcome
    if isinstance(found, Exception):
        raise found
    return found


async def _held(talk: Asks, task_id: str, on_notify: NotifyFn | None) -> dict[str, Any]:
    """The result; an answer that broke on the way is asked for again, since the task goes on without us."""
    failures = 0
    while True:
        try:
            held = await talk.request("tasks/result", {"taskId": task_id}, on_notify=on_notify, progress=False)
            return _plain(held)
        except UpstreamError:
            # The error that the task ended with, or that there is no such task: `tasks/get` tells which.
            await _looked(talk, task_id)
            raise
        except CallFailed:
            failures += 1
            if failures > MOST_FAILURES:
                raise
            await anyio.sleep(min(BETWEEN * failures, LONGEST_LOOK))
            if _is_over(await _looked(talk, task_id)):
                failures = max(failures, MOST_FAILURES - 2)


class _Forgotten(CallFailed):
    """The server does not know the task: it was started anew, or has dropped it."""


async def _looked(talk: Asks, task_id: str) -> dict[str, Any]:
    """The task as the server shows it now."""
    try:
        return await talk.request("tasks/get", {"taskId": task_id})
    except UpstreamError as error:
        raise _Forgotten(f"the server no longer has the task: {error.message}") from None


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    """A result as a plain call would have had it: without the word that it belongs to the server's own task."""
    meta = result.get("_meta")
    if not isinstance(meta, Mapping) or RELATED not in meta:
        return result
    rest = {key: value for key, value in cast("Mapping[str, Any]", meta).items() if key != RELATED}
    bare = {key: value for key, value in result.items() if key != "_meta"}
    return {**bare, "_meta": rest} if rest else bare


async def _watched(talk: Asks, task_id: str, told: ToldFn) -> None:
    """Tells how the task stands, as often as the server likes to be asked, for as long as there is an answer."""
    pause = FIRST_LOOK
    while True:
        await anyio.sleep(pause)
        try:
            task = await talk.request("tasks/get", {"taskId": task_id})
        except (UpstreamError, CallFailed):
            return
        await told(task)
        pause = _pause(task.get("pollInterval"), pause)


async def _second(talk: Asks, task_id: str, told: ToldFn | None, answer: AnswerFn | None) -> dict[str, Any]:
    pause, failures = FIRST_LOOK, 0
    answered: set[str] = set()
    while True:
        await anyio.sleep(pause)
        try:
            task = await _looked(talk, task_id)
        except _Forgotten:
            raise
        except CallFailed:
            failures += 1
            if failures > MOST_FAILURES:
                raise
            pause = min(BETWEEN * failures, LONGEST_LOOK)
            continue
        failures = 0
        if told is not None:
            await told(task)
        if _is_over(task):
            return _result_in(task)
        await _answered(talk, task, answer, answered)
        pause = _pause(task.get("pollIntervalMs"), pause)


async def _answered(talk: Asks, task: Mapping[str, Any], answer: AnswerFn | None, answered: set[str]) -> None:
    """Answers what a server of the second generation asks, each question once."""
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
            failures.append(error)  # raised below: it would come out wrapped
            asking.cancel_scope.cancel()

    odd = [key for key, question in new.items() if not isinstance(question, Mapping)]
    if odd:
        raise UpstreamError(INTERNAL_ERROR, f"the server asked something that is no request: {odd[0]!r}")
    async with anyio.create_task_group() as asking:
        for key, question in new.items():
            asking.start_soon(ask, key, question)
    if failures:
        raise failures[0]
    answered.update(new)
    await talk.request("tasks/update", {"taskId": task["taskId"], "inputResponses": responses})


def _is_over(task: Mapping[str, Any]) -> bool:
    return task.get("status") in ("completed", "failed", "cancelled")


def _result_in(task: Mapping[str, Any]) -> dict[str, Any]:
    """What an ended task of the second generation came to."""
    result, error = task.get("result"), task.get("error")
    if task.get("status") == "completed" and isinstance(result, Mapping):
        return {"resultType": "complete", **cast("Mapping[str, Any]", result)}
    if isinstance(error, Mapping):
        known = cast("Mapping[str, Any]", error)
        code = known.get("code")
        raise UpstreamError(
            code if isinstance(code, int) else INTERNAL_ERROR, str(known.get("message", "")), known.get("data")
        )
    said = task.get("statusMessage")
    why = f"the server's task ended as {task.get('status')}" + (f": {said}" if isinstance(said, str) else "")
    raise UpstreamError(INVALID_PARAMS if task.get("status") == "cancelled" else INTERNAL_ERROR, why)


def _pause(wished: object, before: float) -> float:
    """How long to wait before the next look: as long as the server wishes, or a little longer each time."""
    if isinstance(wished, int | float) and not isinstance(wished, bool) and math.isfinite(wished) and wished >= 0:
        return min(max(wished / 1000, 0.02), LONGEST_LOOK)
    return min(before * 1.5, BETWEEN * 5)


def _part(whole: Mapping[str, Any], *path: str) -> object:
    part: object = whole
    for key in path:
        if not isinstance(part, Mapping):
            return None
        part = cast("Mapping[str, object]", part).get(key)
    return part
