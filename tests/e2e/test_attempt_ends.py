"""How an attempt ends: an unsolved submission is the end whoever drives, a search always hands in what it found."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place
from model_endpoint import ModelEndpoint, Reply, calls
from problem_stage import BY_PREDICATE, METRIC, SCHEMA, problem

from pursuit import Problem, Runtime
from pursuit.config.configuration import Configuration
from pursuit.core.mission import parse_mission
from pursuit.problems.missions import Plan, mission_for, proposer_for, server_of

pytestmark = pytest.mark.usefixtures("quick_python")

SEARCH = {"kind": "search", "tool": "probe", "parameters": {"x": {"low": 0, "high": 10}}, "seed": 3}
OUT_OF_REACH = {**BY_PREDICATE, "metrics": [{**METRIC, "target": -1}]}
PATIENT = {"task_patience": 120.0}
"""One turn goes on until the judge, which is a task, has spoken, however slow the machine is."""
WRONG = {"x": 9}
"""Far from what is looked for."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    here = Place(tmp_path)
    here.write("pursuit.toml", f'[policy]\nmode = "auto"\n[settings]\ntask_patience = {PATIENT["task_patience"]}\n')
    return here


def exam(place: Place, *tools: str, **fields: Any) -> Problem:
    return problem(place.folder / "mine", *tools, submission=SCHEMA, **fields)


def terminated(place: Place, one: Problem, mission_id: str) -> dict[str, Any]:
    """The only attempt, whose mission has ended with its first submission."""
    status = place.json("status", mission_id)
    assert (status["status"], status["verdict_reason"]) == ("terminated", "out_of_reach")
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    (row,) = found["attempts"]
    assert (row["status"], row["solved"], row["value"]) == ("scored", False, 6)
    return status


@pytest.mark.guarantee("an-unsolved-submission-is-the-end")
def test_a_script_is_not_run_again_after_a_submission_that_solves_nothing(place: Place) -> None:
    script = f'call("problem.submit_final", {json.dumps(WRONG)})'
    one = exam(place, baseline={"proposer": {"kind": "script", "script": script}})
    out, notes = place.ask("problem", "attempt", one.manifest.path, code=3)
    mission_id = re.findall(r"mission: (\S+)", out)[0]
    assert terminated(place, one, mission_id)["iteration_count"] == 1
    assert "the submission does not solve the problem" in out
    hint = notes.strip().splitlines()[-1]
    assert hint.startswith("compare it: pursuit problem compare ")
    assert "attempt-" in place.ask(*shlex.split(hint.partition("pursuit ")[2]))[0]


@pytest.mark.guarantee("an-unsolved-submission-is-the-end")
def test_a_model_is_asked_no_more_after_a_submission_that_solves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(body: dict[str, Any]) -> Reply:
        return calls((re.findall(r"problem-\w{8}__submit_final", json.dumps(body))[0], WRONG), tokens=(1000, 200))

    one = exam(place)
    with ModelEndpoint(submit) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        words = ("problem", "attempt", one.manifest.path, "--proposer", "openai:gpt-4o-mini")
        done = place.json(*words, code=3)
        assert len(endpoint.seen) == 1 and done["tokens"] == 1_200
    terminated(place, one, done["session_id"])


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_a_search_that_misses_its_target_hands_in_its_best_before_the_last_iteration(place: Place) -> None:
    most = 3
    budget = {"evaluation_tools": ["probe"], "evaluations": 50}
    one = exam(place, "probe", scorer=OUT_OF_REACH, budget=budget, baseline={"proposer": SEARCH})
    words = ("problem", "attempt", one.manifest.path, "--proposer", "search", "--max-iterations", most)
    done = place.json(*words, code=3)
    assert (done["status"], done["evaluations"], done["spent_budgets"]) == ("scored", most - 1, [])
    assert done["value"] == min(value for _, value in done["series"])


async def pursued(one: Problem, folder: Path, **given: Any) -> dict[str, Any]:
    """The report of a baseline's mission, with the problem's server in this process, judged by its own word."""
    plan = Plan(attempt_id="attempt-1", proposer=proposer_for(one.manifest, None), serve=(), judge=("true",), **given)
    table = mission_for(one.manifest, plan)
    table.pop("servers")
    server = one.to_mcp_server(state=folder / "ledger.db", attempt_id="attempt-1")
    servers = {server_of("attempt-1"): server}
    async with Runtime(state=folder / "ledger.db", config=Configuration(), servers=servers, mode="auto") as runtime:
        return dict((await runtime.pursue(parse_mission(table))).data)


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
@pytest.mark.parametrize(
    ("proposer", "budget", "made"),
    [
        (SEARCH, {"evaluations": 4}, 4),
        ({**SEARCH, "trials": 50}, {"evaluations": 4}, 5),
        ({**SEARCH, "batch": 3}, {"calls": 5}, 5),
    ],
    ids=["by itself", "when it is told", "in batches"],
)
async def test_a_search_hands_in_its_best_when_the_budget_of_the_problem_is_spent(
    tmp_path: Path, proposer: dict[str, Any], budget: dict[str, Any], made: int
) -> None:
    limits = {**budget, "evaluation_tools": ["probe"]}
    fields: dict[str, Any] = {"submission": SCHEMA, "scorer": OUT_OF_REACH, "budget": limits}
    one = problem(tmp_path / "mine", "probe", baseline={"proposer": proposer}, **fields)
    report = await pursued(one, tmp_path)
    tools = {row["tool"].partition(".")[2]: row["calls"] for row in report["calls"]["by_tool"]}
    assert (tools["probe"], tools["submit_final"], report["verdict_reason"]) == (made, 1, "criteria_met")


async def test_without_a_target_a_search_makes_the_primary_metric_as_good_as_it_can(tmp_path: Path) -> None:
    scorer = {**BY_PREDICATE, "metrics": [{"metric": "distance", "direction": "minimize"}]}
    one = problem(tmp_path / "mine", "probe", submission=SCHEMA, scorer=scorer, baseline={"proposer": SEARCH})
    proposer = mission_for(one.manifest, Plan(attempt_id="attempt-1", proposer=SEARCH, serve=(), judge=()))["proposer"]
    assert (proposer["objective"], proposer["direction"], proposer["trials"]) == ("distance", "minimize", 499)

    report = await pursued(one, tmp_path, max_iterations=12)
    assert (report["verdict_reason"], report["iteration_count"]) == ("criteria_met", 12)


def test_after_a_resume_the_score_is_shown_and_before_the_end_it_is_not(place: Place) -> None:
    one = exam(place)
    begun = place.json("problem", "attempt", one.manifest.path, "--proposer", "client", code=4)
    server = server_of(begun["attempt_id"])
    place.write("nothing.json", json.dumps({"tool_calls": []}))
    out, notes = place.ask("iterate", begun["session_id"], "--proposal", "nothing.json", "--mode", "auto", code=4)
    assert "\nsolved: " not in out and begun["attempt_id"] not in out.partition("\ncriterion")[0]
    assert "--proposal FILE" in notes
    wanted = [{"tool_name": f"{server}.submit_final", "args": {"x": 3}}]
    place.write("proposal.json", json.dumps({"tool_calls": wanted}))
    words = ("iterate", begun["session_id"], "--proposal", "proposal.json", "--mode", "auto")
    out, notes = place.ask(*words)
    assert "distance: 0\n" in out and "solved: yes" in out and begun["attempt_id"] in out
    assert "compare it: pursuit problem compare" in notes


def test_an_agent_has_the_time_that_its_brief_says_and_a_baseline_its_own(place: Place) -> None:
    table = {"proposer": SEARCH, "max_wall_clock_seconds": 7, "max_iterations": 9}
    one = exam(place, "probe", budget={"wall_seconds": 1234}, baseline=table)
    begun = place.json("problem", "attempt", one.manifest.path, "--proposer", "client", code=4)
    budget = place.json("status", begun["session_id"])["budget"]
    assert (budget["max_wall_clock_seconds"], budget["max_iterations"]) == (1234, 500)
    done = place.json("problem", "attempt", one.manifest.path, code=None)
    budget = place.json("status", done["session_id"])["budget"]
    assert (budget["max_wall_clock_seconds"], budget["max_iterations"]) == (7, 9)
