"""Fresh measurements before a criterion counts: `confirm = 3` on a threshold, and the winner of a search.

A value that meets such a threshold makes its call a candidate. The criterion counts once the same call, measured again
that many times, meets it on average; the first value is left out, because it was selected for being good. Each
rejection doubles the number for every candidate, even for the rejected one, whose values all count. This prevents
measuring again until a lucky value comes.

A trial of a search that meets all thresholds is a candidate without `confirm`: one fresh measurement shows whether
there is noise, and with noise it needs five, and twice as many for each candidate that was rejected before it.

    remeasure(state.confirmations.latest.values())   for proposers: the call to measure again, and how often

Pure. Invariant: each criterion has one candidate, the latest in the order of the calls, not of their answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

import msgspec

from pursuit.core.criteria import MAX_FACTOR, MetricThreshold, doubled
from pursuit.core.series import Point, holds

RETESTS = 5
"""With noise, the initial number of fresh measurements of a search's winner."""
MAX_FRESH = 1_000
"""Up to this many measurements of one call are kept: ten times the largest `confirm`."""
MAX_CANDIDATES = 10_000
"""The measurements of this many calls are kept, for all criteria; the oldest are dropped first."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call whose value met a threshold, with its repeated measurements."""

    criterion: MetricThreshold
    key: str
    tool: str
    args: dict[str, Any]
    first: float
    """The value that made the call a candidate; it does not count."""
    worthwhile: bool
    """True if the call also met the other required thresholds that it reports on."""
    place: tuple[int, int]
    """The latest measurement."""
    needed: int
    """The number of fresh measurements needed since its last rejection."""
    looked: int = 0
    """The number of measurements at its last rejection."""
    rejections: int = 0
    rejected: int = 0
    """The number of winners that were rejected before it."""
    values: list[float] = []
    """The fresh measurements, oldest first, at most the newest `MAX_FRESH`."""

    @property
    def retest(self) -> bool:
        """True for the winner of a search without `confirm`: it is rejected as soon as the average fails."""
        return not self.criterion.confirm

    @property
    def missing(self) -> int:
        return 0 if self.failed or self.looked else max(0, self.needed - len(self.values))

    @property
    def enough(self) -> bool:
        return len(self.values) - self.looked >= self.needed

    @property
    def failed(self) -> bool:
        """True for a winner that its fresh measurements have rejected."""
        return self.retest and self.value is not None and not holds(self.criterion, self.value)

    @property
    def value(self) -> float | None:
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
        return self.enough and self.value is not None and holds(self.criterion, self.value)


class Remeasure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call that a proposer must repeat, and how often, so that these criteria can count."""

    tool: str
    args: dict[str, Any]
    times: int
    criteria: list[str]


def remeasure(confirmations: Iterable[Confirmation]) -> Remeasure | None:
    """The call to measure again now; None if no candidate needs it."""
    known = list(confirmations)
    failed = {one.key for one in known if one.failed}
    waiting = [one for one in known if one.missing and one.worthwhile and one.key not in failed]
    if not waiting:
        return None
    last = max(waiting, key=lambda one: one.place)
    same = [one for one in waiting if one.key == last.key]
    times = max(one.missing for one in same)
    return Remeasure(tool=last.tool, args=last.args, times=times, criteria=[o.criterion.criterion_id for o in same])


class Confirmations:
    """The repeated measurements of each candidate, and the candidate that counts for each criterion.

    Concurrent calls can settle in any order: the candidate of the latest call counts.
    """

    __slots__ = ("_known", "latest")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Confirmation] = {}
        self.latest: dict[str, Confirmation] = {}
        """The candidate that counts for each criterion."""

    def in_force(self, criterion: MetricThreshold) -> int:
        """The number of fresh measurements that a new candidate of a criterion with `confirm` needs."""
        return doubled(criterion.confirm, self._rejected(criterion.criterion_id))

    def fresh(self, criterion_id: str) -> int:
        """The number of fresh measurements, among those requested, over all candidates of a criterion."""
        known = (one for (name, _), one in self._known.items() if name == criterion_id)
        most = 2 * MAX_FACTOR - 1  # until a candidate was looked at with each number: 1, 2, 4 and 8 times `confirm`
        return sum(min(len(one.values), one.looked + one.needed, most * one.criterion.confirm) for one in known)

    def drop_retests(self) -> None:
        """Drops the winners of a search that wait: without noise they count immediately."""
        self._known = {name: one for name, one in self._known.items() if not one.retest}
        self.latest = {name: one for name, one in self.latest.items() if not one.retest}

    def learn(
        self,
        criterion: MetricThreshold,
        point: Point,
        *,
        key: str,
        args: dict[str, Any],
        worthwhile: bool,
        noisy: bool = False,
    ) -> None:
        """Adds one value; a rejected candidate does not start again with its next lucky value.

        `key` stands for the call that gave it. `noisy` matters only without `confirm`.
        """
        name = criterion.criterion_id, key
        known, lucky = self._known.get(name), holds(criterion, point.value)
        retest = not criterion.confirm
        if known is None and (not lucky or (retest and not worthwhile)):
            return
        rejected = self._rejected(criterion.criterion_id) if known is None else known.rejected
        needed = doubled(RETESTS, rejected) if noisy else 1
        if criterion.confirm:
            needed = self.in_force(criterion) if known is None else known.needed
        if known is None:
            if len(self._known) > MAX_CANDIDATES:
                del self._known[next(iter(self._known))]
            found = Confirmation(
                criterion=criterion,
                key=key,
                tool=point.tool,
                args=args,
                first=point.value,
                worthwhile=worthwhile,
                place=point.place,
                needed=needed,
                rejected=rejected,
            )
        else:
            values = [*known.values, point.value][-MAX_FRESH:]
            looked = max(0, known.looked - (len(known.values) + 1 - len(values)))
            place = max(known.place, point.place)
            found = msgspec.structs.replace(known, values=values, place=place, needed=needed, looked=looked)
            if not retest and found.enough and not found.met:
                found = msgspec.structs.replace(found, looked=len(values), rejections=known.rejections + 1)
                self._known[name] = found
                found = msgspec.structs.replace(found, needed=self.in_force(criterion))
        self._known[name] = found
        latest = self.latest.get(criterion.criterion_id)
        if latest is None or latest.key == key or ((lucky or found.met) and latest.place <= found.place):
            self.latest[criterion.criterion_id] = found

    def _rejected(self, criterion_id: str) -> int:
        return sum(one.failed + one.rejections for (name, _), one in self._known.items() if name == criterion_id)
