"""Shipped problems through the front door: baselines, missions on them, the command line."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from model_endpoint import ModelEndpoint, Reply, calls

from pursuit import Problem, Runtime
from pursuit.core.mission import parse_mission
from pursuit.problems.catalogue import SHIPPED, ProblemCatalogue
from pursuit.problems.missions import Plan, mission_for, proposer_for, server_of

pytestmark = pytest.mark.usefixtures("quick_python")
IDS = [one.problem_id for one in ProblemCatalogue.load()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


async def baseline(problem: Problem, state: Path, attempt_id: str) -> str:
    """How the mission of a problem's baseline ends, with the problem's server in this process."""
    plan = Plan(
        attempt_id=attempt_id,
        proposer=proposer_for(problem.manifest, None),
        serve=(),
        judge=("true",),  # the judge's own word is in the attempt; as a command it is asked in the other tests
    )
    table = mission_for(problem.manifest, plan)
    table.pop("servers")
    server = problem.to_mcp_server(state=state, attempt_id=attempt_id)
    async with Runtime(state=state, servers={server_of(attempt_id): server}, mode="auto") as runtime:
        return (await runtime.pursue(parse_mission(table))).status


@pytest.mark.guarantee("a-baseline-solves-each-problem")
@pytest.mark.parametrize("problem_id", IDS)
def test_the_baseline_meets_its_target_and_replays(
    place: Place, problem_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem_id.startswith("fix-"):  # an isolated runner does not see the quick Python, which lies in /dev/shm
        monkeypatch.setattr(sys, "executable", str(Path(sys.prefix) / "bin" / "python"))
    place.ledger.parent.mkdir()
    assert anyio.run(baseline, Problem.shipped(problem_id), place.ledger, "attempt-1") == "completed"
    (found,) = place.json("problem", "compare", problem_id)["problems"]
    (done,) = found["attempts"]
    assert done["solved"] and done["status"] == "scored" and all(row["feasible"] for row in done["score"])
    again = place.json("problem", "replay", "attempt-1")
    assert again["same"] and again["score"] == done["score"] and again["notes"] == []


def test_the_command_line_lists_shows_and_validates(place: Place) -> None:
    rows = place.json("problem", "list", "--kind", "optimization", "--tag", "discrete")["problems"]
    assert [row["problem_id"] for row in rows] == ["gear-train"]
    assert "knapsack\tdecision" in place.ask("problem", "search", "fifteen", "items")[0]
    shown = place.ask("problem", "show", "three-bar-truss")[0]
    assert shown.startswith("# Three-bar truss\n") and "`evaluate`: Computes" in shown and "Nowacki" in shown
    assert "Kreher" in place.json("problem", "show", "knapsack")["brief"]
    assert "Kreher" not in place.ask("problem", "show", "knapsack", "--no-citation")[0]
    assert "did you mean 'knapsack'" in place.ask("problem", "show", "knapsak", code=2)[1]
    assert "problem_not_found" in place.ask("problem", "show", "nobody", "--json", code=2)[0]
    place.write("problem.toml", 'problem_id = "x"\nkind = "text"\n')
    told = place.json("problem", "validate", code=2)["details"]["faults"]
    assert {fault["field"] for fault in told} == {"title", "summary", "statement", "scorer"}
    assert all(fault["source"].endswith("problem.toml") for fault in told)
    assert "left out" in place.ask("problem", "list", "--dir", ".")[1]
    assert place.json("problem", "validate", SHIPPED)["problems"] == IDS


def _killed_in_the_middle(folder: Path) -> tuple[Place, str]:
    """A search that was killed, and how it says that it goes on; one that was over before is another one's turn."""
    for number in range(5):
        place = Place(folder / str(number))
        place.folder.mkdir()
        place.write("pursuit.toml", '[policy]\nmode = "ask"\n[servers.problem]\ncommand = "python3"\n')
        running = place.begin("problem", "attempt", "welded-beam")
        hint = running.until("if this is stopped, continue with: ")
        running.until("iteration 6/")
        if running.end(signal.SIGKILL)[0] == -signal.SIGKILL:
            return place, hint
    raise AssertionError("it was always over before it could be killed")


@pytest.mark.guarantee("an-attempt-survives-kill-nine")
def test_killed_in_the_middle_an_attempt_goes_on_with_what_was_printed(tmp_path: Path) -> None:
    place, hint = _killed_in_the_middle(tmp_path)
    words = shlex.split(hint.partition("continue with: ")[2])
    assert words[0] == "pursuit"
    place.ask(*words[1:])
    (found,) = place.json("problem", "compare", "welded-beam")["problems"]
    (row,) = found["attempts"]
    assert row["solved"] and row["calls"] > 6
    assert place.json("problem", "replay", row["attempt_id"])["same"]


@pytest.mark.guarantee("an-attempt-is-told-no-lessons")
def test_a_model_is_not_told_what_the_baseline_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.ask("problem", "attempt", "pangram")
    assert "Waltz" in place.ask("lessons", "pangram")[0]

    def submit(body: dict[str, Any]) -> Reply:
        (tool,) = set(re.findall(r"problem-\w{8}__submit_final", json.dumps(body)))
        return calls((tool, {"answer": "Cwm fjord bank glyphs vext quiz"}), tokens=(10, 10))

    with ModelEndpoint(submit) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        done = place.json("problem", "attempt", "pangram", "--proposer", "openai:gpt-4o-mini")
        told = json.dumps([one["body"] for one in endpoint.seen])
    assert done["solved"] and len(endpoint.seen) == 1
    assert "Waltz" not in told and "Lessons of earlier missions" not in told


def test_a_model_tries_and_never_reads_the_target(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    truss = {"a1": 0.79, "a2": 0.41}

    def calling(tool: str, tokens: tuple[int, int]) -> Callable[[dict[str, Any]], Reply]:
        return lambda body: calls((re.findall(rf"problem-\w{{8}}__{tool}", json.dumps(body))[0], truss), tokens=tokens)

    with ModelEndpoint(calling("evaluate", (100, 20)), calling("submit_final", (200, 30))) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        done = place.json("problem", "attempt", "three-bar-truss", "--proposer", "openai:gpt-4o-mini")
        prompts = "\n".join([*endpoint.prompts(), *(json.dumps(one["body"]) for one in endpoint.seen)])
    assert done["solved"] and done["label"] == "openai:gpt-4o-mini" and done["calls"] == 1
    assert "Three-bar truss" in prompts
    assert [word for word in ("264.5", "263.89", "best_known", "score.py") if word in prompts] == []
    (found,) = place.json("problem", "compare", "three-bar-truss")["problems"]
    assert found["attempts"][0]["tokens"] == 350
