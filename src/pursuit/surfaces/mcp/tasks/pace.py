"""How often a client should look at a task, and what becomes of one that looks more often.

Owns: poll intervals and the hold. Knows no protocol. Invariant: a client that polls too fast is answered late, by half
an interval at most and at once when something changes; it is never refused and misses nothing.

A task that ends after 0.2 s is seen soon after: the interval begins at 100 ms and grows with the task's age, to a fifth
of it and five seconds at most. Nobody is told to wait longer than a second for a task that waits for an answer.
"""

from __future__ import annotations

import time
from collections import OrderedDict

import anyio

from pursuit.core.tasks import TaskState
from pursuit.tasks.store import TaskStore

SHORTEST, LONGEST, WHILE_ASKING = 0.1, 5.0, 1.0
SHARE_OF_AGE = 0.2
LONGEST_HOLD = 0.5
MOST = 4_096


def interval(state: TaskState, now: float) -> int:
    """How long a client should wait until it asks again, in milliseconds."""
    longest = WHILE_ASKING if state.status == "input_required" else LONGEST
    return round(1_000 * min(longest, max(SHORTEST, SHARE_OF_AGE * (now - state.created_at))))


class Pace:
    """Holds the answers to clients that ask too often."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._answered: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def kept(self, state: TaskState) -> TaskState:
        """The task as it is to be shown: at once, or as soon as it changes or half its interval is over."""
        last, seen = self._answered.get(state.task_id, (0.0, -1))
        if state.seq == seen and not state.terminal:
            due = last + min(LONGEST_HOLD, interval(state, self._store.now()) / 2_000)
            with anyio.move_on_after(max(0.0, due - time.monotonic())):
                state = await self._store.wait(state.task_id, lambda now: now.seq > seen)
        self._answered[state.task_id] = (time.monotonic(), state.seq)
        self._answered.move_to_end(state.task_id)
        while len(self._answered) > MOST:
            self._answered.popitem(last=False)
        return state
