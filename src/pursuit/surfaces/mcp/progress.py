"""Progress of a run, told to the one who asked for it.

Owns: what is said and how often. Knows no mission beyond its state.
Invariant: a slow client never holds up the run; the numbers only rise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import anyio
from mcp.server.session import ServerSession

from pursuit.core.state import MissionState
from pursuit.engine.context import Observer, Phase

_WAY: dict[Phase, float] = {"propose": 0.1, "execute": 0.2, "verify": 0.7, "evaluate": 0.8}
BACKLOG = 64


class Told(NamedTuple):
    """One notification."""

    progress: float
    message: str


@asynccontextmanager
async def progress(session: ServerSession, total: int) -> AsyncGenerator[Observer]:
    """An observer whose words go to the caller while the block runs."""
    send, receive = anyio.create_memory_object_stream[Told](BACKLOG)
    steps = _Steps()

    async def pass_on() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the caller has gone
            async for told in receive:
                await session.report_progress(told.progress, total, told.message)

    def observe(_mission_id: str, phase: Phase, state: MissionState) -> None:
        told = steps.told(phase, state)
        if told is not None and send.statistics().current_buffer_used < BACKLOG:
            send.send_nowait(told)

    with receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                yield observe
            finally:
                send.close()


class _Steps:
    """Turns phases into rising numbers: whole ones are iterations of this call."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = -1.0

    def told(self, phase: Phase, state: MissionState) -> Told | None:
        if self._first is None:
            self._first = state.iteration_count
        value = state.iteration_count - self._first + _WAY.get(phase, 0.0)
        if value <= self._last:
            return None
        self._last = value
        met = sum(result.status == "met" for result in state.results.values())
        of = len(state.mission.criteria)
        return Told(value, f"iteration {state.iteration_count}: {phase}; {met} of {of} criteria met")
