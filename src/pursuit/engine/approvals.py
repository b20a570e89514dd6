"""Asks a person before a call that policy does not allow by itself.

Owns: when a question is asked, when it is void, and what its answer means for the call. Knows no surface.
Invariant: a question is durable before anybody is told of it, waiting for it holds nothing, and silence is a no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.engine.run import Run
from pursuit.model.approvals import approval_id, is_granted
from pursuit.model.events import ApprovalAsked, ApprovalExpired, Event, WaitBegan
from pursuit.model.state import MissionState
from pursuit.tools.predicates import tool_approval_description

Wanted = tuple[str, str, Mapping[str, Any]]
"""A call: its id, its tool, its arguments."""


class MustWait(Exception):
    """The iteration stays open until a person has answered; the mission waits in the ledger."""


async def ask_first(run: Run, calls: Sequence[Wanted]) -> None:
    """Asks about all of these calls that policy wants asked about, in one commit; raises `MustWait` until answered."""
    asking = [question for call in calls if (question := _question(run, call)) is not None]
    if not asking:
        return
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        if state.stopped or state.open is None:
            return ()
        now = run.clock.now()
        events: list[Event] = []
        until: list[float] = []
        for asked in asking:
            known = state.approvals.get(asked.approval_id)
            if is_granted(state.granted, known, asked.tool, asked.args) or (known is not None and known.answer):
                continue
            if known is None:
                events.append(asked)
                until.append(asked.until)
            elif now >= known.until:
                events.append(ApprovalExpired(at=now, approval_id=known.approval_id))
            else:
                until.append(known.until)
        if until:
            waits = True
            wait = WaitBegan(
                at=now, waiting_for="approval", detail=asking[0].tool, until=min(until), elapsed=run.elapsed()
            )
            events.append(wait)
        return events

    await run.journal.record(build)
    if waits:
        raise MustWait


def refusal(state: MissionState, call_id: str, tool: str, args: Mapping[str, Any]) -> str | None:
    """Why a call that a person was asked about may not be made, or None if it may."""
    known = state.approvals.get(approval_id(call_id))
    if is_granted(state.granted, known, tool, args):
        return None
    if known is None or known.answer is None:
        return "a person must approve it, and nobody was asked"
    if known.answer == "expired":
        return "nobody approved it in time"
    return f"denied by {known.by}" + (f": {known.why}" if known.why else "")


def _question(run: Run, call: Wanted) -> ApprovalAsked | None:
    call_id, name, args = call
    tool = run.tools.get(name)
    if tool is None:
        return None
    ruling = run.tools.rule(tool, args)
    if ruling.decision != "ask":
        return None
    now = run.clock.now()
    iteration = run.state.open
    return ApprovalAsked(
        at=now,
        approval_id=approval_id(call_id),
        call_id=call_id,
        iteration=iteration.index if iteration is not None else run.state.iteration_count,
        tool=name,
        args=dict(args),
        description=tool_approval_description(tool, args, ruling.reason),
        reason=ruling.reason,
        until=now + run.settings.approval_timeout,
    )
