"""What missions on PostgreSQL cost: one, fifty beside two peers, many on several workers, and those that wait.

Commits of several processes are measured twice: as the disk is, and with 5 ms added to each flush (if a C compiler is
there), where processes that wait for each other would show.

PostgreSQL comes from a wheel, with its own defaults: each commit waits for the disk. The floor is two commits of one
row each by psycopg, on the same server. Rounds of all candidates are interleaved. A worker is a process with the
tool as a plain function, as in the measurement of fifty missions.

Run: python benchmarks/scale.py [--check | --smoke]
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import psycopg
from engine import PLAIN, SAME, append_steps, in_process_server, iteration_seconds, mission, step, together
from figures import SMOKE, Figure, finish, ratio_of_rounds, sized
from ledger_floor import INTENT, PAIRS, SETTLED
from postgres_peers import postgres_peer

from pursuit import Budget, ClientProposer, Mission, Runtime, __version__, metric
from pursuit.config.configuration import Configuration
from pursuit.engine.driver import RunOrder
from pursuit.ledger.opening import file_of
from pursuit.ledger.postgres import PostgresLedger
from pursuit.service.audit import Caller

sys.path.append(str(Path(__file__).parents[1] / "demo"))

from local_postgres import LocalPostgres

ROUNDS = sized(11, 1)
ROUNDS_TOGETHER = sized(3, 1)
MISSIONS = sized(50, 2)
STEPS = sized(40, 3)
WAITING = sized(1_000, 5)
PLACED = sized(24, 4)
EACH = sized(8, 2)
"""Missions for each worker, so that its commits are as large however many workers there are."""
PLACED_STEPS = sized(100, 3)
STARTS = sized(20, 2)
OTHERS = sized(1_000, 5)
NAP, NAP_SECONDS = "bench.nap", sized(2, 1)
IDLE_SECONDS = sized(20, 1)
SETTLE_SECONDS = sized(12, 1)
"""A session of PostgreSQL that idles reports what it did before within ten seconds."""
WORKER, WRITER = "--worker", "--writer"
WORKERS = (1, 2) if SMOKE else (1, 2, 8)
WRITERS = (1, 2) if SMOKE else (1, 2, 4, 8)
SNAPSHOT_SECONDS = sized(60.0, 0.6)
SLICE_SECONDS = sized(1.0, 0.05)
ROUNDS_OF_WRITERS = sized(5, 1)
WRITING_SECONDS = sized(3.0, 0.3)
TOGETHER = 8
"""Events in a batch of a writer, each of another stream."""
FLUSH_SECONDS = 0.005
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    usleep(%d);
    return next(file);
}
"""


@contextmanager
def server(slow: bool = False) -> Generator[tuple[LocalPostgres, Path]]:
    """A server with the defaults of PostgreSQL, on the disk of the temporary folder; `slow` adds to each flush."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # as root, the server runs as another user
        folder = Path(name, "server")
        folder.mkdir()
        found = LocalPostgres(folder)
        found.create()
        if slow:
            os.environ["LD_PRELOAD"] = str(_shim(Path(name)))
        try:
            found.start()
        finally:
            os.environ.pop("LD_PRELOAD", None)
        try:
            yield found, Path(name)
        finally:
            found.stop()


def _shim(folder: Path) -> Path:
    """A library that adds to each flush of a process that loads it."""
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(SHIM % int(FLUSH_SECONDS * 1e6))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    library.chmod(0o755)
    return library


def open_runtime(address: str, folder: Path) -> Runtime:
    servers = {"bench": [step, nap], "server": in_process_server()}
    return Runtime(state=file_of(address, folder), config=Configuration(), servers=servers)


def floor_seconds(connection: psycopg.Connection[Any]) -> float:
    begin = time.perf_counter()
    for _ in range(PAIRS):
        for draft in (INTENT, SETTLED):
            connection.execute("INSERT INTO floor (body) VALUES (%s)", (draft.body,), prepare=True)
    return (time.perf_counter() - begin) / PAIRS


async def ledger_seconds(ledger: PostgresLedger) -> float:
    begin = time.perf_counter()
    await append_steps(ledger, "alone", PAIRS)
    return (time.perf_counter() - begin) / PAIRS


async def one_mission(address: str, folder: Path) -> list[Figure]:
    """The cost of a durable step of a lone mission, by two commits of one row."""
    floors: list[float] = []
    ledgers: list[float] = []
    engines: list[float] = []
    ledger = PostgresLedger.open(address)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)")
        async with open_runtime(address, folder) as runtime:
            for number in range(ROUNDS + 1):
                measured = (
                    floor_seconds(connection),
                    await ledger_seconds(ledger),
                    await iteration_seconds(runtime, PLAIN, SAME),
                )
                if number > 0:  # the first round warms everything up
                    for kept, seconds in zip((floors, ledgers, engines), measured, strict=True):
                        kept.append(seconds)
    await ledger.close()
    return [
        Figure(what="the floor: two commits of one row", value=statistics.median(floors) * 1e6, unit="us"),
        Figure(
            what="a durable step, ledger only", value=ratio_of_rounds(ledgers, floors), unit="x the floor", limit=2.5
        ),
        Figure(what="a step of the engine, plain function", value=ratio_of_rounds(engines, floors), unit="x the floor"),
    ]


async def rate_of(runtime: Runtime) -> float:
    names = [(await runtime.runner.start(mission(PLAIN))).session_id for _ in range(MISSIONS)]
    return await together(lambda name: runtime.runner.driver.drive(RunOrder(name, iterations=STEPS)), names, STEPS)


async def fifty_missions(found: LocalPostgres, address: str, folder: Path) -> list[Figure]:
    """Steps a second of fifty missions in one process, by those of both peers on the same server."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {}
    with ExitStack() as stack:
        if SMOKE:
            print("the peers, LangGraph and DBOS, are left out of the smoke form")
        peers = {
            name: stack.enter_context(postgres_peer(name, found.create_database(f"peer_{name}"), MISSIONS, STEPS))
            for name in (() if SMOKE else ("langgraph", "dbos"))
        }
        async with open_runtime(address, folder) as runtime:
            await rate_of(runtime)  # warms everything up, as the peers have done
            for _ in range(ROUNDS_TOGETHER):
                ours.append(await rate_of(runtime))
                for name, peer in peers.items():
                    for way, rate in peer.steps_per_second().items():
                        theirs.setdefault(f"{name} {peer.version}, {way}", []).append(rate)
    figures = [Figure(what=f"{MISSIONS} missions, one process", value=statistics.median(ours), unit="steps/s")]
    for name, rates in theirs.items():
        figures.append(Figure(what=f"  {name}", value=statistics.median(rates), unit="steps/s"))
        figures.append(Figure(what="", value=ratio_of_rounds(ours, rates), unit="x it", rule=">=", limit=3))
    return figures


def queries_a_second(address: str, seconds: float) -> float:
    """Transactions of all other sessions of a database: each statement of Pursuit is one."""
    with psycopg.connect(address, autocommit=True) as connection:

        def count() -> int:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
            assert row is not None
            return row[0]

        time.sleep(SETTLE_SECONDS)
        before, begin = count(), time.monotonic()
        time.sleep(seconds)
        return max(0.0, count() - before - 2) / (time.monotonic() - begin)


class Worker:
    """A worker in a process of its own, which begins when it is told to."""

    def __init__(self, address: str, folder: Path, missions: int) -> None:
        words = [sys.executable, __file__, WORKER, address, str(folder), str(missions)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()
        self._read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"a worker ended with exit code {self._process.wait()}")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


async def work(address: str, folder: Path, missions: int) -> None:
    """The process of a worker."""
    async with open_runtime(address, folder) as runtime:
        # A caller leaves one place to others.
        worker = runtime.worker(version=__version__, concurrency=missions + 1, name=f"bench-{os.getpid()}")
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        print("begun", flush=True)
        await worker.run()


@contextmanager
def working(count: int, address: str, folder: Path, missions: int = PLACED) -> Generator[None]:
    """So many workers, each with so many missions at once."""
    workers = [Worker(address, folder, missions) for _ in range(count)]
    try:
        for one in workers:
            one.begin()
        yield
    finally:
        for one in workers:
            one.end()


async def times_of(runtime: Runtime, mission_id: str) -> dict[str, float]:
    """When the first event of each kind was stored, and the last one, of a mission that has ended."""
    ledger = runtime.runner.ledger
    with ledger.wakeup(mission_id) as wakeup:
        while (row := await ledger.row(mission_id)) is None or row.status not in ("completed", "terminated"):
            await wakeup.wait()
    stored = await ledger.read(mission_id)
    first = {one.type: one.at for one in reversed(stored)}
    return {**first, "last": stored[-1].at}


async def nap(x: int) -> dict[str, Any]:
    """A step that takes its time elsewhere."""
    await anyio.sleep(NAP_SECONDS)
    return step(x)


async def place(runtime: Runtime, steps: int, caller: Caller | None = None, tool: str = PLAIN) -> str:
    one = await runtime.runner.start(mission(tool, iterations=steps), caller=caller)
    await runtime.runner.place(one.session_id)
    return one.session_id


async def placed_rate(address: str, folder: Path, workers: int) -> float:
    """Steps a second of missions on workers, from the first claim to the last end."""
    async with open_runtime(address, folder) as runtime:
        names = [await place(runtime, PLACED_STEPS) for _ in range(EACH * workers)]
        with working(workers, address, folder, EACH):
            times = [await times_of(runtime, name) for name in names]
    seconds = max(one["last"] for one in times) - min(one["RunClaimed"] for one in times)
    return EACH * workers * PLACED_STEPS / seconds


async def beside_others(address: str, folder: Path) -> list[Figure]:
    """How soon a single mission begins while another caller has many in the queue, by when nothing else is there."""
    many, few = Caller(who="many", subject="token:many"), Caller(who="few", subject="token:few")

    async def seconds(runtime: Runtime) -> float:
        times = [await times_of(runtime, await place(runtime, 1, few)) for _ in range(STARTS)]
        return statistics.median(one["CallIntended"] - one["MissionCreated"] for one in times)

    async with open_runtime(address, folder) as runtime:
        with working(1, address, folder):
            await seconds(runtime)
            alone = await seconds(runtime)
            for _ in range(OTHERS):
                await place(runtime, 1, many, NAP)
            beside = await seconds(runtime)
            assert runtime.runner.placement is not None
            left = (await runtime.runner.placement.health()).queued
            if not left and not SMOKE:
                raise RuntimeError("the other caller's missions were over before the last one began")
    what = f"start to first step beside {OTHERS:,} missions of another caller, by without"
    return [Figure(what=what, value=beside / alone, unit="x", limit=2)]


async def on_workers(address: str, folder: Path) -> list[Figure]:
    """How soon a mission begins, one at a time; what an idle worker asks."""
    async with open_runtime(address, folder) as runtime:
        with working(1, address, folder):
            await times_of(runtime, await place(runtime, 1))
            times = [await times_of(runtime, await place(runtime, 1)) for _ in range(STARTS)]
        queued = statistics.median(one["RunClaimed"] - one["MissionCreated"] for one in times)
        begun = statistics.median(one["CallIntended"] - one["RunClaimed"] for one in times)
    with working(1, address, folder):
        idle = queries_a_second(address, IDLE_SECONDS)
    return [
        Figure(what="start to claim at an idle worker, p50", value=queued * 1e3, unit="ms"),
        Figure(what="claim to first step, p50", value=begun * 1e3, unit="ms"),
        Figure(what="an idle worker", value=idle, unit="queries/s", limit=2),
    ]


async def write(address: str) -> None:
    """The process of a writer: it commits batches while it is told to, and prints how many."""
    ledger = PostgresLedger.open(address)
    streams = [f"w{os.getpid()}-{number}" for number in range(TOGETHER)]
    heads = dict.fromkeys(streams, 0)
    print("ready", flush=True)

    async def append(name: str) -> None:
        heads[name] = (await ledger.append(name, heads[name], [INTENT])).seq

    while seconds := await anyio.to_thread.run_sync(sys.stdin.readline):
        count, over = 0, time.monotonic() + float(seconds)
        while time.monotonic() < over:
            async with anyio.create_task_group() as batch:
                for name in streams:
                    batch.start_soon(append, name)
            count += 1
        print(count, flush=True)
    await ledger.close()


class Writers:
    """Writers in processes of their own."""

    def __init__(self, address: str) -> None:
        words = [sys.executable, __file__, WRITER, address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._all = [subprocess.Popen(words, **pipes) for _ in range(max(WRITERS))]
        for one in self._all:
            one.stdout.readline()

    def rate(self, count: int) -> float:
        """Commits a second of so many of them."""
        some = self._all[:count]
        for one in some:
            one.stdin.write(f"{WRITING_SECONDS}\n")
            one.stdin.flush()
        return sum(int(one.stdout.readline()) for one in some) / WRITING_SECONDS

    def end(self) -> None:
        for one in self._all:
            one.stdin.close()
            one.wait()


def commits_of_writers(address: str, what: str, least: dict[int, float]) -> list[Figure]:
    """Commits a second with more writers; `least` is the ratio by one writer that so many must reach."""
    writers = Writers(address)
    rates: dict[int, list[float]] = {count: [] for count in WRITERS}
    try:
        writers.rate(max(WRITERS))  # warms everything up
        for _ in range(ROUNDS_OF_WRITERS):
            for count in WRITERS:
                rates[count].append(writers.rate(count))
    finally:
        writers.end()
    return by_one(what, "writer", "commits/s", rates, least)


def by_one(what: str, who: str, unit: str, rates: dict[int, list[float]], least: dict[int, float]) -> list[Figure]:
    """The rates of more processes by that of one, and that of the most by the best."""
    one, *others = rates
    figures = [Figure(what=f"{what}, 1 {who}", value=statistics.median(rates[one]), unit=unit)]
    for count in others:
        more = {"rule": ">=", "limit": least[count]} if count in least else {}
        ratio = ratio_of_rounds(rates[count], rates[one])
        figures.append(Figure(what=f"  {count} {who}s, by one", value=ratio, unit="x", **more))
    best = [max(some) for some in zip(*rates.values(), strict=True)]
    ratio = ratio_of_rounds(rates[others[-1]], best)
    return [*figures, Figure(what=f"  the most {who}s, by the best", value=ratio, unit="x", rule=">=", limit=0.8)]


async def steps_of_workers(address: str, folder: Path, what: str, least: dict[int, float]) -> list[Figure]:
    """Steps a second of missions on more workers; `least` as in `commits_of_writers`."""
    rates: dict[int, list[float]] = {count: [] for count in WORKERS}
    for _ in range(ROUNDS_OF_WRITERS):
        for count in WORKERS:
            rates[count].append(await placed_rate(address, folder, count))
    return by_one(what, "worker", "steps/s", rates, least)


async def beside_a_snapshot(address: str, control: str) -> list[Figure]:
    """Commits beside an open snapshot, by those in another database in turns, before it and at its end.

    A row that is updated would grow a chain of versions that nothing can remove.
    """
    heads: dict[tuple[str, str], int] = {}

    async def append(ledger: PostgresLedger, where: str, name: str) -> None:
        seq = heads.get((where, name), 0)
        head = await ledger.append(name, seq, [INTENT], status="running", summary={"n": seq})
        heads[where, name] = head.seq

    async def count(ledger: PostgresLedger, where: str) -> int:
        count, over = 0, time.monotonic() + SLICE_SECONDS
        while time.monotonic() < over:
            async with anyio.create_task_group() as batch:
                for number in range(TOGETHER):
                    batch.start_soon(append, ledger, where, f"s{number}")
            count += 1
        return count

    async def ratio(slices: int) -> float:
        rounds = [(await count(ours, address), await count(theirs, control)) for _ in range(slices)]
        return sum(one for one, _ in rounds) / sum(other for _, other in rounds)

    ours, theirs = PostgresLedger.open(address), PostgresLedger.open(control)
    slices = max(1, int(SNAPSHOT_SECONDS / SLICE_SECONDS / 12))
    await ratio(1)
    before = await ratio(slices)
    with psycopg.connect(address) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pursuit.events")
        await ratio(5 * slices)
        beside = await ratio(slices)
    await ours.close()
    await theirs.close()
    what = f"commits after {SNAPSHOT_SECONDS:g} s beside an open snapshot, by before"
    return [Figure(what=what, value=beside / before, unit="x", rule=">=", limit=0.8)]


async def waiting_missions(address: str, folder: Path) -> list[Figure]:
    """A server and a worker, and many missions that wait for a proposal."""
    waiting = Mission(
        directive="Bring the loss to zero",
        criteria=[metric("loss") <= 0],
        budget=Budget(max_iterations=10),
        tool_allowlist=[PLAIN],
        proposer=ClientProposer(),
    )
    async with open_runtime(address, folder) as runtime:
        for _ in range(WAITING):
            await runtime.runner.start(waiting)
        with working(1, address, folder), runtime.runner.ledger.wakeup():
            rate = await anyio.to_thread.run_sync(queries_a_second, address, IDLE_SECONDS)
    what = f"{WAITING:,} waiting missions, a watching process and a worker"
    return [Figure(what=what, value=rate, unit="queries/s", limit=2 + 6)]


def main() -> None:
    with server() as (found, folder):
        address = found.create_database("bench")
        figures = anyio.run(one_mission, address, folder)
        figures += anyio.run(fifty_missions, found, address, folder)
        figures += anyio.run(on_workers, found.create_database("workers"), folder)
        figures += anyio.run(beside_others, found.create_database("callers"), folder)
        figures += anyio.run(waiting_missions, found.create_database("waiting"), folder)
        what = f"{EACH} missions for each worker"
        figures += anyio.run(steps_of_workers, found.create_database("steps"), folder, what, {2: 1.0})
        figures += commits_of_writers(found.create_database("writers"), "commits of 8 events", {2: 1.0})
        figures += anyio.run(beside_a_snapshot, found.create_database("snapshot"), found.create_database("control"))
    if shutil.which("cc"):
        with server(slow=True) as (found, folder):
            what = f"{EACH} missions for each worker, 5 ms added to each flush"
            figures += anyio.run(steps_of_workers, found.create_database("steps"), folder, what, {8: 3.0})
            what = "commits of 8 events, 5 ms added to each flush"
            figures += commits_of_writers(found.create_database("writers"), what, {8: 3.0})
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, PostgreSQL from the wheel, each commit on disk")
    finish("Missions on PostgreSQL", figures)


if __name__ == "__main__":
    if sys.argv[1:2] == [WRITER]:
        anyio.run(write, sys.argv[2])
    elif sys.argv[1:2] == [WORKER]:
        anyio.run(work, sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
