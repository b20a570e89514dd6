"""The best point that a mission has found: the call with the best value of the goal among those that keep all limits.

A point is one call with its metrics. A limit whose metric this tool never reports is judged by the latest value of
another tool. The goal is the objective of a search; otherwise the first required threshold for which some point keeps
all others, so a threshold that nothing reaches is the goal and not a limit.

A search treats its tool as a function of the arguments, so calls with the same arguments are one point. If they give
different values there is noise: then the mean of a point counts, and only the points that were measured most often
compete, because the best of many single values is the luckiest one.

Pure. Invariant: a point that violates a limit is never the best one; memory does not grow with the mission's age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from pursuit.core.audit import redacted
from pursuit.core.criteria import Comparison, MetricThreshold, describe
from pursuit.core.mission import Mission
from pursuit.core.observe import source_matches
from pursuit.core.proposing import StoredObjective
from pursuit.core.series import Metrics, Point, better, holds

OBJECTIVE = "objective"
"""The key of a search's objective that is not a threshold of the mission."""
SAME = 1e-9
"""Values of one point that differ by at most this share are the same: the rest is rounding."""
ENOUGH = 3
"""With noise, the measurements that make a point comparable with one that was measured more often."""
MOST_POINTS = 10_000
"""The points of a search whose measurements are kept; the oldest are forgotten first."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of an iteration that ended, with the metrics that matter here."""

    iteration: int
    call_id: str
    tool: str
    args: dict[str, Any]
    metrics: dict[str, float]
    key: str = ""
    """What makes two calls the same point, where that matters."""
    times: int = 1
    """How many calls of the point the metrics are the mean of."""


class Violation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit that a point does not keep; without a value it is not known whether it does."""

    criterion_id: str
    wanted: str
    value: float | None


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call that reported the goal's metric; `metrics` are all that a threshold or the goal names."""

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
    """How many calls of the same arguments the values are the mean of."""


class Goal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The metric that is made small or large, or brought to its target; `key` is the id of its criterion."""

    key: str
    metric: str
    op: Comparison
    criterion: MetricThreshold | None = None

    def better(self, value: float, other: float) -> bool:
        """Whether a value is strictly better than another one."""
        return better(self.op, 0.0 if self.criterion is None else self.criterion.target, value, other)


class Best(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The best point of a goal, and the better one that violates limits, if there is one.

    `point` is None while every point violates a limit. A limit that no tool has reported yet does not exclude a
    point, which then names it in `unknown`.
    """

    goal: Goal
    point: Candidate | None
    infeasible: Candidate | None


Standing = Literal["kept", "unknown", "violated"]
Points = dict[tuple[str, Standing], Candidate]
"""The best point of each goal and standing."""


class Replicate(msgspec.Struct, kw_only=True, gc=False):
    """A point of a search: the means of its metrics over all calls that had them all, and the latest of these."""

    times: int
    means: dict[str, float]
    point: Measured | None = None
    limits: Mapping[str, float | None] = {}


class BestPoints:
    """Follows the points of a mission: for each goal the best one that keeps the limits, and the best of the others."""

    __slots__ = ("_best", "_first", "_goals", "_limits", "_means", "_replicates", "_reports", "_tool", "names", "noisy")

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
        self._best: Points = {}
        self._means: Points | None = None
        self._tool = None if sought is None else sought.tool
        self._replicates: dict[str, Replicate] = {}
        self.noisy = False if sought is None else sought.noise
        """Whether equal calls of a search give different values; None while that is not known."""
        self._reports: dict[str, set[str]] = {}
        named = (one.metric for one in (*self._goals.values(), *self._limits))
        self.names = tuple(dict.fromkeys(named))
        """The metrics that matter here, in an order that no process changes: a model is sent them."""

    def has_retests(self, tool: str) -> bool:
        """Whether the winners of this tool, which a search calls, are measured again: there may be noise."""
        return tool == self._tool and self.noisy is not False

    def measure(self, key: str, metrics: Mapping[str, float]) -> None:
        """Takes in the metrics of one call of a search: a point whose values differ shows that there is noise."""
        known = self._replicates.get(key)
        if known is None or known.means.keys() != metrics.keys():
            if len(self._replicates) >= MOST_POINTS:
                del self._replicates[next(iter(self._replicates))]
            self._replicates[key] = Replicate(times=1, means=dict(metrics))
            return
        same = all(math.isclose(known.means[name], value, rel_tol=SAME) for name, value in metrics.items())
        self.noisy = self.noisy or not same
        known.times += 1
        known.means = {name: mean + (metrics[name] - mean) / known.times for name, mean in known.means.items()}

    def learn(self, points: Iterable[Measured], series: Metrics) -> None:
        """Takes in the calls of an iteration that ended; `series` has the latest value of every metric."""
        self._means = None
        for one in points:
            self._reports.setdefault(one.tool, set()).update(one.metrics)
            values = {limit.criterion_id: self._value(limit, one, series) for limit in self._limits}
            self._enter(self._best, one, values)
            if (known := self._replicates.get(one.key)) is not None:
                known.point, known.limits = one, values

    def _enter(self, table: Points, one: Measured, values: Mapping[str, float | None]) -> None:
        """Compares a point with the best one of each goal."""
        for goal in self._goals.values():
            source = None if goal.criterion is None else goal.criterion.source
            if goal.metric in one.metrics and source_matches(source, one.tool):
                self._compare(table, goal, one, values)

    def _table(self) -> Points:
        """The best points; with noise by the means of those that were measured most often, up to `ENOUGH` times."""
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
        known = [self._alone(key) for key in self._order()]
        found = [one for one in known if one is not None]
        return next((one for one in found if one.point is not None), found[0] if found else None)

    def of(self, key: str) -> Best | None:
        """The best point for one threshold; None before its first value.

        Where it is a limit of the mission's goal, that is the best value among the points that meet everything, and
        without such a point the value at the mission's best point.
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
        """The best point for one threshold, with all others as limits, and the better one that violates some."""
        points = [self._table().get((key, standing)) for standing in ("kept", "unknown", "violated")]
        if not any(points):
            return None
        goal, (kept, unknown, violated) = self._goals[key], points
        point = kept or unknown
        better = violated is not None and (point is None or goal.better(violated.value, point.value))
        return Best(goal=goal, point=point, infeasible=violated if better else None)

    def _order(self) -> Sequence[str]:
        """The goals: required ones before others, those with a direction before those with one wanted value."""

        def place(goal: Goal) -> tuple[bool, bool]:
            return goal.criterion is None or not goal.criterion.required, goal.op in ("==", "!=")

        return [goal.key for goal in sorted(self._goals.values(), key=place)]

    def _value(self, limit: MetricThreshold, one: Measured, series: Metrics) -> float | None:
        if limit.metric in one.metrics and source_matches(limit.source, one.tool):
            return one.metrics[limit.metric]
        if limit.metric in self._reports[one.tool]:
            return None  # this tool reports it, and did not for this call: another call's value says nothing
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
    """The goal of a search with an objective: the threshold that it stands for, if there is one."""
    metric = (sought.metric or "").removeprefix("metrics.")
    own = next((one for one in thresholds if one.metric == metric and one.op != "!="), None)
    if sought.direction is None:
        return None if own is None else Goal(key=own.criterion_id, metric=metric, op=own.op, criterion=own)
    op = "<" if sought.direction == "minimize" else ">"
    if own is not None and own.op[0] == op:
        return Goal(key=own.criterion_id, metric=metric, op=own.op, criterion=own)
    return Goal(key=OBJECTIVE, metric=metric, op=op)


class BestPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The best point of a mission: a call, with arguments that are named like secrets redacted.

    Where no point keeps all limits (`feasible` is false) only the best of the others is there, as `infeasible`; where
    one does, that is a better point that violates some.
    """

    metric: str
    feasible: bool
    value: float | None = None
    iteration: int | None = None
    call_id: str | None = None
    tool: str | None = None
    args: dict[str, Any] | None = None
    metrics: dict[str, float] = {}
    """Its metrics that a criterion or the goal names."""
    violates: list[Violation] = []
    unknown: list[Violation] = []
    """The limits for which no tool has reported a value."""
    times: int = 1
    """How many calls of the same arguments the values are the mean of."""
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
    """What a point violates, in words: `stress <= 13600 (15000)`."""
    return ", ".join(f"{one.wanted} ({one.value:g})" for one in point.violates if one.value is not None)
