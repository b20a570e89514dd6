"""What is said of an attempt: by the metric that counts now, and of what was submitted that it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client
from problem_stage import LEGACY, SCHEMA, problem, submitted

from pursuit import Problem
from pursuit.ledger.locks import take_claim

DISTANCE = {"metric": "distance", "unit": "mm", "direction": "minimize"}
SPEED = {"metric": "speed", "unit": "m/s", "direction": "maximize", "target": 50.0}
WEIGHT = {"metric": "weight", "direction": "minimize"}
RULES = [
    {"metric": "distance", "expression": "abs(submission['x'] - 3)"},
    {"metric": "speed", "expression": "submission['x'] * 10"},
]


@pytest.fixture
def place(tmp_path: Path, quick_python: None) -> Place:
    here = Place(tmp_path).configured()
    here.ledger.parent.mkdir()
    return here


def judged(place: Place, *metrics: dict[str, Any], rules: list[dict[str, str]] = RULES) -> Problem:
    scorer = {"kind": "predicates", "predicates": rules, "metrics": list(metrics)}
    return problem(place.folder / "mine", submission=SCHEMA, scorer=scorer)


def handed_in(place: Place, one: Problem, x: float) -> None:
    async def main() -> None:
        async with Client(one.to_mcp_server(state=place.ledger, label=f"x={x:g}"), mode=LEGACY) as agent:
            await agent.call_tool("submit_final", {"x": x})

    anyio.run(main)


def test_attempts_are_compared_by_the_metric_that_is_primary_now(place: Place) -> None:
    handed_in(place, judged(place, DISTANCE, SPEED), 100)
    one = judged(place, SPEED, DISTANCE)
    handed_in(place, one, 9)
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    assert [(row["label"], row["value"]) for row in found["attempts"]] == [("x=100", 1000), ("x=9", 90)]

    one = judged(place, WEIGHT, rules=[{"metric": "weight", "expression": "submission['x']"}])
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    assert [(row["value"], row["feasible"]) for row in found["attempts"]] == [(None, None)] * 2
    rows = [line.split("\t") for line in place.ask("problem", "compare", one.manifest.path)[0].splitlines()]
    assert [row[4] for row in rows] == ["score", "", ""], "no number of another metric"


def test_of_what_was_submitted_and_not_judged_nobody_says_that_nothing_was(place: Place) -> None:
    one = judged(place, DISTANCE)
    words = ("problem", "attempt", one.manifest.path, "--proposer", "client", "--max-iterations", 1)
    begun = place.json(*words, code=4)
    anyio.run(submitted, place, one, begun["attempt_id"])
    held = take_claim(place.ledger.parent / "locks", begun["attempt_id"])  # whoever judges is still at it
    assert held is not None
    place.write("nothing.json", json.dumps({"tool_calls": []}))
    out, _ = place.ask("iterate", begun["session_id"], "--proposal", "nothing.json", "--mode", "auto", code=3)
    anyio.run(held.release)
    assert "score: none: the submission is not judged yet" in out
