"""Drives the pure core over iterations that tests make up: no engine, no ledger, no clock.

Owns: the events of a run, built by hand in the order in which the engine writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pursuit.core.evaluate import Answer, evaluate
from pursuit.core.events import (
    CallIntended,
    CallSettled,
    CriterionResult,
    Event,
    IterationEnded,
    IterationProposed,
    MissionCreated,
    PlannedCall,
    RunClaimed,
    ScriptEnded,
)
from pursuit.core.fold import advance
from pursuit.core.state import MissionState
from pursuit.engine.turn import closing

TOOL = "lab.run"
DONE: dict[str, Any] = {"criterion_id": "done", "kind": "event", "event_name": "done"}


def threshold(metric: str = "mass", op: str = "<=", target: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"criterion_id": metric, "kind": "metric_threshold", "metric": metric, "op": op, "target": target, **more}


def mission_data(**changes: Any) -> dict[str, Any]:
    """A mission that is well formed, as plain data; it ends when the event `done` is seen."""
    return {
        "directive": "Make it light",
        "criteria": [DONE],
        "budget": {"max_iterations": 1_000},
        "allow_all_tools": True,
        "proposer": {"kind": "script", "script": "pass"},
        **changes,
    }


def call(tool: str = TOOL, *, args: Mapping[str, Any] | None = None, **settled: Any) -> dict[str, Any]:
    """One call as `Simulation.iterate` takes it: `settled` are fields of `CallSettled`."""
    return {"tool": tool, "args": dict(args or {}), "settled": settled}


class Simulation:
    """One mission that is folded forward; `now` and `elapsed` move only when told to."""

    def __init__(self, **changes: Any) -> None:
        self.now = 0.0
        self.elapsed = 0.0
        self.state: MissionState = advance(None, MissionCreated(mission=mission_data(**changes), tools=[TOOL]))
        self.fold(RunClaimed(run="r1", pid=1, host="here"))

    def fold(self, *events: Event) -> None:
        for event in events:
            self.state = advance(self.state, event)

    def begin(self, *calls: Mapping[str, Any], failed: Sequence[str] = (), script: str | None = None) -> None:
        """Proposes an iteration and settles its calls, but leaves it open."""
        index = self.state.iteration_count
        planned = [
            PlannedCall(call_id=f"c{index}.{order}", tool=each["tool"], args=each["args"])
            for order, each in enumerate(calls)
        ]
        kind = self.state.mission.proposer.kind
        self.fold(
            IterationProposed(
                at=self.now, iteration=index, proposer=kind, calls=planned, failed=list(failed), script=script
            )
        )
        for order, each in enumerate(calls):
            self.intend(each, order)
        for order, each in enumerate(calls):
            self.settle(each, order)

    def intend(self, each: Mapping[str, Any], order: int) -> None:
        index = self.state.iteration_count
        self.fold(
            CallIntended(
                call_id=f"c{index}.{order}", iteration=index, tool=each["tool"], args=each["args"], order=order
            )
        )

    def settle(self, each: Mapping[str, Any], order: int) -> None:
        index = self.state.iteration_count
        fields: dict[str, Any] = {"outcome": "ok", "digest": f"d{index}.{order}", **each["settled"]}
        self.fold(CallSettled(call_id=f"c{index}.{order}", iteration=index, elapsed=self.elapsed, **fields))

    def end_script(self, **fields: Any) -> None:
        self.fold(ScriptEnded(iteration=self.state.iteration_count, **fields))

    def close(self, **answers: Answer) -> IterationEnded:
        """Ends the open iteration; what follows from it (an end, a wait) is folded too."""
        events = closing(self.state, answers, now=self.now, elapsed=self.elapsed)
        self.fold(*events)
        assert isinstance(events[0], IterationEnded)
        return events[0]

    def iterate(self, *calls: Mapping[str, Any], **answers: Answer) -> IterationEnded:
        self.begin(*calls)
        return self.close(**answers)

    def results(self, **answers: Answer) -> dict[str, CriterionResult]:
        """How the criteria stand now."""
        return {result.criterion_id: result for result in evaluate(self.state, answers)}
