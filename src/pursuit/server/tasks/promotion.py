"""Runs calls as tasks, from the beginning or once they take long.

Invariant: a client gets the id of a task only once the task is durable. A call is made once, and is cancelled if its
client gives up before it is a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, cast

import anyio
import anyio.abc
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, SERVER_INFO_META_KEY, ClientCapabilities, InitializeRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pursuit.core.tasks import TaskKind, TaskState
from pursuit.core.tools import without_meta
from pursuit.errors import PursuitError, TooManyTasks
from pursuit.server.errors import Context, as_object, wire_error
from pursuit.server.tasks.protocol import JsonObject
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.host import TaskHost, Work
from pursuit.tasks.store import Ending

MAX_ROUNDS = 100
DISMISSED: JsonObject = {"action": "cancel"}
MAX_WHY = 2_000

When = Literal["never", "late", "at once", "must be"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSettings:
    """Determines when a call of a second-generation client becomes a task."""

    grace: float = 0.5
    """Seconds after which a running call becomes a task."""


class Performer(Protocol):
    """Makes a call; sets `long` once the call is known to take long."""

    long: anyio.Event

    def attach(self, task: TaskContext) -> None:
        """Sends the call's progress to this task from now on."""
        ...

    async def perform(self, params: JsonObject) -> JsonObject:
        """Makes the call, or continues it; a result with questions is `input_required`, as in 2026-07-28."""
        ...

    async def answered_elsewhere(self, questions: JsonObject) -> None:
        """Returns when none of these questions needs an answer any more; never, if that cannot happen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """The plan for a call as a task; `origin` is the data with which a process resumes it after a crash.

    `when` is the server's decision for the second generation. `work` replaces making the call.
    """

    title: str
    when: When = "late"
    kind: TaskKind = "call"
    origin: JsonObject = field(default_factory=dict[str, Any])
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """One call: its caller, its plan as a task, and how to make it."""

    plan: TaskPlan
    requestor: str
    by: str
    params: JsonObject
    performer: Performer


class CallRunner:
    def __init__(self, host: TaskHost, tasks: anyio.abc.TaskGroup, settings: PromotionSettings) -> None:
        self._host = host
        self._tasks = tasks
        self._settings = settings

    async def begin(self, call: TaskCall, *, ttl: float | None = None) -> TaskState:
        """A call that is a task from the beginning; if this raises, nothing was begun."""

        async def work(task: TaskContext) -> Ending:
            call.performer.attach(task)
            return await _ending(_rounds(task, call, call.performer.perform(call.params)))

        return await self._record(call, call.plan.work or work, ttl)

    async def run(self, call: TaskCall) -> JsonObject | TaskState:
        """The result of a call that ends soon, or else its task."""
        running = _RunningCall(call)
        self._tasks.start_soon(running.run)
        state: TaskState | None = None
        try:
            with anyio.move_on_after(self._settings.grace):
                await call.performer.long.wait()  # `_RunningCall` also sets it at the end
            if not running.over.is_set():
                with anyio.CancelScope(shield=True):  # a client that gives up here leaves a durable task behind
                    state = await self._record(call, running.follow, None)
        except TooManyTasks:  # its client waits for the result
            await running.over.wait()
        finally:
            if state is None:
                running.scope.cancel()
        return running.result() if state is None else state

    async def _record(self, call: TaskCall, work: Work, ttl: float | None) -> TaskState:
        plan = call.plan
        return await self._host.begin(
            work,
            kind=plan.kind,
            title=plan.title,
            requestor=call.requestor,
            by=call.by,
            ttl=ttl,
            origin=plan.origin,
        )


class _RunningCall:
    def __init__(self, call: TaskCall) -> None:
        self._call = call
        self._outcome: JsonObject | Exception | None = None
        self.over = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        """Makes the call; raises only if it is cancelled."""
        try:
            with self.scope:
                self._outcome = await self._call.performer.perform(self._call.params)
        except Exception as error:  # noqa: BLE001 - `result` raises it to the request that waits
            self._outcome = error
        if self._outcome is not None:
            self.over.set()
            self._call.performer.long.set()

    def result(self) -> JsonObject:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome or {}

    async def follow(self, task: TaskContext) -> Ending:
        """The rest of the call as the work of a task; cancelling it cancels the call."""
        self._call.performer.attach(task)
        return await _ending(_rounds(task, self._call, self._wait()))

    async def _wait(self) -> JsonObject:
        try:
            await self.over.wait()
        finally:
            self.scope.cancel()
        return self.result()


async def _rounds(task: TaskContext, call: TaskCall, first: Awaitable[JsonObject]) -> JsonObject:
    """The final result; the task's requestor gets each question of the call once."""
    result, params = await first, call.params
    for number in range(MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        again = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
        questions = as_object(result.get("inputRequests"))
        if questions:
            # A server may repeat a name, but a task accepts one answer for each name.
            named = {key if number == 0 else f"{key}-{number + 1}": key for key in questions}
            asked = {name: as_object(questions[key]) for name, key in named.items()}
            said = await answers_to(task, asked, partial(call.performer.answered_elsewhere, questions))
            if said.keys() != named.keys():
                await anyio.sleep_forever()  # the task has ended; its end cancels this
            again["inputResponses"] = {named[name]: answer for name, answer in said.items()}
        if "requestState" in result:
            again["requestState"] = result["requestState"]
        result = await call.performer.perform(again)
    raise MCPError(INTERNAL_ERROR, f"the call asked {MAX_ROUNDS} times without a final result")


async def answers_to(
    task: TaskContext, questions: Mapping[str, JsonObject], elsewhere: Callable[[], Awaitable[None]]
) -> JsonObject:
    """The requestor's answers; a question that another caller has answered is dismissed here."""
    said: JsonObject = {}

    async def dismiss() -> None:
        await elsewhere()
        await task.store.answer(task.task_id, dict.fromkeys(questions, DISMISSED), by="another caller")

    async with anyio.create_task_group() as both:
        both.start_soon(dismiss)
        said = await task.ask(questions)
        both.cancel_scope.cancel()
    return said


async def _ending(work: Awaitable[JsonObject]) -> Ending:
    """The ending of a task: the tool's result, without the fields of one protocol version, or an error."""
    try:
        result = await work
    except PursuitError as error:
        return _failed(wire_error(error))
    except MCPError as error:
        return _failed(error)
    bare = without_meta({key: value for key, value in result.items() if key != "resultType"}, SERVER_INFO_META_KEY)
    if bare.get("isError") is not True:
        return Ending(status="completed", result=bare)
    return Ending(status="failed", message=_text(bare), result=bare)


def _failed(error: MCPError) -> Ending:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return Ending(status="failed", message=error.message[:MAX_WHY], error=body)


def _text(result: JsonObject) -> str:
    content = result.get("content")
    texts = [as_object(part).get("text") for part in cast("list[Any]", content)] if isinstance(content, list) else []
    return next((text for text in texts if isinstance(text, str)), "the tool failed")[:MAX_WHY]


class DetachedSession:
    """The session of a call whose client may stop waiting: progress goes to the request, later to the task.

    It cannot send requests: a handler sees a client of 2026-07-28 and returns its questions.
    """

    def __init__(self, session: ServerSession) -> None:
        self.client_params: InitializeRequestParams | None = session.client_params
        self.client_capabilities: ClientCapabilities | None = session.client_capabilities
        self.can_send_request = False
        self.task: TaskContext | None = None
        self._session = session

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self.task is not None:
            await self.task.update_status(message, done=progress, total=total)
        else:
            await self._session.report_progress(progress, total, message)


def detached(ctx: Context, session: DetachedSession, params: Mapping[str, Any]) -> Context:
    """The request as its handler sees it, with these parameters."""
    return replace(
        ctx,
        session=cast("ServerSession", session),
        protocol_version=max(MODERN_PROTOCOL_VERSIONS),
        params=params,
    )
