"""What a listing shows of a mission, kept up to date by whoever appends.

Owns: the projection from state and new events to a status and a summary. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pursuit.model.events import Event, IterationEnded, MissionEnded, MissionFailed, WaitBegan
from pursuit.model.state import MissionState, Status

DIRECTIVE_PREVIEW = 500


def status_after(state: MissionState, events: Sequence[Event]) -> Status:
    """The status once these events of a driver are stored."""
    status = state.status
    for event in events:
        if isinstance(event, MissionEnded):
            status = event.status
        elif isinstance(event, WaitBegan) and status in ("running", "pending", "waiting"):
            status = "waiting"
        elif isinstance(event, MissionFailed) and not state.terminal:
            status = "failed"
    return status


def summary_of(state: MissionState, events: Sequence[Event] = ()) -> dict[str, Any]:
    """The words beside the status."""
    count = state.iteration_count
    waiting_for = state.waiting_for
    for event in events:
        if isinstance(event, IterationEnded):
            count = event.iteration + 1
        elif isinstance(event, WaitBegan):
            waiting_for = event.waiting_for
    summary: dict[str, Any] = {"directive": state.mission.directive[:DIRECTIVE_PREVIEW], "iteration_count": count}
    if waiting_for is not None:
        summary["waiting_for"] = waiting_for
    return summary
