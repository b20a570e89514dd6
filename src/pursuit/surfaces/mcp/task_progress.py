"""Progress of a task, told to the client whose request waits for it.

Owns: what is said, and numbers that only rise. Knows no command. Invariant: a slow client gets the latest word, and
never holds up the work.
"""

from __future__ import annotations

from pursuit.core.tasks import TaskState
from pursuit.service.tasks import Tasks
from pursuit.surfaces.mcp.failure import Context

LONGEST_MESSAGE = 200


async def told_to_the_end(ctx: Context, tasks: Tasks, task_id: str, requestor: str) -> TaskState:
    """Tells the client of each change until the task has ended; its last state."""
    state = await tasks.get(task_id, requestor=requestor)
    rising = Rising()
    async for state in tasks.store.follow(task_id, requestor=requestor):
        number = rising.next(state.done)
        if not state.terminal and state.message is not None:
            await ctx.session.report_progress(number, state.total, state.message[:LONGEST_MESSAGE])
    return state


class Rising:
    """Numbers for MCP, where each must be above the one before: between two units they creep towards the next."""

    def __init__(self) -> None:
        self._done = -1.0
        self._times = 0

    def next(self, done: float) -> float:
        """The number to tell for so many units done."""
        if done > self._done:
            self._done, self._times = done, 0
            return done
        self._times += 1
        return self._done + 1 - 1 / (self._times + 1)
