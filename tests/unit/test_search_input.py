"""What may stand in a search: ranges, choices, bounds from the tool's schema, and what it is after."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from engine_stage import mission, play, stage
from pydantic import Field

from pursuit import Budget, ValidationFailed, metric, tool
from pursuit.core.mission import Mission
from pursuit.proposers.search.objective import Objective, aim_of
from pursuit.proposers.search.settings import Parameter, SearchProposer


class Grade(Enum):
    SOFT = "soft"
    HARD = "hard"


def search(**given: Any) -> dict[str, Any]:
    return {"kind": "search", "tool": "world.weigh", **given}


def faults_of(**given: Any) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        mission(proposer=search(**given))
    return {fault.field: fault.reason for fault in caught.value.faults}


def test_every_fault_of_a_search_is_said_at_once_with_its_place() -> None:
    found = faults_of(
        parameters={
            "a": {"low": 2, "high": 1},
            "b": {"low": 0, "high": 1, "log": True},
            "c": {"low": 0.5, "high": 3, "kind": "int"},
            "d": {"choices": [1, True]},
            "e": {"choices": ["x"], "low": 1},
            "f": {"low": 0, "high": 1, "step": 2},
            "g": {"low": "0", "high": 1},
            "h": {"low": 0, "high": 1, "stepp": 1},
            "i": {"choices": [[1]]},
            "j": {"low": 0, "high": 1, "step": -1},
            "k": {"low": 1, "high": 9, "step": 1, "log": True},
            "l": {"low": 0.1, "high": 1e300, "step": 1e-12},
            "m": {"low": 0, "high": 2**63 - 1, "kind": "int"},
            "n": {"low": 0, "high": 1e301},
        },
        args={"a": 1},
        direction="minimize",
        batch=0,
        seed=-1,
        sampler="grid",
        trials=0,
    )
    lows = ("a.low", "b.low", "c.low", "g.low")
    others = ("d.choices", "e.choices", "f.step", "h.stepp", "i.choices[0]", "j.step", "k.step", "l.step", "m.high")
    alone = ("parameters", "direction", "batch", "seed", "sampler", "trials")
    wrong = {f"proposer.parameters.{one}" for one in (*lows, *others, "n.high")}
    assert set(found) == wrong | {f"proposer.{one}" for one in alone}
    assert "must be below high" in found["proposer.parameters.a.low"]


def test_the_tool_is_named_by_either_word_and_by_one_of_them() -> None:
    assert SearchProposer(tool_name="a.b") == SearchProposer(tool="a.b")
    assert set(faults_of(tool_name="world.weigh")) == {"proposer.tool"}
    assert set(_raised(Mission, {"kind": "search"})) == {"proposer.tool_name"}


def _raised(shape: type[Mission], proposer: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        shape(directive="x", criteria=[metric("m") < 1], budget=Budget(max_iterations=1), proposer=proposer)  # pyright: ignore
    return {fault.field: fault.reason for fault in caught.value.faults if fault.field.startswith("proposer")}


def weigh(
    a: Annotated[float, Field(ge=0.5, lt=2)],
    n: Annotated[int, Field(gt=1, le=9)],
    even: Annotated[int, Field(ge=1, le=9, multiple_of=2)],
    grade: Grade,
    mode: Literal["x", "y"] = "x",
    flag: bool = False,
    note: str = "",
) -> dict[str, Any]:
    return {"metrics": {"mass": a * n}}


def boundless(a: float, b: Annotated[int, Field(ge=0)], name: str) -> dict[str, Any]:
    return {"metrics": {"mass": a}}


def admitted(tmp_path: Path, proposer: dict[str, Any], *criteria: Any) -> SearchProposer:
    async def scene() -> SearchProposer:
        async with stage(tmp_path, weigh, boundless) as runtime:
            wanted = mission(criteria=list(criteria) or [metric("mass") <= 1], proposer=proposer)
            started = await runtime.runner.start(wanted)
            found = (await runtime.runner.state(started.session_id)).mission.proposer
            assert isinstance(found, SearchProposer)
            return found

    return play(scene)


def refused(tmp_path: Path, proposer: dict[str, Any], *criteria: Any) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        admitted(tmp_path, proposer, *criteria)
    return {fault.field: fault.reason for fault in caught.value.faults}


def test_bounds_and_choices_come_from_the_schema_of_the_tool(tmp_path: Path) -> None:
    found = admitted(tmp_path, {"kind": "search", "tool": "weigh"})
    assert found.tool_name == "world.weigh"
    assert dict(found.parameters) == {
        "a": Parameter(low=0.5, high=2 - 2e-9, kind="float"),
        "n": Parameter(low=2, high=9, kind="int"),
        "even": Parameter(low=2, high=9, step=2, kind="int"),
        "grade": Parameter(choices=["soft", "hard"]),
        "mode": Parameter(choices=["x", "y"]),
        "flag": Parameter(choices=[False, True]),
    }


def test_what_is_given_goes_before_the_schema_and_what_is_fixed_is_not_searched(tmp_path: Path) -> None:
    given = {"a": {"low": 1, "log": True}, "n": {}, "even": {"choices": [2, 4]}}
    found = admitted(tmp_path, search(parameters=given, args={"grade": "soft"}))
    assert dict(found.parameters) == {
        "a": Parameter(low=1, high=2 - 2e-9, log=True, kind="float"),
        "n": Parameter(low=2, high=9, kind="int"),
        "even": Parameter(choices=[2, 4]),
    }


async def test_a_range_of_several_decades_without_a_scale_is_warned_of(tmp_path: Path) -> None:
    def fit(
        rate: Annotated[float, Field(ge=0.0001, le=1)], width: Annotated[int, Field(ge=8, le=512)]
    ) -> dict[str, Any]:
        return {"metrics": {"loss": rate * width}}

    async with stage(tmp_path, fit) as runtime:
        scales: list[dict[str, Any]] = [{}, {"log": True}, {"log": False}, {"low": 0.01}]
        started = [
            await runtime.runner.start(
                mission(
                    criteria=[metric("loss") <= 1],
                    proposer={"kind": "search", "tool": "fit", "parameters": {"rate": scale, "width": {}}},
                )
            )
            for scale in scales
        ]
        (warned,), *others = [one.warnings for one in started]
    assert "rate is searched evenly from 0.0001 to 1" in warned
    assert "rate = { log = true }" in warned
    assert others == [(), (), ()]


async def test_a_batch_that_cannot_run_side_by_side_is_warned_of(tmp_path: Path) -> None:
    @tool(parallel_safe=True)
    def safe(a: Annotated[float, Field(ge=0, le=1)]) -> dict[str, Any]:
        return {"metrics": {"mass": a}}

    async with stage(tmp_path, weigh, safe) as runtime:
        proposers = [{"tool": "weigh", "batch": 4}, {"tool": "weigh"}, {"tool": "safe", "batch": 4}]
        started = [
            await runtime.runner.start(
                mission(criteria=[metric("mass", source="world.*") <= 1], proposer={"kind": "search", **given})
            )
            for given in proposers
        ]
        (warned,), *others = [one.warnings for one in started]
    assert "proposer.batch is 4, but world.weigh is not known to be safe in parallel" in warned
    assert warned.endswith("if it is safe, write @tool(parallel_safe=True) above the function")
    assert others == [(), ()]


def test_a_number_without_bounds_is_a_fault_that_says_what_to_do(tmp_path: Path) -> None:
    found = refused(tmp_path, {"kind": "search", "tool": "world.boundless"})
    assert set(found) == {"proposer.parameters.a", "proposer.parameters.b", "proposer.args"}
    assert "needs low and high" in found["proposer.parameters.a"]
    assert "needs high" in found["proposer.parameters.b"]
    assert "'name'" in found["proposer.args"]


def test_ranges_that_the_tool_does_not_take_are_refused_at_the_start(tmp_path: Path) -> None:
    fixed = {"n": 3, "even": 2, "grade": "soft"}
    assert set(refused(tmp_path, search(parameters={"a": {"low": 0, "high": 1}}, args=fixed))) == {
        "proposer.parameters"
    }
    assert set(refused(tmp_path, search(parameters={"a": {"low": 3}}, args=fixed))) == {"proposer.parameters.a.low"}
    assert set(refused(tmp_path, search(parameters={"a": {}}, args={**fixed, "grade": "odd"}))) == {
        "proposer.parameters"
    }
    assert set(refused(tmp_path, search(tool="world.way"))) == {"proposer.tool_name"}


def test_a_search_needs_something_to_look_for(tmp_path: Path) -> None:
    here = search(parameters={}, args={})
    assert set(refused(tmp_path, here, metric("mass", source="world.boundless") < 1)) == {"proposer.objective"}
    assert set(refused(tmp_path, {**here, "objective": "heat"})) == {"proposer.direction"}
    assert set(refused(tmp_path, {**here, "constraints": ["heavy"]})) == {"proposer.constraints[0]"}
    assert admitted(tmp_path, {**here, "objective": "heat", "direction": "maximize"}).objective == "heat"


def aim(*criteria: Any, **given: Any) -> Any:
    wanted = mission(criteria=list(criteria), proposer=search(**given))
    assert isinstance(wanted.proposer, SearchProposer)
    found, faults = aim_of(wanted, wanted.proposer, "world.weigh")
    assert not faults
    return found


def test_one_threshold_is_the_objective_and_several_are_limits() -> None:
    assert aim(metric("mass") <= 1).objective == Objective("mass")
    assert aim(metric("mass") >= 1).objective == Objective("mass", -1.0)
    assert aim(metric("mass") == 1).objective == Objective("mass", target=1.0)
    several = aim(metric("mass") <= 1, metric("heat") > 0, (metric("age") < 1).optional())
    assert several.objective is None
    assert [limit.metric for limit in several.limits] == ["mass", "heat"]
    named = aim(metric("mass") <= 1, metric("heat") > 0, objective="mass")
    assert (named.objective, [limit.metric for limit in named.limits]) == (Objective("mass"), ["heat"])
    against = aim(metric("mass") <= 1, objective="mass", direction="maximize")
    assert (against.objective, len(against.limits)) == (Objective("mass", -1.0), 1)


def test_an_excess_is_above_zero_exactly_when_a_limit_is_not_kept() -> None:
    several = aim(metric("a") < 1, metric("b") >= 2, metric("c") == 3, metric("d") != 4)
    score = several.score({"a": 1, "b": 2, "c": 3, "d": 5})
    assert [over > 0 for over in score.excess] == [True, False, False, False]
    assert not score.met
    score = several.score({"a": 0, "b": 1.5, "c": 2, "d": 4})
    assert score.excess[:3] == (-1, 0.5, 1.0) and 0 < score.excess[3] < 1e-300
    assert several.score({"a": 0, "b": 9, "c": 3, "d": 5}).met
    assert several.score({"a": 0, "b": 9, "c": 3}) is None, "a metric that is missing is no success"
