"""The checker of histories: a sound one passes, and each kind of damage is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import pytest
from history import Append, History, faults_of, read_history

from pursuit import Budget, Mission, Runtime, event
from pursuit.config.configuration import Configuration
from pursuit.ledger.contract import StoredEvent

STEPS = 3


@cache
def sound() -> History:
    """Two missions of three steps each, as they really ran."""

    async def story(folder: Path) -> History:
        effects, acknowledged = folder / "effects", folder / "acknowledged"
        acknowledged.touch()

        def step(key: str) -> str:
            with effects.open("a") as file:
                file.write(f"step {key} 1\n")
            return "done"

        async with Runtime(state=folder / "ledger.db", config=Configuration(), servers={"world": [step]}) as runtime:
            ids = [(await runtime.runner.start(mission(number))).session_id for number in range(2)]
            for one in ids:
                await runtime.runner.run(one)
            history = await read_history(runtime.runner.driver.ledger, ids, [acknowledged], effects)
        appends = [
            Append(
                at=stored.at, by="w1", stream=stream, seq=stored.seq, hash=stored.hash.hex(), epoch=1 + (stored.seq > 5)
            )
            for stream, events in history.events.items()
            for stored in events
        ]
        return replace(history, appends=[Append.read(one.line()) for one in appends])

    with TemporaryDirectory() as name:
        return anyio.run(story, Path(name))


def mission(number: int) -> Mission:
    calls: list[Any] = [
        {"tool_calls": [{"tool_name": "world.step", "args": {"key": f"m{number}-{place}"}}]} for place in range(STEPS)
    ]
    return Mission(
        directive="Take each step once",
        criteria=[event("never")],
        budget=Budget(max_iterations=STEPS),
        tool_allowlist=["world.step"],
        stagnation_threshold="off",
        proposer={"kind": "replay", "proposals": calls},
    )


def changed(history: History, change: Callable[[list[StoredEvent]], None]) -> History:
    """The history with the events of its first mission changed."""
    stream = history.missions[0]
    events = list(history.events[stream])
    change(events)
    return replace(history, events={**history.events, stream: events})


def place(events: list[StoredEvent], kind: str) -> int:
    return next(number for number, one in enumerate(events) if one.type == kind)


def without(kind: str) -> Callable[[History], History]:
    return lambda history: changed(history, lambda events: events.pop(place(events, kind)))  # type: ignore[arg-type]


def cut_tail(history: History) -> History:
    """The last event is gone, and nothing in the ledger shows it: only an acknowledgement knows of it."""
    last = max((one for some in history.events.values() for one in some), key=lambda one: one.at)
    events = {name: [one for one in some if one is not last] for name, some in history.events.items()}
    return replace(history, events=events)


def rewritten(history: History) -> History:
    """Another event stands under the number of an acknowledged one."""

    def change(events: list[StoredEvent]) -> None:
        events[4] = msgspec.structs.replace(events[4], hash=bytes(32))

    return changed(history, change)


def settled_twice(history: History) -> History:
    def change(events: list[StoredEvent]) -> None:
        events.append(msgspec.structs.replace(events[place(events, "CallSettled")], seq=len(events) + 1))

    return changed(history, change)


def late_driver(history: History) -> History:
    last = max(history.appends, key=lambda one: one.seq)
    return replace(history, appends=[*history.appends, replace(last, epoch=1)])


def test_a_sound_history_has_no_faults() -> None:
    history = sound()
    assert len(history.effects) == 2 * STEPS
    assert len(history.appends) > 4 * STEPS
    assert faults_of(history) == []


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without("IterationEnded"), "gap: the events of"),
        (cut_tail, "lost: "),
        (rewritten, "lost: "),
        (late_driver, "fencing: "),
        (lambda history: replace(history, effects=[*history.effects, history.effects[0]]), "repeat: "),
        (lambda history: replace(history, effects=history.effects[1:]), "and its effect did not happen"),
        (lambda history: replace(history, effects=[*history.effects, "m9-9"]), "unintended: "),
        (without("CallSettled"), "unsettled: "),
        (settled_twice, "unsettled: "),
        (without("MissionEnded"), "unended: "),
        (lambda history: replace(history, missions=[*history.missions, "mission-none"]), "unended: mission-none"),
    ],
)
def test_damage_is_found(damage: Callable[[History], History], found: str) -> None:
    assert any(found in fault for fault in faults_of(damage(sound())))


def test_an_acknowledgement_that_a_kill_cut_is_none(tmp_path: Path) -> None:
    lines = "".join(one.line() for one in sound().appends)
    (tmp_path / "acknowledged").write_text(lines + "12.5 w1 m-1 ")
    (tmp_path / "effects").touch()

    async def story() -> History:
        async with Runtime(state=tmp_path / "ledger.db", config=Configuration()) as runtime:
            return await read_history(
                runtime.runner.driver.ledger, [], [tmp_path / "acknowledged"], tmp_path / "effects"
            )

    assert anyio.run(story).appends == sound().appends
