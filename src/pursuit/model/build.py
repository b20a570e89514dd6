"""Criteria as Python reads best: `metric("mass") <= 2.4`, `event("certified")`.

Owns: the small words that make criteria. Each gives a plain criterion; there is nothing else behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pursuit.model.criteria import (
    Check,
    Comparison,
    EventSeen,
    Expectation,
    MetricThreshold,
    MetricTrend,
    Predicate,
    ToolCallSucceeded,
)

Direction = Literal["decreasing", "increasing", "non_increasing", "non_decreasing"]


class MetricRef:
    """A metric by its path; comparing it with a number makes a criterion."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: str, source: str | None, scope: Literal["mission", "iteration"]) -> None:
        self._path = path
        self._source = source
        self._scope: Literal["mission", "iteration"] = scope

    def __lt__(self, target: float) -> MetricThreshold:
        return self._threshold("<", target)

    def __le__(self, target: float) -> MetricThreshold:
        return self._threshold("<=", target)

    def __gt__(self, target: float) -> MetricThreshold:
        return self._threshold(">", target)

    def __ge__(self, target: float) -> MetricThreshold:
        return self._threshold(">=", target)

    def __eq__(self, target: object) -> MetricThreshold:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._threshold("==", target)

    def __ne__(self, target: object) -> MetricThreshold:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._threshold("!=", target)

    def _threshold(self, op: Comparison, target: object) -> MetricThreshold:
        number = f"{target:g}" if isinstance(target, int | float) else repr(target)
        return MetricThreshold(
            criterion_id=f"{self._path} {op} {number}"[:128],
            metric=self._path,
            op=op,
            target=cast("float", target),
            source=self._source,
            scope=self._scope,
        )

    def trend(self, direction: Direction, *, window: int = 1_000, min_points: int = 2) -> MetricTrend:
        """A criterion on the slope of the last points."""
        return MetricTrend(
            criterion_id=f"{self._path} {direction}"[:128],
            metric=self._path,
            direction=direction,
            window=window,
            min_points=min_points,
            source=self._source,
        )


def metric(path: str, *, source: str | None = None, scope: Literal["mission", "iteration"] = "mission") -> MetricRef:
    """A metric, optionally only as `source` (a tool glob) reports it."""
    return MetricRef(path, source, scope)


def event(name: str, *, source: str | None = None, scope: Literal["mission", "iteration"] = "mission") -> EventSeen:
    """An event that must have been reported."""
    return EventSeen(criterion_id=f"event {name}"[:128], event_name=name, source=source, scope=scope)


def predicate(expression: str) -> Predicate:
    """One Python expression over `obs`, run in the sandbox."""
    return Predicate(criterion_id=expression.strip()[:128] or "predicate", expression=expression)


def succeeded(tool_name: str, *, at_least: int = 1) -> ToolCallSucceeded:
    """Successful calls of a tool, by the runtime's own records."""
    return ToolCallSucceeded(criterion_id=f"{tool_name} succeeded"[:128], tool_name=tool_name, min_count=at_least)


def check(
    what: str | Sequence[str],
    args: Mapping[str, Any] | None = None,
    *,
    when: Literal["met", "checkpoint"] = "met",
    after: str | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
    **expect: Any,
) -> Check:
    """A tool (by name) or a command (an argv) that the runtime runs itself; `expect` says what must hold."""
    is_tool = isinstance(what, str)
    return Check(
        criterion_id=f"check {what if isinstance(what, str) else ' '.join(what)}"[:128],
        tool_name=what if isinstance(what, str) else None,
        args=args or {},
        command=None if is_tool else list(what),
        cwd=cwd,
        timeout=timeout,
        when=when,
        after=after,
        expect=Expectation(**expect),
    )
