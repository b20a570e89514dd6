"""Missions on many workers while processes are killed, stopped and cut off, clocks go wrong and the database restarts.

The number that decides the schedule is printed; `PURSUIT_CHAOS_SEED=NUMBER` repeats it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from history import History, faults_of, read_history
from mission_files import NEVER, calls, mission_file
from postgres_server import TEMPLATE, VERSIONS, own_server

from cluster import KINDS, Cluster, schedule, takeovers
from pursuit import Runtime
from pursuit.config.configuration import load_configuration
from pursuit.config.mission_file import load_mission_file
from pursuit.ledger.contract import every_stream
from pursuit.ledger.opening import file_of
from pursuit.ledger.postgres import PostgresLedger

RECORDER = Path(__file__).parents[1] / "servers" / "recorder.py"
CONFIG = """
[servers.world]
command = "__python_executable__"
args = [{recorder}]
env = {{ RECORD = {record} }}
[policy]
mode = "auto"
[settings]
{settings}
"""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a run is, and what its workers are told."""

    workers: int
    missions: int
    steps: int
    ms: int
    """How long a call takes."""
    rounds: int
    pause: float
    """Seconds between two faults, on average."""
    lease: float
    settings: str
    options: tuple[str, ...]


SMALL = Size(
    workers=3, missions=12, steps=18, ms=500, rounds=1, pause=2, lease=2,
    settings="lease_seconds = 2\nworker_heartbeat = 0.5\nworker_poll = 0.5\n", options=("--concurrency", "7"),
)  # fmt: skip
# More room than missions, also without the workers that fell; each has five minutes of calls.
LARGE = Size(
    workers=5,
    missions=200,
    steps=60,
    ms=5000,
    rounds=4,
    pause=14,
    lease=10,
    settings="",
    options=("--concurrency", "70"),
)


def write_mission(folder: Path, number: int, size: Size) -> Path:
    proposer = calls("step", *({"key": f"m{number}-{place}", "ms": size.ms} for place in range(size.steps)))
    path = folder / f"m{number}.toml"
    text = mission_file("world.step", NEVER, iterations=size.steps, stagnation_threshold="off", proposer=proposer)
    path.write_text(text)
    return path


async def all_ended(ledger: PostgresLedger, missions: int) -> None:
    with ledger.wakeup() as wakeup:
        while True:
            done = {"completed", "terminated", "failed"}
            if sum([row.status in done async for row in every_stream(ledger, kind="mission")]) >= missions:
                return
            await wakeup.wait()


async def run(folder: Path, size: Size, seed: int, version: int) -> tuple[History, list[float], Cluster]:
    record = folder / "record"
    record.touch()
    values = {"recorder": json.dumps(str(RECORDER)), "record": json.dumps(str(record)), "settings": size.settings}
    (folder / "pursuit.toml").write_text(CONFIG.format(**values))
    faults = schedule(seed, workers=size.workers, lease=size.lease, rounds=size.rounds, pause=size.pause)
    environment = {**os.environ, "HOME": str(folder), "PURSUIT_TRUST": "1"}
    with own_server(version) as server:
        address = server.address(TEMPLATE)
        cluster = Cluster(folder, server, TEMPLATE, size.options, environment)
        ledger = PostgresLedger.open(address, patience=60)
        async with cluster.running(size.workers):
            configuration = load_configuration(folder / "pursuit.toml")
            missions: list[str] = []
            async with Runtime(state=file_of(address, folder / "own"), config=configuration) as runtime:
                for number in range(size.missions):
                    started = await runtime.start_file(load_mission_file(write_mission(folder, number, size)))
                    await runtime.runner.place(started.session_id)
                    missions.append(started.session_id)
            try:
                async with asyncio.timeout(900), asyncio.TaskGroup() as both:
                    while not record.read_text().count("step "):  # until missions are driven, faults would hit nothing
                        await asyncio.sleep(0.05)
                    both.create_task(cluster.suffer(faults))
                    both.create_task(all_ended(ledger, size.missions))
            except TimeoutError:
                pass  # the checker says which missions have not ended
        history = await read_history(ledger, missions, folder.glob("*.appends"), record)
        found = await ledger.verify()
        assert found.ok, found.faults
        await ledger.close()
    return history, takeovers(history, cluster.applied), cluster


def chaos(folder: Path, size: Size, version: int) -> list[float]:
    """Runs it, and checks what is left; returns how long each takeover took."""
    seed = int(os.environ.get("PURSUIT_CHAOS_SEED") or random.randrange(1 << 32))
    print(f"PURSUIT_CHAOS_SEED={seed}")
    history, taken, cluster = asyncio.run(run(folder, size, seed, version))
    found = faults_of(history)
    found += cluster.stuck
    assert not found, "\n".join([f"PURSUIT_CHAOS_SEED={seed}", *found, cluster.logs()])
    assert {fault.kind for fault, *_ in cluster.applied} == set(KINDS)
    return taken


def test_a_seed_repeats_the_schedule_and_a_worker_is_always_spared() -> None:
    for seed in range(50):
        faults = schedule(seed, workers=3, lease=2, rounds=3, pause=2)
        assert faults == schedule(seed, workers=3, lease=2, rounds=3, pause=2)
        assert sorted(fault.kind for fault in faults) == sorted(KINDS * 3)
        lasting = [fault for fault in faults if fault.kind != "restart"]
        for fault in lasting:
            others = {one.place for one in lasting if one.at <= fault.at < one.at + one.seconds}
            assert len(others) < 3
    assert schedule(1, workers=3, lease=2, rounds=1, pause=2) != schedule(2, workers=3, lease=2, rounds=1, pause=2)


@pytest.mark.slow
@pytest.mark.guarantee("chaos-loses-and-repeats-nothing")
def test_nothing_is_lost_or_repeated_whatever_befalls_the_workers(tmp_path: Path) -> None:
    taken = chaos(tmp_path, SMALL, VERSIONS[0])
    assert taken, "no worker fell while it drove a mission: the run is too short to be a test"


@pytest.mark.soak
@pytest.mark.guarantee("chaos-loses-and-repeats-nothing")
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_on_temporal_nothing_is_lost_or_repeated_either(tmp_path: Path, temporal: str, size: Size) -> None:
    table = f'[placement]\nkind = "temporal"\naddress = "{temporal}"\n'
    taken = sorted(chaos(tmp_path, replace(size, settings=size.settings + table), VERSIONS[-1]))
    print(f"{len(taken)} takeovers, p50 {taken[len(taken) // 2]:.1f} s")


@pytest.mark.soak
@pytest.mark.guarantee("chaos-loses-and-repeats-nothing")
def test_the_missions_of_a_worker_that_falls_go_on_within_fifteen_seconds(tmp_path: Path) -> None:
    taken = sorted(chaos(tmp_path, LARGE, VERSIONS[-1]))
    print(f"{len(taken)} takeovers, p50 {taken[len(taken) // 2]:.1f} s, p95 {taken[len(taken) * 95 // 100]:.1f} s")
    assert taken[len(taken) * 95 // 100] <= 15
