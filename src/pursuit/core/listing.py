"""The row of a mission in a listing, and what it says of a run: whether it was cut short, and when it is due. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pursuit.core.events import Event, WaitingFor
from pursuit.core.fold import standing_after
from pursuit.core.mission import QUEUE
from pursuit.core.state import MissionState, Status

DIRECTIVE_PREVIEW = 500


class Listing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The row of a mission in a listing; each append keeps it up to date."""

    status: Status
    directive: str
    iteration_count: int
    waiting_for: WaitingFor | None = None
    wait_until: float | None = None
    task: str | None = None
    parent: str | None = None
    run_goal: int | None = None
    background: bool = False
    owner: str | None = None
    share: list[str] = []
    queue: str = QUEUE

    def summary(self) -> dict[str, Any]:
        """What the listing shows beside the status; what does not apply is left out."""
        summary = msgspec.to_builtins(self)
        del summary["status"]
        return summary


def listing_of(state: MissionState, ahead: Sequence[Event] = ()) -> Listing:
    """The row of a mission, once the events of its driver that are `ahead` are stored."""
    at = standing_after(state, ahead)
    mission = state.mission
    return Listing(
        at.status,
        mission.directive[:DIRECTIVE_PREVIEW],
        at.iteration_count,
        at.waiting_for,
        at.wait_until,
        at.wait_detail if at.waiting_for == "task" else None,
        state.parent,
        at.run_goal,
        at.background,
        state.owner,
        mission.share,
        mission.queue,
    )


def cut_short(status: str, summary: Mapping[str, Any], now: float) -> bool:
    """Whether a row shows a run that stopped, or may still be running, before it reached its goal.

    A question without an answer in time is a reason to continue: its call is then refused. A task that the mission
    waits for may have ended meanwhile.
    """
    waiting_for = summary.get("waiting_for") if status == "waiting" else None
    expired = waiting_for == "approval" and now >= summary.get("wait_until", math.inf)
    can_go_on = status == "running" or waiting_for in ("pace", "task", "model") or expired
    goal = summary.get("run_goal")
    return can_go_on and (goal is None or summary.get("iteration_count", 0) < goal)


def due_in(state: MissionState, now: float) -> float | None:
    """Seconds until a driver has something to do; None if it has nothing to do without someone's word.

    A mission that waits for a task is due when the task has ended, or at the latest when its own time is over.
    """
    if state.terminal:
        return None if state.closed else 0.0
    if state.status == "waiting" and state.waiting_for in ("approval", "pace", "model", "task"):
        return None if state.wait_until is None else state.wait_left(now)
    if state.status == "running":
        return None if state.run_goal is not None and state.iteration_count >= state.run_goal else 0.0
    clients_turn = state.facts.proposed_by_client
    return 0.0 if state.status == "pending" and not clients_turn else None


def summary_of(state: MissionState) -> dict[str, Any]:
    """What a listing shows beside the status, as of this state."""
    return listing_of(state).summary()
