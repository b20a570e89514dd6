"""The view that a proposing Python function has of its mission, and the answers that it can return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.core.budgets import used_of
from pursuit.core.history import Call, Iteration
from pursuit.core.mission import Proposal, ToolCall
from pursuit.core.report import CriterionRow, criteria_rows
from pursuit.core.state import CallRecord, IterationRecord, MissionState
from pursuit.proposers.contract import Done, Waiting


class View:
    """A mission as its proposer sees it, valid during one call. Only `memory` survives the call."""

    def __init__(self, state: MissionState, faults: Sequence[str], memory: dict[str, Any]) -> None:
        self._state = state
        self.faults: Sequence[str] = tuple(faults)
        """Why the previous proposal for this iteration was refused; empty for the first."""
        self.memory = memory
        """JSON values that are stored with the answer, at most 64 KiB."""

    @property
    def directive(self) -> str:
        """The goal in words."""
        return self._state.mission.directive

    @property
    def iteration(self) -> int:
        """The number of iterations that have ended: 0 at the first proposal."""
        return self._state.iteration_count

    @property
    def criteria(self) -> list[CriterionRow]:
        """The criteria with their last results."""
        return criteria_rows(self._state)

    @property
    def budget_left(self) -> Mapping[str, float]:
        """The rest of each cap by name, without caps that are not set."""
        used = {**used_of(self._state), "max_wall_clock_seconds": self._state.wall_clock}
        return {name: max(0, cap - used.get(name, 0)) for name, cap in self._state.budget.items() if cap != -1}

    @property
    def history(self) -> list[Iteration]:
        """The last 20 iterations with their calls, the newest last."""
        return [
            Iteration(index=one.index, calls=[_shown(one, call) for call in one.calls.values()])
            for one in self._state.recent
        ]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last value of each metric."""
        return dict(self._state.metrics)

    def trials(self, count: int = 20) -> list[Call]:
        """The newest calls with metrics in the last 20 iterations, the newest last."""
        made = [
            _shown(one, call)
            for one in self._state.recent
            for call in one.calls.values()
            if call.call_id in one.measured and call.purpose != "check"
        ]
        return made[-count:]


def _shown(iteration: IterationRecord, call: CallRecord) -> Call:
    return Call(
        call_id=call.call_id,
        iteration=iteration.index,
        tool=call.tool,
        args=call.args,
        purpose=call.purpose,
        outcome=call.outcome,
        result=call.preview if call.result is None else call.result,
        error=call.error,
        metrics=dict(iteration.measured.get(call.call_id, {})),
    )


def call(tool: str, /, **args: Any) -> ToolCall:
    """Proposes a call of a tool."""
    return ToolCall(tool_name=tool, args=args)


def script(source: str) -> Proposal:
    """Proposes a script, which runs in the sandbox."""
    return Proposal(script=source)


def nothing() -> Proposal:
    """Proposes no call in this iteration; the criteria are evaluated anyway."""
    return Proposal(tool_calls=[])


def wait(seconds: float) -> Waiting:
    """Proposes nothing now: the proposer is called again after these seconds."""
    return Waiting("pace", until=seconds)


def done(reason: str) -> Done:
    """Ends the mission as terminated, because nothing is left to try; `extend` continues it."""
    return Done(reason)
