"""Calls that are under way at the problem's server while their client is asked something.

Owns: when such a call is cut: at the end of the attempt's time, and when its desk is closed. Does not know: what it was
for. Invariant: none outlives the time or the desk; whoever had it followed hears once what became of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from pursuit.errors import PursuitError
from pursuit.problems.attempts import Attempt
from pursuit.surfaces.logs import event
from pursuit.surfaces.mcp.gateway.guests import GoesOn

A_MOMENT = 0.1
"""Seconds after the end of the time: a leg that is under way then is cut by its own clock, and says so."""

_log = logging.getLogger(__name__)

Settle = Callable[[bool], Awaitable[None]]
"""Hears that a call has ended, and whether it was cut because the time was over."""


class Following:
    """Follows the calls of one attempt in `tasks`."""

    def __init__(self, attempt: Attempt, tasks: anyio.abc.TaskGroup) -> None:
        self._attempt = attempt
        self._tasks = tasks
        self._calls: set[GoesOn] = set()
        self._left = False

    def leave(self) -> None:
        """The desk closes: from here on nothing goes on."""
        self._left = True
        for call in tuple(self._calls):
            call.cut()

    def follow(self, call: GoesOn, settle: Settle) -> None:
        """Stays with a call until it has ended, however often its client comes back meanwhile."""
        if call not in self._calls:
            self._calls.add(call)
            self._tasks.start_soon(self._follow, call, settle)

    async def _follow(self, call: GoesOn, settle: Settle) -> None:
        late = False
        try:
            if self._left:
                call.cut()
            left = self._attempt.seconds_left()
            with anyio.move_on_after(None if left is None else left + A_MOMENT) as time:
                await call.over.wait()
            if time.cancelled_caught:
                late = True
                call.cut()
                await call.over.wait()
        finally:
            call.cut()
            with anyio.CancelScope(shield=True):
                await self._settle(settle, late)
            self._calls.discard(call)

    async def _settle(self, settle: Settle, late: bool) -> None:
        try:
            await settle(late)
        except PursuitError as error:  # the ledger is not to be had: who opens the attempt next settles it
            event(_log, logging.ERROR, "not settled", attempt=self._attempt.attempt_id, why=error.message)
