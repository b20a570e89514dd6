"""The aim of a search, from a mission's metric criteria: one number to minimize, and limits to keep. Pure.

Invariant: every excess of a trial is at most zero exactly if the trial keeps all limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pursuit.core.criteria import MetricThreshold
from pursuit.core.mission import Mission
from pursuit.core.observe import source_matches
from pursuit.core.series import distance, holds
from pursuit.errors import Fault
from pursuit.proposers.search.settings import SearchProposer

LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a trial: the number to minimize (None: only limits count), and the excess over each limit.

    `firm` is the excess over the limits that do not give way, `giving` that over the limit that does.
    """

    objective: float | None
    excess: tuple[float, ...]
    met: bool
    firm: float = 0.0
    giving: float = 0.0

    @property
    def rank(self) -> tuple[float, ...]:
        """The order of trials, the best last: first whether all is met, then the firm limits.

        Then whether the limit that gives way is kept, then the objective, then that limit's excess.
        """
        own = 0.0 if self.objective is None else -self.objective
        return (self.met, -self.firm, self.giving <= 0, own, -self.giving)


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric to minimize, maximize, or bring to its target."""

    metric: str
    sign: float = 1.0
    target: float | None = None

    def of(self, value: float) -> float:
        return self.sign * value if self.target is None else abs(value - self.target)


@dataclass(frozen=True, slots=True)
class Aim:
    """An objective, limits, and every threshold that counts as success; `gives_way` is the id of a limit."""

    objective: Objective | None
    limits: tuple[MetricThreshold, ...]
    wanted: tuple[MetricThreshold, ...]
    gives_way: str | None = None
    target: float | None = None
    """The value that the objective has to reach, as a number to minimize."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The required metrics, without repetitions."""
        own = () if self.objective is None else (self.objective.metric,)
        return tuple(dict.fromkeys([*own, *(limit.metric for limit in self.limits)]))

    def score(self, metrics: Mapping[str, float], untold: Collection[str] = ()) -> Score | None:
        """The score of these metrics; None if a needed one is missing.

        A metric that no trial has reported (`untold`) counts as a kept limit, and never as met.
        """
        needed = [name for name in self.metrics if name not in untold]
        if not needed or any(name not in metrics for name in needed):
            return None
        own, value = self.objective, None
        if own is not None:
            value = _bounded(own.of(metrics[own.metric])) if own.metric in metrics else 0.0
        excess = tuple(0.0 if one.metric in untold else _excess(one, metrics[one.metric]) for one in self.limits)
        beyond = dict(zip((one.criterion_id for one in self.limits), excess, strict=True))
        giving = 0.0 if self.gives_way is None else beyond.pop(self.gives_way, 0.0)
        firm = sum(max(0.0, one) for one in beyond.values())
        met = [one.metric in metrics and holds(one, metrics[one.metric]) for one in self.wanted]
        return Score(value, excess, bool(met) and all(met), firm, giving)


def aim_of(mission: Mission, search: SearchProposer, tool: str) -> tuple[Aim, list[Fault]]:
    """The mission's requirements for the tool's metrics, and the faults of the search's settings."""
    faults: list[Fault] = []
    thresholds = [
        one for one in mission.criteria if isinstance(one, MetricThreshold) and source_matches(one.source, tool)
    ]
    required = [one for one in thresholds if one.required]
    limits = required if search.constraints is None else _named(search.constraints, thresholds, faults)
    objective, done = _objective(search, thresholds, limits, faults)
    wanted = required
    if not required and (search.objective is None or done is not None):  # then the search's own limits are success
        wanted = [*limits, *([] if done is None or done in limits else [done])]
    if objective is None and not limits and not faults:
        reason = f"needs an objective, or a required metric_threshold whose source is {tool}"
        faults.append(Fault(field="proposer.objective", reason=reason))
    rest = tuple(limit for limit in limits if limit is not done)
    known = [one.criterion_id for one in limits]
    if search.gives_way is not None and search.gives_way not in known:
        reason = f"{search.gives_way!r} is not a limit of this search; the limits are {', '.join(known) or 'none'}"
        faults.append(Fault(field="proposer.gives_way", reason=reason))
    one_sided = objective is not None and done is not None and objective.target is None
    target = objective.of(done.target) if one_sided and objective and done is not None else None
    return Aim(objective, rest, tuple(wanted), search.gives_way, target), faults


def _named(
    names: Sequence[str], thresholds: Sequence[MetricThreshold], faults: list[Fault]
) -> Sequence[MetricThreshold]:
    known = {one.criterion_id: one for one in thresholds}
    for place, name in enumerate(names):
        if name not in known:
            reason = f"{name!r} is not a metric_threshold of this tool; they are {', '.join(known) or 'none'}"
            faults.append(Fault(field=f"proposer.constraints[{place}]", reason=reason))
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _objective(
    search: SearchProposer,
    thresholds: Sequence[MetricThreshold],
    limits: Sequence[MetricThreshold],
    faults: list[Fault],
) -> tuple[Objective | None, MetricThreshold | None]:
    """The objective, and the limit that it stands for."""
    if search.objective is None:
        only = limits[0] if len(limits) == 1 and limits[0].op != "!=" else None
        return (None, None) if only is None else (_towards(only), only)
    metric = search.objective.removeprefix("metrics.")
    own = next((one for one in thresholds if one.metric == metric and one.op != "!="), None)
    if search.direction is not None:
        sign = 1.0 if search.direction == "minimize" else -1.0
        same = own if own is not None and _towards(own) == Objective(metric, sign) else None
        return Objective(metric, sign), same
    if own is None:
        reason = f"no threshold says which way {metric!r} is better; give direction, minimize or maximize"
        faults.append(Fault(field="proposer.direction", reason=reason))
        return None, None
    return _towards(own), own


def _towards(criterion: MetricThreshold) -> Objective:
    match criterion.op:
        case "<" | "<=":
            return Objective(criterion.metric)
        case ">" | ">=":
            return Objective(criterion.metric, -1.0)
        case "==" | "!=":
            return Objective(criterion.metric, target=criterion.target)
        case _ as unknown:
            assert_never(unknown)


def _excess(limit: MetricThreshold, value: float) -> float:
    """The excess of a value over its limit, in the metric's unit; zero or less exactly if the limit is kept."""
    beyond = distance(limit, value)
    return _bounded(-abs(value - limit.target) if not beyond and limit.op[0] in "<>" else beyond)


def _bounded(value: float) -> float:
    return max(-LARGEST, min(LARGEST, value))
