"""Selects the child that decides the criteria of a mission whose fleet has `pick`. Pure.

Invariant: only the runtime's own results for the children's criteria count. A child that is not completed never wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from pursuit.core.budgets import child_id
from pursuit.core.criteria import MetricThreshold
from pursuit.core.events import CriterionResult, Source
from pursuit.core.mission import SPAWN
from pursuit.core.proposing import stored_settings
from pursuit.core.state import CallRecord, Child, MissionState


def rivals(state: MissionState) -> list[tuple[str, Child]]:
    """The children with the names of their proposers, in the order of the mission."""
    iteration = state.open or state.last
    calls: Sequence[CallRecord] = [] if iteration is None else list(iteration.calls.values())
    by_id = {child_id(call.task): call for call in calls if call.task is not None}
    return [
        (stored_settings(by_id[one.session_id].args["proposer"]).label, one)
        for one in state.children.values()
        if one.session_id in by_id
    ]


def winner(state: MissionState) -> tuple[str, Child] | None:
    """The completed child that is first in the list, or the best by the metric of the criterion that `pick` names.

    With `pick = "first"`, the first completed child has ended the others.
    """
    fleet = state.mission.fleet
    done = [(name, child) for name, child in rivals(state) if child.completed]
    if fleet is None or fleet.pick is None or not done:
        return None
    chosen = next((one for one in state.mission.criteria if one.criterion_id == fleet.pick), None)
    if not isinstance(chosen, MetricThreshold):
        return done[0]
    sign = 1 if chosen.op in ("<", "<=") else -1
    return min(done, key=lambda one: sign * one[1].metrics.get(chosen.metric, sign * math.inf))


def results(state: MissionState) -> list[CriterionResult]:
    """The criteria of the mission: the winner met all required ones. Without a winner, none can be met."""
    found = winner(state)
    if found is None:
        evidence: dict[str, Any] = {"reason": "no agent has met all required criteria", "never": True}
        source = None
    else:
        evidence = {"agent": found[0], "session_id": found[1].session_id}
        source = Source(tool=SPAWN, call_id=found[1].call_id, iteration=state.current_index)
    return [
        CriterionResult(
            criterion_id=one.criterion_id,
            status="unmet" if found is None else "met" if one.required else "inconclusive",
            evidence=evidence,
            source=source,
        )
        for one in state.mission.criteria
    ]


class PickedAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    agent: str
    session_id: str
    completed: bool
    won: bool


def agents(state: MissionState) -> list[PickedAgent]:
    best = winner(state)
    return [
        PickedAgent(
            agent=name,
            session_id=child.session_id,
            completed=child.completed,
            won=best is not None and best[1] is child,
        )
        for name, child in rivals(state)
    ]
