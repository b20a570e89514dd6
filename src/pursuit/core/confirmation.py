"""Fresh measurements before a criterion counts: `confirm = 3` on a threshold, and the winner of a search.

A value that meets such a threshold makes its call a candidate. The criterion counts once the same call, measured again
that many times, meets it on average; the first value is left out, because it was chosen for being good. Each rejection
doubles the number, for any candidate and for the rejected one again, whose values all count: nobody looks after each
value until it is lucky.

A trial of a search that meets all thresholds is a candidate without `confirm`: one fresh measurement shows whether
there is noise, and with noise it needs five, and twice as many for each candidate that was rejected before it.

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

RETESTS = 5
"""With noise, the fresh measurements of a search's winner at first."""
MOST = 8
"""How many times as many it takes at most. Each rejected winner was one more chance to be lucky, so it doubles the
number: otherwise a long search wins by luck in the end. At the true minimum, half a standard deviation above its
target, 8 % of searches win by luck, whatever their length (with 3, 4, 5, ... 20 it was 30 % of those with 60 trials,
39 % of those with 300)."""
MOST_FRESH = 1_000
"""The measurements of one call that are kept: ten times the largest `confirm`."""
MOST_CANDIDATES = 10_000
"""The calls whose measurements are kept, for all criteria; the oldest are forgotten first."""


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
    needed: int
    """The fresh measurements that it takes, since it was rejected last."""
    looked: int = 0
    """Those that it had when it was rejected last."""
    rejections: int = 0
    retest: bool = False
    """Whether it is the winner of a search without `confirm`: it is rejected as soon as the average fails."""
    rejected: int = 0
    """The winners that were rejected before it."""
    values: list[float] = []
    """All fresh measurements, at most the newest `MOST_FRESH` of them, the newest last."""

    @property
    def missing(self) -> int:
        """How many fresh measurements are still needed."""
        return 0 if self.failed or self.looked else max(0, self.needed - len(self.values))

    @property
    def enough(self) -> bool:
        """Whether there are enough fresh measurements to decide."""
        return len(self.values) - self.looked >= self.needed

    @property
    def failed(self) -> bool:
        """Whether it is a winner that its fresh measurements have rejected."""
        return self.retest and self.value is not None and not holds(self.criterion, self.value)

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
        return self.enough and self.value is not None and holds(self.criterion, self.value)


class Remeasure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call that a proposer measures again, and how often, so that these criteria can count."""

    tool: str
    args: dict[str, Any]
    times: int
    criteria: list[str]


def remeasure(confirmations: Iterable[Confirmation]) -> Remeasure | None:
    """The call to measure again now; None if no candidate waits for it."""
    known = list(confirmations)
    failed = {one.key for one in known if one.failed}
    waiting = [one for one in known if one.missing and one.worthwhile and one.key not in failed]
    if not waiting:
        return None
    last = max(waiting, key=lambda one: one.place)
    same = [one for one in waiting if one.key == last.key]
    times = max(one.missing for one in same)
    return Remeasure(tool=last.tool, args=last.args, times=times, criteria=[o.criterion.criterion_id for o in same])


class Measurement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of a threshold that fresh measurements decide, with the call that gave it."""

    criterion: MetricThreshold
    key: str
    args: dict[str, Any]
    point: Point
    worthwhile: bool
    noisy: bool = False
    """Whether there is noise; otherwise it is not known. It matters without `confirm` alone."""


class Confirmations:
    """What measuring each candidate again gave, and the candidate that counts for each criterion.

    Calls that run at the same time can settle in any order. A value that comes late is counted at the place of its
    call: the open iteration's values are counted again, from what was known before it.
    """

    __slots__ = ("_before", "_known", "_latest", "_latest_before", "_open")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Confirmation] = {}
        self._latest: dict[str, Confirmation] = {}
        self._open: list[Measurement] = []
        self._before: dict[tuple[str, str], Confirmation | None] = {}
        self._latest_before: dict[str, Confirmation] = {}

    def get(self, criterion_id: str) -> Confirmation | None:
        """The candidate of a criterion, if there is one."""
        return self._latest.get(criterion_id)

    def values(self) -> Iterable[Confirmation]:
        """The candidates of all criteria."""
        return self._latest.values()

    def in_force(self, criterion: MetricThreshold) -> int:
        """The fresh measurements that a new candidate of a criterion with `confirm` takes."""
        return doubled(criterion.confirm, self._rejected(criterion.criterion_id))

    def fresh(self, criterion_id: str) -> int:
        """How many fresh measurements a criterion has got that it asked for, of all its candidates."""
        known = (one for (name, _), one in self._known.items() if name == criterion_id)
        most = 2 * MOST - 1  # until a candidate was looked at with each number: 1, 2, 4 and 8 times `confirm`
        return sum(min(len(one.values), one.looked + one.needed, most * one.criterion.confirm) for one in known)

    def learn(self, one: Measurement) -> None:
        """Takes in one more value."""
        if not self._open or self._open[-1].point.iteration != one.point.iteration:
            self._begin()
        late = bool(self._open) and one.point.place < self._open[-1].point.place
        insort(self._open, one, key=lambda each: each.point.place)
        if late:
            self._undo()
        for each in self._open if late else (one,):
            self._count(each)

    def drop_retests(self) -> None:
        """There is no noise: winners of a search count at once."""
        self._open = [one for one in self._open if one.criterion.confirm]
        self._known = {name: one for name, one in self._known.items() if not one.retest}
        self._before = {name: one for name, one in self._before.items() if one is None or not one.retest}
        self._latest = {name: one for name, one in self._latest.items() if not one.retest}
        self._latest_before = {name: one for name, one in self._latest_before.items() if not one.retest}

    def _begin(self) -> None:
        """The values of another iteration come."""
        while len(self._known) > MOST_CANDIDATES:
            del self._known[next(iter(self._known))]
        self._open, self._before, self._latest_before = [], {}, dict(self._latest)

    def _undo(self) -> None:
        """Goes back to what was known before the open iteration."""
        for name, known in self._before.items():
            if known is None:
                self._known.pop(name, None)
            else:
                self._known[name] = known
        self._latest = dict(self._latest_before)

    def _count(self, one: Measurement) -> None:
        """Each value of a candidate counts: one that was rejected does not start again with its next lucky value."""
        criterion, point = one.criterion, one.point
        name = criterion.criterion_id, one.key
        known, lucky = self._known.get(name), holds(criterion, point.value)
        retest = not criterion.confirm
        if known is None and (not lucky or (retest and not one.worthwhile)):
            return
        rejected = self._rejected(criterion.criterion_id) if known is None else known.rejected
        needed = doubled(RETESTS, rejected) if one.noisy else 1
        if criterion.confirm:
            needed = self.in_force(criterion) if known is None else known.needed
        self._before.setdefault(name, known)
        if known is None:
            found = Confirmation(
                criterion=criterion,
                key=one.key,
                tool=point.tool,
                args=one.args,
                first=point.value,
                worthwhile=one.worthwhile,
                place=point.place,
                needed=needed,
                retest=retest,
                rejected=rejected,
            )
        else:
            values = [*known.values, point.value][-MOST_FRESH:]
            looked = max(0, known.looked - (len(known.values) + 1 - len(values)))
            found = msgspec.structs.replace(known, values=values, place=point.place, needed=needed, looked=looked)
            if not retest and found.enough and not found.met:
                found = msgspec.structs.replace(found, looked=len(values), rejections=known.rejections + 1)
                self._known[name] = found
                found = msgspec.structs.replace(found, needed=self.in_force(criterion))
        self._known[name] = found
        latest = self._latest.get(criterion.criterion_id)
        if lucky or found.met or (latest is not None and latest.key == one.key):
            self._latest[criterion.criterion_id] = found

    def _rejected(self, criterion_id: str) -> int:
        return sum(one.failed + one.rejections for (name, _), one in self._known.items() if name == criterion_id)


def doubled(number: int, rejected: int) -> int:
    """How many fresh measurements it takes instead of this number after so many rejections."""
    return number * min(MOST, 1 << min(rejected, MOST))
