"""What a listing shows of a mission, kept up to date by whoever appends.

Owns: the projection from state and new events to a status and a summary. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.model.events import (
    CallIntended,
    Event,
    IterationEnded,
    MissionEnded,
    MissionFailed,
    MissionResumed,
    ModelAsked,
    RunClaimed,
    WaitBegan,
    WaitingFor,
)
from pursuit.model.state import MissionState, Status

DIRECTIVE_PREVIEW = 500


class Listing(msgspec.Struct, frozen=True, gc=False):
    """One row of a list."""

    status: Status
    iteration_count: int
    waiting_for: WaitingFor | None
    directive: str
    run_goal: int | None = None
    background: bool = False
    wait_until: float | None = None
    task: str | None = None
    parent: str | None = None

    def summary(self) -> dict[str, Any]:
        """The words beside the status."""
        summary: dict[str, Any] = {"directive": self.directive, "iteration_count": self.iteration_count}
        if self.waiting_for is not None:
            summary["waiting_for"] = self.waiting_for
        if self.wait_until is not None:
            summary["wait_until"] = self.wait_until
        if self.task is not None:
            summary["task"] = self.task
        if self.parent is not None:
            summary["parent"] = self.parent
        if self.run_goal is not None:
            summary["run_goal"] = self.run_goal
        if self.background:
            summary["background"] = True
        return summary


def listing_after(state: MissionState, events: Sequence[Event] = ()) -> Listing:
    """The row once these events of a driver are stored."""
    status, count, waiting_for, until = state.status, state.iteration_count, state.waiting_for, state.wait_until
    goal, background, detail = state.run_goal, state.background, state.wait_detail
    for event in events:
        match event:
            case CallIntended():
                pass  # half of all appends, so it is asked first
            case IterationEnded():
                count = event.iteration + 1
            case MissionResumed() if status in ("paused", "failed"):
                status, waiting_for, until = "running", None, None
            case RunClaimed():
                goal = None if event.iterations is None else count + event.iterations
                background = event.background
                if status != "paused" and waiting_for != "pace" and not state.terminal:
                    status, waiting_for, until = "running", None, None
            case ModelAsked() if status == "waiting":
                status, waiting_for, until = "running", None, None
            case MissionEnded():
                status, waiting_for, until = event.status, None, None
            case WaitBegan() if status in ("running", "pending", "waiting"):
                status, waiting_for, until = "waiting", event.waiting_for, event.until
                detail = event.detail
            case MissionFailed() if not state.terminal:
                status = "failed"
            case _:
                pass
    directive = state.mission.directive[:DIRECTIVE_PREVIEW]
    task = detail if waiting_for == "task" else None
    return Listing(status, count, waiting_for, directive, goal, background, until, task, state.parent)


def cut_short(status: str, summary: Mapping[str, Any], now: float) -> bool:
    """Whether a row says that a run stopped, or may still be going, short of how far it was to go.

    A question that nobody answered in time is a reason to go on: its call is then refused. A task that the mission
    waits for may have ended meanwhile.
    """
    waiting_for = summary.get("waiting_for") if status == "waiting" else None
    void = waiting_for == "approval" and now >= summary.get("wait_until", math.inf)
    going = status == "running" or waiting_for in ("pace", "task") or void
    goal = summary.get("run_goal")
    return going and (goal is None or summary.get("iteration_count", 0) < goal)


def summary_of(state: MissionState) -> dict[str, Any]:
    """The words beside the status, as things stand."""
    return listing_after(state).summary()
