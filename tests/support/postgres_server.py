"""A PostgreSQL server from a wheel, one for all workers of a test session, and a new database for each test."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from verified_ledgers import fail_for, is_marked

from local_postgres import LocalPostgres
from pursuit.service.proof import FOLDS

# psycopg is imported where it is used, since every test worker imports this module.
VERSIONS = (16, 18) if os.environ.get("PURSUIT_SOAK") else (16,)
"""The oldest one that is supported; the soak run adds the newest one."""

# Nothing here outlives the run, so nothing waits for a disk.
QUICK = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "jit=off", "autovacuum=off", "max_connections=90")
TEMPLATE = "template_pursuit"

NewDatabase = Callable[[], str]


def start(version: int) -> LocalPostgres:
    """Starts a server with the template of a ledger."""
    from pursuit.ledger.postgres_schema import prepare

    server = LocalPostgres(Path(tempfile.mkdtemp(prefix="pursuit-postgres-")), version)
    server.create(QUICK)
    server.start()
    prepare(server.create_database(TEMPLATE))
    return server


def stop(server: LocalPostgres) -> None:
    server.stop()
    shutil.rmtree(server.folder)


@contextlib.contextmanager
def own_server(version: int = VERSIONS[0]) -> Iterator[LocalPostgres]:
    """A server that a test may stop; the database `template_pursuit` is an empty ledger."""
    server = start(version)
    try:
        yield server
    finally:
        stop(server)


@contextlib.contextmanager
def shared(folder: Path, version: int) -> Iterator[str]:
    """The address of the session's server: the first worker that needs it starts it, the last one stops it."""
    path = folder / f"postgres-{version}.json"

    @contextlib.contextmanager
    def record() -> Iterator[dict[str, Any]]:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = json.loads(file.read() or '{"users": 0}')
            yield known
            file.truncate(0)
            file.write(json.dumps(known))
            file.flush()

    with record() as known:
        if not known["users"]:
            known["server"] = str(start(version).folder)
        known["users"] += 1
        server = LocalPostgres(Path(known["server"]), version)
    try:
        yield server.address("").removesuffix("/")
    finally:
        with record() as known:
            known["users"] -= 1
            if not known["users"]:
                stop(server)


@pytest.fixture(scope="session")
def postgres_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], str]]:
    """The server of a version, started when it is first asked for."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with contextlib.ExitStack() as stack:
        known: dict[int, str] = {}

        def server(version: int) -> str:
            if version not in known:
                known[version] = stack.enter_context(shared(folder, version))
            return known[version]

        yield server


@contextlib.contextmanager
def databases(server: str, request: pytest.FixtureRequest) -> Iterator[NewDatabase]:
    """Makes databases with an empty ledger, verifies them in the end, and drops them."""
    import psycopg

    made: list[str] = []
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:

        def new() -> str:
            made.append(f"test_{os.getpid()}_{time.monotonic_ns()}")
            connection.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
            return f"{server}/{made[-1]}"

        faults: list[str] = []
        try:
            yield new
            if not is_marked(request):
                faults = [f"{name}: {fault}" for name in made for fault in _faults(f"{server}/{name}")]
        finally:
            for name in made:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        fail_for(faults)


def _faults(address: str) -> tuple[str, ...]:
    """The faults of a ledger; none of a database that a test emptied."""
    import psycopg

    from pursuit.ledger.postgres import PostgresLedger

    with psycopg.connect(address, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('pursuit.copying'), to_regclass('pursuit.streams')").fetchone() != (
            None,
            "pursuit.streams",
        ):
            return ()

    async def verify() -> tuple[str, ...]:
        ledger = PostgresLedger.open(address)
        try:
            return (await ledger.verify(folds=FOLDS)).faults
        finally:
            await ledger.close()

    return anyio.run(verify)


@pytest.fixture
def new_database(postgres_servers: Callable[[int], str], request: pytest.FixtureRequest) -> Iterator[NewDatabase]:
    """Makes an empty ledger on the oldest supported PostgreSQL; returns its address."""
    with databases(postgres_servers(VERSIONS[0]), request) as new:
        yield new
