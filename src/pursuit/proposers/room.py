"""What is left of a mission for a search that has something to hand on at its end.

Owns: when the last call must be the one of the other tool. Pure. Invariant: as long as a budget allows one more call at
all, the search knows beforehand that it is the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pursuit.model.criteria import Check
from pursuit.model.events import AnyEvent, IterationEnded, RunClaimed
from pursuit.model.state import MissionState

RECENT = 8
MARGIN = 3
"""How many of the slowest recent iterations must still fit."""
SHARE = 0.05
LEAST = 1.0
"""Seconds that are kept at least, and the part of the whole: handing on may start programs, such as a judge."""


@dataclass(slots=True)
class Clock:
    """How long the latest iterations took, as the ledger tells it."""

    _elapsed: float = 0.0
    _took: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))

    def hear(self, news: Sequence[tuple[int, AnyEvent]]) -> None:
        """Takes in what happened."""
        for _, event in news:
            match event:
                case RunClaimed():
                    self._elapsed = 0.0
                case IterationEnded():
                    self._took.append(max(0.0, event.elapsed - self._elapsed))
                    self._elapsed = event.elapsed
                case _:
                    pass

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
    def of(cls, state: MissionState, clock: Clock) -> Room:
        """What the budget of a mission leaves."""
        iterations, calls = _left(state, "max_iterations", state.iteration_count), _calls_left(state)
        few = any(one is not None and one <= 1 for one in (iterations, calls))
        trials = None if calls is None else max(1, int(calls) - 1)
        return cls(last=few or _late(state, clock), trials=trials)


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
    return left <= min(whole / 2, max(MARGIN * clock.slowest, SHARE * whole, LEAST))
