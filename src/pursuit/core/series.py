"""Bounded histories of metrics and events, by name and source, and the comparison of values with thresholds.

Pure data. Invariant: memory does not grow beyond the window.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from pursuit.core.criteria import MAX_WINDOW, Comparison, MetricThreshold
from pursuit.core.observe import source_matches


class Point(msgspec.Struct, frozen=True, gc=False):
    """One value, with its iteration, its order there, and its call."""

    iteration: int
    order: int
    value: float
    tool: str
    call_id: str

    @property
    def place(self) -> tuple[int, int]:
        return self.iteration, self.order


class Gap(msgspec.Struct, frozen=True, gc=False):
    """A call that should have reported a value but did not; `last` is the value before it."""

    place: tuple[int, int]
    tool: str
    call_id: str
    why: str
    last: Point | None = None


class SeenEvent(NamedTuple):
    """The number of times that one source reported an event, and the last call."""

    times: int
    iteration: int
    tool: str
    call_id: str


class Metrics:
    """The last points of every metric, separate by source so that no source can displace another's.

    A value is current as long as its tool reports it: a later call of the tool without the value leaves a gap.
    """

    __slots__ = ("_latest", "_series")

    def __init__(self) -> None:
        self._series: dict[str, dict[str, deque[Point]]] = {}
        self._latest: dict[tuple[str, str], Gap] = {}

    def add(self, name: str, point: Point) -> None:
        """Adds a point; keeps those of an iteration in proposed order, whichever call returned first."""
        if name not in self._series:
            self._series[name] = {}
        by_tool = self._series[name]
        if point.tool not in by_tool:
            by_tool[point.tool] = deque(maxlen=MAX_WINDOW)
        series = by_tool[point.tool]
        if not series or series[-1].iteration < point.iteration:
            series.append(point)
            return
        held: list[Point] = []
        while series and series[-1].place > point.place:
            held.append(series.pop())
        series.append(point)
        series.extend(reversed(held))

    def reported(self, gap: Gap, under: str = "") -> None:
        """Notes that a tool's report is complete, for all names or those `under` one: older values are now stale."""
        key = (gap.tool, under)
        if key not in self._latest or gap.place > self._latest[key].place:
            self._latest[key] = gap

    def standing(self, name: str, source: str | None = None) -> Point | Gap | None:
        """The newest point that matches the source glob, or the gap after it."""
        newest: Point | Gap | None = None
        for tool, series in self._series[name].items() if name in self._series else ():
            if source is None or source_matches(source, tool):
                now = self._gap(name, series[-1])
                if newest is None or now.place > newest.place:
                    newest = now
        return newest

    def _gap(self, name: str, point: Point) -> Point | Gap:
        """The newest gap after a point, for its tool or for a list or table that contained it; else the point."""
        place, found = (point.iteration, point.order), None
        for under in _above(name):
            if (point.tool, under) in self._latest and (gap := self._latest[point.tool, under]).place > place:
                place, found = gap.place, gap
        return point if found is None else msgspec.structs.replace(found, last=point)

    def latest(self, name: str, source: str | None = None) -> Point | None:
        newest: Point | None = None
        for tool, series in self._series.get(name, {}).items():
            if source_matches(source, tool) and (newest is None or series[-1].place > newest.place):
                newest = series[-1]
        return newest

    def points(self, name: str, source: str | None = None) -> list[Point]:
        """The points that match, oldest first, at most one window."""
        merged = [
            point
            for tool, series in self._series.get(name, {}).items()
            if source_matches(source, tool)
            for point in series
        ]
        if len(self._series.get(name, ())) > 1:
            merged.sort(key=lambda point: point.place)
        return merged[-MAX_WINDOW:]

    def names(self) -> Iterable[str]:
        return self._series.keys()


@lru_cache(maxsize=1024)
def _above(name: str) -> tuple[str, ...]:
    """A metric's name and those of its containers: for `scores.0`, the empty name, `scores` and `scores.0`."""
    steps = name.split(".")
    return tuple(".".join(steps[:count]) for count in range(len(steps) + 1))


class Events:
    """Counts each event, by source."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, SeenEvent]] = {}

    def add(self, name: str, *, tool: str, call_id: str, iteration: int) -> None:
        by_tool = self._seen.setdefault(name, {})
        before = by_tool.get(tool)
        by_tool[tool] = SeenEvent((before.times if before else 0) + 1, iteration, tool, call_id)

    def find(self, name: str, source: str | None = None) -> SeenEvent | None:
        matching = [seen for tool, seen in self._seen.get(name, {}).items() if source_matches(source, tool)]
        if not matching:
            return None
        last = max(matching, key=lambda seen: seen.iteration)
        return last._replace(times=sum(seen.times for seen in matching))

    def counts(self) -> dict[str, int]:
        return {name: sum(seen.times for seen in by_tool.values()) for name, by_tool in self._seen.items()}


COMPARE: dict[Comparison, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
TOLERANCE = 1e-6


def holds(criterion: MetricThreshold, value: float) -> bool:
    return COMPARE[criterion.op](value, criterion.target)


def distance(criterion: MetricThreshold, value: float) -> float:
    """The distance of the value from its target; zero if and only if the threshold holds."""
    target = criterion.target
    return 0.0 if COMPARE[criterion.op](value, target) else abs(value - target) or sys.float_info.min


def better(op: Comparison, target: float, value: float, other: float) -> bool:
    """True if a value is strictly better than another, in the direction of the comparison."""
    match op:
        case "<" | "<=":
            return value < other
        case ">" | ">=":
            return value > other
        case "==":
            return abs(value - target) < abs(other - target)
        case "!=":
            return value != target == other


def closer(distance: float, before: float | None) -> bool:
    """True if a distance from the target is smaller than the previous one by more than the tolerance."""
    return before is None or distance < before * (1 - TOLERANCE)
