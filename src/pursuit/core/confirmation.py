"""Fresh measurements before a criterion counts: `confirm = 3` on a threshold.

A value that meets such a threshold makes its call a candidate. The criterion counts once the same call, measured again
that many times, meets it on average; the first value is left out, because it was chosen for being good.

    remeasure(state.confirmations.values())   which call is to be measured again, and how often: for proposers

Pure. Invariant: one candidate for each criterion, the latest one in the order of the calls, not of their answers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

import msgspec

from pursuit.core.criteria import MetricThreshold
from pursuit.core.series import Point, holds


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call whose value met a threshold, and what measuring it again gave."""

    criterion: MetricThreshold
    key: str
    """What makes two calls the same call."""
    tool: str
    args: dict[str, Any]
    first: float
    """The value that made the call a candidate; it does not count."""
    worthwhile: bool
    """Whether the call also met the other required thresholds that it reports on."""
    place: tuple[int, int]
    """The latest measurement."""
    values: list[float] = []
    """The fresh measurements, at most as many as are needed, the newest last."""

    @property
    def missing(self) -> int:
        """How many fresh measurements are still needed."""
        return max(0, self.criterion.confirm - len(self.values))

    @property
    def value(self) -> float | None:
        """The fresh measurements as one number; None without any."""
        if not self.values:
            return None
        match self.criterion.confirm_by:
            case "mean":
                return fmean(self.values)
            case "median":
                return median(self.values)
            case "worst":
                return max(self.values) if self.criterion.op in ("<", "<=") else min(self.values)

    @property
    def met(self) -> bool:
        """Whether there are enough fresh measurements, and they meet the threshold."""
        return not self.missing and self.value is not None and holds(self.criterion, self.value)


class Remeasure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call that a proposer measures again, and how often, so that these criteria can count."""

    tool: str
    args: dict[str, Any]
    times: int
    criteria: list[str]


def remeasure(confirmations: Iterable[Confirmation]) -> Remeasure | None:
    """The call to measure again now; None if no candidate waits for it."""
    waiting = [one for one in confirmations if one.missing and one.worthwhile]
    if not waiting:
        return None
    last = max(waiting, key=lambda one: one.place)
    same = [one for one in waiting if one.key == last.key]
    times = max(one.missing for one in same)
    return Remeasure(tool=last.tool, args=last.args, times=times, criteria=[o.criterion.criterion_id for o in same])


class Measurement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of a threshold with `confirm`, with the call that gave it."""

    criterion: MetricThreshold
    key: str
    args: dict[str, Any]
    point: Point
    worthwhile: bool


class Confirmations:
    """The candidate of each criterion.

    Calls that run at the same time can settle in any order. A value that comes late is counted at the place of its
    call: the open iteration's values are counted again, from the candidates as they were before it.
    """

    __slots__ = ("_before", "_candidates", "_open")

    def __init__(self) -> None:
        self._candidates: dict[str, Confirmation] = {}
        self._before: dict[str, Confirmation] = {}
        self._open: list[Measurement] = []

    def get(self, criterion_id: str) -> Confirmation | None:
        """The candidate of a criterion, if there is one."""
        return self._candidates.get(criterion_id)

    def values(self) -> Iterable[Confirmation]:
        """The candidates of all criteria."""
        return self._candidates.values()

    def learn(self, one: Measurement) -> None:
        """Takes in one more value."""
        if self._open and self._open[-1].point.iteration != one.point.iteration:
            self._open = []
        if not self._open:
            self._before = dict(self._candidates)
        late = bool(self._open) and one.point.place < self._open[-1].point.place
        insort(self._open, one, key=lambda each: each.point.place)
        if late:
            self._candidates = dict(self._before)
        for each in self._open if late else (one,):
            self._count(each)

    def _count(self, one: Measurement) -> None:
        """A candidate that was rejected starts again with the next value that meets the threshold."""
        name, point = one.criterion.criterion_id, one.point
        known = self._candidates.get(name)
        if known is not None and known.key == one.key and (known.missing or known.met):
            values = [*known.values, point.value][-one.criterion.confirm :]
            self._candidates[name] = msgspec.structs.replace(known, values=values, place=point.place)
        elif holds(one.criterion, point.value):
            self._candidates[name] = Confirmation(
                criterion=one.criterion,
                key=one.key,
                tool=point.tool,
                args=one.args,
                first=point.value,
                worthwhile=one.worthwhile,
                place=point.place,
            )
