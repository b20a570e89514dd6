"""The queue over PostgreSQL, and workers in one process: who gets a job, and when."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, LiteralString, cast

import anyio
import psycopg
import pytest
from engine_stage import Gate, events_of, mission, outcomes, proposal, repeat, replay, until
from fleet_stage import child, measure, parent
from postgres_server import NewDatabase

from pursuit import Budget, Runtime, metric, succeeded, tool
from pursuit.config.configuration import Configuration, load_configuration
from pursuit.config.files import locate_state
from pursuit.core.events import CallSettled, RunClaimed
from pursuit.engine.driver import RunOrder
from pursuit.errors import InvalidArgument, LedgerUnavailable
from pursuit.ledger.contract import Draft, every_stream
from pursuit.ledger.placement import Job, Requirements, Reschedule
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.postgres_schema import Link, migrate_up
from pursuit.ledger.queue import PostgresPlacement
from pursuit.policy.rules import OperatorPolicy, Rule
from pursuit.service.approvals import Approvals
from pursuit.service.run_loop import background_runs, drain
from pursuit.testing import RecordingWorker, check_placement

pytestmark = pytest.mark.usefixtures("own_data")

ANY_QUEUE = Requirements()


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@asynccontextmanager
async def queue(address: str) -> AsyncIterator[PostgresPlacement]:
    placement = PostgresPlacement(address, heartbeat=1.0, dequeue=0.1)
    try:
        yield placement
    finally:
        await placement.close()


async def test_the_queue_keeps_the_contract_of_placements(new_database: NewDatabase) -> None:
    async with queue(new_database()) as placement:
        await check_placement(placement)


async def test_a_mission_that_is_not_free_yet_keeps_its_turn(new_database: NewDatabase) -> None:
    """Else one whose worker died, and whose lease has not run out, would wait behind all that were never begun."""
    async with queue(new_database()) as placement:
        for key in "abc":
            await placement.enqueue(key, ANY_QUEUE)
        one = RecordingWorker(most=4)
        one.answers["a"] = Reschedule(0.0, attempts=1)
        await placement.run(one, 1)
        assert one.jobs == ["a", "a", "b", "c"]


async def test_missions_that_come_back_from_a_wait_starve_no_other_one(new_database: NewDatabase) -> None:
    class Paced(RecordingWorker):
        async def work(self, job: Job) -> Reschedule | None:
            await super().work(job)
            return Reschedule(0.001) if job.key.startswith("paced") else None

    async with queue(new_database()) as placement:
        for key in ("paced 1", "paced 2", "paced 3", "once", "last"):
            await placement.enqueue(key, ANY_QUEUE)
        one = Paced(most=20)
        await placement.run(one, 1)
        assert {"once", "last"} < set(one.jobs)
        assert one.jobs.index("paced 1", 1) < one.jobs.index("last"), "nor does it wait for all of its caller"


@pytest.mark.guarantee("callers-take-turns")
async def test_a_caller_with_a_thousand_jobs_delays_another_by_one(new_database: NewDatabase) -> None:
    address = new_database()
    async with queue(address) as placement:
        await placement.enqueue("a0", ANY_QUEUE, caller="a")
        with psycopg.connect(address, autocommit=True) as connection:
            # As `enqueue` would, which takes a second: the tags of one caller count up.
            connection.execute(
                "INSERT INTO pursuit.jobs (key, needs, caller, tag, due, attempts) "
                "SELECT 'a' || n, needs, caller, n, due, 0 FROM pursuit.jobs, generate_series(1, 999) n"
            )
        await placement.run(RecordingWorker(most=3), 1)
        await placement.enqueue("a1000", ANY_QUEUE, caller="a")
        await placement.enqueue("b0", ANY_QUEUE, caller="b")
        await placement.enqueue("b1", ANY_QUEUE, caller="b")
        one = RecordingWorker(most=4)
        await placement.run(one, 1)
        assert one.jobs == ["a3", "b0", "a4", "b1"]


class Held(RecordingWorker):
    """A worker whose jobs last until they are let go."""

    def __init__(self, most: int) -> None:
        super().__init__("held", most=most)
        self.began = asyncio.Condition()
        self.release = asyncio.Event()
        self.running: list[str] = []
        self.peak = 0

    async def work(self, job: Job) -> Reschedule | None:
        self.running.append(job.key)
        self.peak = max(self.peak, sum(key.startswith("a") for key in self.running))
        async with self.began:
            self.began.notify_all()
        if not job.key.startswith("worker:"):
            await self.release.wait()
        self.running.remove(job.key)
        return await super().work(job)

    async def runs(self, *keys: str) -> None:
        async with self.began:
            await self.began.wait_for(lambda: sorted(self.running) == sorted(keys))


@pytest.mark.guarantee("one-caller-leaves-a-place")
async def test_a_caller_with_many_jobs_leaves_the_last_place_of_a_worker_to_others(new_database: NewDatabase) -> None:
    one = Held(most=9)
    async with queue(new_database()) as placement, anyio.create_task_group() as tasks:
        for number in range(6):
            await placement.enqueue(f"a{number}", ANY_QUEUE, caller="a")
        tasks.start_soon(placement.run, one, 3)
        await one.runs("a0", "a1")
        await placement.enqueue("b0", ANY_QUEUE, caller="b")
        await one.runs("a0", "a1", "b0")
        await placement.enqueue("worker:held:drain", Requirements("worker:held"))
        while "worker:held:drain" not in one.jobs:  # an order needs no place
            await anyio.sleep(0.01)
        await placement.enqueue("operator", ANY_QUEUE)
        one.release.set()
    assert sorted(one.jobs) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "operator", "worker:held:drain"]
    assert one.peak == 2


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_caller_alone_gets_all_its_jobs_done_on_a_small_worker(
    new_database: NewDatabase, concurrency: int
) -> None:
    async with queue(new_database()) as placement:
        for key in "abcd":
            await placement.enqueue(key, ANY_QUEUE, caller="one")
        one = RecordingWorker(most=4)
        await placement.run(one, concurrency)
        assert one.jobs == ["a", "b", "c", "d"]


async def test_a_job_whose_mission_is_locked_or_driven_is_passed_over(new_database: NewDatabase) -> None:
    address = new_database()
    ledger = PostgresLedger.open(address)
    async with queue(address) as placement:
        for key in ("locked", "driven", "free"):
            await ledger.append(key, 0, [Draft("numbered", b"1")])
            await placement.enqueue(key, ANY_QUEUE)
        claim = await ledger.claim("driven")
        assert claim is not None
        with psycopg.connect(address) as connection:
            connection.execute("SELECT 1 FROM pursuit.streams WHERE name = 'locked' FOR NO KEY UPDATE")
            one = RecordingWorker(most=1)
            await placement.run(one, 1)
            assert one.jobs == ["free"]
        await claim.release()
        two = RecordingWorker(most=2)
        await placement.run(two, 1)
        assert sorted(two.jobs) == ["driven", "locked"]
    await ledger.close()


async def test_a_job_that_is_enqueued_while_it_is_done_is_done_once_more(new_database: NewDatabase) -> None:
    class Told(RecordingWorker):
        async def work(self, job: Job) -> Reschedule | None:
            if not self.jobs:
                await placement.enqueue(job.key, ANY_QUEUE, delay=0.05)
            return await super().work(job)

    async with queue(new_database()) as placement:
        await placement.enqueue("a", ANY_QUEUE)
        one = Told(most=2)
        await placement.run(one, 1)
        assert one.jobs == ["a", "a"]
        assert (await placement.health()).queued == 0


async def test_the_job_of_a_worker_that_died_goes_to_another_one_whatever_was_enqueued_meanwhile(
    new_database: NewDatabase,
) -> None:
    address = new_database()
    async with queue(address) as placement:
        await placement.enqueue("a", ANY_QUEUE)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("SELECT pursuit.announce('gone', '{}', 0.3)")
            taken = "SELECT key FROM pursuit.take('gone', %s::text[], ARRAY[%s], '{}')"
            assert connection.execute(taken, ([], str(ANY_QUEUE))).fetchall() == [("a",)]
            assert connection.execute(taken, (["a"], str(ANY_QUEUE))).fetchall() == []
            assert connection.execute(taken, ([], str(ANY_QUEUE))).fetchall() == [("a",)], "its answer was lost"
            connection.execute("SELECT pursuit.announce('gone', '{}', 0)")
            assert connection.execute(taken, (["a"], str(ANY_QUEUE))).fetchall() == [], "it is late, and still does it"
            connection.execute("SELECT pursuit.announce('gone', '{}', 0.3)")
        await placement.enqueue("a", ANY_QUEUE, delay=1_000)
        one = RecordingWorker(most=1)
        await placement.run(one, 1)
        assert one.jobs == ["a"]
        with psycopg.connect(address, autocommit=True) as connection:  # the dead one comes back, too late
            connection.execute("SELECT pursuit.finish('a', 'gone', NULL, '[]', 0, false)")


async def test_a_job_goes_to_a_worker_that_has_what_it_needs_and_an_order_to_the_one_that_it_names(
    new_database: NewDatabase,
) -> None:
    async with queue(new_database()) as placement:
        gpu = Requirements("gpu")
        await placement.enqueue("on gpu", gpu)
        await placement.enqueue("order", Requirements("worker:two"))
        await placement.enqueue("anywhere", ANY_QUEUE)
        with psycopg.connect(placement._address, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO pursuit.jobs (key, needs, caller, tag, due, attempts) "
                "VALUES ('x', 'new form', '', -9, now(), 0)"
            )
            connection.execute(
                "INSERT INTO pursuit.workers VALUES ('newer', %s, now() - interval '1 h', now() - interval '1 h')",
                (json.dumps({**asdict(RecordingWorker("newer").about()), "colour": ["red"]}),),
            )
            connection.execute(
                "INSERT INTO pursuit.workers VALUES ('slow', %s, now() - interval '10 s', now() + interval '10 s')",
                (json.dumps(asdict(RecordingWorker("slow", queues=()).about())),),
            )
        one, two = RecordingWorker("one", most=1), RecordingWorker("two", queues=("gpu",), most=2)
        health = await placement.health()
        assert [one.name for one in health.live] == ["slow"], "its own heartbeat counts"
        assert health.why_unplaced(gpu) == "no live worker can drive it: the nearest one lacks queue gpu"
        async with queue(placement._address) as other, anyio.create_task_group() as tasks:
            tasks.start_soon(placement.run, one, 1)
            tasks.start_soon(other.run, two, 1)
        assert one.jobs == ["anywhere"]
        assert sorted(two.jobs) == ["on gpu", "order"]


async def test_a_worker_survives_lost_connections_and_a_look_costs_one_statement(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    plain = Link.ask

    async def counted(self: Any, query: str, *args: Any, **more: Any) -> Any:
        asked.append(query)
        return await plain(self, query, *args, **more)

    monkeypatch.setattr(Link, "ask", counted)
    address = new_database()
    async with queue(address) as placement, anyio.create_task_group() as tasks:
        one = RecordingWorker()
        tasks.start_soon(placement.run, one, 1)
        while not (await placement.health()).workers:
            await anyio.sleep(0.01)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        async with queue(address) as other:
            await other.enqueue("after", ANY_QUEUE)
        while "after" not in one.jobs:
            await anyio.sleep(0.01)
        while (await placement.health()).running:
            await anyio.sleep(0.01)
        asked.clear()
        while sum("SELECT DISTINCT needs" in query for query in asked) < 10:
            await anyio.sleep(0.01)
        # Now and then it says that it is there.
        rare = ("SELECT DISTINCT needs", "pursuit.announce")
        assert [query for query in asked if not any(one in query for one in rare)] == []
        one.stopping.set()


async def test_a_role_that_may_run_pursuit_may_use_the_jobs_and_not_change_them(
    new_database: NewDatabase,
) -> None:
    address, role = new_database(), f"runner_{os.getpid()}"
    limited = address.replace("pursuit@", f"{role}@")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(cast("LiteralString", f"CREATE ROLE {role} LOGIN"))
        try:
            with pytest.raises(LedgerUnavailable, match="migrate up --role"):
                PostgresLedger.open(limited)
            migrate_up(address, role)
            async with queue(limited) as placement:
                await placement.enqueue("a", ANY_QUEUE)
                one = RecordingWorker(most=1)
                await placement.run(one, 1)
                assert one.jobs == ["a"]
            with psycopg.connect(limited) as there, pytest.raises(psycopg.errors.InsufficientPrivilege):
                there.execute("DELETE FROM pursuit.jobs")
        finally:
            connection.execute(cast("LiteralString", f"DROP OWNED BY {role}"))
            connection.execute(cast("LiteralString", f"DROP ROLE {role}"))


async def test_a_statement_that_was_cancelled_leaves_no_connection_behind_that_fails_for_ever(
    new_database: NewDatabase,
) -> None:
    link = Link(new_database(), 10.0)
    await link.ask("SELECT 1")
    for _ in range(3):
        asking = asyncio.create_task(link.ask("SELECT pg_sleep(60)"))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.sleep(0)
        asking.cancel()  # psycopg answers the first one with a request to the server
        await asyncio.wait([asking])
        assert await link.ask("SELECT 1") == [(1,)]
    await link.close()


# Missions


def runtime(address: str, *tools: Callable[..., Any], asks: str | None = None, **settings: float) -> Runtime:
    quick = {"worker_heartbeat": 1.0, "worker_poll": 0.1, "lease_seconds": 1.0, "task_patience": 0.05, **settings}
    policy = OperatorPolicy(rules=(Rule(decision="ask", tool=asks),)) if asks else OperatorPolicy()
    configuration = Configuration(settings=quick, policy=policy)
    state = locate_state(address, None)
    return Runtime(state=state, config=configuration, servers={"world": list(tools)} if tools else {})


@asynccontextmanager
async def working(runtime: Runtime, name: str = "w", **settings: Any) -> AsyncIterator[Any]:
    worker = runtime.worker(name=name, version="0", sweep_seconds=0.2, **{"grace": 5.0, **settings})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        while name not in {one.name for one in (await runtime.placement.health()).workers}:
            await anyio.sleep(0.01)
        try:
            yield worker
        finally:
            worker.stop()


async def start(runtime: Runtime, **given: Any) -> str:
    started = await runtime.runner.start(mission(**given))
    assert await runtime.runner.place(started.session_id)
    return started.session_id


def ended(state: Any) -> bool:
    return state.closed


@tool(read_only=False)
def write(text: str = "") -> dict[str, Any]:
    """Writes."""
    return {"metrics": {"score": 7}}


@pytest.mark.guarantee("waiting-holds-no-worker")
async def test_a_mission_that_waits_for_a_person_or_its_pace_leaves_the_worker_to_others(
    new_database: NewDatabase,
) -> None:
    address = new_database()
    async with (
        runtime(address, measure, write, asks="write") as here,
        runtime(address) as elsewhere,
        working(here, concurrency=1, longest_wait=0.0),
    ):
        asking = await start(here, proposer=repeat("write", text="x"), criteria=[succeeded("world.write")])
        await until(here, asking, lambda state: state.waiting_for == "approval")
        paced = await start(here, proposer=repeat("measure"), pace={"seconds": 0.3}, budget=Budget(max_iterations=3))
        other = await start(here, proposer=repeat("measure"), criteria=[metric("score") >= 7])
        for name in (other, paced):
            await until(here, name, ended)
        assert len(await events_of(here, paced, RunClaimed)) == 3, "each time it is due, a worker takes it up"
        (question,) = await Approvals(elsewhere.runner).open(asking)
        await Approvals(elsewhere.runner).answer(question.approval_id, "once")
        await until(here, asking, ended)
        assert (await here.runner.state(asking)).status == "completed"


async def test_a_job_comes_with_the_commit_that_makes_its_mission_due(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no mission waits for a sweep because the process died after it."""
    address = new_database()

    async def dies(*_: Any, **__: Any) -> None:
        raise LedgerUnavailable("the process dies here")

    def last() -> tuple[Any, ...] | None:
        with psycopg.connect(address) as connection:
            return connection.execute(
                "SELECT e.type FROM pursuit.jobs j JOIN pursuit.streams s ON s.name = j.key "
                "JOIN pursuit.events e ON e.stream = s.id AND e.xmin::text = j.xmin::text ORDER BY e.seq DESC LIMIT 1"
            ).fetchone()

    async with runtime(address, write, asks="*") as here:
        wanted = mission(proposer=repeat("write", text="x"), criteria=[succeeded("world.write")])
        with monkeypatch.context() as patch:
            patch.setattr(PostgresPlacement, "enqueue", dies)
            name = (await here.runner.start(wanted, for_workers=True)).session_id
            assert last() == ("MissionCreated",)
        async with working(here):
            await until(here, name, lambda state: state.waiting_for == "approval")
        with monkeypatch.context() as patch:
            patch.setattr(PostgresPlacement, "enqueue", dies)
            (question,) = await Approvals(here.runner).open(name)
            await Approvals(here.runner).answer(question.approval_id, "once")
            assert last() == ("ApprovalAnswered",)
            with psycopg.connect(address) as connection:
                connection.execute("DELETE FROM pursuit.jobs")
            with pytest.raises(LedgerUnavailable, match="dies here"):
                await here.runner.hand_over(RunOrder(name))
            assert last() == ("RunClaimed",)
        async with working(here):
            await until(here, name, ended)
        assert (await here.runner.state(name)).status == "completed"


async def test_a_job_for_a_mission_that_was_forgotten_or_never_began_goes(new_database: NewDatabase) -> None:
    address = new_database()
    async with runtime(address, measure) as here:
        gone = await start(here, proposer=repeat("measure"))
        await here.runner.abort(gone)
        await here.runner.forget(gone)
        for name in (gone, "mission-0123456789abcdef"):
            await here.placement.enqueue(name, ANY_QUEUE)
        async with working(here):
            while (health := await here.placement.health()).queued or health.running:
                await anyio.sleep(0.01)
        assert [row.name async for row in every_stream(here.runner.ledger, kind="mission")] == [gone]


async def test_two_workers_of_one_name_do_each_job_once(new_database: NewDatabase) -> None:
    address = new_database()
    async with runtime(address, measure) as one, runtime(address, measure) as two, working(one, "same") as first:
        async with working(two, "same"):
            given: dict[str, Any] = {"proposer": repeat("measure"), "budget": Budget(max_iterations=3)}
            names = [await start(one, **given) for _ in range(8)]
            for name in names:
                await until(one, name, ended)
            for name in names:
                assert len(await events_of(one, name, RunClaimed)) == 1
                assert [event.outcome for event in await events_of(one, name, CallSettled)] == ["ok"] * 3
        assert [row.name for row in (await one.placement.health()).live] == ["same"]
        await drain(one.runner, "same")
        await first.stopping.wait()


@pytest.mark.guarantee("old-drivers-are-fenced")
async def test_a_driver_whose_lease_is_stolen_sends_nothing_more_and_the_mission_goes_on_after_the_thief(
    new_database: NewDatabase,
) -> None:
    address, gate = new_database(), Gate()
    async with runtime(address, gate.hold) as here, working(here, "one"):
        name = await start(here, proposer=repeat("hold"), budget=Budget(max_iterations=2))
        await gate.entered.wait()
        with psycopg.connect(address, autocommit=True) as thief:
            thief.execute(
                "UPDATE pursuit.leases SET epoch = nextval('pursuit.epochs'), process = 'thief', host = 'elsewhere', "
                "until = clock_timestamp() + interval '1.5 s' WHERE stream = %s",
                (name,),
            )
        gate.release.set()
        await until(here, name, ended)
        first, *others = await events_of(here, name, CallSettled)
        assert (first.outcome, [one.outcome for one in others]) == ("unknown", ["ok"])
        assert gate.passed == 2, "the call under way, and the one after it"


async def test_a_mission_that_no_live_worker_can_drive_says_what_is_missing(new_database: NewDatabase) -> None:
    address = new_database()
    async with runtime(address, measure) as here, runtime(address) as bare, working(bare):
        one = await start(here, proposer=repeat("measure"))
        two = await start(here, proposer=repeat("measure"), queue="gpu")
        status = (await here.runner.status(one)).as_json()
        assert status["placement"] == "no live worker can drive it: the nearest one lacks the server world"
        assert "queue gpu, the server world" in (await here.runner.status(two)).placement
        async with working(here, "able", queues=["default", "gpu"]):
            for name in (one, two):
                await until(here, name, ended)
        assert "placement" not in (await here.runner.status(one)).as_json()


@pytest.mark.guarantee("a-drained-worker-loses-nothing")
@pytest.mark.parametrize("grace", [30.0, 0.05])
async def test_a_worker_that_drains_finishes_its_call_or_hands_it_back(new_database: NewDatabase, grace: float) -> None:
    address, gate = new_database(), Gate()
    async with runtime(address, gate.hold) as one, runtime(address, gate.hold) as two:
        async with working(one, "one", grace=grace) as worker:
            name = await start(one, proposer=repeat("hold"), budget=Budget(max_iterations=2))
            await gate.entered.wait()
            worker.stop()
            if grace == 30.0:
                gate.release.set()
        state = await one.runner.state(name)
        assert state.iteration_count == (1 if grace == 30.0 else 0)
        assert (state.open is None) == (grace == 30.0)
        gate.release.set()
        async with working(two, "two"):
            await until(two, name, ended)
        settled = [event.outcome for event in await events_of(two, name, CallSettled)]
        assert settled == (["ok", "ok"] if grace == 30.0 else ["cancelled", "ok"])


@pytest.mark.guarantee("a-drained-worker-loses-nothing")
async def test_a_worker_that_drains_waits_for_a_call_that_became_a_task(new_database: NewDatabase) -> None:
    address, gate = new_database(), Gate()

    @tool(long=True)
    async def train() -> dict[str, Any]:
        """Takes long."""
        return await gate.hold()

    async with runtime(address, train) as one, runtime(address, train) as two:
        async with working(one, "one") as worker:
            name = await start(one, proposer=repeat("train"))
            await until(one, name, lambda state: state.waiting_for == "task")
            while worker.about().jobs:  # no worker holds it
                await anyio.sleep(0.01)
            worker.stop()
            while (await two.placement.health()).workers:
                await anyio.sleep(0.01)
            gate.release.set()
        async with working(two, "two"):
            await until(two, name, ended)
        assert [event.outcome for event in await events_of(two, name, CallSettled)] == ["ok"]


async def test_a_look_for_lost_jobs_reads_nothing_for_each_mission_that_waits_for_a_task(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked = Gate(), list[tuple[PostgresLedger, str]]()
    plain = PostgresLedger.row

    @tool(long=True)
    async def train() -> dict[str, Any]:
        """Takes long."""
        return await gate.hold()

    async def row(self: PostgresLedger, name: str) -> Any:
        asked.append((self, name))
        return await plain(self, name)

    monkeypatch.setattr(PostgresLedger, "row", row)
    address = new_database()
    async with runtime(address, train) as here, runtime(address) as looking, working(here):
        name = await start(here, proposer=repeat("train"), budget=Budget(max_iterations=1))
        await until(here, name, lambda state: state.waiting_for == "task")
        assert await looking.runner.interrupted(background=True) == []
        assert looking.runner.ledger not in [ledger for ledger, _name in asked]
        gate.release.set()
        await until(here, name, ended)


async def test_an_order_drains_a_worker(new_database: NewDatabase) -> None:
    async with runtime(new_database(), measure) as here, working(here, "mine", concurrency=1) as worker:
        await here.placement.enqueue("worker:mine:drain", Requirements("worker:mine"))
        await worker.stopping.wait()


@pytest.mark.guarantee("children-run-on-any-worker")
async def test_children_of_a_fleet_run_on_any_worker_within_the_budget_of_their_parent(
    new_database: NewDatabase,
) -> None:
    address = new_database()
    async with (
        runtime(address, measure) as one,
        runtime(address, measure) as two,
        working(one, "one", concurrency=1),
        working(two, "two", concurrency=1),
    ):
        each = child(budget={"max_iterations": 2, "max_tool_calls": 2})
        wanted = parent(each, each, each, each, budget=Budget(max_iterations=10, max_tool_calls=10))
        name = (await one.runner.start(wanted)).session_id
        assert await one.runner.place(name)
        await until(one, name, ended)
        state = await one.runner.state(name)
        assert state.status == "completed"
        outcomes_of = [outcome for _tool, outcome in await outcomes(one, name)]
        assert outcomes_of == ["ok", "ok", "ok", "skipped"], "the fourth would take more than is left"
        drivers = [(await events_of(one, each, RunClaimed))[0] for each in state.children]
        assert all(event.background for event in drivers), "a worker took each as a job"
        assert state.lent["max_tool_calls"] == 3


async def test_a_background_run_of_a_server_is_left_to_workers_where_there_are_any(new_database: NewDatabase) -> None:
    address = new_database()
    async with (
        runtime(address, measure) as serving,
        background_runs(serving.runner, serving.use_servers_of) as runs,
        runtime(address, measure) as other,
    ):
        stepped = {"proposer": {"kind": "client"}, "budget": Budget(max_iterations=5)}
        alone = (await serving.runner.start(mission(**stepped))).session_id
        given = mission(proposer=replay(proposal(("measure", {})))).proposer.proposals[0]  # type: ignore[union-attr]
        await runs.begin(RunOrder(alone, iterations=1, proposal=given))
        await until(serving, alone, lambda state: state.iteration_count == 1)
        queued = (await serving.runner.start(mission(**stepped, queue="gpu"))).session_id
        await runs.begin(RunOrder(queued, iterations=1, proposal=given))
        async with working(other):
            await runs.begin(RunOrder(alone, iterations=1, proposal=given))
            await until(serving, alone, lambda state: state.iteration_count == 2)
        assert len(await events_of(serving, alone, RunClaimed)) == 3, "driven here, handed over, driven there"
        async with working(other, "gpu", queues=["gpu"]):
            await until(serving, queued, lambda state: state.iteration_count == 1)
        assert len(await events_of(serving, queued, RunClaimed)) == 2, "it waited for its queue"


@pytest.mark.guarantee("commands-stay-on-their-machine")
async def test_a_command_of_a_machine_that_is_gone_is_waited_for_and_never_run_again(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, marks, machines = new_database(), tmp_path / "marks", ["a"]
    monkeypatch.setattr("platform.node", lambda: machines[-1])
    toml = tmp_path / "pursuit.toml"
    toml.write_text(f"""
[commands.mark]
description = "Leaves a mark and stays"
argv = ["sh", "-c", "echo mark >> {marks}; sleep 3"]
[policy]
mode = "auto"
[settings]
worker_heartbeat = 0.5
worker_poll = 0.1
lease_seconds = 0.5
task_patience = 0.05
machine_wait = 1.5
""")

    def machine(name: str) -> Runtime:
        machines.append(name)
        return Runtime(state=locate_state(address, None), config=load_configuration(toml))

    async with machine("a") as one, working(one, "one") as worker:
        wanted = mission(proposer=repeat("commands.mark"), tool_allowlist=["commands.mark"])
        name = (await one.runner.start(wanted)).session_id
        assert await one.runner.place(name)
        await until(one, name, lambda state: state.waiting_for == "task")
        while not marks.exists():
            await anyio.sleep(0.01)
        worker.stop()
    async with machine("b") as two, working(two, "two"):
        said = (await two.runner.status(name)).placement
        assert said.endswith(" on a, where no worker is live")
        await two.tasks.maintain()
        await until(two, name, ended)
        (settled,) = await events_of(two, name, CallSettled)
        assert settled.outcome == "unknown"
        assert "it ran on a, which has been silent for 1.5 s" in str(settled.error)
    assert marks.read_text() == "mark\n"


async def test_a_worker_needs_a_ledger_that_machines_share(tmp_path: Path) -> None:
    async with Runtime(state=tmp_path / "ledger.db", config=Configuration()) as here:
        with pytest.raises(InvalidArgument, match="postgresql://"):
            here.worker(version="0")
