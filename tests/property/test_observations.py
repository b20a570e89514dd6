"""No sequence of observations meets a criterion whose latest observation does not, unless it holds values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pursuit.core.log_metrics import NUMBER, LogMetrics, MetricRule
from pursuit.core.mission import ObserveRule
from pursuit.core.observe import lift
from simulation import Simulation, call, threshold

TOOLS = ("lab.run", "lab.weigh")
VALUES = st.sampled_from([0.5, 1.0, 2.0, math.nan, math.inf, None, True, "0.5", [], [0.5], [2.0, 0.5], {"a": 0.5}])
CALLS = st.tuples(
    st.sampled_from(TOOLS), st.sampled_from(["ok", "ok", "ok", "failed", "timed_out", "unknown"]), st.none() | VALUES
)
ITERATIONS = st.lists(st.lists(CALLS, min_size=1, max_size=3), min_size=1, max_size=5)
Said = tuple[str, str, Any]


def observed(iterations: list[list[Said]], criterion: dict[str, Any]) -> str:
    """The status of the criterion at the last checkpoint; what a call says goes the way of a tool's JSON text."""
    simulation = Simulation(criteria=[criterion, threshold("never")], stagnation_threshold="off")
    for said in iterations:
        calls: list[dict[str, Any]] = []
        for tool, outcome, value in said:
            text = json.dumps({"metrics": {"x": value}})
            result = {"content": [{"type": "text", "text": text}], "isError": outcome != "ok"}
            calls.append(call(tool, outcome=outcome, metrics=lift(tool, result)[0]))
        simulation.iterate(*calls)
    return simulation.state.results[criterion["criterion_id"]].status


def met_by(latest: Said, path: str) -> bool:
    """Whether this one observation meets `path <= 1`, by a plain reading."""
    _, outcome, value = latest
    if path == "x.0":
        value = value[0] if isinstance(value, list) and value else None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return outcome == "ok" and number and value <= 1


@settings(max_examples=100, deadline=None)
@given(ITERATIONS, st.sampled_from(["x", "x.0"]))
@example([[("lab.run", "ok", 0.5)], [("lab.run", "ok", math.nan)]], "x")
@pytest.mark.guarantee("stale-values-complete-nothing")
def test_what_the_latest_observation_does_not_meet_is_not_met(iterations: list[list[Said]], path: str) -> None:
    """With a source; without one, the latest of the tools that have ever reported the metric."""
    flat = [one for said in iterations for one in said]
    for tool in TOOLS:
        own = [one for one in flat if one[0] == tool]
        status = observed(iterations, threshold(path, source=tool))
        assert (status == "met") == (bool(own) and met_by(own[-1], path))
    reporting = {one[0] for one in flat if met_by(one, path) or met_by((one[0], one[1], _negative(one[2])), path)}
    own = [one for one in flat if one[0] in reporting]
    assert (observed(iterations, threshold(path)) == "met") == (bool(own) and met_by(own[-1], path))


def _negative(value: Any) -> Any:
    """A value that meets the threshold if this one is a number at all."""
    if isinstance(value, list):
        return [_negative(item) for item in value]
    return -value if isinstance(value, float) else value


@settings(max_examples=100, deadline=None)
@given(ITERATIONS)
def test_hold_keeps_the_last_number(iterations: list[list[Said]]) -> None:
    own = [one for said in iterations for one in said if one[0] == TOOLS[0]]
    numbers = [one for one in own if met_by(one, "x") or met_by((one[0], one[1], _negative(one[2])), "x")]
    status = observed(iterations, threshold("x", source=TOOLS[0], hold=True))
    assert (status == "met") == (bool(numbers) and met_by(numbers[-1], "x"))


PRINTED = {
    "text": st.sampled_from(["", "x=0.5", "x=2", "x=1e-3", "x=nan", "x=inf", "x=-inf", "x=1e999"]),
    "json": st.sampled_from(["", "0.5", "2", "1e-3", "null", "NaN", "1e999"]).map(
        lambda one: one and f'{{"x": {one}}}'
    ),
}
RUNS = st.sampled_from(list(PRINTED)).flatmap(
    lambda form: st.tuples(
        st.just(form), st.lists(st.lists(PRINTED[form], min_size=1, max_size=4), min_size=1, max_size=4)
    )
)


@settings(max_examples=100, deadline=None)
@given(RUNS, st.sampled_from(["metrics", "observe"]))
@example(("text", [["x=0.5", "x=nan"]]), "metrics")
@example(("json", [['{"x": 0.5}', '{"x": null}']]), "observe")
@pytest.mark.guarantee("stale-values-complete-nothing")
def test_the_last_value_that_a_command_prints_decides(runs: tuple[str, list[list[str]]], way: str) -> None:
    """By the metrics of a command and by observe rules, as text and as JSON lines."""
    form, printed = runs
    path, pattern = ("x", None) if form == "json" else (None, f"x=({NUMBER})")
    simulation = Simulation(criteria=[threshold("x"), threshold("never")], stagnation_threshold="off")
    for lines in printed:
        if way == "metrics":
            metrics = LogMetrics([MetricRule(name="x", json=path, pattern=pattern)])
            for line in lines:
                metrics.look(metrics.rules[0], f"{line}\n")
            found = metrics.found
        else:
            rule = ObserveRule(tool="*", metric="x", jmespath=path, regex=pattern)
            found = lift("lab.run", {"content": []}, [rule], "\n".join(lines))[0]
        simulation.iterate(call(metrics=found))
    said = [line for line in printed[-1] if line]
    met = bool(said) and ("0.5" in said[-1] or "1e-3" in said[-1])
    assert (simulation.state.results["x"].status == "met") == met
