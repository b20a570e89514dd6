"""Progress is a property: a mission ends for the lack of it exactly if no required criterion moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core.evaluate import Answer
from pursuit.core.events import MissionResumed, RunClaimed, Source
from simulation import DONE, Simulation, call, threshold

IDLE = call("lab.idle", digest="idle")
OPTIONAL = [threshold("extra", ">=", 1e9, required=False), {**DONE, "criterion_id": "flag", "required": False}]


@dataclass
class Kind:
    """A criterion that nothing meets; `step` is one move of it in its own terms."""

    name: str
    steps: int = 0

    @property
    def criterion(self) -> dict[str, Any]:
        match self.name:
            case "threshold":
                return threshold("loss", "<", 0)
            case "confirm":
                return threshold("score", ">", 0, confirm=100)
            case "rejected":
                return threshold("luck", ">", 0, confirm=3)
            case "count":
                return {
                    "criterion_id": "count",
                    "kind": "tool_call_succeeded",
                    "tool_name": "lab.work",
                    "min_count": 999,
                }
            case "points":
                return trend("points", min_points=999)
            case "slope":
                return trend("slope", window=2)
            case "check":
                return {"criterion_id": "check", "kind": "check", "tool_name": "lab.verify"}
            case "predicate":
                return {"criterion_id": "predicate", "kind": "predicate", "expression": "False"}
            case _:
                return {"criterion_id": "event", "kind": "event", "event_name": "never"}

    def step(self) -> dict[str, Any]:
        self.steps += 1
        match self.name:
            case "threshold":
                return call(metrics={"loss": 100 * 0.9**self.steps})
            case "confirm":
                return call("lab.score", metrics={"score": 0.5})
            case "rejected":  # one lucky value, and then ever more that the criterion asks for
                return call("lab.luck", metrics={"luck": 1.0 if self.steps == 1 else -1.0})
            case "count":
                return call("lab.work", digest="same")
            case "points":
                return call(metrics={"points": 1.0})
            case "slope":  # it rises less and less
                return call(metrics={"slope": sum(0.8**n for n in range(self.steps))})
            case _:
                return IDLE

    @property
    def answer(self) -> dict[str, Answer]:
        value = {"met": False, "exit_code": {"value": self.steps, "met": False}}
        source = Source(tool="lab.verify", call_id="v", iteration=0)
        answers = {"check": Answer(value=value, source=source), "predicate": Answer(value=False)}
        return {self.name: answers[self.name]} if self.name in answers else {}


def trend(metric: str, **more: Any) -> dict[str, Any]:
    given = {"criterion_id": metric, "kind": "metric_trend", "metric": metric, "direction": "decreasing"}
    return {**given, **more}


MOVING = ("threshold", "confirm", "rejected", "count", "points", "slope", "check")
VAGUE = ("event", "predicate")
names = st.lists(st.sampled_from((*MOVING, *VAGUE)), min_size=1, max_size=4, unique=True)
limits = st.none() | st.integers(1, 5)


def mission(kinds: list[Kind], limit: int | None, cap: int) -> Simulation:
    criteria = [*(kind.criterion for kind in kinds), *OPTIONAL]
    return Simulation(criteria=criteria, stagnation_threshold=limit, budget={"max_iterations": cap})


def play(simulation: Simulation, kinds: list[Kind], calls: list[dict[str, Any]]) -> None:
    answers = {name: one for kind in kinds for name, one in kind.answer.items()}
    simulation.iterate(*calls, **answers)


@settings(max_examples=100, deadline=None)
@given(names, st.sampled_from(MOVING), limits, st.data())
@pytest.mark.guarantee("progress-in-own-terms")
def test_a_mission_in_which_a_required_criterion_moves_in_each_window_goes_on(
    chosen: list[str], one: str, limit: int | None, data: st.DataObject
) -> None:
    kinds = [Kind(name) for name in dict.fromkeys([one, *chosen])]
    moving = [kind for kind in kinds if kind.name in MOVING]
    simulation = mission(kinds, limit, cap=1_000)
    play(simulation, kinds, [kind.step() for kind in moving])
    play(simulation, kinds, [kind.step() for kind in moving])
    for _ in range(8):
        for _ in range(data.draw(st.integers(0, (limit or 3) - 1))):
            play(simulation, kinds, [IDLE])
        play(simulation, kinds, [data.draw(st.sampled_from(moving)).step()])
    assert simulation.state.status == "running", simulation.state.last_ended
    assert simulation.state.no_progress == 0


@settings(max_examples=60, deadline=None)
@given(names, limits, st.booleans())
@pytest.mark.guarantee("progress-in-own-terms")
def test_a_mission_in_which_nothing_moves_ends_after_the_threshold(
    chosen: list[str], limit: int | None, resumed: bool
) -> None:
    """Optional criteria move meanwhile, and values that are reported again do not."""
    kinds = [Kind(name) for name in chosen]
    simulation = mission(kinds, limit, cap=20)
    said = [call(metrics={"loss": 5.0, "extra": 0.0}, digest="same")]

    def stay() -> int:
        before = simulation.state.iteration_count
        while not simulation.state.terminal:
            at = simulation.state.iteration_count
            extra = call("lab.extra", metrics={"extra": float(at)}, events=[{"event_name": "done"}] if at == 2 else [])
            play(simulation, kinds, [said[0], {**extra, "settled": {**extra["settled"], "digest": "same"}}])
        return simulation.state.iteration_count - before

    lasted = stay()
    if limit is None and all(name in VAGUE for name in chosen):
        assert (simulation.state.verdict_reason, lasted) == ("max_iterations", 20)
        return
    assert (simulation.state.verdict_reason, lasted) == ("no_progress", (limit or 3) + 1)
    if resumed:
        simulation.fold(MissionResumed(reopens=True), RunClaimed(run="r2", pid=2, host="here"))
        assert (simulation.state.status, simulation.state.no_progress) == ("running", 0)
        assert (stay(), simulation.state.verdict_reason) == (limit or 3, "no_progress")


def test_a_resume_that_came_late_does_not_reopen_what_ended() -> None:
    """An old ledger may hold a resume after the end: it was said to a mission that was paused."""
    simulation = mission([Kind("threshold")], 1, cap=9)
    while not simulation.state.terminal:
        play(simulation, [], [IDLE])
    simulation.fold(MissionResumed())
    assert (simulation.state.status, simulation.state.verdict_reason) == ("terminated", "no_progress")
