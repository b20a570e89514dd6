"""What a coding agent asks before it acts: answered by policy, by a person elsewhere, or in its next turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_stage import AgentPlace, library
from cli_stage import until

RULES = """
[policy]
mode = "{mode}"
[[policy.rules]]
decision = "deny"
tool = "agent.execute"
arguments = {{ "input.command" = "git push*" }}
"""


def asks(command: str, *, kind: str = "execute", **more: Any) -> dict[str, Any]:
    """A step that asks, and leaves in a file what the answer was."""
    name = command.replace(" ", "-")
    call = {"kind": kind, "title": command, "rawInput": {"command": command}, **more}
    return {"ask": call, "then": [{"write": {f"{name}.yes": ""}}], "else": [{"write": {f"{name}.no": ""}}]}


def place_with(tmp_path: Path, *turns: list[dict[str, Any]], mode: str = "ask", **mission: str) -> AgentPlace:
    place = AgentPlace(tmp_path, list(turns))
    place.write("pursuit.toml", RULES.format(mode=mode))
    place.mission(**mission)
    return place


def answers(place: AgentPlace) -> set[str]:
    """The files that the steps left, in what the mission has come to."""
    text = place.ask("workspace", "diff", "last")[0]
    return {line.split("/")[-1] for line in text.splitlines() if line.startswith("diff --git") and "." in line}


@pytest.mark.parametrize("mode", ["auto", "never"])
def test_policy_answers_without_a_person(tmp_path: Path, mode: str) -> None:
    inside = asks("edit", kind="edit", locations=[{"path": "lib.py"}])
    outside = asks("outside", kind="edit", locations=[{"path": "/etc/passwd"}])
    peek = asks("peek", kind="read", locations=[{"path": "/etc/passwd"}])
    look = asks("look", kind="read", locations=[{"path": "tests/check.py"}])
    fake = asks("turn", kind="turn")  # no kind of the protocol, and a tool of ours
    steps = [asks("make"), asks("git push -f"), look, peek, fake, inside, outside, {"write": library(2)}]
    place = place_with(tmp_path, steps, mode=mode)
    if mode == "never":
        rule = '[[policy.rules]]\ndecision = "allow"\ntool = "check.check"\n'
        place.write("pursuit.toml", RULES.format(mode=mode) + rule)
    assert place.json("run", "fix.toml")["status"] == "completed"
    asked = "yes" if mode == "auto" else "no"
    wanted = {f"{name}.{asked}" for name in ("make", "outside", "peek", "turn")}
    assert answers(place) == wanted | {"git-push--f.no", "look.yes", "edit.yes", "lib.py"}
    chosen = [one["result"]["outcome"].get("optionId") for one in place.heard if "result" in one]
    assert set(chosen) == {"yes", "no"}  # by its kind: `always` is first in the list


def test_an_unattended_agent_may_what_no_rule_denies_and_the_yes_is_recorded(tmp_path: Path) -> None:
    steps = [asks("make"), asks("make"), asks("git push -f"), {"write": library(2)}]
    place = place_with(tmp_path, steps, proposer="unattended = true\npermission_seconds = 0")
    two = '[[policy.rules]]\ndecision = "ask"\ntool = "agent.execute"\nrequire = 2\n'
    place.write("pursuit.toml", RULES.format(mode="ask") + two)
    assert place.json("run", "fix.toml")["status"] == "completed"
    assert answers(place) == {"make.yes", "git-push--f.no", "lib.py"}
    said = [json.loads(line) for line in place.ask("watch", "last", "--json")[0].splitlines()]
    assert [row["by"] for row in said if row["type"] == "ApprovalAnswered"] == ["unattended = true"] * 2


@pytest.mark.guarantee("an-agents-question-waits-for-a-person")
def test_a_question_is_answered_in_another_terminal_while_it_is_held(tmp_path: Path) -> None:
    place = place_with(tmp_path, [asks("make"), {"write": library(2)}])
    running = place.begin("run", "fix.toml", fresh=False)
    until(lambda: place.ledger.exists() and "execute of server agent" in place.ask("approvals", code=None)[0])
    assert "agent.execute" in running.until("the agent asks")
    assert "approved: agent.execute" in place.ask("approve", "--all")[0]
    assert running.end()[0] == 0
    assert answers(place) == {"make.yes", "lib.py"}


@pytest.mark.parametrize(("answer", "file"), [("approve", "make.yes"), ("deny", "make.no")])
def test_the_stored_answer_meets_the_question_when_it_is_asked_again(tmp_path: Path, answer: str, file: str) -> None:
    place = place_with(tmp_path, [asks("make"), {"write": library(2)}], proposer="permission_seconds = 0")
    waiting = place.json("run", "fix.toml", code=4)
    assert (waiting["status"], waiting["waiting_for"]) == ("waiting", "approval")
    assert place.turns() and answers(place) == set()
    assert "waiting" in place.ask("resume", "last", code=4)[0]  # without an answer it stays
    place.ask(answer, "--all")
    assert place.json("resume", "last")["status"] == "completed"
    assert answers(place) == {file, "lib.py"}
    # One answer is for one question.
    assert len(place.prompts) == 2


def test_a_pause_answers_the_question_that_is_held(tmp_path: Path) -> None:
    place = place_with(tmp_path, [asks("make")])
    running = place.begin("run", "fix.toml", fresh=False)
    until(lambda: place.ledger.exists() and "execute of server agent" in place.ask("approvals", code=None)[0])
    place.ask("pause", "last")
    running.end()
    said = [one.get("method") or one["result"]["outcome"]["outcome"] for one in place.heard[-2:]]
    assert said == ["session/cancel", "cancelled"] and place.turns()[0]["outcome"] == "unknown"
