"""Workers over one PostgreSQL ledger, as people start them: who drives what, and what happens when one is gone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from cli_stage import SERVERS, Place, Running, marks, until, until_marked
from mission_files import calls, mission_file, succeeded
from postgres_server import TEMPLATE, NewDatabase, own_server
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

OLDER = Path(__file__).parents[1] / "support" / "older_release.py"
SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
SETTINGS = "lease_seconds = 1.5\nworker_heartbeat = 1\nworker_poll = 0.2\n"


class Cluster(Place):
    """One folder for all machines, with a ledger in a database."""

    def set_up(self, address: str) -> Cluster:
        self.address = address
        world = f"""
[servers.world]
command = "__python_executable__"
args = [{json.dumps(str(SERVERS / "recorder.py"))}]
env = {{ RECORD = {json.dumps(str(self.record))} }}
"""
        text = f'state = "{address}"\n[policy]\nmode = "auto"\n[settings]\n{SETTINGS}{world}'
        self.write("pursuit.toml", text)
        return self

    @property
    def record(self) -> Path:
        return self.folder / "record"

    def start(self, *keys: str, ms: int = 5, more: str = "") -> str:
        done = succeeded("world.step", min_count=len(keys))
        proposer = calls("step", *({"key": key, "ms": ms} for key in keys))
        text = mission_file("world.step", done, iterations=len(keys), stagnation_threshold="off", proposer=proposer)
        self.write("m.toml", text + more)
        return self.json("start", "m.toml")["session_id"]

    @contextmanager
    def worker(self, name: str, *words: str, without: str | None = None) -> Iterator[Running]:
        """A worker; `without` a type of event: one of an older release."""
        words = ("worker", "--name", name, *words)
        if without is None:
            one = self.begin(*words, fresh=False)
        else:
            one = self.begin(*words, program=[sys.executable, str(OLDER), without])
        try:
            one.until("working")
            yield one
        finally:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()

    def driver_of(self, mission_id: str) -> int:
        """The process that drives a mission."""
        with psycopg.connect(self.address) as connection:
            row = connection.execute("SELECT pid FROM pursuit.leases WHERE stream = %s", (mission_id,)).fetchone()
        return row[0]

    def status(self, mission_id: str) -> dict[str, Any]:
        return self.json("status", mission_id)

    def until_ended(self, *missions: str) -> None:
        until(lambda: all(self.status(one)["status"] in ("completed", "terminated") for one in missions), 30)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_database: NewDatabase) -> Cluster:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Cluster(tmp_path).set_up(new_database())


@pytest.mark.guarantee("missions-outlive-their-worker")
def test_a_mission_of_a_killed_worker_goes_on_at_another_and_nothing_runs_twice(cluster: Cluster) -> None:
    mission = cluster.start("a", "b", "c", "d", ms=400)
    assert "no worker runs" in cluster.status(mission)["placement"]
    with cluster.worker("one"), cluster.worker("two"):
        until_marked(cluster.record, "b")
        os.kill(cluster.driver_of(mission), signal.SIGKILL)
        cluster.until_ended(mission)
    assert sorted(marks(cluster.record)) == ["a", "b", "c", "d"]
    assert cluster.json("verify")["ok"]


@pytest.mark.guarantee("old-drivers-are-fenced")
def test_a_worker_that_was_stopped_beyond_its_lease_says_why_it_stops_and_works_on(cluster: Cluster) -> None:
    mission = cluster.start("a", "b", "c", "d", ms=300)
    with cluster.worker("one") as first:
        until_marked(cluster.record, "b")
        stopped = cluster.driver_of(mission)
        os.kill(stopped, signal.SIGSTOP)
        try:
            with cluster.worker("two"):
                cluster.until_ended(mission)
                os.kill(stopped, signal.SIGCONT)
                assert f"lost its lease on {mission}" in first.until("run stopped")
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert sorted(marks(cluster.record)) == ["a", "b", "c", "d"]
        again = cluster.start("e")
        cluster.until_ended(again)
        assert cluster.json("workers", "drain", "one") == {"draining": "one"}
        assert first.end()[0] == 0
    assert cluster.json("verify")["ok"]


@pytest.mark.guarantee("unknown-events-are-left-alone")
def test_a_worker_of_an_older_release_leaves_what_it_does_not_know_to_others(cluster: Cluster) -> None:
    text = (cluster.folder / "pursuit.toml").read_text().replace('"auto"', '"ask"')
    cluster.write("pursuit.toml", text)
    mission = cluster.start("a")
    with cluster.worker("new"):
        until(lambda: bool(cluster.json("approvals")["approvals"]))
    with cluster.worker("old", without="ApprovalAnswered"):
        cluster.ask("approve", "--all")
        other = cluster.start("b", more='policy = { ask = ["world.*"] }')
        until(lambda: any(row["session_id"] == other for row in cluster.json("approvals")["approvals"]))
        status = cluster.status(mission)
        assert status["iteration_count"] == 0, "it was left alone"
        with cluster.worker("new"):
            cluster.until_ended(mission)
    assert marks(cluster.record) == ["a"]


def test_a_worker_waits_for_a_database_and_leaves_in_time_while_it_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with own_server() as server:
        cluster = Cluster(tmp_path).set_up(server.address(TEMPLATE))
        mission = cluster.start("a", "b", "c", "d", "e", ms=400)
        server.stop()
        waiting = cluster.begin("worker", "--name", "one", "--grace", "1", fresh=False)
        waiting.until("waiting for the database")
        cluster.write("n.toml", (cluster.folder / "m.toml").read_text())
        starting = cluster.begin("start", "n.toml", fresh=False)
        starting.until("waiting for the database")
        server.start()
        starting.process.wait(30)
        assert starting.process.returncode == 0
        until_marked(cluster.record, "b")
        server.stop()
        began = time.monotonic()
        waiting.process.terminate()
        waiting.process.wait(30)
        assert time.monotonic() - began < 1 + 5
        server.start()
        with cluster.worker("two"):
            cluster.until_ended(mission)
        assert cluster.json("verify")["ok"]


@pytest.mark.guarantee("missions-outlive-their-worker")
def test_on_temporal_a_mission_of_a_killed_worker_goes_on_and_nothing_runs_twice(
    cluster: Cluster, temporal: str
) -> None:
    table = f'[placement]\nkind = "temporal"\naddress = "{temporal}"\n'
    cluster.write("pursuit.toml", (cluster.folder / "pursuit.toml").read_text() + table)
    mission = cluster.start("a", "b", "c", "d", ms=400)
    with cluster.worker("one"), cluster.worker("two"):
        until_marked(cluster.record, "b")
        os.kill(cluster.driver_of(mission), signal.SIGKILL)
        cluster.until_ended(mission)
    assert sorted(marks(cluster.record)) == ["a", "b", "c", "d"]
    assert cluster.json("verify")["ok"]


def test_on_temporal_an_answer_signals_the_workflow_although_no_worker_runs(cluster: Cluster, temporal: str) -> None:
    table = f'[placement]\nkind = "temporal"\naddress = "{temporal}"\n'
    text = (cluster.folder / "pursuit.toml").read_text().replace('"auto"', '"ask"')
    cluster.write("pursuit.toml", text + table)
    mission = cluster.start("a")
    with cluster.worker("one") as first:
        until(lambda: bool(cluster.json("approvals")["approvals"]))
        until(lambda: not cluster.json("workers")["running"])
        first.process.terminate()
        first.process.wait(30)

    async def signals() -> int:
        workflow = (await Client.connect(temporal)).get_workflow_handle(f"pursuit-{mission}")
        return [event.event_type async for event in workflow.fetch_history_events()].count(SIGNALED)

    before = anyio.run(signals)
    cluster.ask("approve", "--all")
    assert anyio.run(signals) == before + 1
    with cluster.worker("two"):
        cluster.until_ended(mission)
    assert marks(cluster.record) == ["a"]
