"""The verdict cascade: a table of every reason, their order, and each reason reached by a simulated mission."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from pursuit.core.decision import decide, reached_cap
from pursuit.core.evaluate import Answer
from pursuit.core.events import AbortOrdered, CompletionOrdered, Facts
from simulation import DONE, Simulation, call

# In the order of the specification: what makes the rule hold, and what it then says.
RULES: list[tuple[dict[str, Any], str, str]] = [
    ({"operator_stop": "complete", "operator_reason": "good enough"}, "complete", "forced_complete"),
    ({"operator_stop": "abort", "operator_reason": "wrong goal"}, "terminate", "user_abort"),
    ({"checkpoint": True, "required_met": True}, "complete", "criteria_met"),
    ({"never": "solved"}, "terminate", "out_of_reach"),
    ({"cap": "max_iterations"}, "terminate", "max_iterations"),
    ({"cap": "max_wall_clock"}, "terminate", "max_wall_clock"),
    ({"cap": "max_tool_calls"}, "terminate", "max_tool_calls"),
    ({"cap": "max_tokens"}, "terminate", "max_tokens"),
    ({"cap": "max_cost"}, "terminate", "max_cost"),
    ({"proposer_failures": 3}, "terminate", "proposer_failed"),
    ({"no_progress": 4, "threshold": 4}, "terminate", "no_progress"),
    ({"checkpoint": False}, "continue", "cadence_skip"),
    ({"new_error": "lab.run: broke"}, "adjust", "heuristic_unproductive"),
    ({"no_progress": 4, "threshold": 7, "same_calls": True}, "adjust", "heuristic_unproductive"),
    ({}, "continue", "in_progress"),
]


@pytest.mark.guarantee("every-reason")
@pytest.mark.parametrize(("given", "verdict", "reason"), RULES, ids=[f"{r[2]}-{i}" for i, r in enumerate(RULES)])
def test_each_rule_alone(given: dict[str, Any], verdict: str, reason: str) -> None:
    decision = decide(Facts(**given))
    assert (decision.verdict, decision.reason) == (verdict, reason)
    assert decision.final == (verdict in ("complete", "terminate"))


def _compatible(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(second.get(key, value) == value for key, value in first.items())


PAIRS = [(a, b) for a, b in combinations(RULES, 2) if _compatible(a[0], b[0])]


@pytest.mark.guarantee("every-reason")
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a[2]}-over-{b[2]}" for a, b in PAIRS])
def test_when_two_rules_hold_the_earlier_wins(first: Any, second: Any) -> None:
    decision = decide(Facts(**(second[0] | first[0])))
    assert (decision.verdict, decision.reason) == first[1:]


@pytest.mark.parametrize(("limit", "half"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (1_000, 500)])
def test_half_of_the_threshold_is_rounded_up(limit: int, half: int) -> None:
    below = decide(Facts(threshold=limit, no_progress=half - 1, same_calls=True))
    at = decide(Facts(threshold=limit, no_progress=half, same_calls=True))
    assert below.reason == "in_progress"
    assert at.reason == ("no_progress" if half == limit else "heuristic_unproductive")


def test_adjust_needs_equal_calls_and_a_threshold() -> None:
    assert decide(Facts(threshold=5, no_progress=4, same_calls=False)).reason == "in_progress"
    assert decide(Facts(threshold=None, no_progress=400, same_calls=True)).reason == "in_progress"
    assert decide(Facts(threshold=None, new_error="lab.run: broke")).reason == "heuristic_unproductive"


def _reached(simulation: Simulation) -> tuple[str, str, str]:
    last = simulation.state.last_ended
    again = decide(last.facts)
    assert (again.verdict, again.reason) == (last.verdict, last.reason), "the stored facts give the verdict again"
    return last.verdict, last.reason, simulation.state.status


def _operator(word: AbortOrdered | CompletionOrdered) -> Simulation:
    simulation = Simulation()
    simulation.begin(call())
    simulation.fold(word)
    simulation.close()
    return simulation


def _budget(**caps: float) -> Simulation:
    simulation = Simulation(budget={"unbounded": True, **caps})
    simulation.elapsed = 2.0
    simulation.state.tokens, simulation.state.cost_usd = 50, 0.5  # nothing counts these before a model proposes
    simulation.iterate(call(), call())
    return simulation


def _failing() -> Simulation:
    simulation = Simulation(stagnation_threshold="off")
    for _ in range(3):
        assert not simulation.state.terminal
        simulation.begin(failed=["no such tool"])
        simulation.close()
    return simulation


def _stuck(limit: int) -> Simulation:
    simulation = Simulation(stagnation_threshold=limit)
    for _ in range(3):
        assert not simulation.state.terminal
        simulation.iterate(call(digest="same"))
    return simulation


def _one(*calls: Any, **mission: Any) -> Simulation:
    simulation = Simulation(**mission)
    simulation.iterate(*calls)
    return simulation


def _never(*, required: bool = True) -> Simulation:
    """The one answer was judged wrong, on the last iteration of the budget."""
    expect = {"never_exit_codes": [3]}
    judge = {"criterion_id": "j", "kind": "check", "command": ["judge"], "expect": expect, "required": required}
    simulation = Simulation(criteria=[DONE, judge], budget={"max_iterations": 1 if required else 9})
    simulation.iterate(call(), j=Answer(value={"met": False, "never": True}))
    return simulation


SCENES: dict[str, Any] = {
    "forced_complete": (lambda: _operator(CompletionOrdered(reason="fine")), "complete", "completed"),
    "user_abort": (lambda: _operator(AbortOrdered(reason="no")), "terminate", "terminated"),
    "criteria_met": (lambda: _one(call(events=[{"event_name": "done"}])), "complete", "completed"),
    "out_of_reach": (_never, "terminate", "terminated"),
    "max_iterations": (lambda: _budget(max_iterations=1), "terminate", "terminated"),
    "max_wall_clock": (lambda: _budget(max_wall_clock_seconds=2), "terminate", "terminated"),
    "max_tool_calls": (lambda: _budget(max_tool_calls=2), "terminate", "terminated"),
    "max_tokens": (lambda: _budget(max_tokens=50), "terminate", "terminated"),
    "max_cost": (lambda: _budget(max_cost_usd=0.5), "terminate", "terminated"),
    "proposer_failed": (_failing, "terminate", "terminated"),
    "no_progress": (lambda: _stuck(2), "terminate", "terminated"),
    "cadence_skip": (
        lambda: _one(call(), checkpoint_cadence={"kind": "every_n_iterations", "n": 2}),
        "continue",
        "running",
    ),
    "heuristic_unproductive": (lambda: _stuck(4), "adjust", "running"),
    "heuristic_unproductive, new error": (
        lambda: _one(call(outcome="failed", error="broke")),
        "adjust",
        "running",
    ),
    "in_progress": (lambda: _one(call()), "continue", "running"),
    "in_progress, an optional check is out of reach": (lambda: _never(required=False), "continue", "running"),
}


@pytest.mark.guarantee("every-reason")
@pytest.mark.parametrize("name", SCENES)
def test_a_simulated_mission_reaches_every_reason(name: str) -> None:
    scene, verdict, status = SCENES[name]
    assert _reached(scene()) == (verdict, name.partition(",")[0], status)


def test_the_scenes_show_every_reason_of_the_table() -> None:
    assert {name.partition(",")[0] for name in SCENES} == {reason for _given, _verdict, reason in RULES}


def test_of_several_caps_the_first_is_named() -> None:
    budget = {"max_wall_clock_seconds": 2, "max_tool_calls": 2, "max_tokens": 50, "max_cost_usd": 0.5}
    simulation = _budget(max_iterations=1, **budget)
    reasons: list[str | None] = []
    for cap in ("max_iterations", *budget):
        reasons.append(reached_cap(simulation.state, elapsed=2.0, iterations=1))
        simulation.state.budget[cap] = -1
    reasons.append(reached_cap(simulation.state, elapsed=2.0, iterations=1))
    assert reasons == ["max_iterations", "max_wall_clock", "max_tool_calls", "max_tokens", "max_cost", None]


@pytest.mark.parametrize(("used", "cap"), [(1.999, None), (2.0, "max_wall_clock"), (2.5, "max_wall_clock")])
def test_wall_clock_counts_earlier_runs(used: float, cap: str | None) -> None:
    simulation = Simulation(budget={"max_wall_clock_seconds": 2})
    simulation.state.elapsed_before = 1.0
    assert reached_cap(simulation.state, elapsed=used - 1.0) == cap


def test_a_budget_that_waits_ends_nothing() -> None:
    simulation = Simulation(budget={"max_iterations": 1, "on_exhausted": "wait"})
    ended = simulation.iterate(call())
    assert (ended.verdict, ended.facts.cap) == ("continue", None)
    assert (simulation.state.status, simulation.state.waiting_for) == ("waiting", "budget")
    assert simulation.state.wait_detail == "max_iterations"
