"""When a call must have ended: its timeout, which progress renews, a ceiling, and the mission's wall clock.

Owns: one cancel scope whose deadline moves. Knows no tool. Invariant: an extended budget reaches what is under way.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio


class Deadline:
    """The deadline of one call, to be entered; while it is entered it is one of the `open` ones."""

    __slots__ = ("_began", "_ceiling", "_left", "_open", "_signed", "scope", "timeout")

    def __init__(
        self, open_ones: set[Deadline], *, timeout: float, ceiling: float, wall_clock_left: float | None
    ) -> None:
        self._open = open_ones
        self.timeout = timeout
        self._began = self._signed = anyio.current_time()
        self._ceiling = self._began + max(ceiling, timeout)
        self._left = wall_clock_left
        self.scope = anyio.CancelScope(deadline=self._when())

    def __enter__(self) -> Self:
        self._open.add(self)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._open.discard(self)
        return self.scope.__exit__(kind, value, trace) or False

    async def progressed(self, _done: float, _total: float | None, _message: str | None) -> None:
        """The other side lives: the timeout begins anew, up to the ceiling."""
        self._signed = anyio.current_time()
        self.scope.deadline = self._when()

    def allow(self, seconds_left: float | None) -> None:
        """The mission's wall clock has now so many seconds left, from now on."""
        self._left = None if seconds_left is None else anyio.current_time() - self._began + seconds_left
        self.scope.deadline = self._when()

    def why(self) -> str:
        """What the call ran into."""
        if self._left is not None and anyio.current_time() >= self._began + self._left:
            return "cut off by max_wall_clock_seconds"
        if anyio.current_time() >= self._ceiling:
            return f"no answer within {self._ceiling - self._began:g} s, in spite of progress"
        return f"no answer within {self.timeout:g} s"

    def _when(self) -> float:
        ends = min(self._signed + self.timeout, self._ceiling)
        return ends if self._left is None else min(ends, self._began + max(self._left, 0.0))
