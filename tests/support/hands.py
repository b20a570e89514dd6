"""The hands of this process's clocks, for tests of time that runs out.

Owns: putting every clock that `pursuit` reads in this process forward, those of event loops too. Invariant: clocks run
as they always do; only the test puts them forward. So a limit can be long enough for the slowest machine to get to
where it matters, and is over when the test says so, not when the machine was held up.
"""

from __future__ import annotations

import time

import pytest

from pursuit.engine.context import SystemClock
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.tasks.store import TaskRecords

LONG = 20.0
"""Seconds that no machine is held up for, and fewer than any limit that a test does not mean."""


class Hands:
    """Of the clocks, for as long as `patch` holds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self.behind = 0.0
        real, steady = time.time, time.monotonic

        def now() -> float:
            return real() + self.ahead - self.behind

        def monotonic() -> float:
            return steady() + self.ahead

        for module, name, clock in ((time, "time", now), (time, "monotonic", monotonic)):
            patch.setattr(module, name, clock)
        # These took the clock when they were loaded.
        patch.setattr(SystemClock, "now", staticmethod(now))
        patch.setattr(SystemClock, "monotonic", staticmethod(monotonic))
        patch.setitem(TaskRecords.__init__.__kwdefaults__, "now", now)
        patch.setitem(SqliteLedger.open.__func__.__kwdefaults__, "clock", now)

    def forward(self, seconds: float = LONG) -> None:
        """So many seconds pass."""
        self.ahead += seconds

    def put_back(self, seconds: float) -> None:
        """The wall clock is set to an earlier time; a monotonic one is not."""
        self.behind += seconds
