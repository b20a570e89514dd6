"""A middleware of the SDK's server that answers `tasks/*` and converts calls to tasks, for both generations of tasks.

First generation (2025-11-25): `params.task` of a call decides. Second (2026-07-28): the server decides; a call that is
known to take long is a task from the beginning, any other call if it has not ended within the grace of
`PromotionSettings`. Invariant: a task belongs to its requestor on any connection: another requestor's id is as unknown
as an invalid one. A refused request begins nothing.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, cast
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from pursuit.core.events import Channel
from pursuit.core.tasks import TaskState
from pursuit.errors import Fault, InvalidArgument, PursuitError, TaskNotFound, ValidationFailed
from pursuit.server.errors import (
    NEEDED_CAPABILITY,
    Context,
    answerable,
    as_object,
    caller_of,
    capabilities_of,
    connection_of,
    generation_of,
    is_modern,
    mcp_errors,
    modern_result,
)
from pursuit.server.sampling import declined
from pursuit.server.signing import Signer
from pursuit.server.tasks import protocol
from pursuit.server.tasks.promotion import CallRunner, Performer, PromotionSettings, TaskCall, TaskPlan
from pursuit.server.tasks.protocol import (
    JsonObject,
    PollingLimiter,
    missing_extension,
    task_id_of,
)
from pursuit.service.tasks import requestor_of
from pursuit.tasks.execution import stopping_time
from pursuit.tasks.host import TaskHost
from pursuit.tasks.store import Ending, TaskRecords

PAGE = 50
MAX_TTL = 10**15
"""Maximum milliseconds of a ttl; the host may reduce it further."""

PlanFor = Callable[[Context], Awaitable[TaskPlan]]
"""Plans the call of a request as a task; raises the refusal of the call."""

PerformerFor = Callable[[Context], Performer]
"""Returns the performer for a request's call, which runs after the client has stopped waiting."""


class StatusNotifications:
    """Sends first-generation clients the status of the tasks that they began, while they are connected.

    The followers run in the given task group. A slow client gets only the latest status and delays no other.
    """

    def __init__(self, store: TaskRecords, tasks: TaskGroup) -> None:
        self._store = store
        self._tasks = tasks
        self._scopes: dict[Connection, set[anyio.CancelScope]] = {}

    def follow(self, ctx: Context, state: TaskState) -> None:
        """Notifies the connection of this request of each further change of a task."""
        connection = connection_of(ctx)
        if connection not in self._scopes:
            self._scopes[connection] = set()
            connection.exit_stack.callback(self._gone, connection)
        self._tasks.start_soon(self._follow, connection, state)

    def _gone(self, connection: Connection) -> None:
        for scope in self._scopes.pop(connection):
            scope.cancel()

    async def _follow(self, connection: Connection, known: TaskState) -> None:
        scopes = self._scopes.get(connection)
        if scopes is None:  # it has disconnected already
            return
        sent = (known.status, known.message)
        with anyio.CancelScope() as scope:
            scopes.add(scope)
            try:
                async for state in self._store.follow(known.task_id):
                    if (state.status, state.message) != sent:
                        sent = (state.status, state.message)
                        await connection.notify(protocol.STATUS, protocol.v2025_task(state, self._store.now()))
            except PursuitError:  # the task was removed, or the ledger is unavailable; notifications are optional
                return
            finally:
                scopes.discard(scope)


class TaskElicitation:
    """Sends the questions of first-generation tasks to the clients that wait for their results.

    Invariant: one waiter at a time has a question; if it disconnects, the next one gets it. The end of a task withdraws
    its questions, and a late answer is dropped.
    """

    def __init__(self, store: TaskRecords, channels: Collection[Channel]) -> None:
        self._store = store
        self._channels = channels
        self._asking: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    async def wait(self, ctx: Context, task_id: str, *, requestor: str, by: str) -> TaskState:
        """The task once it has ended; until then its client gets the questions of the task."""
        declared: JsonObject = capabilities_of(ctx) if ctx.session.can_send_request else {}
        state = await self._store.get(task_id, requestor=requestor)
        asked: set[str] = set()
        async with anyio.create_task_group() as asking:
            async for state in self._store.follow(task_id, requestor=requestor):
                for key, question in answerable(ctx, state.asked, self._channels).items():
                    needed = NEEDED_CAPABILITY.get(str(question.get("method")), "")
                    if key not in asked and declared.get(needed) is not None:
                        asked.add(key)
                        asking.start_soon(self._ask, ctx, state, key, by)
            asking.cancel_scope.cancel()
        if not state.terminal:
            raise TaskNotFound(f"the task {task_id!r} was removed", task_id=task_id)
        return state

    async def _ask(self, ctx: Context, state: TaskState, key: str, by: str) -> None:
        """Asks when no other waiter does, if the question is still open then."""
        lock = self._asking.setdefault((state.task_id, key), anyio.Lock())
        async with lock:
            if key in (await self._store.get(state.task_id)).asked:
                await self._answered(ctx, state, key, by)

    async def _answered(self, ctx: Context, state: TaskState, key: str, by: str) -> None:
        task_id, question = state.task_id, state.asked[key]
        method, params = str(question.get("method")), protocol.related(as_object(question.get("params")), task_id)
        try:
            # The only raw connection to the client within a request: the SDK's own methods drop fields that they do not
            # know.
            channel = ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
            answer: Mapping[str, Any] = await channel.send_raw_request(method, params)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                return  # the next waiter gets the question
            if state.kind == "mission" and method == "sampling/createMessage":
                # The mission counts it as a failure of its proposer, and ends by its own rules.
                await self._store.answer(task_id, {key: declined(error.message)}, by=by)
                return
            if method != "elicitation/create":
                why = f"{method}: the client answered with an error: {error.message}"
                said = {"code": error.code, "message": why}
                await self._store.settle(task_id, Ending(status="failed", message=why, error=said))
                return
            answer = {"action": "cancel"}  # it declared that it can ask, and cannot
        await self._store.answer(task_id, {key: answer}, by=by)


class TaskMiddleware:
    """The middleware; calls that are not tasks yet run in the given task group."""

    def __init__(
        self,
        host: TaskHost,
        tasks: TaskGroup,
        *,
        plan: PlanFor,
        performer: PerformerFor,
        seal: Callable[[], Signer],
        info: Callable[[], Mapping[str, Any]],
        channels: Collection[Channel],
        strict: Callable[[], bool] = lambda: False,
        settings: PromotionSettings | None = None,
    ) -> None:
        """With `strict` some calls must be tasks, so every call is planned; otherwise only those that may be tasks."""
        self._host = host
        self._info = info
        self._strict = strict
        self._plan = plan
        self._performer = performer
        self._seal = seal
        self._polling = PollingLimiter(host.store)
        self._channels = channels
        self._elicitation = TaskElicitation(host.store, channels)
        self._runner = CallRunner(host, tasks, settings or PromotionSettings())
        self._notifications = StatusNotifications(host.store, tasks)
        both = {"tasks/get": self._get, "tasks/cancel": self._cancel}
        self._answers = {
            False: both | {"tasks/result": self._result, "tasks/list": self._list},
            True: both | {"tasks/update": self._update},
        }

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers the methods of tasks, and passes everything else on."""
        if ctx.request_id is None or not (is_modern(ctx.protocol_version) or ctx.session.client_params is not None):
            return await call_next(ctx)  # the SDK refuses a client that has not initialized
        if ctx.method.startswith("tasks/"):
            return self._stamped(ctx, await self._answer(ctx))
        if ctx.method == "tools/call":
            answer = await self._call(ctx)
            return await call_next(ctx) if answer is None else self._stamped(ctx, answer)
        if ctx.method == "subscriptions/listen" and generation_of(ctx) == 0:
            wanted = as_object((ctx.params or {}).get("notifications"))
            if wanted.get("taskIds"):
                raise missing_extension()
        return await call_next(ctx)

    def _stamped(self, ctx: Context, result: dict[str, Any]) -> dict[str, Any]:
        """The result as its protocol version wants it; the SDK does that for handlers' results only."""
        return modern_result(ctx.method, result, self._info()) if is_modern(ctx.protocol_version) else result

    async def _answer(self, ctx: Context) -> dict[str, Any]:
        modern, generation = is_modern(ctx.protocol_version), generation_of(ctx)
        answer = self._answers[modern].get(ctx.method)
        if answer is None or (generation == 0 and not modern):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if generation == 0:
            raise missing_extension()
        with mcp_errors():
            return await answer(ctx)

    async def _call(self, ctx: Context) -> dict[str, Any] | None:
        """Answers `tools/call` with a task, or with the result of a call that ended soon."""
        generation = generation_of(ctx)
        asked = (ctx.params or {}).get("task") if generation == 1 else None
        if asked is not None:
            with mcp_errors():
                return await self._call_v2025(ctx, _ttl(asked))
        if generation != 2 and not self._strict():
            return None
        try:
            plan = await self._plan(ctx)
        except (PursuitError, MCPError):  # the call itself returns the refusal
            return None
        if generation == 2:
            return None if plan.when == "never" else await self._call_v2026(ctx, plan)
        if plan.when == "must be" and is_modern(ctx.protocol_version):
            raise missing_extension()
        if plan.when == "must be":
            needed = "can only be called as a task, with `task` in the parameters"
            raise MCPError(METHOD_NOT_FOUND, f"{plan.title} {needed}")
        return None

    async def _call_v2026(self, ctx: Context, plan: TaskPlan) -> dict[str, Any]:
        call = self._task_call(ctx, plan)
        with mcp_errors():
            found = await (self._runner.run(call) if plan.when == "late" else self._runner.begin(call))
        return protocol.v2026_created(found, self._now()) if isinstance(found, TaskState) else dict(found)

    async def _call_v2025(self, ctx: Context, ttl: float | None) -> dict[str, Any]:
        plan = await self._plan(ctx)
        if plan.when == "never":
            raise MCPError(METHOD_NOT_FOUND, f"{plan.title} cannot be called as a task; call it without `task`")
        state = await self._runner.begin(self._task_call(ctx, plan), ttl=ttl)
        self._notifications.follow(ctx, state)
        return protocol.v2025_created(state, self._now())

    def _task_call(self, ctx: Context, plan: TaskPlan) -> TaskCall:
        params = {key: value for key, value in (ctx.params or {}).items() if key != "task"}
        caller = caller_of(ctx)
        return TaskCall(
            plan=plan,
            requestor=requestor_of(caller),
            by=str(caller),
            params=params,
            performer=self._performer(ctx),
        )

    async def _get(self, ctx: Context) -> dict[str, Any]:
        state = await self._polling.hold(await self._found(ctx))
        if not is_modern(ctx.protocol_version):
            return protocol.v2025_task(state, self._now())
        asked = answerable(ctx, state.asked, self._channels)
        return protocol.detailed(state, asked, await self._host.store.result(state), self._now())

    async def _result(self, ctx: Context) -> dict[str, Any]:
        caller = caller_of(ctx)
        requestor = requestor_of(caller)
        state = await self._elicitation.wait(ctx, task_id_of(ctx), requestor=requestor, by=str(caller))
        return protocol.payload(state, await self._host.store.result(state))

    async def _list(self, ctx: Context) -> dict[str, Any]:
        requestor = requestor_of(caller_of(ctx))
        cursor = self._after((ctx.params or {}).get("cursor"), requestor)
        page = await self._host.retention.list(requestor=requestor, cursor=cursor, limit=PAGE)
        rows: list[dict[str, Any]] = []
        for row in page.rows:
            with suppress(TaskNotFound):  # removed since the page was read
                state = await self._host.store.get(row.name, requestor=requestor)
                rows.append(protocol.v2025_task(state, self._now()))
        if page.next_cursor is None:
            return {"tasks": rows}
        return {
            "tasks": rows,
            "nextCursor": self._seal().closed({"tasks_of": requestor, "after": page.next_cursor}),
        }

    def _after(self, cursor: object, requestor: str) -> str | None:
        """The start of a page; a cursor is signed, and valid only for its requestor."""
        if cursor is None:
            return None
        said = self._seal().opened(cursor)
        if said is None or said.get("tasks_of") != requestor or not isinstance(said.get("after"), str):
            raise InvalidArgument("this cursor does not belong to a list of your tasks; start without a cursor")
        return said["after"]

    async def _update(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        given: object = (ctx.params or {}).get("inputResponses")
        if not isinstance(given, Mapping):
            raise MCPError(INVALID_PARAMS, "tasks/update needs inputResponses, an object of answers by their keys")
        counted = answerable(ctx, as_object(cast("object", given)), self._channels)
        answers = {key: as_object(answer) for key, answer in counted.items()}
        if answers:
            await self._host.store.answer(state.task_id, answers, by=str(caller_of(ctx)))
        return dict(protocol.COMPLETE)

    async def _cancel(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        modern = is_modern(ctx.protocol_version)
        if state.terminal and not modern:
            raise MCPError(INVALID_PARAMS, f"the task has ended: {state.status}; an ended task cannot be cancelled")
        state = await self._host.cancel(state.task_id, by=str(caller_of(ctx)))
        if modern:
            return dict(protocol.COMPLETE)
        with anyio.move_on_after(stopping_time(state)):  # the specification requires `cancelled` in the result
            state = await self._host.store.wait(state.task_id)
        if not state.terminal:
            raise MCPError(INTERNAL_ERROR, "the task was cancelled and has not stopped yet; ask again later")
        if state.status != "cancelled":
            raise MCPError(INVALID_PARAMS, f"the task ended before it could be cancelled: {state.status}")
        return protocol.v2025_task(state, self._now())

    async def _found(self, ctx: Context) -> TaskState:
        return await self._host.store.get(task_id_of(ctx), requestor=requestor_of(caller_of(ctx)))

    def _now(self) -> float:
        return self._host.store.now()


def _ttl(asked: object) -> float | None:
    if not isinstance(asked, Mapping):
        raise ValidationFailed([Fault(field="task", reason="must be an object")])
    ttl = as_object(cast("object", asked)).get("ttl")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < math.inf:
        raise ValidationFailed([Fault(field="task.ttl", reason="must be a number of milliseconds, more than 0")])
    return min(ttl, MAX_TTL) / 1_000
