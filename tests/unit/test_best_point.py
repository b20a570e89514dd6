"""The best point of a mission keeps all limits; what violates one is shown as such, and is never a lesson."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, proposal, replay, stage

from pursuit import Budget, Mission, metric
from pursuit.core.best import Best, BestPoint, Violation
from simulation import Simulation, call, threshold

LIMITS = [threshold("cost", "<=", 1.8), threshold("stress", "<=", 100.0)]


def point(cost: float, stress: float | None = None, **args: Any) -> dict[str, Any]:
    values = {"cost": cost} if stress is None else {"cost": cost, "stress": stress}
    return call(args=args, metrics=values)


def best_of(simulation: Simulation) -> Best:
    best = simulation.state.best_points.best()
    assert best is not None
    return best


def test_a_better_value_that_violates_a_limit_is_not_the_best() -> None:
    simulation = Simulation(criteria=LIMITS)
    for each in (point(3.0, 90, x=1), point(1.2, 150, x=2), point(2.5, 99, x=3), point(2.7, 50, x=4)):
        simulation.iterate(each)
    best = best_of(simulation)
    assert best.point is not None and best.infeasible is not None
    assert (best.point.value, best.point.args, best.point.iteration, best.point.call_id) == (2.5, {"x": 3}, 2, "c2.0")
    assert (best.infeasible.value, best.infeasible.args) == (1.2, {"x": 2})
    assert [(one.criterion_id, one.value) for one in best.infeasible.violates] == [("stress", 150)]


def test_each_limit_has_a_value_that_keeps_the_others_too() -> None:
    simulation = Simulation(criteria=[threshold("cost", "<=", 1.8), threshold("yield", ">=", 5.0)])
    for cost, gain in ((3.0, 6.0), (1.5, 2.0), (1.7, 4.0), (2.0, 9.0)):
        simulation.iterate(call(metrics={"cost": cost, "yield": gain}))
    cost, gain = simulation.state.best_points.of("cost"), simulation.state.best_points.of("yield")
    assert cost is not None and cost.point is not None and cost.point.value == 2.0
    assert gain is not None and gain.point is not None and gain.point.value == 9.0
    simulation.iterate(call(metrics={"cost": 1.7, "yield": 5.5}), call(metrics={"cost": 1.8, "yield": 5.7}))
    gain = simulation.state.best_points.of("yield")
    assert gain is not None and gain.point is not None and (gain.point.value, gain.point.call_id) == (5.7, "c4.1")


def test_the_goal_is_the_threshold_that_nothing_reaches_with_the_others_kept() -> None:
    """Written last, `cost` is the goal all the same: no point keeps it as a limit."""
    simulation = Simulation(criteria=[LIMITS[1], LIMITS[0]])
    for each in (point(3.0, 90), point(2.5, 99)):
        simulation.iterate(each)
    best = best_of(simulation)
    assert best.point is not None and (best.point.metric, best.point.value) == ("cost", 2.5)


def test_no_feasible_point_is_said_so() -> None:
    simulation = Simulation(criteria=LIMITS)
    simulation.iterate(point(3.0, 150, token="t"))
    row = BestPoint.of(best_of(simulation))
    assert row is not None and not row.feasible and row.value is None and row.infeasible is not None
    assert row.infeasible.args == {"token": "[redacted]"}
    assert row.infeasible.violates == [Violation(criterion_id="stress", wanted="stress <= 100", value=150)]


def test_a_limit_without_a_value_is_named_and_loses_to_a_known_one() -> None:
    simulation = Simulation(criteria=LIMITS)
    simulation.iterate(point(2.0))
    first = best_of(simulation)
    assert first.point is not None and [one.criterion_id for one in first.point.unknown] == ["stress"]
    simulation.iterate(point(2.9, 99))
    second = best_of(simulation)
    assert second.point is not None and second.point.value == 2.9


def test_the_calls_of_a_batch_are_points_of_their_own_and_other_tools_give_the_rest() -> None:
    simulation = Simulation(criteria=LIMITS)
    simulation.iterate(point(2.0, 150), point(2.4, 80), point(2.2))
    best = best_of(simulation)
    assert best.point is not None and best.point.call_id == "c0.1"
    apart = Simulation(criteria=LIMITS)
    apart.iterate(call(metrics={"cost": 2.0}), call("lab.stress", metrics={"stress": 150}))
    apart.iterate(call(metrics={"cost": 2.2}), call("lab.stress", metrics={"stress": 80}))
    best = best_of(apart)
    assert best.point is not None and best.point.value == 2.2
    assert best.infeasible is not None and best.infeasible.value == 2.0


def test_the_objective_of_a_search_is_the_goal_and_its_constraints_are_the_limits() -> None:
    criteria = [threshold("stress", "<=", 100.0), threshold("size", "<=", 3.0, required=False)]
    search = {"kind": "search", "tool_name": "lab.run", "objective": "cost", "direction": "minimize"}
    simulation = Simulation(criteria=criteria, proposer={**search, "constraints": ["stress", "size"]})
    for cost, stress, size in ((1.0, 90, 4), (2.0, 90, 3), (0.5, 200, 1)):
        simulation.iterate(call(args={"x": cost}, metrics={"cost": cost, "stress": stress, "size": size}))
    best = best_of(simulation)
    assert best.point is not None and best.point.value == 2.0
    assert best.infeasible is not None and best.infeasible.value == 0.5


def design(x: float) -> dict[str, Any]:
    """A beam: the thinner, the cheaper and the more stressed."""
    return {"metrics": {"cost": x, "stress": 200 / x}}


@pytest.fixture
def beam() -> Mission:
    calls = [proposal(("world.design", {"x": x})) for x in (4.0, 1.0, 2.0, 3.0)]
    return mission(
        criteria=[metric("cost") <= 1.5, metric("stress") <= 100],
        budget=Budget(max_iterations=4),
        proposer=replay(*calls),
        tool_allowlist=["world.design"],
        stagnation_threshold="off",
    )


async def test_report_status_lessons_and_python_name_the_feasible_design(tmp_path: Path, beam: Mission) -> None:
    async with stage(tmp_path, design) as runtime:
        report = await runtime.pursue(beam)
        assert (report.best.metric, report.best.value, report.best.args) == ("cost", 2, {"x": 2})
        assert (report.best.iteration, report.best.infeasible and report.best.infeasible.args) == (2, {"x": 1})
        assert report.data["metrics"]["cost"]["best"] == 2
        status = (await runtime.runner.status(report.session_id)).as_json()
        assert status["best_point"] == report.data["best_point"]
        assert status["best"] == {"cost <= 1.5": 2, "stress <= 100": 100}
        lessons = "\n".join(report.data["lessons"])
        assert (
            'cost <= 1.5 was never met with all limits kept: the best cost was 2, from world.design with {"x":2'
            in lessons
        )
        assert '"x":1' not in lessons
        for shown in (report.html(), report.markdown()):
            assert "Best point" in shown and "cost 2 with {" in shown.replace("\\", "")
            assert "violates stress &lt;= 100 (200)" in shown.replace("\\", "").replace("<=", "&lt;=")
