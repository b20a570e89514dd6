"""Servers that die under a background run: whoever serves the ledger next, or already, goes on with it unasked."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest
from front_door import House, Served, wait_until
from journey import AN_HOUR, Traveller
from promptly import promptly
from sdk_client import ERAS, SdkPort, client

from pursuit.core.events import CallIntended, CallSettled, IterationEnded, RunClaimed

GOAL = 40
DEADLY = 10
# One call would take an hour, so that the run is in the middle of it whenever the server dies.
SCRIPT = f"""
try:
    workshop.step(log="log", key=f"{{state.iteration}}", ms={AN_HOUR} if state.iteration == {DEADLY} else 1)
except RuntimeError:
    pass
workshop.step(log="log", key=f"{{state.iteration}}b")
"""
TAKE_OVER_SECONDS = 3.0


def start(house: House, served: Served, era: str) -> str:
    """A mission whose background run of so many iterations has just been promised to a client, which then left."""

    async def main() -> str:
        async with client(served.url, era) as first:
            me = Traveller(SdkPort(first), house.logs)
            mission = await me.start("on", steps=10_000, proposer={"kind": "script", "script": SCRIPT})
            asked = {"session_id": mission, "background": True, "max_iterations_this_call": GOAL}
            assert (await me.done("mission_iterate", **asked))["status"] == "running"
            return mission

    return anyio.run(main)


def until_goal(house: House, mission: str) -> None:
    """Returns when the ledger has the last iteration; no server is asked for anything."""

    def last() -> int:
        events = anyio.run(house.events, mission)
        return max((event.iteration for event in events if isinstance(event, IterationEnded)), default=-1)

    house.until_logged("log", f"done {GOAL - 1}")
    wait_until(lambda: last() == GOAL - 1, "the last iteration", last)


def judge(house: House, mission: str, lost: str) -> None:
    """Every iteration once, every call begun and settled once, and the death cost the call that it fell into."""
    events = anyio.run(house.events, mission)
    assert [event.iteration for event in events if isinstance(event, IterationEnded)] == list(range(GOAL))
    keys = {event.call_id: event.args["key"] for event in events if isinstance(event, CallIntended)}
    outcomes = {event.call_id: event.outcome for event in events if isinstance(event, CallSettled)}
    assert keys.keys() == outcomes.keys()
    assert sum(isinstance(event, CallSettled) for event in events) == len(outcomes)
    begun = Counter(line.removeprefix("begun ") for line in house.lines("log") if line.startswith("begun"))
    assert begun == {f"{place}{call}": 1 for place in range(GOAL) for call in ("", "b")}, "a call ran twice, or never"
    assert {keys[call]: outcome for call, outcome in outcomes.items() if outcome != "ok"} == {str(DEADLY): lost}


@pytest.mark.slow
@pytest.mark.guarantee("background-survives-kill")
@pytest.mark.parametrize(("word", "lost", "era"), [("SIGKILL", "unknown", ERAS[0]), ("SIGTERM", "cancelled", ERAS[1])])
def test_a_background_run_goes_on_when_it_is_served_again(word: str, lost: str, era: str, tmp_path: Path) -> None:
    house = House(tmp_path, fresh=word == "SIGKILL")
    with house.serving() as first:
        mission = start(house, first, era)
        house.until_logged("log", f"begun {DEADLY}")
        if word == "SIGKILL":
            first.kill()
        else:
            code, out, notes = first.end(signal.SIGTERM)
            assert (code, out) == (0, ""), notes
    assert f"begun {DEADLY}b" not in house.lines("log"), "the run was not in the call in which the server was stopped"
    assert house.json("status", mission)["status"] == "interrupted"
    with house.serving() as second:
        until_goal(house, mission)
        judge(house, mission, lost)
        anyio.run(_at_its_goal, house, second, era, mission)


async def _at_its_goal(house: House, served: Served, era: str, mission: str) -> None:
    """The run went as far as it was to go and no further, and the mission is free for the next one."""
    async with client(served.url, era) as second:
        me = Traveller(SdkPort(second), house.logs)
        status = await me.done("mission_status", session_id=mission)
        assert (status["status"], status["iteration_count"]) == ("running", GOAL)
        answer = await me.until_free(mission, after=GOAL)
        assert [row["iteration_index"] for row in answer["iterations"]] == [GOAL]


@pytest.mark.slow
@pytest.mark.guarantee("background-survives-kill")
def test_another_server_on_the_same_ledger_takes_over(tmp_path: Path) -> None:
    for number, watch in enumerate(promptly(TAKE_OVER_SECONDS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        watch.took = _taken_over(House(folder, fresh=True))


def _taken_over(house: House) -> float:
    """How long the mission of a server that was killed was nobody's."""
    with house.serving() as first, house.serving() as second:
        mission = start(house, first, ERAS[1])
        house.until_logged("log", f"begun {DEADLY}")
        before = anyio.run(house.events, mission)
        assert [event.pid for event in before if isinstance(event, RunClaimed)] == [first.process.pid]
        killed = time.time()
        os.kill(first.process.pid, signal.SIGKILL)
        until_goal(house, mission)
        claims = [event for event in anyio.run(house.events, mission) if isinstance(event, RunClaimed)]
        assert [claim.pid for claim in claims] == [first.process.pid, second.process.pid]
        judge(house, mission, "unknown")
        return claims[1].at - killed
