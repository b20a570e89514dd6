"""Which ended tasks a mission still needs.

Owns: how a task is known to be a mission's call, and when the mission has had its answer. Knows no task's kind.
Invariant: a call's task stays for as long as the iteration that made it is open, so its outcome is never lost.
"""

from __future__ import annotations

from pursuit.core.state import TERMINAL
from pursuit.core.tasks import TaskState
from pursuit.ledger.contract import FORGOTTEN, Ledger

PARTS = 3
"""Of a call's id: the mission, the iteration, and which call of it."""


async def is_awaited(ledger: Ledger, state: TaskState) -> bool:
    """Whether the mission whose call this was may still ask what it came to."""
    call_id = state.origin.get("call_id")
    parts = call_id.split(":") if isinstance(call_id, str) else []
    if len(parts) < PARTS or not parts[0].startswith("mission-") or not parts[1].isdecimal():
        return False
    row = await ledger.row(parts[0])
    if row is None or row.status == FORGOTTEN or row.status in TERMINAL:
        return False
    return int(row.summary.get("iteration_count", 0)) <= int(parts[1])
