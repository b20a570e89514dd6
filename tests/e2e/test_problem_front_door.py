"""Judges of every kind through the front door, submissions that race, and attempts that are denied or stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_stage import Place
from mcp import Client, StdioServerParameters, stdio_client
from problem_stage import METRIC, SCHEMA, client, problem, submitted, text

from pursuit import Problem

pytestmark = pytest.mark.usefixtures("quick_python")

PYTHON = "__python_executable__"
JUDGE = """
import json, sys

def score(arguments, result):
    return {"metrics": {"distance": arguments["x"] - 3 + result["structuredContent"]["accepted"] / 8}}

if __name__ == "__main__":
    told = json.load(sys.stdin)
    assert set(told) == {"arguments", "result", "calls", "evaluations"}, told
    print(json.dumps(score(told["arguments"], told["result"])))
"""
KINDS: dict[str, dict[str, Any]] = {
    "function": {"function": "score.py:score"},
    "command": {"command": [PYTHON, "score.py"]},
    "tool": {"tool": "grade"},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    here = Place(tmp_path).configured()
    here.ledger.parent.mkdir()
    return here


@pytest.mark.guarantee("an-attempt-replays-to-the-same-score")
def test_judges_of_a_servers_own_last_word_are_told_the_call_and_replay_without_the_server(place: Place) -> None:
    there = place.folder / "there"
    there.write_text("", encoding="utf-8")
    problems: dict[str, Problem] = {}
    for kind, keys in KINDS.items():
        folder = place.folder / kind
        folder.mkdir()
        (folder / "score.py").write_text(JUDGE, encoding="utf-8")
        tools = ("submit_final", *(["grade"] if kind == "tool" else []))
        scorer = {"kind": kind, **keys, "metrics": [METRIC]}
        problems[kind] = problem(folder, *tools, str(there), problem_id=kind, scorer=scorer)

    async def hand_in(kind: str) -> None:
        async with client(problems[kind], place.ledger.parent, "legacy", attempt_id=f"attempt-{kind}") as agent:
            taken = await agent.call_tool("submit_final", {"x": 3})
            assert not taken.is_error and taken.structured_content["accepted"] == 3

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for kind in KINDS:
                tasks.start_soon(hand_in, kind)

    anyio.run(main)
    there.unlink()
    assert "without its tools: " in place.ask("problem", "show", "tool")[1], "from now on no server starts"
    for kind, value in {"function": 0.375, "command": 0.375, "tool": 0.0}.items():
        again = place.json("problem", "replay", f"attempt-{kind}", "--problem", kind)
        assert again["same"] and again["solved"] and again["notes"] == []
        assert [row["value"] for row in again["score"]] == [value]


def test_exit_codes_infeasible_words_constraints_and_units_reach_the_operator(place: Place) -> None:
    """What was taken and never judged is judged by `replay`, as anything is that judges."""
    exits = "import json, sys; sys.exit(json.load(sys.stdin)['submission']['x'] != {})"
    passed = {"metric": "passed", "direction": "maximize", "target": 1}
    load = {"metric": "load", "unit": "kN", "direction": "minimize", "target": 9}
    judge = "def score(submission):\n    return {said}\n"
    cases: dict[str, tuple[dict[str, Any], str, list[str]]] = {
        "fails": (
            {"kind": "command", "command": [PYTHON, "-c", exits.format(4)], "output": "exit_code"},
            "",
            ["0 (infeasible, target 1)"],
        ),
        "bound": (
            {"kind": "function", "function": "score.py:score", "metrics": [load], "constraints": ["g1"]},
            judge.format(said='{"metrics": {"load": 2.5, "g1": 1e-9}}'),
            ["2.5 kN (infeasible, target 9)"],
        ),
        "tolerant": (
            {
                "kind": "function",
                "function": "score.py:score",
                "metrics": [load],
                "constraints": ["g1"],
                "tolerance": 1e-6,
            },
            judge.format(said='{"metrics": {"load": 2.5, "g1": 1e-9}}'),
            ["2.5 kN (target 9)"],
        ),
    }
    for name, (scorer, source, wanted) in cases.items():
        folder = place.folder / name
        folder.mkdir()
        (folder / "score.py").write_text(source or "\n", encoding="utf-8")
        one = problem(folder, problem_id=name, submission=SCHEMA, scorer={"metrics": [passed], **scorer})
        anyio.run(submitted, place, one, f"attempt-{name}")
        told = place.ask("problem", "replay", f"attempt-{name}", "--problem", name)[0]
        assert all(words in told for words in wanted), told
        (found,) = place.json("problem", "compare", name)["problems"]
        (row,) = found["attempts"]
        infeasible = "infeasible" in wanted[0]
        assert (row["feasible"], row["solved"]) == (not infeasible, not infeasible), (name, row)


@pytest.mark.guarantee("of-racing-submissions-one-counts")
def test_of_submissions_that_race_in_two_processes_exactly_one_is_taken(place: Place) -> None:
    one = problem(place.folder / "mine", submission=SCHEMA, visibility={"shared_attempt": True})
    words = ["-m", "pursuit", "problem", "serve", str(one.manifest.path), "--attempt", "attempt-1"]
    run = StdioServerParameters(command=sys.executable, args=words, cwd=place.folder)
    results: list[Any] = []

    async def hand_in(agent: Client, x: int) -> None:
        results.append(await agent.call_tool("submit_final", {"x": x}))

    async def main() -> None:
        async with (
            Client(stdio_client(run), cache=None) as first,
            Client(stdio_client(run), cache=None) as second,
            anyio.create_task_group() as tasks,
        ):
            for x in range(10):
                tasks.start_soon(hand_in, (first, second)[x % 2], x)

    anyio.run(main)
    (taken,) = [result.structured_content["receipt"] for result in results if not result.is_error]
    refused = [text(result) for result in results if result.is_error]
    assert len(refused) == 9 and all(taken["sha256"] in words for words in refused)
    (found,) = place.json("problem", "compare", "mine")["problems"]
    assert [row["status"] for row in found["attempts"]] == ["scored"]


def test_what_mode_never_denied_is_no_submission_and_the_calls_say_why(place: Place) -> None:
    out, notes = place.ask("problem", "attempt", "pangram", "--mode", "never", code=3)
    assert "score: none: nothing was submitted" in out and "(terminated: The proposer failed three times" in out
    assert "took: 3 turns, 0 calls, 0 evaluations" in out
    (hint,) = [words for words in notes.splitlines() if words.startswith("details of each call: pursuit ")]
    said = place.ask(*hint.partition("pursuit ")[2].split())[0]
    assert "submit_final" in said and "denied - mode never" in said
    assert notes.splitlines()[-1] == "compare it: pursuit problem compare pangram"
    (found,) = place.json("problem", "compare", "pangram")["problems"]
    assert [(row["status"], row["seconds"]) for row in found["attempts"]] == [("ended", None)]
