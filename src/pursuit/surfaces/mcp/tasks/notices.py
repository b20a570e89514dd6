"""Tells first-generation clients how the tasks stand that they began.

Owns: one follower for each task, and its end. Does not know: calls. Invariant: a client that has gone is told nothing
more; one that reads slowly gets the latest word and holds up nobody.
"""

from __future__ import annotations

import anyio
import anyio.abc
from mcp.server.connection import Connection

from pursuit.core.tasks import TaskState
from pursuit.errors import PursuitError
from pursuit.surfaces.mcp.failure import Context
from pursuit.surfaces.mcp.tasks import first
from pursuit.tasks.store import TaskStore


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
                await connection.notify(first.STATUS, first.task(state, self._store.now()))
