"""The bounded histories of metrics and events, by name and source, and how a value compares with a threshold.

Pure data. Invariant: memory does not grow past the window.
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
    """One value: when, in what order within its iteration, and from which call."""

    iteration: int
    order: int
    value: float
    tool: str
    call_id: str

    @property
    def place(self) -> tuple[int, int]:
        """The order of the points of a metric."""
        return self.iteration, self.order


class Gap(NamedTuple):
    """A call that should have reported a value, and did not; `last` is the value before it."""

    place: tuple[int, int]
    tool: str
    call_id: str
    why: str
    last: Point | None = None


class SeenEvent(NamedTuple):
    """How often an event came from one source, and its last call."""

    times: int
    iteration: int
    tool: str
    call_id: str


class Metrics:
    """The last points of every metric, kept apart by source so that no source can push out another's.

    A value is current as long as its tool reports it: after a later call of the tool without it there is a gap.
    """

    __slots__ = ("_latest", "_series")

    def __init__(self) -> None:
        self._series: dict[str, dict[str, deque[Point]]] = {}
        self._latest: dict[tuple[str, str], Gap] = {}

    def add(self, name: str, point: Point) -> None:
        """Keeps the points of an iteration in proposed order, whichever call came back first."""
        by_tool = self._series.setdefault(name, {})
        series = by_tool.get(point.tool)
        if series is None:
            series = by_tool[point.tool] = deque(maxlen=MAX_WINDOW)
        held: list[Point] = []
        while series and series[-1].place > point.place:
            held.append(series.pop())
        series.append(point)
        series.extend(reversed(held))

    def reported(self, gap: Gap, under: str = "") -> None:
        """Notes that a tool has reported all that it has to, or all `under` a name: what is older is out of date."""
        known = self._latest.get((gap.tool, under))
        if known is None or gap.place > known.place:
            self._latest[gap.tool, under] = gap

    def standing(self, name: str, source: str | None = None) -> Point | Gap | None:
        """The newest point that counts under the source glob, or the gap after it."""
        newest: Point | Gap | None = None
        for tool, series in self._series.get(name, {}).items():
            if source_matches(source, tool):
                now = self._gap(name, series[-1])
                if newest is None or now.place > newest.place:
                    newest = now
        return newest

    def _gap(self, name: str, point: Point) -> Point | Gap:
        """The newest gap after a point, of its tool or of a list or table that it was in; else the point."""
        place, found = point.place, None
        for under in _above(name):
            gap = self._latest.get((point.tool, under))
            if gap is not None and gap.place > place:
                place, found = gap.place, gap
        return point if found is None else found._replace(last=point)

    def latest(self, name: str, source: str | None = None) -> Point | None:
        """The newest point that counts under the source glob."""
        newest: Point | None = None
        for tool, series in self._series.get(name, {}).items():
            if source_matches(source, tool) and (newest is None or series[-1].place > newest.place):
                newest = series[-1]
        return newest

    def points(self, name: str, source: str | None = None) -> list[Point]:
        """The points that count, oldest first, at most a window of them."""
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
        """Every metric that has a value."""
        return self._series.keys()


@lru_cache(maxsize=1024)
def _above(name: str) -> tuple[str, ...]:
    """The names of everything that a metric is in, and its own: for `scores.0` that is all, `scores` and `scores.0`."""
    steps = name.split(".")
    return tuple(".".join(steps[:count]) for count in range(len(steps) + 1))


class Events:
    """How often each event was seen, by source."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, SeenEvent]] = {}

    def add(self, name: str, *, tool: str, call_id: str, iteration: int) -> None:
        """Counts one more."""
        by_tool = self._seen.setdefault(name, {})
        before = by_tool.get(tool)
        by_tool[tool] = SeenEvent((before.times if before else 0) + 1, iteration, tool, call_id)

    def find(self, name: str, source: str | None = None) -> SeenEvent | None:
        """The latest event that counts under the source glob, with the number of all that count."""
        matching = [seen for tool, seen in self._seen.get(name, {}).items() if source_matches(source, tool)]
        if not matching:
            return None
        last = max(matching, key=lambda seen: seen.iteration)
        return last._replace(times=sum(seen.times for seen in matching))

    def counts(self) -> dict[str, int]:
        """Event names with how often each was seen."""
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
    """Whether the value meets the threshold."""
    return COMPARE[criterion.op](value, criterion.target)


def distance(criterion: MetricThreshold, value: float) -> float:
    """How far the value is from its target; zero exactly when the threshold holds."""
    return 0.0 if holds(criterion, value) else max(abs(value - criterion.target), sys.float_info.min)


def better(op: Comparison, target: float, value: float, other: float) -> bool:
    """Whether a value is strictly better than another one, in the direction that the comparison wants."""
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
    """Whether a distance from the target is smaller than the one before by more than the tolerance."""
    return before is None or distance < before * (1 - TOLERANCE)
