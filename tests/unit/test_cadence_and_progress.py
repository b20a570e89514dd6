"""When criteria are consulted, what counts as progress, and how long a mission rests between iterations."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pursuit.core.events import IterationEnded, RunClaimed
from pursuit.core.progress import falling
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


def test_repeat_has_no_stagnation_unless_asked_for() -> None:
    repeat = {"kind": "repeat", "tool_name": "lab.run"}
    ended = run(Simulation(proposer=repeat), *[SAME] * 20)
    assert len(ended) == 20
    assert {each.reason for each in ended} == {"in_progress"}
    assert len(run(Simulation(proposer=repeat, stagnation_threshold=2), *[SAME] * 20)) == 3


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
        assert "no fall over" in said and "of 1 needed" in said


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


OTHER = {"criterion_id": "other", "kind": "event", "event_name": "other"}
SAY = call(events=[{"event_name": "other"}])
MASS, JUDGED = [threshold()], [threshold(source="judge.*"), DONE]
COUNTED: dict[str, tuple[list[dict[str, Any]], list[Any], list[int]]] = {
    "values that waver are too few": (MASS, [mass(v) for v in (9, 8, *[8.5, 8] * 9)][:11], [0] * 11),
    "what does not move is not noise": (MASS, [mass(v) for v in (9, 8, 8.5, 8.5, 8.5, 8.5)], [0, 0, 0, 1, 2, 3]),
    "it wavered": (MASS, [mass(v) for v in (9, 8, 8.5, 9, 9.5)], [0] * 5),
    "what only gets worse is not noise": (MASS, [mass(v) for v in (8, 8.5, 9, 9.5)], [0, 1, 2, 3]),
    "a target from below": ([threshold(op=">=")], [mass(v) for v in (-9, -8, -8, -8, -8)], [0, 0, 1, 2, 3]),
    "one wanted value": ([threshold(op="==")], [mass(v) for v in (9, -5, -5, -5, -5)], [0, 0, 1, 2, 3]),
    "one unwanted value": ([threshold(op="!=")], [mass(1)] * 4, [0, 1, 2, 3]),
    "huge distances": ([threshold(target=-1e308)], [mass(v) for v in (1.7e308, 1e307, 1e306)], [0] * 3),
    "a criterion became met": ([*MASS, DONE, OTHER], [mass(9), mass(9), SAY, SAY, SAY, SAY], [0, 1, 0, 1, 2, 3]),
    "another source": (JUDGED, [call("judge.weigh", metrics={"mass": 9}), *map(mass, (5, 4, 3))], [0, 1, 2, 3]),
    "events alone are unmet": ([*MASS, DONE], [mass(9), *[mass(1)] * 21, *[mass(9)] * 9], [0] * 22 + [1, 2, 3]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_counted_as_no_progress(name: str) -> None:
    criteria, steps, expected = COUNTED[name]
    assert counters(run(Simulation(criteria=criteria), *steps)) == expected


def test_a_value_past_its_target_comes_no_closer() -> None:
    steps = [call(digest="same", metrics={"mass": value}) for value in (3, 0.9, 0.8, 0.7, 0.6)]
    assert counters(run(watched(criteria=[threshold(), DONE]), *steps)) == [0, 0, 1, 2, 3]


def test_a_metric_that_is_no_longer_reported_makes_no_progress() -> None:
    ended = run(Simulation(criteria=[threshold()]), *noisy(1.0, 1, 20), *[call()] * 9)
    assert (len(ended), ended[-1].reason) == (23, "no_progress")
    assert "has no new value" in (ended[-1].rationale or "")


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


@given(st.lists(st.floats(-1e9, 1e9), max_size=40))
def test_a_trend_does_not_depend_on_the_unit_and_turns_around_with_time(values: list[float]) -> None:
    z = falling(values)
    assert math.isfinite(z) and falling(values[::-1]) == pytest.approx(-z)
    assert falling([4 * value for value in values]) == z
    assert falling(sorted(values)) <= 0 <= falling(sorted(values, reverse=True))


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
