"""Each kind of criterion: met, unmet, inconclusive, with its evidence and the call that it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from pursuit.core.evaluate import Answer
from pursuit.core.events import CriterionResult, Source
from pursuit.core.state import observation_view
from simulation import DONE, Simulation, call, threshold


def standing(criterion: dict[str, Any], *iterations: list[dict[str, Any]], **answers: Answer) -> CriterionResult:
    """How one criterion stands inside the last of these iterations."""
    simulation = Simulation(criteria=[criterion, {**DONE, "criterion_id": "never", "event_name": "never"}])
    for calls in iterations[:-1]:
        simulation.iterate(*calls)
    simulation.begin(*iterations[-1])
    return simulation.results(**answers)[criterion["criterion_id"]]


def mass(value: float, tool: str = "lab.run") -> dict[str, Any]:
    return call(tool, metrics={"mass": value})


def seen(name: str, tool: str = "lab.run") -> dict[str, Any]:
    return call(tool, events=[{"event_name": name}])


@pytest.mark.parametrize(
    ("op", "met", "unmet"),
    [
        ("<", [0.9, -5], [1.0, 1.1]),
        ("<=", [0.9, 1.0], [1.1]),
        (">", [1.1], [1.0, 0.9]),
        (">=", [1.0, 1.1], [0.9]),
        ("==", [1, 1.0], [0.9]),
        ("!=", [0.9], [1.0]),
    ],
)
def test_threshold_compares_the_latest_value(op: str, met: list[float], unmet: list[float]) -> None:
    for value in met:
        assert standing(threshold(op=op), [mass(value)]).status == "met"
    for value in unmet:
        result = standing(threshold(op=op), [mass(value)])
        assert result.status == "unmet"
        assert result.evidence == {"value": value, "op": op, "target": 1.0}


def test_the_later_call_wins_whichever_comes_back_first() -> None:
    simulation = Simulation(criteria=[threshold()])
    simulation.begin()
    for order, value in ((0, 5.0), (1, 0.5)):
        simulation.intend(mass(value), order)
    simulation.settle(mass(0.5), 1)
    simulation.settle(mass(5.0), 0)
    result = simulation.results()["mass"]
    assert (result.status, result.source and result.source.call_id) == ("met", "c0.1")
    assert observation_view(simulation.state)["metrics"] == {"mass": 0.5}
    assert observation_view(simulation.state)["metric_history"] == {"mass": [5.0, 0.5]}


def test_a_threshold_without_data_is_inconclusive() -> None:
    for criterion in (threshold(), threshold(source="other.*")):
        result = standing(criterion, [call(metrics={"length": 1})])
        assert result.status == "inconclusive"
        assert "mass" in result.evidence["reason"]
    assert "from other.*" in standing(threshold(source="other.*"), [mass(0.5)]).evidence["reason"]


GONE = [call(), call(outcome="failed", error="broke"), call(outcome="timed_out", error="late"), call(outcome="unknown")]


@pytest.mark.parametrize("later", GONE, ids=["no value", "failed", "timed out", "unknown"])
def test_a_value_that_its_tool_no_longer_reports_is_out_of_date(later: dict[str, Any]) -> None:
    result = standing(threshold(), [mass(0.5)], [later])
    assert (result.status, result.source and result.source.iteration) == ("inconclusive", 1)
    assert "no current value of 'mass'; it was 0.5 in iteration 1" in result.evidence["reason"]
    assert standing(threshold(hold=True), [mass(0.5)], [later]).status == "met"
    assert standing(threshold(hold=True), [later]).status == "inconclusive", "there is nothing to hold"
    trend = {"criterion_id": "t", "kind": "metric_trend", "metric": "mass", "direction": "decreasing"}
    assert standing(trend, [mass(3)], [mass(2)], [later]).status == "inconclusive"
    assert standing({**trend, "hold": True}, [mass(3)], [mass(2)], [later]).status == "met"
    assert standing(threshold(), [mass(0.5)], [later], [mass(0.25)]).status == "met"


def test_a_script_observes_what_it_wants_and_an_error_puts_it_out_of_date() -> None:
    def after(*runs: dict[str, Any]) -> str:
        simulation = Simulation(criteria=[threshold("scores.1")])
        for fields in runs:
            simulation.begin(script="pass")
            simulation.end_script(**fields)
            simulation.close()
        return simulation.state.results["scores.1"].status

    seen: dict[str, Any] = {"observed": {"scores": [0.5, 0.5]}}
    assert after(seen) == "met"
    assert after(seen, {"observed": {"other": 1}}) == "met"
    assert after(seen, {"observed": {"scores": [0.5]}}) == "inconclusive"
    assert after(seen, {"error": "broke"}) == "inconclusive"


def test_a_predicate_does_not_see_what_is_out_of_date() -> None:
    simulation = Simulation()
    simulation.iterate(call(metrics={"mass": 1, "list": [1, 2]}), call("lab.other", metrics={"kept": 3}))
    assert observation_view(simulation.state)["metrics"] == {"mass": 1, "list": [1, 2], "kept": 3}
    simulation.iterate(call(metrics={"list": [1]}))
    assert observation_view(simulation.state)["metrics"] == {"list": [1], "kept": 3}


@pytest.mark.guarantee("source-counts")
@pytest.mark.parametrize(
    ("glob", "counts"),
    [
        (None, True),
        ("lab.run", True),
        ("lab.*", True),
        ("*.run", True),
        ("l?b.run", True),
        ("lab.walk", False),
        ("LAB.*", False),
        ("lab", False),
    ],
)
def test_source_says_whose_word_counts(glob: str | None, counts: bool) -> None:
    trend = {"criterion_id": "t", "kind": "metric_trend", "metric": "mass", "direction": "decreasing", "source": glob}
    calls = [[mass(2.0)], [mass(0.5)]]
    assert standing(threshold(source=glob), *calls).status == ("met" if counts else "inconclusive")
    assert standing(trend, *calls).status == ("met" if counts else "inconclusive")
    assert standing({**DONE, "source": glob}, [seen("done")]).status == ("met" if counts else "unmet")


@pytest.mark.guarantee("source-counts")
def test_another_source_neither_meets_nor_hides_a_value() -> None:
    judged = threshold(source="judge.*")
    result = standing(judged, [mass(0.5, "judge.weigh")], [mass(9.0, "lab.run")])
    assert result.status == "met"
    assert result.source == Source(tool="judge.weigh", call_id="c0.0", iteration=0)
    assert standing(judged, [mass(9.0, "judge.weigh")], [mass(0.5, "lab.run")]).status == "unmet"
    assert standing({**DONE, "source": "judge.*"}, [seen("done", "lab.run")]).status == "unmet"


@pytest.mark.guarantee("source-counts")
def test_a_flood_from_one_source_does_not_push_out_anothers_points() -> None:
    simulation = Simulation(criteria=[threshold(source="judge.*"), DONE])
    simulation.iterate(mass(0.5, "judge.weigh"))
    simulation.begin(*(mass(9.0) for _ in range(1_200)))
    assert simulation.results()["mass"].status == "met"


def trend(direction: str, **more: Any) -> dict[str, Any]:
    return {"criterion_id": "t", "kind": "metric_trend", "metric": "mass", "direction": direction, **more}


@pytest.mark.parametrize(
    ("values", "holding"),
    [
        ([1, 2, 3], {"increasing", "non_decreasing"}),
        ([3, 2, 1], {"decreasing", "non_increasing"}),
        ([2, 2, 2], {"non_increasing", "non_decreasing"}),
        ([0.1, 0.1, 0.1, 0.1], {"non_increasing", "non_decreasing"}),
        # The end points say the contrary of the line that fits.
        ([5, 1, 2, 3, 4, 4.9], {"increasing", "non_decreasing"}),
        ([-1e308, 1e308, -1e308, 1.5e308], {"increasing", "non_decreasing"}),
        ([1.7e308, 1.6e308, 1.5e308], {"decreasing", "non_increasing"}),
        ([0, 0], {"non_increasing", "non_decreasing"}),
    ],
)
def test_trend_is_the_sign_of_the_slope(values: list[float], holding: set[str]) -> None:
    for direction in ("increasing", "decreasing", "non_increasing", "non_decreasing"):
        result = standing(trend(direction), *([mass(value)] for value in values))
        assert (result.status == "met") == (direction in holding), (direction, result)
        assert result.evidence["points"] == len(values)
        assert result.source == Source(tool="lab.run", call_id=f"c{len(values) - 1}.0", iteration=len(values) - 1)


def test_trend_needs_its_points() -> None:
    result = standing(trend("increasing", min_points=3), [mass(1)], [mass(2)])
    assert (result.status, result.evidence) == ("inconclusive", {"reason": "2 of 3 points of 'mass'", "points": 2})
    assert standing(trend("increasing", min_points=3), [mass(1)], [mass(2)], [mass(3)]).status == "met"
    assert standing(trend("increasing"), [mass(1)]).status == "inconclusive"


def test_event_counts_and_names_its_last_call() -> None:
    result = standing(DONE, [seen("done")], [seen("done", "lab.walk")])
    assert (result.status, result.evidence) == ("met", {"count": 2})
    assert result.source == Source(tool="lab.walk", call_id="c1.0", iteration=1)
    assert standing(DONE, [seen("other")]) == CriterionResult(
        criterion_id="done", status="unmet", evidence={"count": 0}
    )


SUCCEEDED = {"criterion_id": "s", "kind": "tool_call_succeeded", "tool_name": "lab.run", "min_count": 2}


def test_tool_call_succeeded_counts_the_runtimes_records() -> None:
    one = standing(SUCCEEDED, [call()], [call(outcome="failed"), call("lab.walk"), call(outcome="unknown")])
    assert (one.status, one.evidence) == ("unmet", {"count": 1, "needed": 2})
    two = standing(SUCCEEDED, [call()], [call()])
    assert (two.status, two.evidence) == ("met", {"count": 2, "needed": 2})
    assert two.source == Source(tool="lab.run", call_id="c1.0", iteration=1)
    assert standing(SUCCEEDED, [call("lab.walk")]).source is None


SPOOF = call("lab.walk", metrics={"succeeded": 9}, events=[{"event_name": "lab.run"}], result={"lab.run": "ok"})
NESTED = call(metrics={"scores": [{"f1": 0.25}], "a": {"b": {"c": 7}}})
FALLING = [[mass(20.0 - step)] for step in range(4)]  # by a twentieth of the largest one with each point
TURNING = [[mass(value)] for value in (9, 8, 7, 1, 2, 3)]
STANDS: list[tuple[dict[str, Any], list[list[dict[str, Any]]], str]] = [
    (threshold(scope="iteration"), [[mass(0.5)]], "met"),
    (threshold(scope="iteration"), [[mass(0.5)], [call()]], "inconclusive"),
    (threshold(), [[mass(0.5)], [call("lab.other")]], "met"),
    ({**DONE, "scope": "iteration"}, [[seen("done")]], "met"),
    ({**DONE, "scope": "iteration"}, [[seen("done")], [call()]], "unmet"),
    (DONE, [[seen("done")], [call()]], "met"),
    *((threshold(), [[mass(0.5)], [call(outcome=one)]], "met") for one in ("denied", "skipped", "cancelled")),
    *(
        (threshold(path, "==", value), [[NESTED]], "met")
        for path, value in (("scores.0.f1", 0.25), ("metrics.scores.0.f1", 0.25), ("a.b.c", 7))
    ),
    *(
        (threshold(path, "==", 1), [[NESTED]], "inconclusive")
        for path in ("scores", "scores.2.f1", "scores.0", "scores.-1.f1", "a.b")
    ),
    (trend("decreasing"), TURNING, "met"),
    (trend("increasing", window=3), TURNING, "met"),
    (trend("decreasing", tolerance=0.04), FALLING, "met"),
    (trend("decreasing", tolerance=0.06), FALLING, "unmet"),
    (trend("non_decreasing", tolerance=0.04), FALLING, "unmet"),
    (trend("non_decreasing", tolerance=0.06), FALLING, "met"),
    (SUCCEEDED, [[SPOOF, SPOOF]], "unmet"),
]


@pytest.mark.parametrize(("criterion", "iterations", "status"), STANDS)
def test_where_a_criterion_stands(criterion: dict[str, Any], iterations: list[Any], status: str) -> None:
    assert standing(criterion, *iterations).status == status


PREDICATE = {"criterion_id": "p", "kind": "predicate", "expression": "obs['iteration'] > 0"}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(value=True), "met"),
        (Answer(value=False), "unmet"),
        (Answer(error="took longer than 50 ms"), "inconclusive"),
        (Answer(error="boom", value=True), "inconclusive"),
        (None, "inconclusive"),
        *((Answer(value=value), "inconclusive") for value in (1, 0, None, "True", [True], {"met": True}, 1.0)),
    ],
)
def test_a_predicate_needs_true_or_false(answer: Answer | None, status: str) -> None:
    answers = {} if answer is None else {"p": answer}
    result = standing(PREDICATE, [call()], **answers)
    assert result.status == status
    if status == "inconclusive":
        assert result.evidence.get("error") or result.evidence.get("reason")


CHECK = {"criterion_id": "k", "kind": "check", "tool_name": "lab.test"}


def test_a_check_is_what_its_answer_says() -> None:
    source = Source(tool="lab.test", call_id="k0", iteration=0)
    verdicts = {"met": True, "text": {"pattern": "ok", "met": True}}
    met = standing(CHECK, [call()], k=Answer(value=verdicts, source=source))
    assert (met.status, met.evidence, met.source) == ("met", verdicts, source)
    unmet = standing(CHECK, [call()], k=Answer(value={"met": False}, source=source))
    assert (unmet.status, unmet.source) == ("unmet", source)
    broken = standing(CHECK, [call()], k=Answer(error="timed_out: 5 s", source=source))
    assert (broken.status, broken.evidence, broken.source) == ("inconclusive", {"error": "timed_out: 5 s"}, source)
    assert standing(CHECK, [call()]).evidence == {"reason": "not due yet"}
    assert standing(CHECK, [call()], k=Answer(value={"met": 1})).status == "unmet"


@pytest.mark.guarantee("claimed-never-counts")
def test_what_a_proposed_script_claims_meets_nothing() -> None:
    criteria = [threshold(), trend("decreasing"), DONE, threshold("mass", criterion_id="any", source="*")]
    for claimed in (True, False):
        simulation = Simulation(criteria=criteria, checkpoint_cadence={"kind": "on_event", "event_name": "done"})
        for value in (0.5, 0.25):
            simulation.begin(script="mission.observe('mass', 0.5)")
            simulation.end_script(observed={"mass": value}, events=[{"event_name": "done"}], claimed=claimed)
            statuses = {name: result.status for name, result in simulation.results().items()}
            ended = simulation.close()
            assert ended.facts.checkpoint is not claimed
        if claimed:
            assert statuses == {"mass": "inconclusive", "t": "inconclusive", "done": "unmet", "any": "inconclusive"}
            assert simulation.state.claimed == {"mass": 0.25}
            assert simulation.state.metrics == {}
            assert simulation.state.nearest == {}
        else:
            assert set(statuses.values()) == {"met"}
            assert simulation.state.status == "completed"


@pytest.mark.guarantee("claimed-never-counts")
def test_the_operators_own_script_counts_under_its_own_name() -> None:
    simulation = Simulation(criteria=[threshold(source="script"), threshold(criterion_id="lab", source="lab.*")])
    simulation.begin(mass(5.0))
    simulation.end_script(observed={"mass": 0.5}, memory={"step": 1})
    results = simulation.results()
    assert results["mass"].source == Source(tool="script", call_id="script-0", iteration=0)
    assert (results["mass"].status, results["lab"].status) == ("met", "unmet")
    assert simulation.state.memory == {"step": 1}
