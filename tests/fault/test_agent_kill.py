"""`kill -9` of Pursuit, of the agent and of both at random moments of a turn; and the operator's stop in the middle."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from agent_stage import AGENT, AgentPlace, library
from cli_stage import Running, until

ROUNDS = 30 if os.environ.get("PURSUIT_SOAK") else 10


def below(place: AgentPlace, *, agent_only: bool = False) -> list[psutil.Process]:
    """The processes that have something to do with this place's agent."""
    found: list[psutil.Process] = []
    for one in psutil.process_iter(["cmdline", "status"]):
        words = one.info["cmdline"] or []
        mine = any(str(place.folder) in word for word in words) and one.info["status"] != psutil.STATUS_ZOMBIE
        is_agent = str(AGENT) in words and "subreaper.py" not in " ".join(words)
        if mine and (is_agent if agent_only else "fix.toml" not in words and "resume" not in words):
            found.append(one)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for one in processes:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


def begun(place: AgentPlace, running: Running) -> None:
    """Waits until the agent is in its turn."""
    mark = place.folder / "begun"
    until(lambda: mark.exists() or running.process.poll() is not None)


@pytest.mark.guarantee("a-turn-that-was-cut-is-unknown-and-never-repeated")
def test_kills_at_random_moments_leave_no_process_and_repeat_no_turn(tmp_path: Path) -> None:
    chance = random.Random(19)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        mark, late = folder / "begun", folder / "late.txt"
        turn = [{"write": {**library(3), str(mark): ""}}, {"child": {"file": str(late), "after": 60}}, {"wait": ""}]
        place = AgentPlace(folder, [turn, [{"write": library(2)}]])
        rollback = chance.random() < 0.5
        place.mission(proposer='on_cut = "rollback"' if rollback else "")
        running = place.begin("run", "fix.toml", fresh=False)
        begun(place, running)
        time.sleep(chance.random() * 0.1)
        whom = ("pursuit", "agent", "both")[number % 3]
        if whom in ("agent", "both"):
            kill(below(place, agent_only=True) if whom == "agent" else below(place))
        if whom in ("pursuit", "both"):
            running.process.send_signal(signal.SIGKILL)
            until(lambda: not below(place))  # noqa: B023 - it is called at once
        running.end()
        done = place.json("status" if whom == "agent" else "resume", "last")
        assert (done["status"], done["iteration_count"]) == ("completed", 2), (whom, done)
        first, second = place.turns()
        assert (first["outcome"], second["outcome"]) == ("unknown", "ok")
        assert "+    return 3" in first["diff"] and len(place.prompts) == 2
        # The second turn starts from where the mode says.
        assert ("-    return 3" in second["diff"]) is not rollback
        assert below(place) == [] and not late.exists()
        assert place.json("verify")["ok"]


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
    place.ask("abort", "last")
    running.end()
    assert place.json("status", "last")["verdict_reason"] == "user_abort"
    assert [one["outcome"] for one in place.turns()] == ["unknown", "unknown"] and below(place) == []
    assert place.git("branch", "--list", "pursuit/*") == ""
