"""`kill -9` of Pursuit, of the agent and of both at random moments of a turn; and the operator's stop in the middle."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_stage import AGENT, AgentPlace, library
from cli_stage import Running, until

ROUNDS = 30 if os.environ.get("PURSUIT_SOAK") else 4


def below(place: AgentPlace, *, agent_only: bool = False) -> list[psutil.Process]:
    """The processes that have something to do with this place's agent."""
    found: list[psutil.Process] = []
    for one in psutil.process_iter(["cmdline", "status"]):
        words = one.info["cmdline"] or []
        mine = any(str(place.folder) in word for word in words) and one.info["status"] != psutil.STATUS_ZOMBIE
        is_agent = str(AGENT) in words and "subreaper" not in " ".join(words)
        if mine and (is_agent if agent_only else "fix.toml" not in words and "resume" not in words):
            found.append(one)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for one in processes:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


def gone(place: AgentPlace, *, kill_all: bool) -> bool:
    """Whether no process is left; a crash of the machine also ends those that were forked after the last look."""
    left = below(place)
    if kill_all:
        kill(left)
    return not left


def begun(place: AgentPlace, running: Running) -> None:
    """Waits until the agent is in its turn."""
    mark = place.folder / "begun"
    until(lambda: mark.exists() or running.process.poll() is not None)


FAULTS: dict[str, list[dict[str, Any]]] = {
    "child": [{"child": {"file": "late.txt", "after": 3600}}],
    "flood": [{"flood": 200_000}],
    "late question": [{"late": {"kind": "execute", "title": "make", "rawInput": {}}}],
    "crash": [{"exit": 3}],
    "endless": [{"flood": 0}],
    "question": [{"ask": {"kind": "execute", "title": "make", "rawInput": {}}}],
}
LAST = ("crash", "endless", "question")
"""What keeps a turn from its end; at most one of them."""


def faults(chance: random.Random, folder: Path) -> list[dict[str, Any]]:
    """Some steps that go wrong, in their order."""
    chosen = [name for name in FAULTS if name not in LAST and chance.random() < 0.5]
    chosen += [chance.choice(LAST)] if chance.random() < 0.3 else []
    steps = [step for name in chosen for step in FAULTS[name]]
    return [json.loads(json.dumps(step).replace("late.txt", str(folder / "late.txt"))) for step in steps]


def kept_its_promise(place: AgentPlace, *, rollback: bool) -> None:
    """The mission ended rightly, no turn was repeated, no process is left, and each turn began where it must."""
    done = place.json("status", "last")
    assert (done["status"], done["verdict_reason"]) == ("completed", "criteria_met"), done
    assert len(set(place.prompts)) == len(place.prompts)
    turns = done["workspace"]["turns"]
    for before, after in itertools.pairwise(turns):
        assert after["before"] == before["after"]
    assert all(turn["after"] == turn["before"] for turn in turns if rollback and turn["outcome"] == "unknown")
    assert {turn["outcome"] for turn in turns} <= {"ok", "unknown"} and turns[-1]["outcome"] in ("ok", "unknown")
    assert "return 2" in place.git("show", f"{done['workspace']['branch']}:lib.py")
    assert place.git("status", "--porcelain") == ""
    until(lambda: below(place) == [])
    assert not (place.folder / "late.txt").exists() and place.json("verify")["ok"]


@pytest.mark.slow
@pytest.mark.guarantee("a-turn-that-was-cut-is-unknown-and-never-repeated")
def test_kills_at_random_moments_leave_no_process_and_repeat_no_turn(tmp_path: Path) -> None:
    """In even rounds the kill comes in the first turn, in odd ones at any moment from the start to after the end."""
    seed = int(os.environ.get("PURSUIT_SEED") or random.randrange(1_000_000))
    print(f"PURSUIT_SEED={seed}")
    for number in range(ROUNDS):
        chance = random.Random(seed + number)
        folder = tmp_path / str(number)
        wrong = faults(chance, folder)
        in_turn, whom = number % 2 == 0, chance.choice(("pursuit", "agent", "both"))
        first = [{"write": {**library(3), str(folder / "begun"): ""}}, {"sleep": chance.random() * 0.3}, *wrong]
        first += [{"wait": ""}] if in_turn else []
        place = AgentPlace(
            folder, [first, [{"write": library(4)}], [{"write": library(2)}]], no_load=chance.random() < 0.3
        )
        place.write("pursuit.toml", '[policy]\nmode = "ask"\n')
        rollback = chance.random() < 0.5
        cut = 'on_cut = "rollback"\n' if rollback else ""
        place.mission(proposer=f"{cut}turn_seconds = 3\npermission_seconds = 0.2", budget="max_iterations = 9")
        running = place.begin("run", "fix.toml", fresh=False)
        if in_turn:
            begun(place, running)
        time.sleep(chance.random() * (0.3 if in_turn else 1.2))
        if whom != "pursuit":
            kill(below(place, agent_only=whom == "agent"))
        if whom != "agent":
            running.process.send_signal(signal.SIGKILL)
            until(lambda: gone(place, kill_all=whom == "both"))  # noqa: B023 - it is called at once
        running.end()
        if place.ask("status", "last", code=None)[1]:  # a kill before the mission was stored leaves none
            place.ask("run", "fix.toml", code=None)
        for _ in range(5):  # each turn can end with a question that nobody answers
            if place.json("status", "last")["status"] in ("completed", "terminated"):
                break
            place.ask("approve", "--all", code=None)
            place.ask("resume", "last", code=None)
        kept_its_promise(place, rollback=rollback)


def test_a_pause_cuts_the_turn_and_an_abort_ends_the_mission(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    place = AgentPlace(tmp_path, [[{"write": {**library(3), str(mark): ""}}, {"wait": ""}]])
    place.mission()
    running = place.begin("run", "fix.toml", fresh=False)
    begun(place, running)
    place.ask("pause", "last")
    running.end()
    (turn,) = place.turns()
    assert turn["outcome"] == "unknown" and "+    return 3" in turn["diff"] and below(place) == []
    mark.unlink()
    running = place.begin("resume", "last", fresh=False)
    begun(place, running)
    assert place.json("status", "last")["iteration_count"] == 0, "the pause cost no iteration"
    place.ask("abort", "last")
    running.end()
    assert place.json("status", "last")["verdict_reason"] == "user_abort"
    assert [one["outcome"] for one in place.turns()] == ["unknown", "unknown"] and below(place) == []
    assert place.git("branch", "--list", "pursuit/*") == ""


def test_a_race_of_agents_goes_on_after_a_kill(tmp_path: Path) -> None:
    place = AgentPlace(tmp_path, [[]])
    waits = [{"write": {**library(3), str(tmp_path / "begun"): ""}}, {"wait": ""}]
    agents = [place.agent("slow", [waits]), place.agent("quick", [waits, [{"write": library(2)}]])]
    place.mission(proposer='kind = "best_of"\n' + "".join(agents), budget="max_iterations = 9")
    running = place.begin("run", "fix.toml", fresh=False)
    heard = [tmp_path / f"{name}.jsonl" for name in ("slow", "quick")]
    until(lambda: all(one.exists() and "session/prompt" in one.read_text() for one in heard))
    running.process.send_signal(signal.SIGKILL)
    until(lambda: not below(place))
    running.end()
    done = place.json("resume", "last")
    assert (done["status"], [row["agent"] for row in done["workspace"]["agents"] if row["won"]]) == (
        "completed",
        ["quick"],
    )
    turns = place.json("report", next(row["session_id"] for row in done["workspace"]["agents"] if row["won"]))["turns"]
    assert [one["outcome"] for one in turns if one["who"] == "agent"] == ["unknown", "ok"]
    assert heard[1].read_text().count('"session/prompt"') == 2 and below(place) == []


def test_a_turn_that_a_kill_cut_off_costs_no_iteration_and_is_no_error(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    place = AgentPlace(tmp_path, [[{"write": {**library(3), str(mark): ""}}, {"wait": ""}], [{"write": library(2)}]])
    place.mission(budget="max_iterations = 1")
    running = place.begin("run", "fix.toml", fresh=False)
    begun(place, running)
    running.end(signal.SIGKILL)
    done = place.json("resume", "last")
    assert (done["verdict_reason"], done["iteration_count"]) == ("criteria_met", 1)
    assert [one["outcome"] for one in place.turns()] == ["unknown", "ok"]
    assert "Your last turn was cut off" in place.prompts[1] and below(place) == []
    (row,) = place.json("history", "last", "--full")["iterations"]
    assert row["verdict"] == "complete" and len(row["strategy"]["tool_calls"]) == 2
    assert place.json("verify")["ok"]


def test_a_kill_while_the_mission_waits_for_a_usage_limit_changes_nothing(tmp_path: Path) -> None:
    rate_limit = {"code": -32603, "message": "Internal error", "data": {"errorKind": "rate_limit"}}
    place = AgentPlace(tmp_path, [[{"error": rate_limit}], [{"write": library(2)}]])
    place.mission('name = "standin"')
    running = place.begin("run", "fix.toml")
    first = running.until("usage limit of standin, continues at ")
    running.process.kill()
    running.process.wait(timeout=60)
    again = place.begin("resume", "last")
    assert again.until("usage limit of standin") == first
    again.end(signal.SIGTERM)
    assert len(place.prompts) == 1
    status = place.json("status", "last")
    assert (status["status"], status["iteration_count"]) == ("interrupted", 0)
    assert place.json("verify")["ok"]
