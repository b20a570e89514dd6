"""`confirm`: a lucky value does not meet a criterion; fresh measurements of the same call do."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, proposal, stage

from pursuit import Budget, Proposal
from pursuit.core.confirmation import Confirmations, remeasure
from pursuit.core.criteria import MetricThreshold
from pursuit.core.series import Point
from simulation import Simulation, call, threshold


def measure(simulation: Simulation, *pairs: tuple[float, int], **more: float) -> list[str]:
    """The status of the criterion after each value of the call with this argument."""
    found: list[str] = []
    for value, x in pairs:
        ended = simulation.iterate(call(args={"x": x}, metrics={"mass": value, **more}))
        found.append(ended.criteria[0].status)
    return found


def simulation(*others: dict[str, Any], **more: Any) -> Simulation:
    return Simulation(criteria=[threshold(target=1.0, confirm=2, **more), *others], stagnation_threshold="off")


def test_a_lucky_value_does_not_count_and_the_mean_of_fresh_ones_does() -> None:
    lucky = simulation()
    assert measure(lucky, (0.5, 1), (1.3, 1), (1.3, 1)) == ["inconclusive", "inconclusive", "unmet"]
    assert measure(lucky, (0.9, 2), *[(1.05, 2), (0.85, 2)] * 2) == ["inconclusive"] * 4 + ["met"]
    assert lucky.state.status == "completed"
    evidence = lucky.state.results["mass"].evidence
    assert (evidence["fresh"], evidence["mean"]) == ([1.05, 0.85] * 2, pytest.approx(0.95))


def test_a_rejected_candidate_does_not_start_again_with_its_next_lucky_value() -> None:
    given = simulation()
    assert measure(given, (0.5, 1), (1.5, 1), (1.5, 1))[-1] == "unmet"
    assert measure(given, (0.1, 1), (0.1, 1), (0.1, 1)) == ["unmet"] * 3, "the mean would meet it"
    assert measure(given, (0.9, 2), (0.9, 1)) == ["inconclusive", "met"]  # another candidate does not clear it
    assert given.state.results["mass"].evidence["mean"] == pytest.approx(4.2 / 6)


def test_each_rejection_doubles_the_number_up_to_eight_times() -> None:
    given = simulation()
    needed: list[int] = []
    for x in range(6):
        number = 2 if x == 0 else needed[-1]
        measure(given, (0.9, x), *[(2.0, x)] * number)
        needed.append(given.state.results["mass"].evidence["needed"])
    assert needed == [4, 8, 16, 16, 16, 16]
    assert measure(given, (0.9, 9), *[(0.9, 9)] * 16) == ["inconclusive"] * 16 + ["met"]


@pytest.mark.parametrize("confirm", [3, 5])
def test_a_call_that_misses_its_target_is_not_accepted_by_looking_often(confirm: int) -> None:
    """Half a standard deviation above its target: one look accepts 19 % at 3, a look after each value 29 %."""
    chance, false = random.Random(7), 0
    for _ in range(400):
        given = Confirmations()
        one = MetricThreshold(criterion_id="m", metric="m", op="<=", target=0, confirm=confirm)
        for place in range(80):
            value = -1.0 if place == 0 else chance.gauss(0.5, 1)
            point = Point(place, 0, value, "lab.run", f"c{place}")
            given.learn(one, point, key="k", args={}, worthwhile=True)
            found = given.latest.get("m")
            if found is not None and found.met:
                false += 1
                break
    assert false < 400 * (0.25 if confirm == 3 else 0.19)


def test_only_the_call_that_met_it_confirms_it() -> None:
    other = simulation()
    assert measure(other, (0.9, 1), (0.9, 2), (0.9, 3), (0.9, 4)) == ["inconclusive"] * 4
    assert measure(other, (2.0, 5)) == ["unmet"]


@pytest.mark.parametrize(
    ("by", "values", "status"), [("median", (9.0, 0.9, 0.8), "met"), ("worst", (0.1, 1.1, 0.1), "unmet")]
)
def test_other_ways_to_average(by: str, values: tuple[float, ...], status: str) -> None:
    given = Simulation(criteria=[threshold(target=1.0, confirm=3, confirm_by=by)], stagnation_threshold="off")
    assert measure(given, (0.9, 1), *((value, 1) for value in values))[-1] == status


@pytest.mark.parametrize("arrival", list(permutations(range(3))))
def test_parallel_calls_count_in_the_order_of_the_calls(arrival: tuple[int, ...]) -> None:
    given = simulation()
    measure(given, (2.0, 9))
    calls = [call(args={"x": x}, metrics={"mass": value}) for value, x in ((0.9, 1), (0.8, 2), (0.7, 3))]
    given.begin()
    for order, each in enumerate(calls):
        given.intend(each, order)
    for order in arrival:
        given.settle(calls[order], order)
    assert given.close().criteria[0].status == "inconclusive"
    assert measure(given, (0.9, 3), (0.9, 3)) == ["inconclusive", "met"]


def test_the_core_says_which_call_to_measure_again_and_how_often() -> None:
    given = simulation(threshold("stress", "<=", 5.0))

    def wanted() -> tuple[Any, ...] | None:
        found = remeasure(given.state.confirmations.latest.values())
        return None if found is None else (found.tool, found.args, found.times, found.criteria)

    measure(given, (0.9, 1), stress=9.0)
    assert wanted() is None  # it violates another limit, so it is not worth a call
    measure(given, (0.9, 2), stress=4.0)
    assert wanted() == ("lab.run", {"x": 2}, 2, ["mass"])
    measure(given, (1.5, 3), stress=4.0)
    assert wanted() == ("lab.run", {"x": 2}, 2, ["mass"])
    measure(given, (0.9, 2), stress=4.0)
    assert wanted() == ("lab.run", {"x": 2}, 1, ["mass"])
    measure(given, (0.9, 2), stress=4.0)
    assert wanted() is None


async def test_a_client_may_repeat_the_call_that_a_criterion_asks_for(tmp_path: Path) -> None:
    """The tool answers the same each time, so the loop guard would refuse the third call."""

    def weigh(x: int) -> dict[str, Any]:
        """Weighs."""
        return {"metrics": {"mass": x}}

    async with stage(tmp_path, weigh) as runtime:
        light = MetricThreshold(criterion_id="light", metric="mass", op="<=", target=1, confirm=4)
        wanted = mission(
            criteria=[light],
            budget=Budget(max_iterations=9),
            proposer={"kind": "client"},
            tool_allowlist=["world.weigh"],
            stagnation_threshold="off",
        )
        started = await runtime.runner.start(wanted)
        again = Proposal(**proposal(("world.weigh", {"x": 1})))
        said = [(await runtime.runner.iterate(started.session_id, proposal=again))["status"] for _ in range(5)]
        assert said[-1] == "completed"


def searching(*criteria: dict[str, Any], **more: Any) -> Simulation:
    search = {"kind": "search", "tool_name": "lab.run", **more}
    return Simulation(criteria=[threshold(target=1.0), *criteria], proposer=search)


def test_a_winner_of_a_search_is_measured_once_more_and_the_same_value_meets_it() -> None:
    quiet = searching()
    assert measure(quiet, (2.0, 1), (0.5, 2), (0.5, 2)) == ["unmet", "inconclusive", "met"]
    known = searching()
    assert measure(known, (2.0, 1), (2.0, 1), (0.5, 2)) == ["unmet", "unmet", "met"], "a repeat ruled noise out"
    assert measure(searching(noise=False), (0.5, 2)) == ["met"]


def test_a_noisy_winner_needs_five_fresh_values_and_twice_as_many_for_each_that_was_rejected() -> None:
    first = searching(noise=True)
    assert measure(first, (0.5, 2), *[(0.9, 2)] * 5) == ["inconclusive"] * 5 + ["met"]
    noisy = searching()
    assert measure(noisy, (0.5, 1), (1.5, 1)) == ["inconclusive", "unmet"]
    assert remeasure(noisy.state.confirmations.latest.values()) is None
    assert measure(noisy, (0.5, 2), *[(0.9, 2)] * 10) == ["inconclusive"] * 10 + ["met"]


def test_a_trial_that_violates_another_limit_is_no_winner() -> None:
    given = searching(threshold("stress", "<=", 5.0))
    assert measure(given, (0.5, 1), stress=9.0) == ["met"]
    assert remeasure(given.state.confirmations.latest.values()) is None
    assert measure(given, (0.5, 2), stress=4.0) == ["inconclusive"]
    found = remeasure(given.state.confirmations.latest.values())
    assert found is not None and (found.args, found.times, found.criteria) == ({"x": 2}, 1, ["mass", "stress"])
    assert measure(given, (0.5, 2), stress=6.0) == ["inconclusive"]
    assert remeasure(given.state.confirmations.latest.values()) is None, "the mean violates the other limit"


def test_two_winners_at_once_and_a_repeat_that_rules_noise_out() -> None:
    given = searching()
    measure(given, (2.0, 1))
    calls = [call(args={"x": x}, metrics={"mass": value}) for value, x in ((0.5, 2), (0.6, 3), (2.0, 1))]
    given.iterate(*calls)
    assert remeasure(given.state.confirmations.latest.values()) is None
    assert measure(given, (0.5, 2)) == ["met"]
