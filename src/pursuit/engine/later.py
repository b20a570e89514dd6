"""Calls whose answers come later: each is a task, and the mission waits for it in the ledger.

Owns: when such a call begins, what its end means for the call, and what becomes of it when the mission is ended. Knows
no kind of task. Invariant: the task's id is in the call's intent before the task begins, so a call is never made twice
and its outcome is never lost, whoever dies. Waiting for it holds nothing; only one that ends within `task_patience` is
not worth a wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from pursuit.engine.approvals import MustWait
from pursuit.engine.perform import Settlement, settle, settled_as
from pursuit.engine.run import Run
from pursuit.model.events import Event, WaitBegan
from pursuit.model.records import CallRecord
from pursuit.model.state import MissionState
from pursuit.tools.contract import CallFailed, Tool


async def perform_later(run: Run, call: CallRecord, task_id: str, tool: Tool) -> Settlement | None:
    """Begins the call's task if it has not begun, and settles the call if the task has ended; None while it works."""
    try:
        await run.tools.begin(tool, call.args, task_id=task_id, call_id=call.call_id)
        answer = await run.tools.outcome(task_id, within=run.settings.task_patience)
    except CallFailed as error:
        return settle(run, call, "failed", error=str(error))
    return None if answer is None else settled_as(run, call, answer)


async def wait_for_tasks(run: Run, calls: Sequence[str]) -> None:
    """Makes the mission wait if one of these calls is a task that works still; raises `MustWait` then."""
    waits = False

    def build(state: MissionState) -> Sequence[Event]:
        nonlocal waits
        waits = False
        task_id = next((call.task for call in _under_way(state) if call.call_id in calls), None)
        if task_id is None or state.stopped:
            return ()
        waits = True
        return [WaitBegan(at=run.clock.now(), waiting_for="task", detail=task_id, elapsed=run.elapsed())]

    await run.journal.record(build)
    if waits:
        raise MustWait


async def cancel_tasks(run: Run, *, reason: str) -> None:
    """Stops the tasks of a mission that is being ended; their calls count as cancelled."""
    for call in _under_way(run.state):
        if call.task is not None:
            await run.tools.cancel(call.task, reason=reason)
            run.journal.stage(settle(run, call, "cancelled", error=reason).event)


def _under_way(state: MissionState) -> list[CallRecord]:
    iteration = state.open
    if iteration is None:
        return []
    return [call for call in iteration.calls.values() if call.task is not None and call.outcome is None]
