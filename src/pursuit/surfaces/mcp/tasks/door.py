"""Where clients of both generations come with their calls and their tasks.

Owns: which method is answered for whom, and when a call becomes a task. Does not know: tools, or how a call is made.
Invariant: a task belongs to its requestor, whichever connection it comes over: somebody else's id is as unknown as one
that never was; nothing is begun for a request that is refused.

First generation: `params.task` decides. Second: we decide; a call that is known to be long is a task at once, any other
one when it has not ended within `GRACE`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, cast

import anyio
from anyio.abc import TaskGroup
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY

from pursuit.core.tasks import TaskState
from pursuit.errors import Fault, PursuitError, ValidationFailed
from pursuit.service.tasks import requestor_of
from pursuit.surfaces.mcp.callers import answerable, caller_of
from pursuit.surfaces.mcp.failure import Context, on_the_wire
from pursuit.surfaces.mcp.seal import Seal
from pursuit.surfaces.mcp.tasks import first, second
from pursuit.surfaces.mcp.tasks.carrying import Carrier, Errand, Performer, Plan
from pursuit.surfaces.mcp.tasks.listing import Listing
from pursuit.surfaces.mcp.tasks.notices import Notices
from pursuit.surfaces.mcp.tasks.pace import Pace
from pursuit.surfaces.mcp.tasks.pushes import Pushes
from pursuit.surfaces.mcp.tasks.terms import (
    generation_of,
    is_modern,
    missing_extension,
    obj,
    task_id_of,
)
from pursuit.tasks.execution import stopping_time
from pursuit.tasks.host import TaskHost

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
        return second.created(found, self._now()) if isinstance(found, TaskState) else dict(found)

    async def _first(self, ctx: Context, ttl: float | None) -> dict[str, Any]:
        plan = await self._plan(ctx)
        if plan.when == "never":
            raise MCPError(METHOD_NOT_FOUND, f"{plan.title} cannot be called as a task; call it without `task`")
        state = await self._carrier.begin(self._errand(ctx, plan), ttl=ttl)
        self._notices.follow(ctx, state)
        return first.created(state, self._now())

    def _errand(self, ctx: Context, plan: Plan) -> Errand:
        params = {key: value for key, value in (ctx.params or {}).items() if key != "task"}
        caller = caller_of(ctx)
        return Errand(
            plan=plan,
            requestor=requestor_of(caller),
            by=str(caller),
            params=params,
            performer=self._performer(ctx),
        )

    async def _get(self, ctx: Context) -> dict[str, Any]:
        state = await self._pace.kept(await self._found(ctx))
        if not is_modern(ctx):
            return first.task(state, self._now())
        return second.detailed(state, answerable(ctx, state.asked), await self._host.store.result(state), self._now())

    async def _result(self, ctx: Context) -> dict[str, Any]:
        caller = caller_of(ctx)
        requestor = requestor_of(caller)
        state = await self._pushes.wait(ctx, task_id_of(ctx), requestor=requestor, by=str(caller))
        return first.payload(state, await self._host.store.result(state))

    async def _list(self, ctx: Context) -> dict[str, Any]:
        page = await self._listing.page(requestor_of(caller_of(ctx)), (ctx.params or {}).get("cursor"))
        body: dict[str, Any] = {"tasks": [first.task(state, self._now()) for state in page.tasks]}
        return body if page.cursor is None else {**body, "nextCursor": page.cursor}

    async def _update(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        given: object = (ctx.params or {}).get("inputResponses")
        if not isinstance(given, Mapping):
            raise MCPError(INVALID_PARAMS, "tasks/update needs inputResponses, an object of answers by their keys")
        answers = {key: obj(answer) for key, answer in answerable(ctx, obj(cast("object", given))).items()}
        if answers:
            await self._host.store.answer(state.task_id, answers, by=str(caller_of(ctx)))
        return dict(second.COMPLETE)

    async def _cancel(self, ctx: Context) -> dict[str, Any]:
        state = await self._found(ctx)
        modern = is_modern(ctx)
        if state.terminal and not modern:
            raise MCPError(INVALID_PARAMS, f"the task has ended: {state.status}; an ended task cannot be cancelled")
        state = await self._host.cancel(state.task_id, by=str(caller_of(ctx)))
        if modern:
            return dict(second.COMPLETE)
        with anyio.move_on_after(stopping_time(state)):  # the answer is to say `cancelled`
            state = await self._host.store.wait(state.task_id)
        if not state.terminal:
            raise MCPError(INTERNAL_ERROR, "the task was ordered to stop and has not stopped yet; ask again later")
        if state.status != "cancelled":
            raise MCPError(INVALID_PARAMS, f"the task ended before it could be cancelled: {state.status}")
        return first.task(state, self._now())

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
