"""The proposer search on a stage: it finds, it fails in order, and it goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_stage import events_of, mission, outcomes, stage

from pursuit import Budget, metric, tool
from pursuit.core.events import IterationProposed

pytestmark = pytest.mark.slow
ROD = {"d": {"low": 1.0, "high": 10.0}, "n": {"low": 1, "high": 8, "kind": "int"}, "alloy": {"choices": ["a", "b"]}}
STRENGTH = {"a": 1.0, "b": 1.6}


@tool(read_only=True)
def rod(d: float, n: int, alloy: str) -> dict[str, Any]:
    """Rods side by side: what they weigh, and the stress in them."""
    weight = n * d * d * (1.0 if alloy == "a" else 1.3)
    return {"metrics": {"weight": weight, "stress": 100 / (n * d * d * STRENGTH[alloy]) + 0.3 * n}}


LIGHT = [metric("weight") <= 35, metric("stress") <= 2.8]


def searching(**given: Any) -> dict[str, Any]:
    return {"kind": "search", "tool": "rod", "parameters": ROD, **given}


async def trials_of(runtime: Any, mission_id: str) -> list[dict[str, Any]]:
    return [call.args for one in await events_of(runtime, mission_id, IterationProposed) for call in one.calls]


async def pursued(folder: Path, *tools: Any, **given: Any) -> tuple[Any, list[dict[str, Any]]]:
    folder.mkdir(exist_ok=True)
    async with stage(folder, *(tools or (rod,))) as runtime:
        report = await runtime.pursue(mission(**given))
        return report, await trials_of(runtime, report.session_id)


async def test_it_finds_arguments_that_meet_the_criteria(tmp_path: Path) -> None:
    report, trials = await pursued(tmp_path, criteria=LIGHT, budget=Budget(max_iterations=60), proposer=searching())
    assert (report.status, report.verdict_reason) == ("completed", "criteria_met")
    assert {type(trials[0]["d"]), type(trials[0]["n"]), type(trials[0]["alloy"])} == {float, int, str}


@pytest.mark.parametrize("sampler", ["surrogate", "tpe", "cmaes", "random", "auto", "cmaes with noise"])
@pytest.mark.guarantee("search-goes-on-where-it-was")
async def test_one_that_is_interrupted_makes_the_trials_of_one_that_is_not(tmp_path: Path, sampler: str) -> None:
    batch, kind, noise = 3, sampler.split()[0], sampler.endswith("noise") or None
    given: dict[str, Any] = {
        "criteria": [metric("weight") <= 1, metric("stress") <= 1],
        "budget": Budget(max_iterations=14),
        "proposer": searching(seed=7, sampler=kind, batch=batch, noise=noise),
    }
    _, whole = await pursued(tmp_path / "whole", **given)
    assert len(whole) == 14 * batch

    async def part(mission_id: str | None, iterations: int) -> tuple[str, list[dict[str, Any]]]:
        async with stage(tmp_path, rod) as runtime:
            mission_id = mission_id or (await runtime.runner.start(mission(**given))).session_id
            await runtime.runner.iterate(mission_id, iterations=iterations)
            return mission_id, await trials_of(runtime, mission_id)

    mission_id, _ = await part(None, 5)
    mission_id, _ = await part(mission_id, 6)
    assert (await part(mission_id, 3))[1] == whole
    _, other = await pursued(
        tmp_path / "other", **{**given, "proposer": searching(seed=8, sampler=kind, batch=batch, noise=noise)}
    )
    assert other != whole


async def test_a_mission_that_searches_is_not_given_up_for_lack_of_progress(tmp_path: Path) -> None:
    given: dict[str, Any] = {"criteria": [metric("weight") <= 0], "budget": Budget(max_iterations=12)}
    report, _ = await pursued(tmp_path / "a", **given, stagnation_threshold=None, proposer=searching(sampler="random"))
    assert report.verdict_reason == "max_iterations"
    report, _ = await pursued(tmp_path / "b", **given, stagnation_threshold=2, proposer=searching(sampler="random"))
    assert report.verdict_reason == "no_progress"


async def test_an_evaluation_that_fails_is_a_trial_to_keep_off(tmp_path: Path) -> None:
    @tool(read_only=True)
    def brittle(d: float, n: int, alloy: str) -> dict[str, Any]:
        if alloy == "b" or n > 6:
            raise ValueError("no such rod")
        return rod(d, n, alloy)

    proposer = {**searching(), "tool": "brittle"}
    criteria = [metric("weight") <= 60, metric("stress") <= 2.8]
    report, trials = await pursued(
        tmp_path, brittle, criteria=criteria, budget=Budget(max_iterations=80), proposer=proposer
    )
    assert report.completed
    failed = [one["alloy"] == "b" or one["n"] > 6 for one in trials]
    assert any(failed) and not failed[-1]


async def test_trials_that_are_used_up_are_a_failure_of_the_proposer_with_its_reason(tmp_path: Path) -> None:
    async with stage(tmp_path, rod) as runtime:
        wanted = mission(
            criteria=[metric("weight") <= 0],
            budget=Budget(max_iterations=99),
            proposer=searching(trials=5, batch=2),
        )
        report = await runtime.pursue(wanted)
        assert report.verdict_reason == "proposer_failed"
        proposed = await events_of(runtime, report.session_id, IterationProposed)
        assert [len(one.calls) for one in proposed] == [2, 2, 1, 0, 0, 0]
        assert proposed[-1].failed == ["all 5 trials of the search were made"]


async def test_calls_that_the_budget_cut_off_are_no_word_against_their_arguments(tmp_path: Path) -> None:
    async with stage(tmp_path, rod) as runtime:
        wanted = mission(
            criteria=[metric("weight") <= 0],
            budget=Budget(max_iterations=9, max_tool_calls=7, on_exhausted="wait"),
            proposer=searching(batch=4),
        )
        started = await runtime.runner.start(wanted)
        state = await runtime.runner.run(started.session_id)
        assert (state.waiting_for, state.tool_calls) == ("budget", 7)
        assert (await outcomes(runtime, started.session_id))[-1] == ("world.rod", "skipped")
        await runtime.runner.extend(started.session_id, {"max_tool_calls": 16})
        state = await runtime.runner.run(started.session_id)
        assert state.tool_calls == 16


def test_without_its_libraries_it_says_which_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "mission.toml").write_text("""
directive = "x"
allow_all_tools = true
budget = { max_iterations = 1 }
proposer = { kind = "search", tool = "beam.evaluate" }
criteria = [{ criterion_id = "c", kind = "metric_threshold", metric = "cost", op = "<", target = 2 }]
[servers.beam]
command = "__python_executable__"
args = ["-m", "pursuit.demo.welded_beam"]
""")
    blocked = "import sys; sys.modules['optuna'] = None; from pursuit.cli.main import main; main()"
    words = [sys.executable, "-c", blocked, "run", "mission.toml", "--state", "ledger.db"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "pip install 'pursuit[search]'" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1
