"""What is left of a mission for a search that has something to hand on at its end.

Owns: when the last call must be the one of the other tool. Pure. Invariant: as long as a budget allows one more call at
all, the search knows beforehand that it is the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pursuit.model.criteria import Check
from pursuit.model.events import AnyEvent, IterationEnded, IterationProposed, RunClaimed
from pursuit.model.state import MissionState

RECENT = 8
MARGIN = 3
"""How many of the slowest recent iterations must still fit."""
SHARE = 0.05
LEAST = 1.0
"""Seconds that are kept at least, and the part of the whole: handing on may start programs, such as a judge."""
AFRESH = 5.0
"""Seconds that are kept at least where a driver has just begun: nobody knows yet how long an iteration takes."""


@dataclass(slots=True)
class Clock:
    """How long the latest iterations took, and since when there are trials, as the ledger tells it."""

    fresh: bool = True
    _first: float | None = None
    _last: float = 0.0
    _elapsed: float = 0.0
    _took: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))

    def hear(self, news: Sequence[tuple[int, AnyEvent]]) -> None:
        """Takes in what happened."""
        for _, event in news:
            self._last = max(self._last, event.at)
            match event:
                case RunClaimed():
                    self._elapsed, self.fresh = 0.0, True
                case IterationProposed() if event.calls and self._first is None:
                    self._first = event.at
                case IterationEnded():
                    self.fresh = False
                    self._took.append(max(0.0, event.elapsed - self._elapsed))
                    self._elapsed = event.elapsed
                case _:
                    pass

    @property
    def since(self) -> float:
        """Seconds on the wall since the first trial, however long nobody drove."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def slowest(self) -> float:
        """Seconds of the slowest of them."""
        return max(self._took, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Whether this iteration must be the last one, and how many trials fit before it; None is any number."""

    last: bool = False
    trials: int | None = None

    @classmethod
    def of(cls, state: MissionState, clock: Clock, seconds: float | None = None) -> Room:
        """What the budget of a mission leaves, and the `seconds` that there are from the first trial on."""
        iterations, calls = _left(state, "max_iterations", state.iteration_count), _calls_left(state)
        few = any(one is not None and one <= 1 for one in (iterations, calls))
        trials = None if calls is None else max(1, int(calls) - 1)
        over = seconds is not None and _is_late(seconds - clock.since, seconds, clock, AFRESH if clock.fresh else LEAST)
        return cls(last=few or over or _late(state, clock), trials=trials)


def _left(state: MissionState, name: str, used: float) -> float | None:
    cap = state.budget.get(name, -1)
    return None if cap == -1 else cap - used - state.lent.get(name, 0)


def _calls_left(state: MissionState) -> float | None:
    """Calls of tools, without those that the checks of an iteration take."""
    checks = sum(isinstance(criterion, Check) for criterion in state.mission.criteria)
    left = _left(state, "max_tool_calls", state.tool_calls)
    return None if left is None else left - checks


def _late(state: MissionState, clock: Clock) -> bool:
    whole = state.budget.get("max_wall_clock_seconds", -1)
    left = _left(state, "max_wall_clock_seconds", state.wall_clock)
    if left is None:
        return False
    return _is_late(left, whole, clock, LEAST)


def _is_late(left: float, whole: float, clock: Clock, least: float) -> bool:
    return left <= min(whole / 2, max(MARGIN * clock.slowest, SHARE * whole, least))
