"""What a listing shows of a mission, kept up to date by whoever appends.

Owns: the projection from state and new events to a status and a summary. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pursuit.model.events import Event, IterationEnded, MissionEnded, MissionFailed, WaitBegan, WaitingFor
from pursuit.model.state import MissionState, Status

DIRECTIVE_PREVIEW = 500


class Listing(NamedTuple):
    """One row of a list."""

    status: Status
    iteration_count: int
    waiting_for: WaitingFor | None
    directive: str

    def summary(self) -> dict[str, Any]:
        """The words beside the status."""
        summary: dict[str, Any] = {"directive": self.directive, "iteration_count": self.iteration_count}
        if self.waiting_for is not None:
            summary["waiting_for"] = self.waiting_for
        return summary


def listing_after(state: MissionState, events: Sequence[Event] = ()) -> Listing:
    """The row once these events of a driver are stored."""
    status, count, waiting_for = state.status, state.iteration_count, state.waiting_for
    for event in events:
        if isinstance(event, IterationEnded):
            count = event.iteration + 1
        elif isinstance(event, MissionEnded):
            status, waiting_for = event.status, None
        elif isinstance(event, WaitBegan) and status in ("running", "pending", "waiting"):
            status, waiting_for = "waiting", event.waiting_for
        elif isinstance(event, MissionFailed) and not state.terminal:
            status = "failed"
    return Listing(status, count, waiting_for, state.mission.directive[:DIRECTIVE_PREVIEW])


def summary_of(state: MissionState) -> dict[str, Any]:
    """The words beside the status, as things stand."""
    return listing_after(state).summary()
