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

from pursuit import Budget, Mission
from pursuit.errors import Conflict
from pursuit.model.build import event
from pursuit.model.events import (
    CallIntended,
    CallSettled,
    IterationEnded,
    MissionEnded,
    OperatorWord,
    RunClaimed,
    decode,
)
from pursuit.service import Service

ROUNDS = 100 if os.environ.get("PURSUIT_SOAK") else 10
HALF_A_SECOND = 0.5
SCRIPT = """
for place in range(6):
    world.step(key=f"{state.iteration}-{place}", ms=150 if place == 3 else 8)
"""


def mission() -> Mission:
    return Mission(
        directive="Run until told otherwise",
        criteria=[event("never")],
        budget=Budget(max_iterations=400),
        allow_all_tools=True,
        stagnation_threshold="off",
        proposer={"kind": "script", "script": SCRIPT},
    )


def _driver(state: Path, record: Path, mission_id: str) -> subprocess.Popen[str]:
    here = Path(__file__).with_name("driving.py")
    return subprocess.Popen([sys.executable, here, state, record, mission_id], stdout=subprocess.PIPE, text=True)


async def _events(service: Service, mission_id: str) -> list[Any]:
    return [decode(stored.type, stored.body) for stored in await service.ledger.read(mission_id)]


async def _running(service: Service, mission_id: str, runs: int) -> None:
    """Returns when the driver has claimed and settled something."""
    claims = settled = 0
    with anyio.fail_after(30):
        async for stored in service.ledger.watch(mission_id):
            claims += stored.type == RunClaimed.__name__
            settled += claims >= runs and stored.type == CallSettled.__name__
            if settled:
                return


async def _exit(process: subprocess.Popen[str]) -> str:
    with anyio.fail_after(30):
        while process.poll() is None:
            await anyio.sleep(0.005)
    return process.communicate()[0]


async def _round(folder: Path, chance: random.Random, word: str) -> None:
    state, record = folder / "ledger.db", folder / "record"
    async with runtime(state, record) as here:
        service = here.service
        mission_id = (await service.start(mission())).session_id
        process = _driver(state, record, mission_id)
        await _running(service, mission_id, 1)
        with pytest.raises(Conflict):
            await service.driver.drive(mission_id)
        await anyio.sleep(chance.uniform(0, 0.3))
        with pytest.raises(Conflict):
            await service.driver.drive(mission_id)
        if word == "pause":
            assert (await service.pause(mission_id)).status == "paused"
            assert await _exit(process) == "paused"
            _obeyed(await _events(service, mission_id))
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
        _obeyed(events)
        assert sum(isinstance(e, MissionEnded) for e in events) == 1
        assert (await service.report(mission_id))["reason_text"] in ("after the pause", "enough", "good enough")
        assert (await service.verify()).ok
        _once(record, await calls_of(service.ledger, mission_id))


def _obeyed(events: list[Any]) -> None:
    """After the last word no call begins, and what was under way was stopped within half a second."""
    places = [place for place, each in enumerate(events) if isinstance(each, OperatorWord)]
    word = events[places[-1]]
    for each in events[places[-1] :]:
        assert not isinstance(each, CallIntended), "a call began after the operator's word"
        if isinstance(each, CallSettled | IterationEnded | MissionEnded):
            assert each.at - word.at < HALF_A_SECOND, f"{type(each).__name__} came late"


def _once(record: Path, calls: dict[str, Any]) -> None:
    executed = Counter(record.read_text().split())
    assert max(executed.values()) == 1, "a call ran twice"
    for call in calls.values():
        assert len(call["settled"]) == 1, call
        if call["settled"] == ["ok"]:
            assert executed[call["key"]] == 1


@pytest.mark.slow
@pytest.mark.guarantee("the-operator-wins")
def test_the_operators_word_wins_whenever_it_comes(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        anyio.run(_round, folder, chance, ("abort", "pause", "complete")[number % 3])
