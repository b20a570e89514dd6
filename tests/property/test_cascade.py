"""The cascade over random facts, and random missions whose end the rules foresee."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core.decision import decide
from pursuit.core.evaluate import Answer
from pursuit.core.events import Facts
from simulation import DONE, Simulation, call

REASONS = {
    ("complete", "forced_complete"),
    ("terminate", "user_abort"),
    ("complete", "criteria_met"),
    *(("terminate", cap) for cap in ("max_iterations", "max_wall_clock", "max_tool_calls", "max_tokens", "max_cost")),
    ("terminate", "out_of_reach"),
    ("terminate", "proposer_failed"),
    ("terminate", "no_progress"),
    ("continue", "cadence_skip"),
    ("adjust", "heuristic_unproductive"),
    ("continue", "in_progress"),
}
CAPS = st.sampled_from([None, "max_iterations", "max_wall_clock", "max_tool_calls", "max_tokens", "max_cost"])
ALL_FACTS = st.builds(
    Facts,
    checkpoint=st.booleans(),
    required_met=st.booleans(),
    operator_stop=st.sampled_from([None, "complete", "abort"]),
    operator_reason=st.none() | st.text(max_size=5),
    cap=CAPS,
    proposer_failures=st.integers(0, 5),
    no_progress=st.integers(0, 1_200),
    threshold=st.none() | st.integers(1, 1_000),
    same_calls=st.booleans(),
    new_error=st.none() | st.text(max_size=5),
    never=st.none() | st.just("solved"),
)
quick = settings(max_examples=100, deadline=None)


@quick
@given(ALL_FACTS)
@pytest.mark.guarantee("cascade-determinism")
def test_the_same_facts_give_the_same_known_verdict(facts: Facts) -> None:
    decision = decide(facts)
    assert (decision.verdict, decision.reason) in REASONS
    assert decision == decide(facts)


@quick
@given(ALL_FACTS)
@pytest.mark.guarantee("adjust-never-postpones-no-progress")
def test_what_makes_for_adjust_decides_nothing_that_ends_a_mission(facts: Facts) -> None:
    kept = {name: getattr(facts, name) for name in facts.__struct_fields__ if name not in ("same_calls", "new_error")}
    plain = decide(Facts(**kept))
    for same_calls in (False, True):
        for new_error in (None, "lab.run: broke"):
            other = decide(Facts(**kept, same_calls=same_calls, new_error=new_error))
            assert other.final == plain.final
            same = (other.verdict, other.reason) == (plain.verdict, plain.reason)
            assert same or (other.verdict, plain.reason) == ("adjust", "in_progress")


@quick
@given(st.integers(1, 12), st.sampled_from([1, 2, 5, 100]), st.booleans())
@pytest.mark.guarantee("exactly-n-iterations")
@pytest.mark.guarantee("success-on-last-iteration")
def test_success_on_the_last_budgeted_iteration_is_success(cap: int, every: int, met: bool) -> None:
    budgets: list[dict[str, Any]] = [
        {"max_iterations": cap},
        {"max_tool_calls": cap, "unbounded": True},
        {"max_wall_clock_seconds": cap},
        {"max_iterations": cap, "max_tool_calls": cap, "max_wall_clock_seconds": cap},
    ]
    for budget in budgets:
        simulation = Simulation(
            budget=budget,
            checkpoint_cadence={"kind": "every_n_iterations", "n": every},
            stagnation_threshold="off",
        )
        for index in range(cap):
            assert not simulation.state.terminal
            simulation.elapsed = index + 1.0
            last = met and index + 1 == cap
            simulation.iterate(call(events=[{"event_name": "done"}] if last else []))
        assert simulation.state.iteration_count == cap
        assert simulation.state.status == ("completed" if met else "terminated")
        assert (simulation.state.verdict_reason == "criteria_met") == met


OPTIONAL: list[dict[str, Any]] = [
    {"criterion_id": "event", "kind": "event", "event_name": "never"},
    {"criterion_id": "far", "kind": "metric_threshold", "metric": "none", "op": "<", "target": 0},
    {"criterion_id": "trend", "kind": "metric_trend", "metric": "none", "direction": "increasing"},
    {"criterion_id": "tool", "kind": "tool_call_succeeded", "tool_name": "lab.never"},
    {"criterion_id": "predicate", "kind": "predicate", "expression": "obs['nothing']"},
    {"criterion_id": "check", "kind": "check", "tool_name": "lab.test"},
]
ANSWERS = st.sampled_from([None, Answer(error="broke"), Answer(value=3), Answer(value=False)])


@quick
@given(st.lists(st.sampled_from(OPTIONAL), unique_by=lambda c: c["criterion_id"]), ANSWERS, st.booleans())
@pytest.mark.guarantee("optional-never-blocks")
def test_an_optional_criterion_never_blocks(chosen: list[dict[str, Any]], answer: Answer | None, met: bool) -> None:
    simulation = Simulation(criteria=[*({**c, "required": False} for c in chosen), DONE])
    answers = {} if answer is None else {"predicate": answer}
    ended = simulation.iterate(call(events=[{"event_name": "done"}] if met else []), **answers)
    assert (ended.reason == "criteria_met") == met
    assert len(ended.criteria) == len(chosen) + 1
    assert all(result.status != "met" for result in ended.criteria[:-1])
    if chosen and met:
        simulation = Simulation(criteria=[*chosen, DONE])
        assert simulation.iterate(call(events=[{"event_name": "done"}]), **answers).verdict == "continue"
