"""Temporal as the placement: its dev server from a wheel, workers in this process, and old histories."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_stage import Gate, mission, repeat, until
from fleet_stage import measure
from postgres_server import NewDatabase
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer
from test_placement import ANY_QUEUE, ended, start

from pursuit import Budget, Runtime, event
from pursuit.config.configuration import Configuration
from pursuit.config.files import locate_state
from pursuit.engine.driver import RunOrder
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
async def working(placement: TemporalPlacement, database: str, *tools: Any, **more: Any) -> AsyncIterator[Runtime]:
    settings = {"worker_heartbeat": 1.0, "lease_seconds": 1.0}
    state = locate_state(database, None)
    servers = {"world": list(tools)}
    async with Runtime(
        state=state, config=Configuration(settings=settings), servers=servers, placement=placement
    ) as runtime:
        worker = runtime.worker(name="w", version="0", sweep_seconds=0.2, grace=5.0, **more)
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


async def test_workers_of_a_queue_with_other_servers_are_warned_about(
    temporal: str, new_database: NewDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database = new_database()
    async with placed(temporal, database) as one, placed(temporal, database) as two:
        async with working(one, database, measure), anyio.create_task_group() as tasks:
            while not (await one.health()).live:
                await anyio.sleep(0.01)
            elsewhere, bare = RecordingWorker("elsewhere", queues=("gpu",)), RecordingWorker("bare")
            for each in (elsewhere, bare):
                tasks.start_soon(two.run, each, 1)
                each.stopping.set()
        (said,) = [record.getMessage() for record in caplog.records if "same servers" in record.getMessage()]
        assert said == "workers of a queue need the same servers; w differs: world"


async def test_a_worker_of_several_queues_drives_no_more_at_once_than_it_may(
    temporal: str, new_database: NewDatabase
) -> None:
    database, gates = new_database(), [Gate(), Gate()]

    async def first() -> dict[str, Any]:
        """Stays."""
        return await gates[0].hold()

    async def second() -> dict[str, Any]:
        """Stays."""
        return await gates[1].hold()

    async with placed(temporal, database) as placement:
        settings = {"queues": ["default", "gpu"], "concurrency": 1}
        async with working(placement, database, first, second, **settings) as runtime:
            one = await start(runtime, proposer=repeat("first"), budget=Budget(max_iterations=1))
            await gates[0].entered.wait()
            two = await start(runtime, proposer=repeat("second"), budget=Budget(max_iterations=1), queue="gpu")
            handle = (await Client.connect(temporal)).get_workflow_handle(f"pursuit-{two}")
            async for event_ in handle.fetch_history_events(wait_new_event=True):
                if event_.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
                    break  # it was given back
            assert not gates[1].entered.is_set()
            gates[0].release.set()
            gates[1].release.set()
            for name in (one, two):
                await until(runtime, name, ended)


async def test_status_says_that_temporal_is_gone(new_database: NewDatabase) -> None:
    database = new_database()
    async with (
        placed("127.0.0.1:1", database) as gone,
        Runtime(
            state=locate_state(database, None), config=Configuration(), servers={"world": [measure]}, placement=gone
        ) as runtime,
    ):
        mission_id = (await runtime.runner.start(mission(proposer=repeat("measure")))).session_id
        assert "Temporal at 127.0.0.1:1 is unavailable" in str((await runtime.runner.status(mission_id)).placement)


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


async def test_a_mission_that_is_paused_while_it_waits_is_not_driven_until_it_is_resumed(
    temporal: str, new_database: NewDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database = new_database()
    async with placed(temporal, database) as placement, working(placement, database, measure) as runtime:
        given: dict[str, Any] = {"criteria": [event("never")], "budget": Budget(max_iterations=2)}
        name = await start(runtime, proposer=repeat("measure"), pace={"seconds": 3}, **given)
        await until(runtime, name, lambda state: state.waiting_for == "pace")
        await runtime.runner.pause(name)
        handle = (await Client.connect(temporal)).get_workflow_handle(f"pursuit-{name}")
        with anyio.fail_after(60):  # its time comes, it finds nothing to do, and ends
            await handle.result()
        assert (await runtime.runner.state(name)).status == "paused"
        await runtime.runner.hand_over(RunOrder(name, resume=True))
        await until(runtime, name, ended)
        assert (await runtime.runner.state(name)).iteration_count == 2
    assert "jobs went to other workers" not in caplog.text


@pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.stem)
async def test_histories_of_open_workflows_are_replayed(history: Path) -> None:
    stored = WorkflowHistory.from_json("pursuit-m1", json.loads(history.read_text()))
    await Replayer(workflows=[MissionWorkflow]).replay_workflow(stored)


def test_there_is_a_history_to_replay() -> None:
    assert [path.stem for path in HISTORIES] == ["temporal-mission-v1"]
