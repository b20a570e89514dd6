"""When a call must have ended: its timeout, which progress renews, a ceiling, and the mission's wall clock.

Owns: one cancel scope whose deadline moves. Knows no tool. Invariant: an extended budget reaches what is under way.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

import anyio

T = TypeVar("T")


class Deadline:
    """The deadline of one call, which runs from when it is entered; meanwhile it is one of the `open` ones."""

    __slots__ = ("_began", "_left", "_longest", "_open", "_scope", "_signed", "ran_out", "timeout")

    def __init__(
        self, open_ones: set[Deadline], *, timeout: float, ceiling: float, wall_clock_left: float | None
    ) -> None:
        self._open = open_ones
        self.timeout = timeout
        self._longest = max(ceiling, timeout)
        self._left = wall_clock_left
        self.ran_out = False

    async def bound(self, awaited: Awaitable[T]) -> T | None:
        """What comes in time, or None."""
        with self:
            return await awaited
        return None

    def __enter__(self) -> Self:
        self._began = self._signed = anyio.current_time()
        self._scope = anyio.CancelScope(deadline=self._when())
        self._open.add(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._open.discard(self)
        handled = self._scope.__exit__(kind, value, trace) or False
        self.ran_out = self._scope.cancelled_caught
        return handled

    async def progressed(self, _done: float, _total: float | None, _message: str | None) -> None:
        """The other side lives: the timeout begins anew, up to the ceiling."""
        self._signed = anyio.current_time()
        self._scope.deadline = self._when()

    def allow(self, seconds_left: float | None) -> None:
        """The mission's wall clock has now so many seconds left, from now on."""
        self._left = None if seconds_left is None else anyio.current_time() - self._began + seconds_left
        self._scope.deadline = self._when()

    def why(self) -> str:
        """What the call ran into."""
        if self._left is not None and anyio.current_time() >= self._began + self._left:
            return "cut off by max_wall_clock_seconds"
        if anyio.current_time() >= self._began + self._longest:
            return f"no answer within {self._longest:g} s, in spite of progress"
        return f"no answer within {self.timeout:g} s"

    def _when(self) -> float:
        ends = min(self._signed + self.timeout, self._began + self._longest)
        return ends if self._left is None else min(ends, self._began + max(self._left, 0.0))
