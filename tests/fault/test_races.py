"""The operator and a second driver speak at random moments of a run in another process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from crashing import calls_of
from driving import runtime
from promptly import promptly

from pursuit import Budget, Mission
from pursuit.core.criteria import event
from pursuit.core.events import (
    CallIntended,
    CallSettled,
    IterationEnded,
    MissionEnded,
    OperatorEvent,
    RunClaimed,
    decode,
)
from pursuit.engine.driver import RunOrder
from pursuit.errors import Conflict
from pursuit.service.service import Service

ROUNDS = 100 if os.environ.get("PURSUIT_SOAK") else 3
HALF_A_SECOND = 0.5
LONGEST = 120
AN_HOUR = 3_600_000
SCRIPT = """
for place in range(6):
    world.step(key=f"{{state.iteration}}-{{place}}", ms={hour} if place == 3 and state.iteration >= {last} else 8)
"""


def mission(last: int) -> Mission:
    """Quick steps up to some iteration; from there on each has one that takes an hour, which a word alone ends."""
    return Mission(
        directive="Run until told otherwise",
        criteria=[event("never")],
        budget=Budget(max_iterations=400),
        allow_all_tools=True,
        stagnation_threshold="off",
        proposer={"kind": "script", "script": SCRIPT.format(hour=AN_HOUR, last=last)},
    )


def _driver(state: Path, record: Path, mission_id: str) -> subprocess.Popen[str]:
    here = Path(__file__).with_name("driving.py")
    return subprocess.Popen([sys.executable, here, state, record, mission_id], stdout=subprocess.PIPE, text=True)


async def _events(service: Service, mission_id: str) -> list[Any]:
    return [decode(stored.type, stored.body) for stored in await service.ledger.read(mission_id)]


async def _running(service: Service, mission_id: str, runs: int) -> None:
    """Returns when the driver has claimed and settled something."""
    claims = settled = 0
    with anyio.fail_after(LONGEST):
        async for stored in service.ledger.watch(mission_id):
            claims += stored.type == RunClaimed.__name__
            settled += claims >= runs and stored.type == CallSettled.__name__
            if settled:
                return


async def _exit(process: subprocess.Popen[str]) -> str:
    with anyio.fail_after(LONGEST):
        while process.poll() is None:
            await anyio.sleep(0.005)
    return process.communicate()[0]


async def _round(folder: Path, chance: random.Random, word: str) -> float:
    """One word, and how long after it something was still under way."""
    state, record = folder / "ledger.db", folder / "record"
    async with runtime(state, record) as here:
        service = here.runner
        mission_id = (await service.start(mission(chance.randrange(4)))).session_id
        process = _driver(state, record, mission_id)
        await _running(service, mission_id, 1)
        with pytest.raises(Conflict):
            await service.driver.drive(RunOrder(mission_id))
        await anyio.sleep(chance.uniform(0, 0.3))
        with pytest.raises(Conflict):
            await service.driver.drive(RunOrder(mission_id))
        late = 0.0
        if word == "pause":
            assert (await service.pause(mission_id)).status == "paused"
            assert await _exit(process) == "paused"
            late = _obeyed(await _events(service, mission_id))
            process = _driver(state, record, mission_id)
            await _running(service, mission_id, 2)
            await anyio.sleep(chance.uniform(0, 0.2))
            await service.abort(mission_id, reason="after the pause")
            expected = ("terminated", "user_abort")
        elif word == "abort":
            await service.abort(mission_id, reason="enough")
            expected = ("terminated", "user_abort")
        else:
            await service.complete(mission_id, reason="good enough")
            expected = ("completed", "forced_complete")
        assert (await service.state(mission_id)).status == expected[0], "the word holds at once"
        await _exit(process)
        final = await service.state(mission_id)
        assert (final.status, final.verdict_reason) == expected
        assert final.closed
        row = await service.ledger.row(mission_id)
        assert row is not None and row.status == expected[0], "the listing says the same"
        events = await _events(service, mission_id)
        late = max(late, _obeyed(events))
        assert sum(isinstance(e, MissionEnded) for e in events) == 1
        assert (await service.report(mission_id)).reason_text in ("after the pause", "enough", "good enough")
        assert (await service.verify()).ok
        _once(record, await calls_of(service.ledger, mission_id))
        return late


def _obeyed(events: list[Any]) -> float:
    """After the last word no call begins; how long afterwards what was under way was stopped."""
    places = [place for place, each in enumerate(events) if isinstance(each, OperatorEvent)]
    word, *rest = events[places[-1] :]
    assert not any(isinstance(each, CallIntended) for each in rest), "a call began after the operator's word"
    ends = (each.at for each in rest if isinstance(each, CallSettled | IterationEnded | MissionEnded))
    return max(ends, default=word.at) - word.at


def _once(record: Path, calls: dict[str, Any]) -> None:
    executed = Counter(record.read_text().split())
    assert max(executed.values()) == 1, "a call ran twice"
    for call in calls.values():
        assert len(call["settled"]) == 1, call
        if call["settled"] == ["ok"]:
            assert executed[call["key"]] == 1


@pytest.mark.slow
@pytest.mark.guarantee("the-operator-wins")
async def test_the_operators_word_wins_whenever_it_comes(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(ROUNDS):
        for attempt, watch in enumerate(promptly(HALF_A_SECOND)):
            folder = tmp_path / f"{number}-{attempt}"
            folder.mkdir()
            watch.took = await _round(folder, chance, ("abort", "pause", "complete")[number % 3])
