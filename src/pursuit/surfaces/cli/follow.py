"""`pursuit watch`: a mission from outside, event by event.

Owns: when to stop following, and what is shown of each event. Changes nothing.
Invariant: it ends when the mission has ended, also if that was long ago, and not at an end that was taken back.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pursuit.core.events import (
    AnyEvent,
    IterationEnded,
    MissionCreated,
    MissionEnded,
    MissionFailed,
    OperatorWord,
    RunClaimed,
    WaitBegan,
)
from pursuit.core.report import iso
from pursuit.core.state import MissionState
from pursuit.engine.context import Phase
from pursuit.service import Service
from pursuit.surfaces.cli import show
from pursuit.surfaces.cli.progress import iteration_line, progress
from pursuit.surfaces.cli.screen import Screen
from pursuit.surfaces.cli.text import line

_PHASES: dict[str, Phase] = {
    "RunClaimed": "propose",
    "ModelAsked": "propose",
    "ModelAnswered": "propose",
    "IterationEnded": "decided",
    "WaitBegan": "waiting",
    "MissionEnded": "ended",
}


async def follow(service: Service, mission_id: str, screen: Screen) -> None:
    """Shows everything that has happened and that happens, until the end."""
    head = (await service.state(mission_id)).seq
    if screen.rich:
        await _in_place(service, mission_id, screen, head)
        show.mission(screen, await service.status(mission_id))
        return
    async for event, state in service.watch(mission_id):
        if screen.json:
            screen.document(_event_row(event, state.seq))
        elif text := _event_line(event, state):
            screen.plain(f"{iso(event.at)}\t{text}")
        if _over(state, head) or screen.unread:
            return


async def _in_place(service: Service, mission_id: str, screen: Screen, head: int) -> None:
    async with progress(screen) as see:
        async for event, state in service.watch(mission_id):
            see(mission_id, _PHASES.get(type(event).__name__, "execute"), state)
            if _over(state, head):
                return


def _over(state: MissionState, head: int) -> bool:
    """Whether this is the end: one that lies before the head when we began was taken back later."""
    return state.terminal and state.closed and state.seq >= head


def _event_row(event: AnyEvent, seq: int) -> dict[str, Any]:
    body = msgspec.to_builtins(event)
    return {"seq": seq, "type": type(event).__name__, **body, "at": iso(event.at)}


def _event_line(event: AnyEvent, state: MissionState) -> str | None:
    match event:
        case IterationEnded():
            return iteration_line(state)
        case MissionEnded():
            return f"{event.status} ({event.reason})"
        case WaitBegan():
            return f"waiting for {event.waiting_for}"
        case OperatorWord():
            return f"{type(event).__name__} by {line(event.by)}" + (f": {line(event.reason)}" if event.reason else "")
        case MissionCreated():
            return "created"
        case RunClaimed():
            return f"driven by process {event.pid} on {line(event.host)}"
        case MissionFailed():
            return f"failed: {line(event.error, 200)}"
        case _:
            return None
