"""What a first-generation task asks, put to a client that waits for its result.

Owns: who is asked and when it is taken back. Does not know: what is asked. Invariant: a question is before one waiter
at a time, and passes to the next one when that goes away; a task that ends takes its questions back, and an answer that
comes too late is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from pursuit.core.tasks import TaskState
from pursuit.errors import TaskNotFound
from pursuit.surfaces.mcp.callers import answerable
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.sampling import declined
from pursuit.surfaces.mcp.tasks import first
from pursuit.surfaces.mcp.tasks.terms import JsonObject, capabilities_of, obj
from pursuit.tasks.store import Ending, TaskStore

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
        method, params = str(question.get("method")), first.related(obj(question.get("params")), task_id)
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
