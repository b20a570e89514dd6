"""The cascade over random facts, and random missions against a plain reading of the specification."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.core.decision import decide
from pursuit.core.evaluate import Answer
from pursuit.core.events import Facts, IterationEnded
from simulation import DONE, Simulation, call, threshold

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
    assert decision[:2] in REASONS
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
            assert other[:2] == plain[:2] or (other.verdict, plain.reason) == ("adjust", "in_progress")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one iteration brings: a value of the metric, the optional event, and how it is asked for."""

    value: float | None
    event: bool
    digest: str
    args: int
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A random mission: `mass <= 1`, an optional event, and what its iterations bring."""

    cap: int
    every: int
    limit: int | None
    with_metric: bool
    steps: list[Step]


# Neighbours differ by half and by five times the tolerance, so that rounding decides nothing.
VALUES = st.sampled_from([9.0, 9.0 - 4e-6, 9.0 - 4e-5, 8.0, 8.0 - 3.5e-6, 7.5, 3.0, 2.0, 1.5, 1.0, 0.5])
STEPS = st.builds(
    Step,
    value=st.none() | VALUES,
    event=st.sampled_from([False] * 5 + [True]),
    digest=st.sampled_from("abc"),
    args=st.integers(0, 1),
    error=st.sampled_from([None, None, "x", "y"]),
)
PLANS = st.builds(
    Plan,
    cap=st.integers(1, 14),
    every=st.sampled_from([1, 1, 2, 3]),
    limit=st.none() | st.integers(1, 4),
    with_metric=st.booleans(),
    steps=st.lists(STEPS, min_size=14, max_size=14),
)


def played(plan: Plan) -> list[IterationEnded]:
    """The plan, through the core."""
    extra = {"criterion_id": "extra", "kind": "event", "event_name": "extra", "required": False}
    simulation = Simulation(
        criteria=[threshold() if plan.with_metric else DONE, extra],
        budget={"max_iterations": plan.cap},
        checkpoint_cadence={"kind": "every_n_iterations", "n": plan.every},
        stagnation_threshold=plan.limit or "off",
    )
    ended: list[IterationEnded] = []
    for step in plan.steps:
        if simulation.state.terminal:
            break
        metrics = {} if step.value is None else {"mass": step.value}
        events = [{"event_name": "extra"}] if step.event else []
        outcome = "ok" if step.error is None else "failed"
        made = call(
            args={"x": step.args},
            outcome=outcome,
            error=step.error,
            digest=step.digest + (step.error or ""),
            metrics=metrics,
            events=events,
        )
        ended.append(simulation.iterate(made))
    assert simulation.state.terminal == (ended[-1].verdict in ("complete", "terminate"))
    return ended


def reference(plan: Plan) -> list[tuple[str, bool, int]]:
    """The same by a plain reading: reason (adjust and in_progress are one), checkpoint, counter."""
    said: list[tuple[str, bool, int]] = []
    latest = best = best_then = None
    counter, first = 0, True
    known: set[Any] = set()
    unseen = False
    trail: list[float] = []
    near: list[float] = []
    for index, step in enumerate(plan.steps):
        latest = step.value
        if step.value is not None:
            best = step.value if best is None else min(best, step.value)
            near.append(max(step.value - 1.0, 0.0))
        output = (step.error, step.digest)
        unseen = unseen or output not in known
        known.add(output)
        last = index + 1 == plan.cap
        checkpoint = last or (index + 1) % plan.every == 0
        met = False
        if checkpoint:
            met = plan.with_metric and latest is not None and latest <= 1.0
            progress = met  # the event is optional
            if not plan.with_metric:
                progress = progress or unseen
            elif best is not None:
                far, was = max(best - 1.0, 0.0), None if best_then is None else max(best_then - 1.0, 0.0)
                progress = progress or was is None or (was > 0 and (was - far) / was > 1e-6)
                if near and plan.limit is not None:
                    trail.append(min(near))
                    progress = progress or falls(trail[-10 * plan.limit :], least=4 * plan.limit)
                near = []
            counter = 0 if first or progress else counter + 1
            first, best_then, unseen = False, best, False
        if met:
            reason = "criteria_met"
        elif last:
            reason = "max_iterations"
        elif plan.limit is not None and counter >= plan.limit:
            reason = "no_progress"
        else:
            reason = "goes on" if checkpoint else "cadence_skip"
        said.append((reason, checkpoint, counter))
        if reason in ("criteria_met", "max_iterations", "no_progress"):
            break
    return said


def falls(window: list[float], *, least: int) -> bool:
    """Whether distances that go up and down fall by Mann-Kendall, or are too few to tell."""
    moves = [after - before for before, after in pairwise(window)]
    if not moves or moves[-1] == 0 or not min(moves) < 0 < max(moves):
        return False
    if len(window) < least:
        return True
    score = sum((a > b) - (a < b) for a, b in combinations(window, 2))
    ties = [window.count(one) for one in set(window)]
    n, spread = len(window), sum(t * (t - 1) * (2 * t + 5) for t in ties)
    return score > 0 and (score - 1) / math.sqrt((n * (n - 1) * (2 * n + 5) - spread) / 18) >= 1


@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_random_missions_go_as_the_specification_says(plan: Plan) -> None:
    goes_on = ("heuristic_unproductive", "in_progress")
    ours = [
        ("goes on" if e.reason in goes_on else e.reason, e.facts.checkpoint, e.facts.no_progress) for e in played(plan)
    ]
    assert ours == reference(plan)


@quick
@given(PLANS)
@pytest.mark.guarantee("cascade-determinism")
def test_the_same_events_give_the_same_verdicts(plan: Plan) -> None:
    first = played(plan)
    assert first == played(plan)
    assert all(decide(ended.facts)[:2] == (ended.verdict, ended.reason) for ended in first)


@quick
@given(PLANS)
@pytest.mark.guarantee("exactly-n-iterations")
def test_max_iterations_runs_exactly_n_unless_it_ends_earlier(plan: Plan) -> None:
    ended = played(replace(plan, limit=None))
    assert len(ended) <= plan.cap
    if len(ended) < plan.cap:
        assert ended[-1].reason == "criteria_met"
    else:
        assert ended[-1].reason in ("max_iterations", "criteria_met")
    assert [each.iteration for each in ended] == list(range(len(ended)))


@quick
@given(st.integers(1, 12), st.sampled_from([1, 2, 5, 100]), st.booleans())
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


@quick
@given(PLANS)
@pytest.mark.guarantee("adjust-never-postpones-no-progress")
def test_a_mission_that_is_told_to_adjust_ends_no_later(plan: Plan) -> None:
    """With equal calls and new errors, which make for adjust, and without: the same end at the same iteration."""
    plan = replace(plan, with_metric=True, limit=plan.limit or 3)
    nagged = [replace(s, args=0, error=f"e{i}") for i, s in enumerate(plan.steps)]
    varied = [replace(s, args=i, error=None) for i, s in enumerate(plan.steps)]
    with_adjust = played(replace(plan, steps=nagged))
    without = played(replace(plan, steps=varied))
    assert (len(with_adjust), with_adjust[-1].reason) == (len(without), without[-1].reason)
    assert all(each.verdict != "adjust" for each in without)
    assert all(each.verdict == "adjust" for each in with_adjust[:-1] if each.facts.checkpoint)


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
