"""Shipped problems through the front door: baselines, what agents can see, export and ingest, the command line."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client
from model_endpoint import ModelEndpoint, calls
from problem_stage import EXAM, plain
from public_servers import SERVERS

from pursuit import Problem
from pursuit.problems.catalogue import SHIPPED, Catalogue
from pursuit.problems.missions import as_toml
from pursuit.problems.secrecy import is_telling

IDS = [one.problem_id for one in Catalogue.load()]
ANSWERS: dict[str, dict[str, Any]] = {
    "pangram": {"answer": "no"},
    "knapsack": {"items": [1]},
    "mastermind": {"code": "AAAA"},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


@pytest.mark.guarantee("a-baseline-solves-each-problem")
@pytest.mark.parametrize("problem_id", IDS)
def test_the_baseline_meets_its_target_and_replays(place: Place, problem_id: str) -> None:
    done = json.loads(place.run("problem", "attempt", problem_id, "--json").stdout)
    assert done["solved"] and done["status"] == "scored" and done["mission_status"] == "completed"
    assert all(row["feasible"] for row in done["score"])
    again = place.json("problem", "replay", done["attempt_id"])
    assert again["same"] and again["score"] == done["score"] and again["notes"] == []


def test_an_attempt_at_a_problem_named_by_its_file_is_judged(place: Place) -> None:
    shutil.copytree(SHIPPED / "knapsack", place.folder / "mine")
    manifest = place.folder / "mine" / "problem.toml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(re.sub(r"(?m)^problem_id = .*$", 'problem_id = "mine"', text), encoding="utf-8")
    done = json.loads(place.run("problem", "attempt", "mine/problem.toml", "--json").stdout)
    assert (done["solved"], done["mission_status"]) == (True, "completed")


async def seen(server: Any, problem_id: str, era: str) -> list[str]:
    """Everything that an agent can see, good and bad answers too."""
    words: list[str] = []
    async with Client(server, mode=era, cache=None) as agent:
        tools = (await agent.list_tools()).tools
        words.append(str(agent.instructions))
        words += [json.dumps(plain(tool)) for tool in tools]
        for resource in (await agent.list_resources()).resources:
            words.append(json.dumps(plain(resource)))
            words.append(json.dumps(plain(await agent.read_resource(str(resource.uri)))))
        for prompt in (await agent.list_prompts()).prompts:
            words.append(json.dumps(plain(await agent.get_prompt(prompt.name))))
        schema = next(tool for tool in tools if tool.name == "submit_final").input_schema
        middle = {
            key: round((one["minimum"] + one["maximum"]) / 2)
            for key, one in schema.get("properties", {}).items()
            if "minimum" in one
        }
        answer = ANSWERS.get(problem_id, middle)
        for tool in tools:
            if tool.name != "submit_final":
                words += [json.dumps(plain(await agent.call_tool(tool.name, given))) for given in ({"no": 1}, answer)]
        for given in ({}, {"answer": " "}, answer, answer):
            words.append(json.dumps(plain(await agent.call_tool("submit_final", given))))
    return words


@pytest.mark.guarantee("agents-see-no-scoring-data")
@pytest.mark.parametrize("problem_id", IDS)
def test_nothing_that_an_agent_sees_holds_scoring_data(tmp_path: Path, problem_id: str) -> None:
    one = Problem.shipped(problem_id)
    raw = tomllib.loads(one.manifest.path.read_text(encoding="utf-8"))
    secrets = ["best_known", "scorer", "score.py", "baseline", str(SHIPPED), "DBFA"]
    numbers = {
        value
        for metric in raw["scorer"]["metrics"]
        for key, value in metric.items()
        if key in ("target", "best_known") and is_telling(value)
    }
    for era in ("legacy", "2026-07-28"):
        words = "\n".join(anyio.run(seen, one.to_mcp_server(state=tmp_path / f"{era}.db"), problem_id, era))
        assert [secret for secret in secrets if secret in words] == []
        told = {float(found) for found in re.findall(r"\d+\.?\d*(?:e-?\d+)?", words)}
        assert not numbers & told, era


async def surface(server: Any, era: str) -> dict[str, Any]:
    async with Client(server, mode=era, cache=None) as agent:
        brief = await agent.read_resource("problem://design-brief")
        return {
            "tools": [plain(one) for one in (await agent.list_tools()).tools],
            "resources": [plain(one) for one in (await agent.list_resources()).resources],
            "prompts": [plain(one) for one in (await agent.list_prompts()).prompts],
            "prompt": plain(await agent.get_prompt("design-brief"))["messages"],
            "brief": [plain(one) for one in brief.contents],
            "instructions": agent.instructions,
            "info": None if agent.server_info is None else plain(agent.server_info),
        }


def twice(exported: Problem, words: list[str], folder: Path, era: str) -> None:
    first = anyio.run(surface, exported.to_mcp_server(state=folder / "one.db"), era)
    taken_in = Problem.from_stdio(sys.executable, ["-m", "pursuit", "problem", "serve", *words])
    second = anyio.run(surface, taken_in.to_mcp_server(state=folder / "two.db"), era)
    assert second == first


@pytest.mark.guarantee("export-ingest-export-is-a-fixed-point")
@pytest.mark.parametrize("problem_id", IDS)
def test_export_ingest_export_is_a_fixed_point(tmp_path: Path, problem_id: str) -> None:
    words = [problem_id, "--state", str(tmp_path / "inner.db")]
    for era in ("legacy", "auto") if problem_id in ("mastermind", "knapsack") else ("auto",):
        twice(Problem.shipped(problem_id), words, tmp_path, era)


def test_a_server_of_ones_own_is_a_problem_and_a_fixed_point(tmp_path: Path) -> None:
    one = Problem.from_stdio(sys.executable, [str(EXAM), "probe", "look"], problem_id="mine", title="Mine")
    manifest = f"""
problem_id = "mine"
title = "Mine"
summary = "{one.manifest.summary}"
statement = "{one.manifest.statement}"
kind = "mcp"
[server]
command = "__python_executable__"
args = [{json.dumps(str(EXAM))}, "probe", "look"]
[scorer]
kind = "predicates"
predicates = [{{ metric = "submitted", expression = "1" }}]
metrics = [{{ metric = "submitted" }}]
"""
    (tmp_path / "problem.toml").write_text(manifest, encoding="utf-8")
    twice(one, [str(tmp_path / "problem.toml"), "--state", str(tmp_path / "inner.db")], tmp_path, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "auto"])
@pytest.mark.parametrize("name", ["everything", "git", "time"])
def test_public_servers_as_upstreams_are_fixed_points(tmp_path: Path, name: str, era: str) -> None:
    server = SERVERS[name]
    server.fresh(tmp_path / "world")
    command, *args = map(str, server.command(tmp_path / "world"))
    table = {
        "problem_id": name,
        "title": "A public server",
        "summary": "Use it.",
        "statement": "Use it.",
        "kind": "mcp",
        "server": {"command": command, "args": args, "env": dict(server.env(tmp_path / "world"))},
        "scorer": {"kind": "command", "command": ["true"], "output": "exit_code", "metrics": [{"metric": "passed"}]},
    }
    (tmp_path / "problem.toml").write_text(as_toml(table), encoding="utf-8")
    words = [str(tmp_path / "problem.toml"), "--state", str(tmp_path / "inner.db")]
    twice(Problem.from_manifest(tmp_path), words, tmp_path, era)


def test_a_submission_through_two_servers_is_taken_once_by_each(tmp_path: Path) -> None:
    words = ["-m", "pursuit", "problem", "serve", "pangram", "--state", str(tmp_path / "inner.db")]
    outer = Problem.from_stdio(sys.executable, words)

    async def main() -> None:
        async with Client(outer.to_mcp_server(state=tmp_path / "outer.db")) as agent:
            assert not (await agent.call_tool("submit_final", {"answer": "Waltz"})).is_error
            assert (await agent.call_tool("submit_final", {"answer": "Waltz"})).is_error

    anyio.run(main)


def test_the_command_line_lists_shows_and_validates(place: Place) -> None:
    rows = place.json("problem", "list", "--kind", "optimization", "--tag", "discrete")["problems"]
    assert [row["problem_id"] for row in rows] == ["gear-train"]
    assert "knapsack\tdecision" in place.ask("problem", "list", "--search", "fifteen items")[0]
    shown = place.ask("problem", "show", "three-bar-truss")[0]
    assert shown.startswith("# Three-bar truss\n") and "`evaluate`: Computes" in shown and "Nowacki" in shown
    assert "Nowacki" not in place.ask("problem", "show", "three-bar-truss", "--no-citation")[0]
    assert place.json("problem", "show", "knapsack")["brief"].startswith("# Knapsack\n")
    assert "did you mean 'knapsack'" in place.ask("problem", "show", "knapsak", code=2)[1]
    assert "problem_not_found" in place.ask("problem", "show", "nobody", "--json", code=2)[0]
    place.write("problem.toml", 'problem_id = "x"\nkind = "text"\n')
    told = place.json("problem", "validate", code=2)["details"]["faults"]
    assert {fault["field"] for fault in told} == {"title", "summary", "statement", "scorer"}
    assert all(fault["source"].endswith("problem.toml") for fault in told)
    assert "left out" in place.ask("problem", "list", "--dir", ".")[1]
    assert place.json("problem", "validate", SHIPPED)["problems"] == IDS


def test_attempts_are_compared_in_a_table_and_on_a_page(place: Place) -> None:
    place.run("problem", "attempt", "three-bar-truss", "--label", "<b>mine</b>")
    short = ("problem", "attempt", "three-bar-truss", "--proposer", "search", "--max-iterations", 2, "--json")
    failed = json.loads(place.run(*short, code=3).stdout)
    assert not failed["solved"] and failed["status"] == "open" and failed["calls"] == 2
    (found,) = place.json("problem", "compare", "three-bar-truss", "-o", "page.html")["problems"]
    assert [row["solved"] for row in found["attempts"]] == [True, False]
    assert found["attempts"][0]["label"] == "<b>mine</b>" and found["attempts"][0]["tokens"] == 0
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "<b>mine" not in page and "&lt;b&gt;mine" in page
    assert "is there already" in place.ask("problem", "compare", "three-bar-truss", "-o", "page.html", code=2)[1]
    assert place.ask("problem", "compare", "three-bar-truss")[0].count("\n") == 2
    assert "no submission" in place.ask("problem", "replay", failed["attempt_id"], code=2)[1]
    assert "attempt_not_found" in place.ask("problem", "replay", "attempt-0", "--json", code=2)[0]


def test_a_client_proposes_and_the_mission_goes_on_with_resume(place: Place) -> None:
    begun = json.loads(place.run("problem", "attempt", "pangram", "--proposer", "client", "--json", code=4).stdout)
    calls = [{"tool_name": "problem.submit_final", "args": {"answer": "Cwm fjord bank glyphs vext quiz"}}]
    place.write("proposal.json", json.dumps({"tool_calls": calls}))
    status = json.loads(
        place.run("iterate", begun["session_id"], "--proposal", "proposal.json", "--mode", "auto", "--json").stdout
    )
    assert status["status"] == "completed"
    (found,) = place.json("problem", "compare", "pangram")["problems"]
    assert found["attempts"][0]["value"] == 26 and found["attempts"][0]["label"] == "client"
    wrong = place.ask("problem", "attempt", "pangram", "--proposer", "search", code=2)[1]
    assert "evaluation_tools" in wrong


@pytest.mark.guarantee("an-attempt-survives-kill-nine")
def test_killed_in_the_middle_an_attempt_goes_on(place: Place) -> None:
    running = place.begin("problem", "attempt", "welded-beam")
    running.until("iteration 6/")
    running.end(signal.SIGKILL)
    place.run("resume", "--all", "--mode", "auto")
    (found,) = place.json("problem", "compare", "welded-beam")["problems"]
    (row,) = found["attempts"]
    assert row["solved"] and row["calls"] > 6
    assert place.json("problem", "replay", row["attempt_id"])["same"]


def test_a_model_tries_and_never_reads_the_target(place: Place) -> None:
    truss = {"a1": 0.79, "a2": 0.41}
    first = calls(("problem__evaluate", truss), tokens=(100, 20))
    last = calls(("problem__submit_final", truss), tokens=(200, 30))
    with ModelEndpoint(first, last) as endpoint:
        place.environment |= endpoint.environment
        words = ("problem", "attempt", "three-bar-truss", "--proposer", "openai:gpt-4o-mini", "--json")
        done = json.loads(place.run(*words).stdout)
        prompts = "\n".join([*endpoint.prompts(), *(json.dumps(one["body"]) for one in endpoint.seen)])
    assert done["solved"] and done["label"] == "openai:gpt-4o-mini" and done["calls"] == 1
    assert "Three-bar truss" in prompts
    assert [word for word in ("264.5", "263.89", "best_known", "score.py") if word in prompts] == []
    (found,) = place.json("problem", "compare", "three-bar-truss")["problems"]
    assert found["attempts"][0]["tokens"] == 350
