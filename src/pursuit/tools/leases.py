"""Connections that are lent to one interactive call at a time.

Owns: those that wait to be lent again. Does not know: what is asked over them. Invariant: a connection answers the
questions of its server only through whoever holds it now; one that was given back declares the same capabilities to
the next holder, or is closed after `IDLE_SECONDS`; never more than `MOST_IDLE` wait, whatever their holders declared.

A server of the old era shows more tools to a client that declares more, and pushes its questions over the connection:
on stdio nothing on the wire says which call such a question belongs to, hence one call at a time. In the new era that
is still so for log messages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from pursuit.tools.client_side import ClientSide
from pursuit.tools.negotiation import Era
from pursuit.tools.supervise import Supervisor

IDLE_SECONDS = 60.0
MOST_IDLE = 4


class Leases:
    """`make` starts a supervisor of its own for a client side, in an era."""

    def __init__(self, make: Callable[[ClientSide, Era], Supervisor], tasks: anyio.abc.TaskGroup) -> None:
        self._make = make
        self._tasks = tasks
        self._idle: dict[str, dict[Supervisor, float]] = {}
        self._all: set[Supervisor] = set()
        self._sweeper: anyio.CancelScope | None = None

    @asynccontextmanager
    async def lent(self, side: ClientSide, era: Era = "legacy") -> AsyncGenerator[Supervisor]:
        """One that nobody else uses, for as long as the block."""
        key = _key(side.capabilities, era)
        waiting = self._idle.get(key)
        supervisor = waiting.popitem()[0] if waiting else self._make(ClientSide(capabilities=side.capabilities), era)
        self._all.add(supervisor)
        supervisor.side.answer, supervisor.side.roots, supervisor.side.heard = side.answer, side.roots, side.heard
        try:
            yield supervisor
        finally:
            supervisor.side.answer, supervisor.side.roots, supervisor.side.heard = None, (), None
            self._given_back(key, supervisor)

    def _given_back(self, key: str, supervisor: Supervisor) -> None:
        waiting = self._idle.setdefault(key, {})
        if supervisor not in self._all:
            return
        connection = supervisor.current
        # After a call that was given up, the server may still ask on its behalf: that is nobody else's question.
        if connection is None or connection.abandoned:
            self._tasks.start_soon(self._close, supervisor)
            return
        waiting[supervisor] = anyio.current_time()
        idle = [(at, one, others) for others in self._idle.values() for one, at in others.items()]
        if len(idle) > MOST_IDLE:
            _, oldest, others = min(idle, key=lambda entry: entry[0])
            del others[oldest]
            self._tasks.start_soon(self._close, oldest)
        if self._sweeper is None:
            self._sweeper = anyio.CancelScope()
            self._tasks.start_soon(self._sweep, self._sweeper)

    async def _sweep(self, scope: anyio.CancelScope) -> None:
        """Closes what waited for too long; ends when nothing waits."""
        with scope:
            while since := [at for waiting in self._idle.values() for at in waiting.values()]:
                await anyio.sleep_until(min(since) + IDLE_SECONDS)
                now = anyio.current_time()
                for waiting in tuple(self._idle.values()):
                    for supervisor in [one for one, at in waiting.items() if at + IDLE_SECONDS <= now]:
                        # Not waited for here: a slow end must not delay the next one.
                        del waiting[supervisor]
                        self._tasks.start_soon(self._close, supervisor)
            self._sweeper = None

    async def _close(self, supervisor: Supervisor) -> None:
        self._all.discard(supervisor)
        await supervisor.aclose()

    async def aclose(self) -> None:
        """Closes all of them, also those that are lent."""
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        async with anyio.create_task_group() as closing:
            for supervisor in tuple(self._all):
                closing.start_soon(self._close, supervisor)


def _key(capabilities: Mapping[str, Any], era: Era) -> str:
    return f"{era} {json.dumps(capabilities, sort_keys=True)}"
