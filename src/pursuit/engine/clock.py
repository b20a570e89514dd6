"""Time, handed in: the engine reads no clock of its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the engine asks of time."""

    def now(self) -> float:
        """Seconds since the epoch, for people."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations."""
        ...


class SystemClock:
    """The clock of this machine."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
