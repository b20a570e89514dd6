"""The legs of one call in the new era: a result that asks, and the same call again with the answer.

Owns: which request goes on with which call. Pure but for what it remembers. Invariant: a request goes on with a call
only if its tool and arguments are those of that call, and only once for each question; anything else is another call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

import anyio
import anyio.abc

from pursuit.errors import PursuitError
from pursuit.problems.attempts import Attempt
from pursuit.server.gateway.clients import PendingWork
from pursuit.server.logs import event

MOST_LEGS = 1_000
"""Calls that wait for an answer; of further ones the next leg counts as another call."""

_ANSWERS = ("inputResponses", "requestState")


def comes_back(params: Mapping[str, Any]) -> bool:
    """Whether a request brings what one that was asked something brings back: answers, a state, or both."""
    return any(key in params for key in _ANSWERS)


class Legs:
    """What was asked, by the shape of the call and the state that a client brings back; a server may do without one."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str | None], list[int]] = {}
        self._many = 0

    def note(self, result: Mapping[str, Any], number: int, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the result of the call of this number asks something first; then it is remembered."""
        state = result.get("requestState")
        if result.get("resultType") != "input_required" or not (state is None or isinstance(state, str)):
            return False
        if self._many >= MOST_LEGS:
            return False
        self._asked.setdefault((_shape(tool, arguments), state), []).append(number)
        self._many += 1
        return True

    def number(self, params: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]) -> int | None:
        """The number of the call that a request goes on with; None if it is a call of its own."""
        if not comes_back(params):
            return None
        state = params.get("requestState")
        key = _shape(tool, arguments), state if isinstance(state, str) else None
        numbers = self._asked.get(key)
        return None if numbers is None else self._taken(key, numbers[0])

    def forget(self, number: int) -> bool:
        """Nobody goes on with this call any more; whether somebody could have."""
        known = [key for key, numbers in self._asked.items() if number in numbers]
        for key in known:
            self._taken(key, number)
        return bool(known)

    def _taken(self, key: tuple[str, str | None], number: int) -> int:
        numbers = self._asked[key]
        numbers.remove(number)
        self._many -= 1
        if not numbers:
            del self._asked[key]
        return number


def _shape(tool: str, arguments: Mapping[str, Any]) -> str:
    """What tells two calls apart, at a bounded size."""
    return sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


# Calls that are under way at the problem's server while their client is asked something.
# Invariant: none outlives the time or the desk; whoever had it followed hears once what became of it.

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
        self._calls: set[PendingWork] = set()
        self._left = False

    def leave(self) -> None:
        """The desk closes: from here on nothing goes on."""
        self._left = True
        for call in tuple(self._calls):
            call.cut()

    def follow(self, call: PendingWork, settle: Settle) -> None:
        """Stays with a call until it has ended, however often its client comes back meanwhile."""
        if call not in self._calls:
            self._calls.add(call)
            self._tasks.start_soon(self._follow, call, settle)

    async def _follow(self, call: PendingWork, settle: Settle) -> None:
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
