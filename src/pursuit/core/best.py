"""The best point that a mission has found: the call with the best goal value among those that satisfy all limits.

A point is one call with its metrics. If this tool never reports a limit's metric, the latest value of another tool
counts. The goal is the objective of a search; otherwise the first required threshold for which some point satisfies
all others, so a threshold that nothing reaches is the goal and not a limit.

A search treats its tool as a function of the arguments, so calls with the same arguments are one point. If they give
different values, there is noise: then the mean of a point counts, and only the points that were measured most often
compete, because the best of many single values is the luckiest one.

Pure. Invariant: a point that violates a limit is never the best one; memory does not grow with the mission's age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, Self

import msgspec

from pursuit.core.audit import redacted
from pursuit.core.criteria import Comparison, MetricThreshold, describe
from pursuit.core.mission import Mission
from pursuit.core.observe import source_matches
from pursuit.core.proposing import StoredObjective
from pursuit.core.series import Metrics, Point, better, holds

OBJECTIVE = "objective"
"""The key of a search objective that is not a threshold of the mission."""
SAME = 1e-9
"""Values of one point are equal if they differ by at most this fraction, which allows for rounding."""
ENOUGH = 3
"""With noise, a point with this many measurements is comparable with points that were measured more often."""
MAX_POINTS = 10_000
"""The measurements of this many points of a search are kept; the oldest are dropped first."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of an ended iteration, with the metrics that thresholds and goals use."""

    iteration: int
    call_id: str
    tool: str
    args: dict[str, Any]
    metrics: dict[str, float]
    key: str = ""
    """Identifies the point in a search with repeated measurements: calls with equal keys are one point."""
    times: int = 1
    """The number of calls that the metrics are the mean of."""


class Violation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit that a point violates; without a value, that is not known."""

    criterion_id: str
    wanted: str
    value: float | None


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call that reported the goal's metric; `metrics` has those that a threshold or the goal names."""

    metric: str
    value: float
    iteration: int
    call_id: str
    tool: str
    args: dict[str, Any]
    metrics: dict[str, float]
    violates: list[Violation] = []
    unknown: list[Violation] = []
    times: int = 1
    """The number of calls with the same arguments over which the values are averaged."""


class Goal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The metric to minimize, maximize or bring to its target; `key` is the id of its criterion."""

    key: str
    metric: str
    op: Comparison
    criterion: MetricThreshold | None = None

    def better(self, value: float, other: float) -> bool:
        return better(self.op, 0.0 if self.criterion is None else self.criterion.target, value, other)


class Best(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The best point of a goal and, if there is one, the better point that violates limits.

    `point` is None while every point violates a limit. A limit without a reported value does not exclude a point;
    the point's `unknown` then contains it.
    """

    goal: Goal
    point: Candidate | None
    infeasible: Candidate | None


Standing = Literal["kept", "unknown", "violated"]
Points = dict[tuple[str, Standing], Candidate]
"""The best point of each goal and standing."""


class Replicate(msgspec.Struct, kw_only=True, gc=False):
    """A point of a search: the means of its metrics over all calls that reported all of them, and the latest call."""

    times: int
    means: dict[str, float]
    point: Measured | None = None
    limits: Mapping[str, float | None] = {}


class BestPoints:
    """Tracks, for each goal, the best point that satisfies the limits and the best of the others."""

    def __init__(self, mission: Mission, sought: StoredObjective | None) -> None:
        thresholds = [one for one in mission.criteria if isinstance(one, MetricThreshold)]
        named = None if sought is None else sought.constraints
        self._limits = [one for one in thresholds if (one.required if named is None else one.criterion_id in named)]
        self._goals = {
            one.criterion_id: Goal(key=one.criterion_id, metric=one.metric, op=one.op, criterion=one)
            for one in thresholds
        }
        self._first: str | None = None
        if sought is not None and sought.metric is not None:
            objective = _goal_of(sought, thresholds)
            if objective is not None:
                self._goals.setdefault(objective.key, objective)
                self._first = objective.key
        alone = len(self._goals) == 1 and all(one.criterion_id in self._goals for one in self._limits)
        self._only = next(iter(self._goals.values())) if alone else None
        """The goal, where there is one, and no limit besides."""
        self._best: Points = {}
        self._means: Points | None = None
        self.tool = None if sought is None else sought.tool
        """The tool that a search calls."""
        self._replicates: dict[str, Replicate] = {}
        self.noisy = False if sought is None else sought.noise
        """True if equal calls of a search give different values; None while that is not known."""
        self._reports: dict[str, set[str]] = {}
        named = (one.metric for one in (*self._goals.values(), *self._limits))
        self.names = tuple(dict.fromkeys(named))
        """The metrics of goals and limits, in the same order in every process, because models are sent them."""

    def has_retests(self, tool: str) -> bool:
        """True if a search calls this tool and measures its winners again because there may be noise."""
        return tool == self.tool and self.noisy is not False

    def measure(self, key: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one call of a search; a point with different values shows that there is noise."""
        known = self._replicates.get(key)
        if known is None or known.means.keys() != metrics.keys():
            if len(self._replicates) >= MAX_POINTS:
                del self._replicates[next(iter(self._replicates))]
            self._replicates[key] = Replicate(times=1, means=dict(metrics))
            return
        same = all(math.isclose(known.means[name], value, rel_tol=SAME) for name, value in metrics.items())
        self.noisy = self.noisy or not same
        known.times += 1
        known.means = {name: mean + (metrics[name] - mean) / known.times for name, mean in known.means.items()}

    def learn(self, points: Iterable[Measured], series: Metrics) -> None:
        """Adds the calls of an ended iteration; `series` has the latest value of every metric."""
        self._means = None
        for one in points:
            if one.tool not in self._reports or not self._reports[one.tool] >= one.metrics.keys():
                self._reports.setdefault(one.tool, set()).update(one.metrics)
            if not self._replicates and self._is_no_better(one):
                continue
            values = {limit.criterion_id: self._value(limit, one, series) for limit in self._limits}
            self._enter(self._best, one, values)
            if (known := self._replicates.get(one.key)) is not None:
                known.point, known.limits = one, values

    def _is_no_better(self, one: Measured) -> bool:
        """True if the point certainly changes nothing; only decided if the only goal is also the only limit."""
        goal, best = self._only, self._best
        if goal is None or goal.metric not in one.metrics:
            return False
        kept = (goal.key, "kept")
        return kept in best and not goal.better(one.metrics[goal.metric], best[kept].value)

    def _enter(self, table: Points, one: Measured, values: Mapping[str, float | None]) -> None:
        for goal in self._goals.values():
            source = None if goal.criterion is None else goal.criterion.source
            if goal.metric in one.metrics and source_matches(source, one.tool):
                self._compare(table, goal, one, values)

    def _table(self) -> Points:
        """The best points; with noise, by their means, among those measured most often (up to `ENOUGH` times)."""
        if not self.noisy:
            return self._best
        if self._means is None:
            known = [one for one in self._replicates.values() if one.point is not None]
            most = min(ENOUGH, max((one.times for one in known), default=0))
            self._means = {}
            for one in known if most > 1 else ():
                if one.point is not None and one.times >= most:
                    mean = msgspec.structs.replace(one.point, metrics=one.means, times=one.times)
                    own = {limit.criterion_id: one.means.get(limit.metric) for limit in self._limits}
                    self._enter(self._means, mean, {**one.limits, **{k: v for k, v in own.items() if v is not None}})
        return self._means or self._best

    def best(self) -> Best | None:
        """The best point of the mission; None before there is one."""
        if self._first is not None:
            return self._alone(self._first)
        # Required goals come first, and goals with a direction come before those with one target value.
        goals = [
            (one.criterion is None or not one.criterion.required, one.op in ("==", "!="))
            for one in self._goals.values()
        ]
        known = [self._alone(key) for _, key in sorted(zip(goals, self._goals, strict=True), key=itemgetter(0))]
        found = [one for one in known if one is not None]
        return next((one for one in found if one.point is not None), found[0] if found else None)

    def of(self, key: str) -> Best | None:
        """The best point for one threshold; None before its first value.

        For a limit of the mission's goal it is the best value among the points that meet everything or, without
        such a point, the value at the mission's best point.
        """
        own, best = self._alone(key), self.best()
        if own is None or best is None or best.goal.key == key:
            return own
        point, limit = own.point, own.goal.criterion
        if point is not None and (limit is None or limit not in self._limits or holds(limit, point.value)):
            return msgspec.structs.replace(own, infeasible=None)
        if best.point is not None and own.goal.metric in best.point.metrics:
            value = best.point.metrics[own.goal.metric]
            point = msgspec.structs.replace(best.point, metric=own.goal.metric, value=value)
            return Best(goal=own.goal, point=point, infeasible=None)
        return Best(goal=own.goal, point=None, infeasible=own.infeasible or point)

    def _alone(self, key: str) -> Best | None:
        """The best point for one threshold, with all others as limits, and the better point that violates some."""
        points = [self._table().get((key, standing)) for standing in ("kept", "unknown", "violated")]
        if not any(points):
            return None
        goal, (kept, unknown, violated) = self._goals[key], points
        point = kept or unknown
        better = violated is not None and (point is None or goal.better(violated.value, point.value))
        return Best(goal=goal, point=point, infeasible=violated if better else None)

    def _value(self, limit: MetricThreshold, one: Measured, series: Metrics) -> float | None:
        if limit.metric in one.metrics and source_matches(limit.source, one.tool):
            return one.metrics[limit.metric]
        if limit.metric in self._reports[one.tool]:
            return None  # this tool reports it, but not for this call; values of other calls do not apply
        latest = series.standing(limit.metric, limit.source)
        return latest.value if isinstance(latest, Point) else None

    def _compare(self, table: Points, goal: Goal, one: Measured, values: Mapping[str, float | None]) -> None:
        violates: list[Violation] = []
        unknown: list[Violation] = []
        metrics = dict(one.metrics)
        for limit in self._limits:
            if limit.criterion_id == goal.key or (limit.metric == goal.metric and limit.op[0] == goal.op[0] in "<>"):
                continue
            value = values[limit.criterion_id]
            if value is not None:
                metrics[limit.metric] = value
                if holds(limit, value):
                    continue
            row = Violation(criterion_id=limit.criterion_id, wanted=describe(limit), value=value)
            (unknown if value is None else violates).append(row)
        standing: Standing = "violated" if violates else "unknown" if unknown else "kept"
        value, before = one.metrics[goal.metric], table.get((goal.key, standing))
        if before is None or goal.better(value, before.value):
            table[goal.key, standing] = Candidate(
                metric=goal.metric,
                value=value,
                iteration=one.iteration,
                call_id=one.call_id,
                tool=one.tool,
                args=one.args,
                metrics=metrics,
                violates=violates,
                unknown=unknown,
                times=one.times,
            )


def _goal_of(sought: StoredObjective, thresholds: Sequence[MetricThreshold]) -> Goal | None:
    """The goal of a search with an objective: the threshold on the same metric, if there is one."""
    metric = (sought.metric or "").removeprefix("metrics.")
    own = next((one for one in thresholds if one.metric == metric and one.op != "!="), None)
    if sought.direction is None:
        return None if own is None else Goal(key=own.criterion_id, metric=metric, op=own.op, criterion=own)
    op = "<" if sought.direction == "minimize" else ">"
    if own is not None and own.op[0] == op:
        return Goal(key=own.criterion_id, metric=metric, op=own.op, criterion=own)
    return Goal(key=OBJECTIVE, metric=metric, op=op)


class BestPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The best point of a mission: a call; arguments named like secrets are redacted.

    If no point satisfies all limits, `feasible` is false and `infeasible` is the best point that violates some.
    Otherwise `infeasible` is a better point that violates some limits, if there is one.
    """

    metric: str
    feasible: bool
    value: float | None = None
    iteration: int | None = None
    call_id: str | None = None
    tool: str | None = None
    args: dict[str, Any] | None = None
    metrics: dict[str, float] = {}
    """Those of its metrics that a criterion or the goal names."""
    violates: list[Violation] = []
    unknown: list[Violation] = []
    """The limits for which no tool has reported a value."""
    times: int = 1
    """The number of calls with the same arguments over which the values are averaged."""
    infeasible: Candidate | None = None

    @classmethod
    def of(cls, best: Best | None) -> Self | None:
        """The best point that a mission has found; None before there is one."""
        if best is None:
            return None
        beyond, found = best.infeasible, dict[str, Any]()
        if best.point is not None:
            found |= msgspec.structs.asdict(best.point) | {"args": redacted(best.point.args)}
        shown = None if beyond is None else msgspec.structs.replace(beyond, args=redacted(beyond.args))
        found["metric"] = best.goal.metric
        return cls(**found, feasible=best.point is not None, infeasible=shown)


def violations(point: Candidate) -> str:
    """The limits that a point violates, with its values: `stress <= 13600 (15000)`."""
    return ", ".join(f"{one.wanted} ({one.value:g})" for one in point.violates if one.value is not None)
