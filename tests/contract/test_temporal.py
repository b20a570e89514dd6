"""Temporal as the placement: its dev server from a wheel, workers in this process, and old histories."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, repeat, until
from fleet_stage import measure
from postgres_server import NewDatabase
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer
from test_placement import ANY_QUEUE, ended, start

from pursuit import Budget, Runtime, event
from pursuit.config.configuration import Configuration
from pursuit.config.files import locate_state
from pursuit.errors import LedgerUnavailable
from pursuit.ledger.placement import Reschedule
from pursuit.ledger.queue import PostgresPlacement
from pursuit.temporal.placement import TemporalPlacement, TemporalSettings
from pursuit.temporal.workflow import MissionWorkflow
from pursuit.testing import RecordingWorker, check_placement

HISTORIES = sorted((Path(__file__).parents[1] / "data").glob("temporal-*.json"))


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@asynccontextmanager
async def placed(temporal: str, database: str, **settings: Any) -> AsyncIterator[TemporalPlacement]:
    given = TemporalSettings(address=temporal, **{"lease": 1.0, **settings})
    placement = TemporalPlacement(given, PostgresPlacement(database, heartbeat=1.0, dequeue=0.1))
    try:
        yield placement
    finally:
        await placement.close()


@asynccontextmanager
async def working(placement: TemporalPlacement, database: str, *tools: Any) -> AsyncIterator[Runtime]:
    settings = {"worker_heartbeat": 1.0, "lease_seconds": 1.0}
    state = locate_state(database, None)
    servers = {"world": list(tools)}
    async with Runtime(
        state=state, config=Configuration(settings=settings), servers=servers, placement=placement
    ) as runtime:
        worker = runtime.worker(name="w", version="0", sweep_seconds=0.2, grace=5.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            try:
                yield runtime
            finally:
                worker.stop()


async def test_temporal_keeps_the_contract_of_placements(temporal: str, new_database: NewDatabase) -> None:
    async with placed(temporal, new_database()) as placement:
        await check_placement(placement)


async def test_a_drive_that_takes_long_is_handed_back(temporal: str, new_database: NewDatabase) -> None:
    class Long(RecordingWorker):
        async def work(self, job: Any) -> Reschedule | None:
            assert job.leaving is not None
            await job.leaving.wait()
            await super().work(job)
            return Reschedule(0.0) if len(self.jobs) < 2 else None

    async with placed(temporal, new_database(), drive_seconds=0.2) as placement:
        await placement.enqueue("long", ANY_QUEUE)
        one = Long(most=2)
        await placement.run(one, 1)
        assert one.jobs == ["long", "long"]


async def test_a_server_that_cannot_be_reached_is_named(new_database: NewDatabase) -> None:
    async with placed("127.0.0.1:1", new_database()) as placement:
        with pytest.raises(LedgerUnavailable, match="is unavailable"):
            await placement.enqueue("a", ANY_QUEUE)


async def test_cancel_is_a_pause_and_terminate_is_made_up_for(temporal: str, new_database: NewDatabase) -> None:
    database, gate = new_database(), Gate()
    async with placed(temporal, database) as placement, working(placement, database, gate.hold, measure) as runtime:
        given: dict[str, Any] = {"criteria": [event("never")], "budget": Budget(max_iterations=3)}
        client = await Client.connect(temporal)
        paused = await start(runtime, proposer=repeat("measure"), pace={"seconds": 3600}, **given)
        await until(runtime, paused, lambda state: state.iteration_count == 1)
        await client.get_workflow_handle(f"pursuit-{paused}").cancel()
        await until(runtime, paused, lambda state: state.status == "paused")

        killed = await start(runtime, proposer=repeat("hold"), **given)
        await gate.entered.wait()
        await client.get_workflow_handle(f"pursuit-{killed}").terminate()
        gate.release.set()
        await until(runtime, killed, ended)
        assert (await runtime.runner.state(killed)).iteration_count == 3


@pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.stem)
async def test_histories_of_open_workflows_are_replayed(history: Path) -> None:
    stored = WorkflowHistory.from_json("pursuit-m1", json.loads(history.read_text()))
    await Replayer(workflows=[MissionWorkflow]).replay_workflow(stored)


def test_there_is_a_history_to_replay() -> None:
    assert [path.stem for path in HISTORIES] == ["temporal-mission-v1"]
