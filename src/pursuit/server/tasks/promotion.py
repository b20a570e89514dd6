"""A call that is a task, or becomes one while it is under way.

Owns: the way from a call's outcome to a task's ending, its questions in between, and the moment when a call that takes
long is handed to the task host. Does not know: messages or servers. Invariant: a client is told of a task only when it
is durable; a call is made once however it ends, and one that its client gives up before that is cancelled.
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
from pursuit.errors import PursuitError, TooManyTasks
from pursuit.server.errors import Context, wire_error
from pursuit.server.tasks.protocol import JsonObject, obj
from pursuit.tasks.execution import TaskContext
from pursuit.tasks.host import TaskHost, Work
from pursuit.tasks.store import Ending

GRACE = 0.5
"""Seconds that a call of a client of the second generation has to end in before it becomes a task."""

MOST_ROUNDS = 100
DISMISSED: JsonObject = {"action": "cancel"}
LONGEST_WHY = 2_000

When = Literal["never", "late", "at once", "must be"]


class Performer(Protocol):
    """How a call is made; `long` is set when it is known to take long."""

    long: anyio.Event

    def attach(self, task: TaskContext) -> None:
        """From here on this task hears of the call's progress."""
        ...

    async def perform(self, params: JsonObject) -> JsonObject:
        """Makes the call, or goes on with it; a result that asks is `input_required`, as the new era has it."""
        ...

    async def answered_elsewhere(self, questions: JsonObject) -> None:
        """Returns when none of these questions needs an answer any more; where that cannot be, never."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a call would be as a task; `origin` is what its work can be taken up again by after a crash.

    `when` is what the server decides for the second generation; `work` does something else than make the call.
    """

    title: str
    when: When = "late"
    kind: TaskKind = "call"
    origin: JsonObject = field(default_factory=dict[str, Any])
    work: Work | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """One call: whose it is, what it is to be, and how it is made."""

    plan: Plan
    requestor: str
    by: str
    params: JsonObject
    performer: Performer


class Carrier:
    """Carries calls on; the group is where calls run that are no tasks yet."""

    def __init__(self, host: TaskHost, tasks: anyio.abc.TaskGroup) -> None:
        self._host = host
        self._tasks = tasks

    async def begin(self, errand: TaskCall, *, ttl: float | None = None) -> TaskState:
        """A task from its beginning. Raises `TooManyTasks` or `ValidationFailed`, and then nothing was begun."""
        plan = errand.plan

        async def work(task: TaskContext) -> Ending:
            errand.performer.attach(task)
            return await _ending(lambda: _rounds(task, errand, errand.performer.perform(errand.params)))

        return await self._record(errand, plan.work or work, ttl)

    async def carry(self, errand: TaskCall) -> JsonObject | TaskState:
        """The result of a call that ends soon, else the task that it has become."""
        call = _UnderWay(errand)
        self._tasks.start_soon(call.run)
        state: TaskState | None = None
        try:
            with anyio.move_on_after(GRACE):
                await _either(call.over, errand.performer.long)
            if not call.over.is_set():
                with anyio.CancelScope(shield=True):  # either it is a task, or its client gave it up before
                    state = await self._record(errand, call.follow, None)
        except TooManyTasks:  # then its client waits, as any other one does
            await call.over.wait()
        finally:
            if state is None:
                call.scope.cancel()
        return call.result() if state is None else state

    async def _record(self, errand: TaskCall, work: Work, ttl: float | None) -> TaskState:
        plan = errand.plan
        return await self._host.begin(
            work,
            kind=plan.kind,
            title=plan.title,
            requestor=errand.requestor,
            by=errand.by,
            ttl=ttl,
            origin=plan.origin,
        )


class _UnderWay:
    """A call that nobody has handed to the host yet."""

    def __init__(self, errand: TaskCall) -> None:
        self._errand = errand
        self._outcome: JsonObject | Exception | None = None
        self.over = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        """Makes the call; never raises but when cancelled."""
        try:
            with self.scope:
                self._outcome = await self._errand.performer.perform(self._errand.params)
        except Exception as error:  # noqa: BLE001 - the boundary to whoever waits, who gets it
            self._outcome = error
        if self._outcome is not None:
            self.over.set()

    def result(self) -> JsonObject:
        """What the call came to; raises what it raised."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome or {}

    async def follow(self, task: TaskContext) -> Ending:
        """The rest of the call as the work of a task; whoever cuts it cuts the call."""
        self._errand.performer.attach(task)
        return await _ending(lambda: _rounds(task, self._errand, self._wait()))

    async def _wait(self) -> JsonObject:
        try:
            await self.over.wait()
        finally:
            self.scope.cancel()
        return self.result()


async def _either(*events: anyio.Event) -> None:
    """Returns when one of them has happened."""

    async def wait(event: anyio.Event) -> None:
        await event.wait()
        waiting.cancel_scope.cancel()

    async with anyio.create_task_group() as waiting:
        for event in events:
            waiting.start_soon(wait, event)


async def _rounds(task: TaskContext, errand: TaskCall, first: Awaitable[JsonObject]) -> JsonObject:
    """The result in the end; what the call asks meanwhile is asked of the task's requestor, each question once."""
    result, params = await first, errand.params
    for number in range(MOST_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        again = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
        questions = obj(result.get("inputRequests"))
        if questions:
            # A server may ask a second time under the same name, and a question of ours is answered once.
            named = {key if number == 0 else f"{key}-{number + 1}": key for key in questions}
            asked = {name: obj(questions[key]) for name, key in named.items()}
            said = await answers_to(task, asked, partial(errand.performer.answered_elsewhere, questions))
            if said.keys() != named.keys():
                await anyio.sleep_forever()  # it has ended meanwhile, and whoever ended it cuts this
            again["inputResponses"] = {named[name]: answer for name, answer in said.items()}
        if "requestState" in result:
            again["requestState"] = result["requestState"]
        result = await errand.performer.perform(again)
    raise MCPError(INTERNAL_ERROR, f"the call asked {MOST_ROUNDS} times and did not come to an end")


async def answers_to(
    task: TaskContext, questions: Mapping[str, JsonObject], elsewhere: Callable[[], Awaitable[None]]
) -> JsonObject:
    """What the requestor answers; a question that somebody else answered meanwhile counts as dismissed here."""
    said: JsonObject = {}

    async def look() -> None:
        await elsewhere()
        await task.store.answer(task.task_id, dict.fromkeys(questions, DISMISSED), by="somebody else")

    async with anyio.create_task_group() as both:
        both.start_soon(look)
        said = await task.ask(questions)
        both.cancel_scope.cancel()
    return said


async def _ending(run: Callable[[], Awaitable[JsonObject]]) -> Ending:
    """What the work came to."""
    try:
        return ending_of(await run())
    except PursuitError as error:
        return failed(wire_error(error))
    except MCPError as error:
        return failed(error)


def ending_of(result: JsonObject) -> Ending:
    """A tool's result as a task's ending: stored as the tool gave it, without the envelope of an era."""
    bare = {key: value for key, value in result.items() if key != "resultType"}
    meta = obj(bare.get("_meta"))
    if SERVER_INFO_META_KEY in meta:
        rest = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
        bare = {**bare, "_meta": rest} if rest else {key: value for key, value in bare.items() if key != "_meta"}
    if bare.get("isError") is not True:
        return Ending(status="completed", result=bare)
    return Ending(status="failed", message=_text(bare), result=bare)


def failed(error: MCPError) -> Ending:
    """A JSON-RPC error as a task's ending."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return Ending(status="failed", message=error.message[:LONGEST_WHY], error=body)


def _text(result: JsonObject) -> str:
    content = result.get("content")
    texts = [obj(part).get("text") for part in cast("list[Any]", content)] if isinstance(content, list) else []
    return next((text for text in texts if isinstance(text, str)), "the tool failed")[:LONGEST_WHY]


# A request whose answer its client no longer waits for.
# Invariant: a handler sees a client of the new era, so what it wants to ask it returns as questions; its progress
# goes to whoever follows the task.


class DetachedSession:
    """The way back to a client: over its request while it waits, then into the task."""

    def __init__(self, session: ServerSession, task: TaskContext | None = None) -> None:
        self.client_params: InitializeRequestParams | None = session.client_params
        self.client_capabilities: ClientCapabilities | None = session.client_capabilities
        self.can_send_request = False
        self.task = task
        self._session = session

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tells how far the call is."""
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
