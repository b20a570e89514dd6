"""States are folded once in a process, and are always as new as the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_stage import mission, repeat, stage

from pursuit import Budget, Runtime
from pursuit.engine.journal import States
from pursuit.errors import SessionNotFound
from pursuit.ledger.contract import StoredEvent


def step() -> dict[str, Any]:
    return {"metrics": {"mass": 3}}


class Reading:
    """A ledger that counts the events it hands out."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.read_events = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        found = await self._inner.read(stream, after, limit)
        self.read_events += len(found)
        return found


async def _mission(runtime: Runtime, iterations: int) -> str:
    made = mission(proposer=repeat("step"), budget=Budget(max_iterations=100))
    mission_id = (await runtime.runner.start(made)).session_id
    await runtime.runner.iterate(mission_id, iterations=iterations)
    return mission_id


async def test_only_what_is_new_is_read_again(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        mission_id = await _mission(runtime, 5)
        ledger = Reading(runtime.runner.ledger)
        states = States(ledger)
        state, head = await states.look(mission_id)
        assert (state.iteration_count, state.seq, ledger.read_events) == (5, head, head)
        await states.look(mission_id)
        assert ledger.read_events == head, "nothing was new"
        await runtime.runner.pause(mission_id)
        state, _ = await states.look(mission_id)
        assert (state.status, ledger.read_events) == ("paused", head + 1)


async def test_a_state_that_was_taken_is_read_anew_by_others_and_comes_back_only_if_it_is_whole(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        mission_id = await _mission(runtime, 2)
        states = States(runtime.runner.ledger)
        taken, head = await states.take(mission_id)
        seen, _ = await states.look(mission_id)
        assert seen is not taken
        taken.seq += 1  # somebody folded an event that never reached the ledger
        states.give(mission_id, taken, head)
        again, _ = await states.look(mission_id)
        assert again is seen


async def test_the_cache_is_bounded_and_a_forgotten_mission_is_not_answered_from_it(tmp_path: Path) -> None:
    async with stage(tmp_path, step) as runtime:
        ids = [await _mission(runtime, 1) for _ in range(3)]
        ledger = Reading(runtime.runner.ledger)
        states = States(ledger, most=2)
        for name in ids:
            await states.look(name)
        before = ledger.read_events
        await states.look(ids[2])
        assert ledger.read_events == before
        await states.look(ids[0])
        assert ledger.read_events > before, "the oldest was let go"
        await runtime.runner.abort(ids[2])
        await states.look(ids[2])
        await runtime.runner.forget(ids[2])
        with pytest.raises(SessionNotFound):
            await states.look(ids[2])
