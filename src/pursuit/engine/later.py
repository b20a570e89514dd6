"""Calls whose answers come later: each is a task, and the mission waits for it in the ledger.

Owns: when such a call begins, what its end means for the call, and what becomes of it when the mission is ended. Knows
no kind of task. Invariant: the task's id is in the call's intent before the task begins, so a call is never made twice
and its outcome is never lost, whoever dies. Waiting for it holds nothing; only one that ends within `task_patience` is
not worth a wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from pursuit.engine.approvals import MustWait
from pursuit.engine.perform import Settlement, settle, settled_as
from pursuit.engine.run import Run
from pursuit.ledger.contract import FORGOTTEN
from pursuit.model.events import Event, WaitBegan, decode
from pursuit.model.fold import fold
from pursuit.model.lending import child_id, is_spawn, used_of
from pursuit.model.records import CallRecord
from pursuit.model.state import TERMINAL, MissionState
from pursuit.tasks.limits import RUNNING
from pursuit.tools.contract import CallFailed, Tool

LOOK_EVERY = 0.1
CHILD_PATIENCE = 15.0
"""Seconds that the end of a mission waits for its children to end; what one is given counts as used after that."""


async def perform_later(run: Run, call: CallRecord, task_id: str, tool: Tool) -> Settlement | None:
    """Begins the call's task if it has not begun, and settles the call if the task has ended; None while it works."""
    try:
        await run.tools.begin(tool, call.args, task_id=task_id, call_id=call.call_id)
        answer = await run.tools.outcome(task_id, within=run.settings.task_patience)
    except CallFailed as error:
        return settle(run, call, error.outcome, error=str(error), used=await used_by(run, call))
    return None if answer is None else settled_as(run, call, answer, used=await used_by(run, call))


async def wait_for_tasks(run: Run, calls: Sequence[str]) -> None:
    """Makes the mission wait if one of these calls is a task that works still; raises `MustWait` then."""
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        task_id = next((call.task for call in at_work(state) if call.call_id in calls), None)
        if task_id is None or state.stopped:
            return ()
        waits = True
        return [WaitBegan(at=run.clock.now(), waiting_for="task", detail=task_id, elapsed=run.elapsed())]

    await run.journal.record(build)
    if waits:
        raise MustWait


async def cancel_tasks(run: Run, *, reason: str) -> None:
    """Stops the tasks of a mission that is being ended; their calls count as cancelled."""
    for call in at_work(run.state):
        if call.task is not None:
            await run.tools.cancel(call.task, reason=reason)
    for call in at_work(run.state):
        run.journal.stage(settle(run, call, "cancelled", error=reason, used=await used_by(run, call)).event)


async def used_by(run: Run, call: CallRecord) -> Mapping[str, float] | None:
    """What the child that a call started has used; None if the call started none, or nobody can say for good.

    A child's use is final when it is closed: nothing reopens it, and only its driver wrote to it until then.
    """
    if call.task is None or not is_spawn(run.state, call.tool):
        return None
    child = child_id(call.task)
    with run.ledger.bell(child) as bell, anyio.move_on_after(CHILD_PATIENCE):
        while True:
            row = await run.ledger.row(child)
            if row is not None and row.status == FORGOTTEN:
                return None
            if row is None and not await _works(run, call.task):
                return {}
            events = await run.ledger.read(child) if row is not None and row.status in TERMINAL else []
            state = fold(decode(one.type, one.body) for one in events)
            if state is not None and state.closed:
                return used_of(state)
            with anyio.move_on_after(LOOK_EVERY):  # one that was never made rings no bell
                await bell.wait()
    return None


async def _works(run: Run, task_id: str) -> bool:
    row = await run.ledger.row(task_id)
    return row is not None and row.status in RUNNING


def at_work(state: MissionState) -> list[CallRecord]:
    """The calls of the open iteration that are tasks without an end."""
    iteration = state.open
    if iteration is None:
        return []
    return [call for call in iteration.calls.values() if call.task is not None and call.outcome is None]
