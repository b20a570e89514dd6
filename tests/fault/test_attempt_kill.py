"""Ends a mission at a problem at every instant of its end, goes on with it, and looks at what came of it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_stage import Place
from killing import deadly
from problem_stage import BY_PREDICATE, METRIC, SCHEMA, problem

from pursuit import Problem

SEARCH = {"kind": "search", "tool": "probe", "parameters": {"x": {"low": 0.0, "high": 10.0}}}
SCRIPT = {"kind": "script", "script": 'call("problem.probe", {"x": 2})\ncall("problem.submit_final", {"x": 3})'}
BY_ARGUMENTS = {
    **BY_PREDICATE,
    "predicates": [{"metric": "distance", "expression": "abs(arguments['x'] - 3)"}],
}
BY_TOOL = {"kind": "tool", "tool": "grade", "metrics": [METRIC]}
BUDGET = {"evaluations": 30, "evaluation_tools": ["probe"]}
INSTANTS = [
    "CallIntended submit_final before",
    "CallIntended submit_final after",
    "SubmissionTaken digest before",
    "SubmissionTaken digest after",
    "AttemptScored rows after",
    "CallSettled receipt after",
]
QUICK = {"script": INSTANTS[1::2], "search": ["SubmissionTaken digest after"]}
CASES = [
    pytest.param(proposer, one, id=f"{name}: {one}", marks=() if one in QUICK[name] else pytest.mark.soak)
    for name, proposer in (("script", SCRIPT), ("search", SEARCH))
    for one in INSTANTS
]


def exam(place: Place, proposer: dict[str, Any], *, own: bool = False, scorer: Any = None) -> Problem:
    """A problem that this proposer solves; `own`: its server has the last word."""
    tools = ["probe", "grade", *(["submit_final"] if own else [])]
    fields: dict[str, Any] = {} if own else {"submission": SCHEMA}
    judge = scorer or (BY_ARGUMENTS if own else BY_PREDICATE)
    return problem(
        place.folder / "mine", *tools, scorer=judge, budget=BUDGET, baseline={"proposer": proposer}, **fields
    )


def ended(place: Place, one: Problem, instant: str, number: signal.Signals = signal.SIGKILL) -> str:
    """Works at the problem until that instant; the mission's id."""
    words = [*deadly(place.folder / "deadly", instant, number), "problem", "attempt", str(one.manifest.path)]
    done = subprocess.run(
        [*words, "--label", "mine"],
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not (place.folder / "deadly" / "point").exists(), f"it came to its end alive: {done.stdout}{done.stderr}"
    assert done.returncode in (-number, 128 + number), done.stdout + done.stderr
    (mission,) = place.json("list")["sessions"]
    return mission["session_id"]


def solved(place: Place, one: Problem, mission_id: str) -> dict[str, Any]:
    """Goes on with it; what there is to compare."""
    done = place.json("resume", mission_id, "--mode", "auto")
    assert (done["status"], done["verdict_reason"]) == ("completed", "criteria_met")
    assert (done["attempt"]["status"], done["attempt"]["solved"]) == ("scored", True), done["attempt"]
    assert done["attempt"]["score"][0]["value"] <= METRIC["target"]
    (found,) = place.json("problem", "compare", one.manifest.path)["problems"]
    (row,) = found["attempts"]
    assert (row["mission"], row["label"], row["status"], row["solved"]) == (mission_id, "mine", "scored", True)
    return row


@pytest.fixture
def place(tmp_path: Path, quick_python: None) -> Place:
    return Place(tmp_path).configured()


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
@pytest.mark.parametrize(("proposer", "instant"), CASES)
def test_killed_at_any_instant_of_its_submission_it_ends_as_its_attempt(
    place: Place, proposer: dict[str, Any], instant: str
) -> None:
    one = exam(place, proposer)
    row = solved(place, one, ended(place, one, instant))
    assert not row["fate_unknown"]


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
@pytest.mark.parametrize("proposer", [SEARCH, pytest.param(SCRIPT, marks=pytest.mark.soak)], ids=["search", "script"])
def test_killed_while_the_server_of_the_problem_is_asked_it_ends_as_its_attempt(
    place: Place, proposer: dict[str, Any]
) -> None:
    one = exam(place, proposer, own=True)
    solved(place, one, ended(place, one, "SubmissionClaimed digest after"))


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
def test_killed_before_a_tool_judged_it_ends_as_its_attempt(place: Place) -> None:
    one = exam(place, SEARCH, scorer=BY_TOOL)
    solved(place, one, ended(place, one, "SubmissionTaken digest after"))


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
@pytest.mark.parametrize(
    "instant",
    [pytest.param("CallIntended submit_final after", marks=pytest.mark.soak), "SubmissionTaken digest after"],
)
def test_stopped_at_its_submission_it_ends_as_its_attempt(place: Place, instant: str) -> None:
    one = exam(place, SEARCH)
    solved(place, one, ended(place, one, instant, signal.SIGTERM))


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
def test_what_was_taken_and_solves_nothing_ends_it_after_a_kill_too(place: Place) -> None:
    wrong = {"kind": "script", "script": 'call("problem.submit_final", {"x": 9})'}
    one = exam(place, wrong)
    mission_id = ended(place, one, "SubmissionTaken digest after")
    done = place.json("resume", mission_id, "--mode", "auto", code=3)
    assert (done["verdict_reason"], done["attempt"]["status"]) == ("out_of_reach", "scored")
    assert [row["value"] for row in done["attempt"]["score"]] == [6]


@pytest.mark.guarantee("a-mission-killed-at-its-submission-ends-as-its-attempt")
def test_killed_before_the_attempt_was_opened_it_is_the_same_mission_with_the_same_name(place: Place) -> None:
    one = exam(place, SCRIPT)
    row = solved(place, one, ended(place, one, "AttemptOpened mission before"))
    assert row["tokens"] == 0, "what the mission used is known"
