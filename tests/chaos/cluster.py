"""A cluster of real workers on a real PostgreSQL, and what befalls them, by a schedule that a number decides.

Owns: the processes, the network between them, and the schedule. Knows nothing of what must hold: see `history`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from history import History
from quick_start import quick

from local_postgres import LocalPostgres

KINDS = ("kill", "stop", "cut", "restart", "clock")
PROGRAM = Path(__file__).with_name("chaotic_worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls a worker (or the database, by `restart`), when, and for how long."""

    at: float
    kind: str
    place: int
    seconds: float


def schedule(seed: int, *, workers: int, lease: float, rounds: int, pause: float) -> list[Fault]:
    """Each kind once in each round, in any order; a worker is spared while a fault of its own lasts."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    free = [0.0] * workers
    now = 0.0
    for _ in range(rounds):
        for kind in chance.sample(KINDS, len(KINDS)):
            now += chance.uniform(0.5, 1.5) * pause
            # Beyond the lease: another worker has taken over before it can go on.
            seconds = lease * chance.uniform(1.2, 2.0) if kind in ("stop", "cut") else chance.uniform(0.1, 0.5) * lease
            # The last one free stays: with nobody left, a fault would only be a pause.
            places = [place for place in range(workers) if free[place] <= now]
            if len(places) < 2:
                now = sorted(free)[1]
                places = [place for place in range(workers) if free[place] <= now]
            place = chance.choice(places)
            if kind != "restart":
                free[place] = now + seconds
            faults.append(Fault(at=now, kind=kind, place=place, seconds=seconds))
    return faults


class Network:
    """What lies between one worker and the database. While it is cut, what was sent waits, and arrives late."""

    def __init__(self, port: int) -> None:
        self._there = port
        self.whole = asyncio.Event()
        self.whole.set()
        self.port = 0

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        passing: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            passing.add(task)
            try:
                with suppress(OSError):
                    await self._pass(reader, writer)
            except asyncio.CancelledError:
                pass  # the run is over
            finally:
                passing.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._there)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there_writer))
                both.create_task(self._pump(there_reader, writer))
        except* OSError:
            pass
        finally:
            there_writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = await source.read(1 << 16)
            except OSError:
                data = b""
            await self.whole.wait()
            if not data:
                target.close()
                return
            target.write(data)
            await target.drain()


@dataclass
class Place:
    """A machine: its network, and the worker that runs there now."""

    number: int
    network: Network
    name: str = ""
    process: asyncio.subprocess.Process | None = None
    starts: int = 0


@dataclass
class Cluster:
    """Workers, each behind a network of its own; `applied` are the faults that happened, with the worker and time."""

    folder: Path
    server: LocalPostgres
    database: str
    options: Sequence[str]
    environment: dict[str, str]
    places: list[Place] = field(default_factory=list)
    applied: list[tuple[Fault, str, float]] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    """Workers that were told to stop, and did not, or not as they should."""

    @asynccontextmanager
    async def running(self, workers: int) -> AsyncIterator[None]:
        networks = [Network(self.server.port) for _ in range(workers)]
        async with _all_up(networks):
            self.places = [Place(number=number, network=network) for number, network in enumerate(networks)]
            for place in self.places:
                await self.start(place)
            try:
                yield
            finally:
                for place in self.places:
                    await self._end(place)

    async def start(self, place: Place) -> None:
        place.starts += 1
        place.name = f"worker-{place.number}-{place.starts}"
        home = self.folder / place.name
        home.mkdir()
        address = f"postgresql://pursuit@127.0.0.1:{place.network.port}/{self.database}"
        with (self.folder / f"{place.name}.log").open("w") as log:
            place.process = await asyncio.create_subprocess_exec(
                sys.executable,
                quick(str(PROGRAM)),
                str(self.folder),
                place.name,
                "worker",
                "--state",
                address,
                *self.options,
                cwd=self.folder,
                env={**self.environment, "XDG_DATA_HOME": str(home)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def suffer(self, faults: Sequence[Fault]) -> None:
        """Lets all of it happen, each at its time."""
        begin = time.monotonic()
        async with asyncio.TaskGroup() as together:
            for fault in faults:
                await asyncio.sleep(max(0.0, begin + fault.at - time.monotonic()))
                together.create_task(self._apply(fault))

    async def _apply(self, fault: Fault) -> None:
        place = self.places[fault.place]
        if fault.kind == "restart":
            self.applied.append((fault, "database", time.monotonic()))
            await asyncio.to_thread(self.server.stop, "fast" if fault.place % 2 else "immediate")
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(self.server.start)
            return
        pid = await self._pid(place)
        self.applied.append((fault, place.name, time.monotonic()))
        match fault.kind:
            case "kill":
                os.kill(pid, signal.SIGKILL)
                await place.process.wait()
                await asyncio.sleep(fault.seconds)
                await self.start(place)
            case "stop":
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                os.kill(pid, signal.SIGCONT)
            case "cut":
                place.network.whole.clear()
                await asyncio.sleep(fault.seconds)
                place.network.whole.set()
            case _:
                wrong = (-3600.0, 3600.0)[fault.place % 2]
                (self.folder / f"{place.name}.clock").write_text(str(wrong))

    async def _pid(self, place: Place) -> int:
        """The process of a worker: what is started here may have another one fork it."""
        path = self.folder / f"{place.name}.pid"
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.02)
        return int(path.read_text())

    async def _end(self, place: Place) -> None:
        place.network.whole.set()
        if place.process is None or place.process.returncode is not None:
            return
        pid = await self._pid(place)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(120):
                code = await place.process.wait()
            if code:
                self.stuck.append(f"{place.name} ends with {code}")
        except TimeoutError:
            self.stuck.append(f"{place.name} does not stop")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
                await asyncio.sleep(1)  # it writes to its log
                os.kill(pid, signal.SIGKILL)
            await place.process.wait()

    def logs(self) -> str:
        """What the workers said, for a failure."""
        return "\n".join(f"== {path.stem}\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))


@asynccontextmanager
async def _all_up(networks: Sequence[Network]) -> AsyncIterator[None]:
    if not networks:
        yield
        return
    async with networks[0].up(), _all_up(networks[1:]):
        yield


def takeovers(history: History, applied: Sequence[tuple[Fault, str, float]]) -> list[float]:
    """How long each mission of a worker that fell stood still until another one drove it."""
    driven: dict[str, list[tuple[float, str]]] = {}
    for one in sorted(history.appends, key=lambda one: one.at):
        if one.epoch is not None:
            driven.setdefault(one.stream, []).append((one.at, one.by))
    return [
        then - at
        for fault, name, at in applied
        if fault.kind in ("kill", "stop", "cut")
        for appends in driven.values()
        for (before, by), (then, next_) in pairwise(appends)
        if by == name != next_ and before <= at < then
    ]
