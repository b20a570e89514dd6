"""A search at a problem hands in: where its tool tells less than the judge, in the problem's time, what is asked."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from problem_stage import METRIC, PREDICATE, problem

from pursuit import Problem
from pursuit.core.events import IterationProposed, decode
from pursuit.engine.context import SystemClock
from pursuit.ledger.sqlite import SqliteLedger

SEARCH = {"kind": "search", "tool": "probe", "parameters": {"x": {"low": 0.0, "high": 10.0}}}
FAR = {**METRIC, "target": -1.5}
SPEED = {"metric": "speed", "expression": "submission['x'] * 10"}
ONLY_X = {
    "type": "object",
    "properties": {"x": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}


PLANT = """
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("plant")


@server.tool()
async def probe(x: float) -> dict[str, Any]:
    return {"metrics": {"distance": abs(x - 3), "speed": x * 10}}


server.run("stdio")
"""


@pytest.fixture
def place(tmp_path: Path, quick_python: None) -> Place:
    return Place(tmp_path).configured()


def exam(place: Place, tool: str = "probe", **given: Any) -> Problem:
    scorer = {"kind": "predicates", "predicates": [PREDICATE, SPEED], "metrics": [FAR], **given.pop("scorer", {})}
    fields: dict[str, Any] = {
        "submission": ONLY_X,
        "budget": {"evaluation_tools": [tool], "evaluations": 5},
        "baseline": {"proposer": {**SEARCH, "tool": tool}},
        **given,
    }
    tools = () if "server" in given else (tool,)
    return problem(place.folder / "mine", *tools, scorer=scorer, **fields)


def tried(place: Place, one: Problem, *words: object) -> dict[str, Any]:
    """What came of an attempt that cannot be solved."""
    return place.json("problem", "attempt", one.manifest.path, *words, code=3)


def proposed(place: Place, mission_id: str) -> list[IterationProposed]:
    async def read() -> list[Any]:
        ledger = SqliteLedger.open(place.ledger)
        try:
            return [decode(one.type, one.body) for one in await ledger.read(mission_id)]
        finally:
            await ledger.close()

    return [one for one in anyio.run(read) if isinstance(one, IterationProposed)]


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_a_limit_that_the_tool_does_not_tell_is_left_out_of_account_and_named(place: Place) -> None:
    done = tried(place, exam(place, scorer={"constraints": ["speed"]}))
    assert (done["status"], done["evaluations"]) == ("scored", 5)
    assert done["value"] == min(value for _, value in done["series"])
    *trials, last = proposed(place, done["session_id"])
    assert "speed" not in (trials[0].rationale or "")
    for one in (*trials[1:], last):
        assert "without speed, which no trial reported" in (one.rationale or "")


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_a_tool_that_tells_nothing_leaves_nothing_to_hand_in_and_that_is_said(place: Place) -> None:
    one = exam(place, "look", budget={"evaluation_tools": ["look"], "evaluations": 2})
    out, _ = place.ask("problem", "attempt", one.manifest.path, code=3)
    assert "none of them reported distance, so none is the best" in out


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_it_hands_in_before_the_time_of_the_problem_is_over_whatever_the_mission_has(place: Place) -> None:
    one = exam(place, budget={"evaluation_tools": ["probe"], "wall_seconds": 3})
    # A machine that is held up in the last second makes one attempt late; a search that is late is late in all.
    tries = (tried(place, one, "--max-seconds", 60) for _ in range(3))
    done = next((one for one in tries if one["status"] == "scored"), None)
    assert done is not None and done["spent_budgets"] == []


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_the_time_of_the_problem_runs_while_nobody_drives(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one = exam(place, budget={"evaluation_tools": ["probe"], "wall_seconds": 1000})
    begun = place.begin("problem", "attempt", one.manifest.path, "--max-iterations", 40, fresh=False)
    begun.until("iteration 3/")
    begun.end(signal.SIGTERM)
    (mission,) = place.json("list")["sessions"]
    monkeypatch.setattr(SystemClock, "now", lambda _: time.time() + 970)
    done = place.json("resume", mission["session_id"], "--mode", "auto", code=3)
    assert (done["attempt"]["status"], done["verdict_reason"]) == ("scored", "out_of_reach")
    assert done["iteration_count"] - mission["iteration_count"] <= 2, "it hands in at once"


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_what_the_search_was_told_to_keep_fixed_is_no_part_of_the_answer(place: Place) -> None:
    done = tried(place, exam(place, baseline={"proposer": {**SEARCH, "args": {"seed": 1}}}))
    assert done["status"] == "scored"


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_why_it_could_not_hand_in_is_said(place: Place) -> None:
    wanted = {"type": "object", "properties": {"y": {"type": "number"}}, "required": ["y"]}
    scorer = {"predicates": [{"metric": "distance", "expression": "submission['y']"}]}
    out, _ = place.ask("problem", "attempt", exam(place, submission=wanted, scorer=scorer).manifest.path, code=3)
    assert re.search(r"mission: .*terminated: The proposer failed .*'y' is a required property", out), out


@pytest.mark.guarantee("a-search-hands-in-what-it-found")
def test_of_targets_that_exclude_each_other_the_last_is_kept_and_then_the_primary_metric_counts(place: Place) -> None:
    fast = {"metric": "speed", "direction": "maximize", "target": 80.0}
    plant = place.write("plant.py", PLANT)
    server = {"command": "__python_executable__", "args": [str(plant)]}
    done = tried(place, exam(place, scorer={"metrics": [FAR, fast]}, server=server, kind="mcp"))
    assert done["status"] == "scored"
    assert done["value"] == min(value for _, value in done["series"] if value >= 5), "a speed of 80 is 5 away"
