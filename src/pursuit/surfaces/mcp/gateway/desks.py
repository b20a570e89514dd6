"""Connections to servers of the old era that calls of clients of the new era take in turns.

Owns: one lasting connection for each set of capabilities, and whose call is at it. Does not know: what is asked.
Invariant: one call at a time is at a desk, so that a server's question belongs to it; a call that finds it taken gets a
connection for itself; no more than `MOST_AT_ONCE` calls are at one server, and the others wait for their turn.

Clients of the new era have no sessions, but servers of the old era keep things for a connection (a browser, a train of
thought): whoever comes back after a while must find them there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from mcp_types import INVALID_REQUEST

from pursuit.core.tools import CallFailed, UpstreamError
from pursuit.surfaces.mcp.gateway.lines import Talk
from pursuit.upstream.client import McpUpstream
from pursuit.upstream.transport import ClientSide

MOST_DESKS = 4
"""For each server: what clients say that they can do is theirs to choose."""

MOST_AT_ONCE = 16
"""For each server: at one that is a process, each of these calls may need a process of its own."""


class _Desk:
    """One connection; `at` is the side of the call that is at it now."""

    def __init__(self) -> None:
        self.at: ClientSide | None = None
        self.talk: Talk | None = None
        self.over = anyio.Event()

    async def answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.at is not None and self.at.answer is not None:
            return await self.at.answer(method, params)
        if method == "roots/list":
            return {"roots": []}
        raise UpstreamError(INVALID_REQUEST, f"{method}: no call is under way that it could belong to")

    def heard(self, method: str, params: Mapping[str, Any]) -> None:
        if self.at is not None and self.at.heard is not None:
            self.at.heard(method, params)


class Desks:
    """The lasting connections; `alone` is whether all calls are of one client."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, alone: bool) -> None:
        self._tasks = tasks
        self._alone = alone
        self._desks: dict[McpUpstream, dict[str, _Desk]] = {}
        self._turns: dict[McpUpstream, anyio.Semaphore] = {}

    @asynccontextmanager
    async def taken(self, upstream: McpUpstream, side: ClientSide) -> AsyncGenerator[Talk]:
        """A connection for one call, which waits for its turn. Raises `UpstreamUnavailable`."""
        turns = self._turns.setdefault(upstream, anyio.Semaphore(MOST_AT_ONCE))
        async with turns, self._at_desk(upstream, side) as talk:
            yield talk

    @asynccontextmanager
    async def _at_desk(self, upstream: McpUpstream, side: ClientSide) -> AsyncGenerator[Talk]:
        desk = self._free(upstream, side)
        if desk is None:
            async with upstream.leased(side) as talk:
                yield talk
            return
        desk.at = side
        try:
            talk = desk.talk
            if talk is None:
                talk = desk.talk = await self._open(desk, upstream, side.capabilities)
            yield talk
        except (anyio.get_cancelled_exc_class(), CallFailed):
            # The server may still ask on its behalf, and the next call may be another client's.
            if not self._alone:
                self._leave(upstream, desk)
            raise
        finally:
            desk.at = None

    def _free(self, upstream: McpUpstream, side: ClientSide) -> _Desk | None:
        desks = self._desks.setdefault(upstream, {})
        key = json.dumps(side.capabilities, sort_keys=True)
        if key not in desks and len(desks) < MOST_DESKS:
            desks[key] = _Desk()
        desk = desks.get(key)
        return desk if desk is not None and desk.at is None else None

    def _leave(self, upstream: McpUpstream, desk: _Desk) -> None:
        desk.over.set()
        self._desks[upstream] = {key: one for key, one in self._desks[upstream].items() if one is not desk}

    async def _open(self, desk: _Desk, upstream: McpUpstream, capabilities: Mapping[str, Any]) -> Talk:
        return await self._tasks.start(self._hold, desk, upstream, capabilities)

    async def _hold(
        self,
        desk: _Desk,
        upstream: McpUpstream,
        capabilities: Mapping[str, Any],
        *,
        task_status: anyio.abc.TaskStatus[Talk],
    ) -> None:
        async with upstream.leased(ClientSide(capabilities=capabilities, answer=desk.answer, heard=desk.heard)) as talk:
            task_status.started(talk)
            await desk.over.wait()
