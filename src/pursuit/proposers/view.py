"""What a Python function that proposes sees of its mission, and how it says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pursuit.core.budgets import used_of
from pursuit.core.criteria import describe
from pursuit.core.mission import Proposal, ToolCall
from pursuit.core.state import CallRecord, IterationRecord, MissionState
from pursuit.proposers.contract import Done, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCriterion:
    """A criterion with its last result; `status` is met, unmet, inconclusive or pending."""

    criterion_id: str
    description: str
    required: bool
    status: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call with its outcome; `result` is the tool's MCP result."""

    tool: str
    args: Mapping[str, Any]
    outcome: str | None
    result: Any = None
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenIteration:
    """An iteration with its calls, in order."""

    number: int
    calls: Sequence[SeenCall]


class View:
    """A mission as its proposer sees it, valid while the proposer is asked. Only `memory` survives the call."""

    def __init__(self, state: MissionState, faults: Sequence[str], memory: dict[str, Any]) -> None:
        self._state = state
        self.faults: Sequence[str] = tuple(faults)
        """Why the last proposal for this iteration was refused; empty at the first one."""
        self.memory = memory
        """A dictionary of JSON values that is stored with the proposal, at most 64 KiB."""

    @property
    def directive(self) -> str:
        """The goal in words."""
        return self._state.mission.directive

    @property
    def iteration(self) -> int:
        """The number of iterations that have ended: 0 at the first proposal."""
        return self._state.iteration_count

    @property
    def criteria(self) -> list[SeenCriterion]:
        """The criteria with their last results."""
        results = self._state.results
        return [
            SeenCriterion(
                criterion_id=one.criterion_id,
                description=describe(one),
                required=one.required,
                status=found.status if (found := results.get(one.criterion_id)) is not None else "pending",
                evidence=dict(found.evidence) if found is not None else {},
            )
            for one in self._state.mission.criteria
        ]

    @property
    def budget_left(self) -> Mapping[str, float]:
        """How much of each cap is left, by its name; a cap that is not set is not there."""
        used = {**used_of(self._state), "max_wall_clock_seconds": self._state.wall_clock}
        return {name: max(0, cap - used.get(name, 0)) for name, cap in self._state.budget.items() if cap != -1}

    @property
    def history(self) -> list[SeenIteration]:
        """The last 20 iterations, the newest last."""
        return [
            SeenIteration(number=one.index, calls=[_seen(one, call) for call in one.calls.values()])
            for one in self._state.recent
        ]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last value of each metric."""
        return dict(self._state.metrics)

    def trials(self, count: int = 20) -> list[SeenCall]:
        """The newest calls with metrics, the newest last."""
        made = [
            _seen(one, call)
            for one in self._state.recent
            for call in one.calls.values()
            if call.call_id in one.measured and call.purpose != "check"
        ]
        return made[-count:]


def _seen(iteration: IterationRecord, call: CallRecord) -> SeenCall:
    return SeenCall(
        tool=call.tool,
        args=call.args,
        outcome=call.outcome,
        result=call.result,
        error=call.error,
        metrics=iteration.measured.get(call.call_id, {}),
    )


def call(tool: str, /, **args: Any) -> ToolCall:
    """A call of a tool, to be proposed."""
    return ToolCall(tool_name=tool, args=args)


def script(source: str) -> Proposal:
    """A script, to be proposed: it runs in the sandbox."""
    return Proposal(script=source)


def nothing() -> Proposal:
    """No call in this iteration; the criteria are evaluated all the same."""
    return Proposal(tool_calls=[])


def wait(seconds: float) -> Waiting:
    """Nothing can be proposed now: the proposer is asked again after these seconds."""
    return Waiting("pace", until=seconds)


def done(reason: str) -> Done:
    """There is nothing more to try: the mission ends as terminated, and `extend` continues it."""
    return Done(reason)
