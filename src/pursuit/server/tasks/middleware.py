"""Where clients of both generations come with their calls and their tasks.

Owns: which method is answered for whom, and when a call becomes a task. Does not know: tools, or how a call is made.
Invariant: a task belongs to its requestor, whichever connection it comes over: somebody else's id is as unknown as one
that never was; nothing is begun for a request that is refused.

First generation: `params.task` decides. Second: we decide; a call that is known to be long is a task at once, any other
one when it has not ended within `GRACE`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.abc
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY

from pursuit.core.tasks import TaskState
from pursuit.errors import Fault, InvalidArgument, PursuitError, TaskNotFound, ValidationFailed
from pursuit.server.errors import Context, answerable, caller_of, on_the_wire
from pursuit.server.sampling import declined
from pursuit.server.signing import Seal
from pursuit.server.tasks import protocol
from pursuit.server.tasks.promotion import Carrier, Performer, Plan, TaskCall
from pursuit.server.tasks.protocol import (
    JsonObject,
    Pace,
    capabilities_of,
    generation_of,
    is_modern,
    missing_extension,
    obj,
    task_id_of,
)
from pursuit.service.tasks import requestor_of
from pursuit.tasks.execution import stopping_time
from pursuit.tasks.host import TaskHost
from pursuit.tasks.store import Ending, TaskStore

# The list of a requestor's tasks, page by page.
# Invariant: a cursor is sealed and holds for the requestor that it was given to; anything else is refused.

PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A page, newest first."""

    tasks: Sequence[TaskState]
    cursor: str | None = None


class Listing:
    """Lists tasks; the seal is opened when it is first needed."""

    def __init__(self, host: TaskHost, seal: Callable[[], Seal]) -> None:
        self._host = host
        self._seal = seal

    async def page(self, requestor: str, cursor: object) -> Listed:
        """One page. Raises `InvalidArgument` for a cursor that we did not give to this requestor."""
        page = await self._host.shelf.list(requestor=requestor, cursor=self._opened(requestor, cursor), limit=PAGE)
        tasks: list[TaskState] = []
        for row in page.rows:
            try:
                tasks.append(await self._host.store.get(row.name, requestor=requestor))
            except TaskNotFound:  # removed at this moment
                continue
        following = None if page.next_cursor is None else self._closed(requestor, page.next_cursor)
        return Listed(tasks=tasks, cursor=following)

    def _closed(self, requestor: str, cursor: str) -> str:
        return self._seal().closed({"tasks_of": requestor, "after": cursor})

    def _opened(self, requestor: str, cursor: object) -> str | None:
        if cursor is None:
            return None
        said = self._seal().opened(cursor)
        if said is None or said.get("tasks_of") != requestor or not isinstance(said.get("after"), str):
            raise InvalidArgument("this cursor is of no list of tasks of yours; begin without one")
        return said["after"]


# Tells first-generation clients how the tasks stand that they began.
# Invariant: a client that has gone is told nothing more; one that reads slowly gets the latest word and holds up
# nobody.


class Notices:
    """The followers; they live in the group that is handed in."""

    def __init__(self, store: TaskStore, tasks: anyio.abc.TaskGroup) -> None:
        self._store = store
        self._tasks = tasks
        self._scopes: dict[Connection, set[anyio.CancelScope]] = {}

    def follow(self, ctx: Context, state: TaskState) -> None:
        """From here on the connection of this request is told of a task, which it knows as it is now."""
        connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage] - there is no public way to it
        if connection not in self._scopes:
            self._scopes[connection] = set()
            connection.exit_stack.callback(self._gone, connection)
        self._tasks.start_soon(self._tell, connection, state)

    def _gone(self, connection: Connection) -> None:
        for scope in self._scopes.pop(connection):
            scope.cancel()

    async def _tell(self, connection: Connection, known: TaskState) -> None:
        scopes = self._scopes.get(connection)
        if scopes is None:  # it has gone already
            return
        with anyio.CancelScope() as scope:
            scopes.add(scope)
            try:
                await self._follow(connection, known)
            except PursuitError:  # it was removed, or the ledger is away: a notice is a courtesy
                return
            finally:
                scopes.discard(scope)

    async def _follow(self, connection: Connection, known: TaskState) -> None:
        told = (known.status, known.message)
        async for state in self._store.follow(known.task_id):
            if (state.status, state.message) != told:
                told = (state.status, state.message)
                await connection.notify(protocol.STATUS, protocol.v2025_task(state, self._store.now()))


# What a first-generation task asks, put to a client that waits for its result.
# Invariant: a question is before one waiter at a time, and passes to the next one when that goes away; a task that
# ends takes its questions back, and an answer that comes too late is dropped.

_NEEDED: Mapping[str, str] = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}


class Pushes:
    """The waiters of all tasks."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._put: dict[tuple[str, str], anyio.Event] = {}

    async def wait(self, ctx: Context, task_id: str, *, requestor: str, by: str) -> TaskState:
        """The task once it has ended; its client is asked what the task asks meanwhile."""
        able: JsonObject = capabilities_of(ctx) if ctx.session.can_send_request else {}
        state = await self._store.get(task_id, requestor=requestor)
        asked: set[str] = set()
        async with anyio.create_task_group() as asking:
            async for state in self._store.follow(task_id, requestor=requestor):
                for key, question in answerable(ctx, state.asked).items():
                    if key not in asked and able.get(_NEEDED.get(str(question.get("method")), "")) is not None:
                        asked.add(key)
                        asking.start_soon(self._ask, ctx, state, key, by)
            asking.cancel_scope.cancel()
        if not state.terminal:
            raise TaskNotFound(f"the task {task_id!r} was removed", task_id=task_id)
        return state

    async def _ask(self, ctx: Context, state: TaskState, key: str, by: str) -> None:
        """Asks once nobody else does, if the question is still open then."""
        place = (state.task_id, key)
        while True:
            if key not in (await self._store.get(state.task_id)).asked:
                return
            if place not in self._put:
                break
            await self._put[place].wait()
        self._put[place] = anyio.Event()
        try:
            await self._answered(ctx, state, key, by)
        finally:
            self._put.pop(place).set()

    async def _answered(self, ctx: Context, state: TaskState, key: str, by: str) -> None:
        task_id, question = state.task_id, state.asked[key]
        method, params = str(question.get("method")), protocol.related(obj(question.get("params")), task_id)
        try:
            answer: Mapping[str, Any] = await _asked(ctx, method, params)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                return  # whoever waits next is asked
            if state.kind == "mission" and method == "sampling/createMessage":
                # The mission counts it as its proposer's failure, and ends by its own rules.
                await self._store.answer(task_id, {key: declined(error.message)}, by=by)
                return
            if method != "elicitation/create":
                why = f"{method}: the client answered with an error: {error.message}"
                said = {"code": error.code, "message": why}
                await self._store.settle(task_id, Ending(status="failed", message=why, error=said))
                return
            answer = {"action": "cancel"}  # it said that it can ask, and cannot
        await self._store.answer(task_id, {key: answer}, by=by)


async def _asked(ctx: Context, method: str, params: JsonObject) -> Mapping[str, Any]:
    # The only raw way to the client within a request: the SDK's own methods would drop what they do not know.
    channel = ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
    return await channel.send_raw_request(method, params)


LONGEST_TTL = 10**15
"""Milliseconds; what a client asks for beyond is more than it gets in any case."""

_METHODS: Mapping[bool, frozenset[str]] = {
    False: frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"}),
    True: frozenset({"tasks/get", "tasks/update", "tasks/cancel"}),
}
_ONLY = "can only be called as a task, with `task` in the parameters"
PlanFor = Callable[[Context], Awaitable[Plan]]
"""What the call of a request would be as a task; raises what refuses the call."""

PerformerFor = Callable[[Context], Performer]
"""How the call of a request is made without its client waiting."""


class TaskDoor:
    """A middleware of the SDK's server, and an async context manager: calls that are no tasks yet end with it."""

    def __init__(
        self,
        host: TaskHost,
        *,
        plan: PlanFor,
        performer: PerformerFor,
        seal: Callable[[], Seal],
        info: Callable[[], Mapping[str, Any]],
        strict: Callable[[], bool] = lambda: False,
    ) -> None:
        """`strict`: whether some calls must be tasks; then every call is looked at, else those that may be one."""
        self._host = host
        self._info = info
        self._strict = strict
        self._plan = plan
        self._performer = performer
        self._listing = Listing(host, seal)
        self._pace = Pace(host.store)
        self._pushes = Pushes(host.store)
        self._tasks: TaskGroup
        self._carrier: Carrier
        self._notices: Notices

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._carrier = Carrier(self._host, self._tasks)
        self._notices = Notices(self._host.store, self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, value, trace)

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers what is about tasks, and hands everything else on."""
        if ctx.request_id is None or not (is_modern(ctx) or ctx.session.client_params is not None):
            return await call_next(ctx)  # who has not shaken hands is told so there
        if ctx.method.startswith("tasks/"):
            return self._stamped(ctx, await self.answer(ctx))
        if ctx.method == "tools/call":
            answer = await self.call(ctx)
            return await call_next(ctx) if answer is None else self._stamped(ctx, answer)
        if ctx.method == "subscriptions/listen" and generation_of(ctx) == 0:
            wanted = obj((ctx.params or {}).get("notifications"))
            if wanted.get("taskIds"):
                raise missing_extension()
        return await call_next(ctx)

    def _stamped(self, ctx: Context, result: dict[str, Any]) -> dict[str, Any]:
        """A result of the new era says whose it is; what a middleware returns is stamped by nobody else."""
        if not is_modern(ctx):
            return result
        return {**result, "_meta": {SERVER_INFO_META_KEY: self._info(), **obj(result.get("_meta"))}}

    async def answer(self, ctx: Context) -> dict[str, Any]:
        """Answers a request about tasks."""
        modern, generation = is_modern(ctx), generation_of(ctx)
        if ctx.method not in _METHODS[modern] or (generation == 0 and not modern):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if generation == 0:
            raise missing_extension()
        with on_the_wire():
            match ctx.method:
                case "tasks/get":
                    return await self._get(ctx)
                case "tasks/result":
                    return await self._result(ctx)
                case "tasks/list":
                    return await self._list(ctx)
                case "tasks/update":
                    return await self._update(ctx)
                case _:
                    return await self._cancel(ctx)

    async def call(self, ctx: Context) -> dict[str, Any] | None:
        """Answers `tools/call` with a task or, where we wait whether it becomes one, a result; None: as it is."""
        generation = generation_of(ctx)
        asked = (ctx.params or {}).get("task") if generation == 1 else None
        if asked is not None:
            with on_the_wire():
                return await self._first(ctx, _ttl(asked))
        if generation != 2 and not self._strict():
            return None
        try:
            plan = await self._plan(ctx)
        except (PursuitError, MCPError):  # the call itself is answered with what is wrong with it
            return None
        if generation == 2:
            return None if plan.when == "never" else await self._second(ctx, plan)
        if plan.when == "must be":
            raise missing_extension() if is_modern(ctx) else MCPError(METHOD_NOT_FOUND, f"{plan.title} {_ONLY}")
        return None

    async def _second(self, ctx: Context, plan: Plan) -> dict[str, Any]:
        with on_the_wire():
            if plan.when == "late":
                found = await self._carrier.carry(self._errand(ctx, plan))
            else:
                found = await self._carrier.begin(self._errand(ctx, plan))
        return protocol.v2026_created(found, self._now()) if isinstance(found, TaskState) else dict(found)

    async def _first(self, ctx: Context, ttl: float | None) -> dict[str, Any]:
        plan = await self._plan(ctx)
        if plan.when == "never":
            raise MCPError(METHOD_NOT_FOUND, f"{plan.title} cannot be called as a task; call it without `task`")
        state = await self._carrier.begin(self._errand(ctx, plan), ttl=ttl)
        self._notices.follow(ctx, state)
        return protocol.v2025_created(state, self._now())

    def _errand(self, ctx: Context, plan: Plan) -> TaskCall:
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
        state = await self._pace.kept(await self._found(ctx))
        if not is_modern(ctx):
            return protocol.v2025_task(state, self._now())
        return protocol.detailed(state, answerable(ctx, state.asked), await self._host.store.result(state), self._now())

    async def _result(self, ctx: Context) -> dict[str, Any]:
        caller = caller_of(ctx)
        requestor = requestor_of(caller)
        state = await self._pushes.wait(ctx, task_id_of(ctx), requestor=requestor, by=str(caller))
        return protocol.payload(state, await self._host.store.result(state))

    async def _list(self, ctx: Context) -> dict[str, Any]:
        page = await self._listing.page(requestor_of(caller_of(ctx)), (ctx.params or {}).get("cursor"))
        body: dict[str, Any] = {"tasks": [protocol.v2025_task(state, self._now()) for state in page.tasks]}
        return body if page.cursor is None else {**body, "nextCursor": page.cursor}

    async def _update(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        given: object = (ctx.params or {}).get("inputResponses")
        if not isinstance(given, Mapping):
            raise MCPError(INVALID_PARAMS, "tasks/update needs inputResponses, an object of answers by their keys")
        answers = {key: obj(answer) for key, answer in answerable(ctx, obj(cast("object", given))).items()}
        if answers:
            await self._host.store.answer(state.task_id, answers, by=str(caller_of(ctx)))
        return dict(protocol.COMPLETE)

    async def _cancel(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        modern = is_modern(ctx)
        if state.terminal and not modern:
            raise MCPError(INVALID_PARAMS, f"the task has ended: {state.status}; an ended task cannot be cancelled")
        state = await self._host.cancel(state.task_id, by=str(caller_of(ctx)))
        if modern:
            return dict(protocol.COMPLETE)
        with anyio.move_on_after(stopping_time(state)):  # the answer is to say `cancelled`
            state = await self._host.store.wait(state.task_id)
        if not state.terminal:
            raise MCPError(INTERNAL_ERROR, "the task was ordered to stop and has not stopped yet; ask again later")
        if state.status != "cancelled":
            raise MCPError(INVALID_PARAMS, f"the task ended before it could be cancelled: {state.status}")
        return protocol.v2025_task(state, self._now())

    async def _found(self, ctx: Context) -> TaskState:
        return await self._host.store.get(task_id_of(ctx), requestor=requestor_of(caller_of(ctx)))

    def _now(self) -> float:
        return self._host.store.now()


def _ttl(asked: object) -> float | None:
    """The time to live that a client asks for, in seconds."""
    if not isinstance(asked, Mapping):
        raise ValidationFailed([Fault(field="task", reason="must be an object")])
    ttl = obj(cast("object", asked)).get("ttl")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise ValidationFailed([Fault(field="task.ttl", reason="must be a number of milliseconds")])
    if ttl <= 0:
        raise ValidationFailed([Fault(field="task.ttl", reason="must be more than 0 milliseconds")])
    if isinstance(ttl, float) and not math.isfinite(ttl):
        raise ValidationFailed([Fault(field="task.ttl", reason="must be a finite number of milliseconds")])
    return min(ttl, LONGEST_TTL) / 1_000
