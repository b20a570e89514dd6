"""When criteria are consulted, what counts as progress, and how long a mission rests between iterations."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pursuit.core.evaluate import Answer
from pursuit.core.events import AbortOrdered, IterationEnded, RunClaimed
from pursuit.core.progress import Trend
from simulation import DONE, Simulation, call, threshold


def run(simulation: Simulation, *iterations: Any) -> list[IterationEnded]:
    """Each iteration is a call, or a list of calls."""
    ended: list[IterationEnded] = []
    for calls in iterations:
        if simulation.state.terminal:
            break
        ended.append(simulation.iterate(*(calls if isinstance(calls, list) else [calls])))
    return ended


def checkpoints(ended: list[IterationEnded]) -> list[int]:
    return [each.iteration for each in ended if each.facts.checkpoint]


def counters(ended: list[IterationEnded]) -> list[int]:
    return [each.facts.no_progress for each in ended]


def mass(value: float, **more: Any) -> dict[str, Any]:
    return call(metrics={"mass": value}, **more)


SAME = call(digest="same")


def watched(**changes: Any) -> Simulation:
    """A mission that waits for an event and says after how many checkpoints without progress it ends."""
    return Simulation(**{"stagnation_threshold": 3, **changes})


def test_every_iteration_is_the_default() -> None:
    assert checkpoints(run(Simulation(), *[call()] * 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("n", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (3, [2, 5]), (8, [])])
def test_every_n(n: int, expected: list[int]) -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "every_n_iterations", "n": n})
    ended = run(simulation, *[call()] * 7)
    assert checkpoints(ended) == expected
    assert all(each.reason == ("in_progress" if each.facts.checkpoint else "cadence_skip") for each in ended)
    assert all(bool(each.criteria) == each.facts.checkpoint for each in ended)


def test_every_t_seconds_the_first_then_t_after_the_last_checkpoint() -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "every_t_seconds", "t": 10})
    found: list[float] = []
    for now in (3, 4, 12.9, 13, 22.9, 30, 39.9, 40, 41):
        simulation.now = now
        if simulation.iterate(call()).facts.checkpoint:
            found.append(now)
    assert found == [3, 13, 30, 40]


def test_on_event_means_in_this_iteration() -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "on_event", "event_name": "look"})
    look = call(events=[{"event_name": "look"}])
    other = call(events=[{"event_name": "overlook"}])
    assert checkpoints(run(simulation, call(), look, call(), other, [call(), look], call())) == [1, 4]


def test_off_a_checkpoint_met_criteria_wait_for_the_next() -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "every_n_iterations", "n": 3})
    done = call(events=[{"event_name": "done"}])
    assert [each.reason for each in run(simulation, done, call(), call())] == [
        "cadence_skip",
        "cadence_skip",
        "criteria_met",
    ]


@pytest.mark.parametrize(
    ("budget", "reason"),
    [({"max_iterations": 2}, "max_iterations"), ({"max_tool_calls": 2, "unbounded": True}, "max_tool_calls")],
)
@pytest.mark.guarantee("success-on-last-iteration")
def test_an_iteration_that_reaches_a_cap_is_a_checkpoint(budget: dict[str, Any], reason: str) -> None:
    for last, expected in ((call(), reason), (call(events=[{"event_name": "done"}]), "criteria_met")):
        simulation = Simulation(budget=budget, checkpoint_cadence={"kind": "every_n_iterations", "n": 100})
        ended = run(simulation, call(), last)
        assert checkpoints(ended) == [1]
        assert ended[-1].reason == expected
        assert [result.criterion_id for result in ended[-1].criteria] == ["done"]


def test_an_operators_stop_is_a_checkpoint() -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "every_n_iterations", "n": 100})
    simulation.begin(call())
    simulation.fold(AbortOrdered())
    assert simulation.close().facts.checkpoint


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_no_progress_ends_at_the_threshold(limit: int) -> None:
    ended = run(Simulation(stagnation_threshold=limit), *[SAME] * 20)
    assert counters(ended) == list(range(limit + 1)), "the first checkpoint compares with nothing"
    assert ended[-1].reason == "no_progress"


def test_three_is_the_default_and_off_is_off() -> None:
    assert len(run(Simulation(criteria=[threshold()]), *[SAME] * 20)) == 4
    assert len(run(Simulation(criteria=[threshold()], stagnation_threshold="off"), *[SAME] * 20)) == 20


def test_the_default_is_off_while_only_events_and_predicates_are_unmet() -> None:
    ended = run(Simulation(criteria=[threshold(), DONE]), mass(9), mass(1), *[mass(1)] * 20, *[mass(9)] * 9)
    assert counters(ended) == [0] * 22 + [1, 2, 3], "it counts from where a threshold is unmet again"
    assert {each.facts.threshold for each in ended[1:22]} == {None}
    assert len(run(watched(), *[SAME] * 20)) == 4


def test_repeat_has_no_stagnation_unless_asked_for() -> None:
    repeat = {"kind": "repeat", "tool_name": "lab.run"}
    ended = run(Simulation(proposer=repeat), *[SAME] * 20)
    assert len(ended) == 20
    assert {each.reason for each in ended} == {"in_progress"}
    assert len(run(Simulation(proposer=repeat, stagnation_threshold=2), *[SAME] * 20)) == 3


def test_progress_starts_the_count_again() -> None:
    ended = run(watched(), SAME, SAME, SAME, call(digest="new"), SAME, SAME, SAME)
    assert counters(ended) == [0, 1, 2, 0, 1, 2, 3]


def test_the_counter_moves_at_checkpoints_only() -> None:
    simulation = Simulation(checkpoint_cadence={"kind": "every_n_iterations", "n": 2}, stagnation_threshold=2)
    ended = run(simulation, *[SAME] * 9)
    assert counters(ended) == [0, 0, 0, 1, 1, 2]
    assert ended[-1].reason == "no_progress"


def test_what_was_seen_between_checkpoints_is_progress_at_the_next() -> None:
    simulation = watched(checkpoint_cadence={"kind": "every_n_iterations", "n": 2})
    new = [call(digest=f"new{place}") for place in range(3)]
    ended = run(simulation, SAME, SAME, new[0], SAME, SAME, SAME, new[1], new[1], SAME, new[2], SAME, SAME)
    assert counters(ended)[1::2] == [0, 0, 1, 0, 0, 1]


def test_without_a_threshold_metric_the_same_answer_to_another_question_is_no_progress() -> None:
    asked = [call(args={"x": place}, digest="same") for place in range(9)]
    assert len(run(watched(), *asked)) == 4
    answered = [call(args={"x": 1}, digest=f"d{place}") for place in range(9)]
    assert len(run(watched(), *answered)) == 9


def test_an_old_observation_that_comes_back_is_no_progress() -> None:
    ended = run(watched(), *[call(digest=digest) for digest in "abababab"])
    assert counters(ended) == [0, 0, 1, 2, 3]


def noisy(drift: float, seed: int, count: int = 60) -> list[dict[str, Any]]:
    """Values around a line that falls by `drift` of the noise per iteration, far from the target."""
    chance = random.Random(seed)
    return [mass(100 - drift * place + chance.gauss(0, 1)) for place in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_a_noisy_run_that_improves_is_not_ended(seed: int) -> None:
    for drift in (0.25, 1.0):
        ended = run(Simulation(criteria=[threshold()]), *noisy(drift, seed))
        assert len(ended) == 60, ended[-1].rationale


@pytest.mark.parametrize("seed", range(8))
def test_a_noisy_run_that_is_flat_or_gets_worse_is_ended_with_the_numbers(seed: int) -> None:
    for drift in (0.0, -0.25):
        ended = run(Simulation(criteria=[threshold()]), *noisy(drift, seed))
        assert (ended[-1].reason, ended[-1].facts.no_progress) == ("no_progress", 3)
        assert 14 <= len(ended) <= 40, "twelve values before noise is judged, then three checkpoints"
        said = ended[-1].rationale or ""
        assert said.startswith("No progress for 3 checkpoints: mass <= 1: best ")
        assert "noise" in said and "per checkpoint over" in said and "of 1 needed" in said


def test_the_reason_names_the_best_value_that_keeps_the_limits() -> None:
    def weigh(value: float, stress: float) -> dict[str, Any]:
        return call(metrics={"mass": value, "stress": stress})

    criteria = [threshold(target=1), threshold("stress", target=10)]
    ended = run(Simulation(criteria=criteria), weigh(2, 50), weigh(7, 9), *[weigh(8, 9)] * 9)
    assert ended[-1].reason == "no_progress"
    assert "mass <= 1: best 7 in iteration 2;" in (ended[-1].rationale or "")
    ended = run(Simulation(criteria=criteria), *[weigh(2, 50)] * 9)
    assert "mass <= 1: best 2 in iteration 1, which violates a limit;" in (ended[-1].rationale or "")


def test_a_run_that_reached_its_level_is_ended_within_its_window() -> None:
    simulation = Simulation(criteria=[threshold()])
    ended = run(simulation, *noisy(1.0, 1, 20), *[mass(80 + each % 2) for each in range(60)])
    assert ended[-1].reason == "no_progress" and len(ended) < 60


def test_values_that_go_up_and_down_are_judged_once_there_are_enough_of_them() -> None:
    ended = run(Simulation(criteria=[threshold()]), *map(mass, (9, 8, *[8.5, 8] * 9)))
    assert counters(ended)[:11] == [0] * 11 and ended[-1].reason == "no_progress"
    ended = run(Simulation(criteria=[threshold()]), *map(mass, (9, 8, 8.5, 8.5, 8.5, 8.5)))
    assert counters(ended) == [0, 0, 0, 1, 2, 3], "what does not move is not noise"
    ended = run(Simulation(criteria=[threshold()]), *map(mass, (9, 8, 8.5, 9, 9.5)))
    assert counters(ended) == [0, 0, 0, 0, 0]
    ended = run(Simulation(criteria=[threshold()]), *map(mass, (8, 8.5, 9, 9.5)))
    assert counters(ended) == [0, 1, 2, 3], "what only gets worse is not noise"


def test_a_metric_that_is_no_longer_reported_makes_no_progress() -> None:
    ended = run(Simulation(criteria=[threshold()]), *noisy(1.0, 1, 20), *[call()] * 9)
    assert (len(ended), ended[-1].reason) == (23, "no_progress")
    assert "has no new value" in (ended[-1].rationale or "")


def test_a_criterion_that_flaps_keeps_no_mission_alive() -> None:
    ready = {"criterion_id": "ready", "kind": "predicate", "expression": "True", "required": False}
    simulation = Simulation(criteria=[threshold(), ready])
    ended = [simulation.iterate(mass(9), ready=Answer(value=place % 2 == 1)) for place in range(4)]
    assert counters(ended) == [0, 1, 2, 3]


@pytest.mark.parametrize("said", ["tick {}", "2026-01-01T00:00:{:02d}Z", "request 4f{:02d}ab-77 took {} ms"])
def test_a_counter_in_a_result_keeps_no_mission_alive(said: str) -> None:
    counting = [call(digest=f"d{n}", result={"structuredContent": {"said": said.format(n, n)}}) for n in range(9)]
    assert counters(run(watched(), *counting)) == [0, 1, 2, 3]
    large = [call(digest=f"d{n}", blob=f"d{n}", preview=said.format(n, n)) for n in range(9)]
    assert counters(run(watched(), *large)) == [0, 1, 2, 3]
    words = [call(digest=f"d{n}", result={"said": "word" * n}) for n in range(9)]
    assert len(run(watched(), *words)) == 9
    other_calls = [call(args={"x": n}, digest=f"d{n}", result={"said": n}) for n in range(9)]
    assert len(run(watched(), *other_calls)) == 9


def test_progress_is_about_required_thresholds() -> None:
    count = threshold("count", ">=", 1_000, required=False)
    steps = [call(metrics={"mass": 9, "count": n}) for n in range(9)]
    assert counters(run(Simulation(criteria=[threshold(), count]), *steps)) == [0, 1, 2, 3]
    alike = [call(digest="same", metrics={"count": n}) for n in range(9)]
    assert counters(run(watched(criteria=[DONE, count]), *alike)) == [0, 1, 2, 3]


@given(st.lists(st.floats(-1e9, 1e9), max_size=40))
def test_a_trend_does_not_depend_on_the_unit_and_turns_around_with_time(values: list[float]) -> None:
    trend, back = Trend(values), Trend(values[::-1])
    assert math.isfinite(trend.z) and trend.noise >= 0
    assert back.z == pytest.approx(-trend.z)
    assert Trend([4 * value for value in values]).z == trend.z
    assert Trend(sorted(values)).z <= 0 <= Trend(sorted(values, reverse=True)).z


@pytest.mark.parametrize(
    ("op", "values"),
    [(">=", (-9, -8, -8, -8, -8)), ("<", (9, 8, 8, 8, 8)), ("==", (9, -5, -5, -5, -5)), ("!=", (1, 1, 1, 1))],
)
def test_closer_depends_on_the_comparison(op: str, values: tuple[float, ...]) -> None:
    ended = run(Simulation(criteria=[threshold(op=op), DONE]), *map(mass, values))
    assert ended[-1].facts.no_progress == 3
    assert ended[-1].iteration == len(values) - 1


def test_a_value_past_its_target_comes_no_closer() -> None:
    steps = [call(digest="same", metrics={"mass": value}) for value in (3, 0.9, 0.8, 0.7, 0.6)]
    assert counters(run(watched(criteria=[threshold(), DONE]), *steps)) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(("gain", "counts"), [(5e-7, False), (2e-6, True)])
def test_closer_means_by_more_than_a_millionth(gain: float, counts: bool) -> None:
    simulation = Simulation(criteria=[threshold(target=0), DONE])
    ended = run(simulation, mass(1000.0), mass(1000.0 * (1 - gain)))
    assert ended[-1].facts.no_progress == (0 if counts else 1)


def test_huge_distances_still_shrink() -> None:
    ended = run(Simulation(criteria=[threshold(target=-1e308), DONE]), mass(1.7e308), mass(1e307), mass(1e306))
    assert counters(ended) == [0, 0, 0]


def test_a_criterion_that_became_met_is_progress() -> None:
    other = {"criterion_id": "other", "kind": "event", "event_name": "other"}
    simulation = Simulation(criteria=[threshold(), DONE, other])
    say = call(events=[{"event_name": "other"}])
    assert counters(run(simulation, mass(9), mass(9), say, say, say, say)) == [0, 1, 0, 1, 2, 3]


def test_a_best_value_counts_only_from_its_source() -> None:
    simulation = Simulation(criteria=[threshold(source="judge.*"), DONE])
    own = [call("lab.run", metrics={"mass": value}) for value in (5, 4, 3, 2)]
    first = call("judge.weigh", metrics={"mass": 9})
    assert counters(run(simulation, first, *own)) == [0, 1, 2, 3]


def test_half_the_threshold_with_three_equal_sequences_asks_for_something_else() -> None:
    reasons = [each.reason for each in run(Simulation(stagnation_threshold=6), *[SAME] * 9)]
    assert reasons == [*["in_progress"] * 3, *["heuristic_unproductive"] * 3, "no_progress"]
    varied = [call(args={"x": place}, digest="same") for place in range(9)]
    assert {each.verdict for each in run(Simulation(stagnation_threshold=6), *varied)} == {"continue", "terminate"}


def test_two_equal_sequences_are_not_three() -> None:
    assert [each.reason for each in run(Simulation(stagnation_threshold=2), SAME, SAME)] == ["in_progress"] * 2

    def calls(word: str) -> list[dict[str, Any]]:
        return [call(args={"x": letter}, digest="same") for letter in word]

    words = ["ab", "ba", "ab", "ab", "ba", "ba", "ba"]
    ended = run(Simulation(stagnation_threshold=12), *map(calls, words))
    assert [each.verdict for each in ended] == [*["continue"] * 6, "adjust"]
    assert ended[-1].facts.same_calls
    assert not any(each.facts.same_calls for each in ended[:-1])


def test_a_new_error_asks_for_something_else_once() -> None:
    def broken(error: str) -> dict[str, Any]:
        return call(outcome="failed", error=error)

    ended = run(Simulation(stagnation_threshold="off"), *map(broken, ("a", "a", "b", "a")), call())
    assert [each.verdict for each in ended] == ["adjust", "continue", "adjust", "continue", "continue"]
    assert "lab.run: b" in (ended[2].rationale or "")


def test_proposer_failures_count_in_a_row() -> None:
    simulation = Simulation(stagnation_threshold="off")
    reasons: list[str] = []
    for failed in (["bad"], ["bad"], [], ["bad"], ["bad"], ["bad"]):
        simulation.begin(failed=failed)
        reasons.append(simulation.close().reason)
    assert reasons[-1] == "proposer_failed"
    assert "proposer_failed" not in reasons[:-1]


def test_a_new_run_keeps_the_counter() -> None:
    simulation = watched()
    run(simulation, SAME, SAME, SAME)
    simulation.fold(RunClaimed(run="r2", pid=2, host="here"))
    assert simulation.state.no_progress == 2
    assert run(simulation, SAME)[0].reason == "no_progress"


def waits(pace: Any, digests: str, took: float = 0.0) -> list[float]:
    """How long after its start each iteration's successor may begin."""
    simulation = Simulation(pace=pace, stagnation_threshold="off")
    found: list[float] = []
    for digest in digests:
        started = simulation.now
        simulation.begin(call(digest=digest))
        simulation.now += took
        simulation.close()
        assert simulation.state.waiting_for == "pace"
        assert simulation.state.wait_until is not None
        found.append(simulation.state.wait_until - started)
        simulation.now = simulation.state.wait_until
    return found


def test_pace_is_the_least_time_between_iterations() -> None:
    assert waits(10, "abc") == [10, 10, 10]
    assert waits({"seconds": 10}, "abc", took=4) == [10, 10, 10]
    assert waits({"seconds": 10}, "abc", took=25) == [25, 25, 25]


def test_pace_backs_off_while_nothing_changes() -> None:
    assert waits({"seconds": 2, "backoff": 2, "max_seconds": 9}, "aaaaabb") == [2, 4, 8, 9, 9, 2, 4]
    assert waits({"seconds": 2, "backoff": 2}, "aaaaaaa")[-1] == 20, "ten times the pace, unless told otherwise"
    assert waits({"seconds": 2, "backoff": 1}, "aaa") == [2, 2, 2]


def test_a_very_long_rest_is_still_a_number() -> None:
    assert waits({"seconds": 86_400, "backoff": 10, "max_seconds": 86_400}, "a" * 400)[-1] == 86_400


def test_without_pace_nothing_waits() -> None:
    simulation = Simulation()
    simulation.iterate(call())
    assert (simulation.state.status, simulation.state.waiting_for) == ("running", None)
