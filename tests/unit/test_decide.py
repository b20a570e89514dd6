"""The verdict cascade: a table of every reason, their order, and each reason reached by a simulated mission."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

from pursuit.core.decision import decide, reached_cap
from pursuit.core.evaluate import Answer
from pursuit.core.events import AbortOrdered, CompletionOrdered, Facts, IterationEnded, MissionEnded, WaitBegan
from pursuit.engine.turn import closing
from simulation import DONE, Simulation, call, threshold

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


def test_the_pairs_cover_every_neighbour_that_can_hold_at_once() -> None:
    exclusive = {(a[2], b[2]) for a, b in pairwise(RULES) if not _compatible(a[0], b[0])}
    caps = ["max_iterations", "max_wall_clock", "max_tool_calls", "max_tokens", "max_cost"]
    assert exclusive == {("forced_complete", "user_abort"), *pairwise(caps)}


@pytest.mark.guarantee("every-reason")
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a[2]}-over-{b[2]}" for a, b in PAIRS])
def test_when_two_rules_hold_the_earlier_wins(first: Any, second: Any) -> None:
    decision = decide(Facts(**(second[0] | first[0])))
    assert (decision.verdict, decision.reason) == first[1:]


def test_the_operators_reason_is_kept() -> None:
    assert decide(Facts(operator_stop="abort", operator_reason="wrong goal")).rationale == "wrong goal"
    assert decide(Facts(operator_stop="complete", operator_reason="fine")).rationale == "fine"


def test_met_criteria_off_a_checkpoint_complete_nothing() -> None:
    assert decide(Facts(checkpoint=False, required_met=True)).reason == "cadence_skip"


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_fewer_than_three_proposer_failures_go_on(failures: int) -> None:
    assert decide(Facts(proposer_failures=failures)).reason == "in_progress"


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


def test_adjust_tells_the_proposer_why() -> None:
    assert "lab.run: broke" in (decide(Facts(new_error="lab.run: broke")).rationale or "")
    assert "same calls" in (decide(Facts(threshold=5, no_progress=3, same_calls=True)).rationale or "")


def _reached(simulation: Simulation) -> tuple[str, str, str]:
    last = simulation.state.last_ended
    assert last is not None
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


def _stuck() -> Simulation:
    simulation = Simulation(stagnation_threshold=2)
    for _ in range(3):
        assert not simulation.state.terminal
        simulation.iterate(call(digest="same"))
    return simulation


def _same_calls() -> Simulation:
    simulation = Simulation(stagnation_threshold=4)
    for _ in range(3):
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
    "no_progress": (_stuck, "terminate", "terminated"),
    "cadence_skip": (
        lambda: _one(call(), checkpoint_cadence={"kind": "every_n_iterations", "n": 2}),
        "continue",
        "running",
    ),
    "heuristic_unproductive": (_same_calls, "adjust", "running"),
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


def test_the_verdict_can_be_recomputed_from_the_stored_facts() -> None:
    for scene, _verdict, _status in SCENES.values():
        last = scene().state.last_ended
        assert last is not None
        assert decide(last.facts)[:2] == (last.verdict, last.reason)


def test_the_events_that_close_an_iteration() -> None:
    simulation = Simulation(criteria=[threshold(), DONE], proposer={"kind": "client"})
    simulation.begin(call(metrics={"mass": 0.5}))
    ended, wait = closing(simulation.state, {}, now=7.0, elapsed=1.0)
    assert isinstance(ended, IterationEnded)
    assert [result.status for result in ended.criteria] == ["met", "unmet"]
    assert isinstance(wait, WaitBegan)
    assert wait.waiting_for == "proposal"
    simulation.settle(call(events=[{"event_name": "done"}]), 0)
    ended, end = closing(simulation.state, {}, now=7.0, elapsed=1.0)
    assert end == MissionEnded(at=7.0, status="completed", verdict="complete", reason="criteria_met", elapsed=1.0)
    simulation.fold(ended, end)
    assert closing(simulation.state, {}, now=8.0, elapsed=1.0) == []
