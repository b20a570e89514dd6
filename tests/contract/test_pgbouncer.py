"""A real PgBouncer in transaction mode before the database, with fewer connections to it than the clients have."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import psycopg
import pytest
from engine_stage import repeat, until
from fleet_stage import measure
from ledger_backends import GENEROUS, drafts
from postgres_server import NewDatabase
from test_placement import ended, queue, runtime, start, working
from test_postgres import opened

from pursuit import Budget
from pursuit.testing import check_placement

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)"),
]


@pytest.fixture
def pooled(new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The address of a database, and its address behind the pooler."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    address = new_database()
    there = psycopg.conninfo.conninfo_to_dict(address)
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        port = one.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pursuit-pgbouncer-"))
    (folder / "pgbouncer.ini").write_text(f"""
[databases]
{there["dbname"]} = host=127.0.0.1 port={there["port"]} user={there["user"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
logfile = {folder}/log
""")
    user = {}
    if os.geteuid() == 0:  # it refuses to run as root
        nobody = pwd.getpwnam("nobody")
        shutil.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    process = subprocess.Popen([str(PGBOUNCER), "-q", str(folder / "pgbouncer.ini")], **user)
    behind = f"postgresql://{there['user']}@127.0.0.1:{port}/{there['dbname']}"
    try:
        with anyio.from_thread.start_blocking_portal() as portal:
            portal.call(_answers, behind)
        yield address, behind
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


async def _answers(address: str) -> None:
    with anyio.fail_after(GENEROUS):
        while True:
            try:
                psycopg.connect(address).close()
                return
            except psycopg.OperationalError:
                await anyio.sleep(0.05)


async def test_a_ledger_behind_a_pooler_keeps_its_leases_and_wakes_its_watchers(pooled: tuple[str, str]) -> None:
    address, behind = pooled
    async with opened(behind, lease=1.0) as one, opened(behind) as two, opened(address) as direct:
        claim = await one.claim("m1")
        assert claim is not None and await two.claim("m1") is None
        with one.wakeup() as wakeup, anyio.fail_after(GENEROUS):
            for number in range(200):  # psycopg would prepare a statement long before
                await one.append("m1", number, drafts(number), status="running", summary={"n": number}, claim=claim)
                await two.append(f"m{number % 7 + 2}", number // 7, drafts(number))
            await direct.append("m1", 200, drafts(200))
            await wakeup.wait()
        assert one.pooled and not direct.pooled
        assert [int(event.body) for event in await two.read("m1")] == list(range(201))
        assert await two.claim("m1") is None, "it was renewed"
        await claim.release()
        await two.append("m1", 201, drafts(1), status="terminated")
        await two.forget("m1")
        root = await one.root()
        found = await two.verify(expect=root)
        assert found.ok, found.faults


async def test_workers_behind_a_pooler_take_jobs(pooled: tuple[str, str]) -> None:
    _, behind = pooled
    async with queue(behind) as placement:
        await check_placement(placement)
    async with runtime(behind, measure) as here, working(here, "one"), working(here, "two"):
        names = [await start(here, proposer=repeat("measure"), budget=Budget(max_iterations=5)) for _ in range(6)]
        with anyio.fail_after(GENEROUS):
            for name in names:
                await until(here, name, ended)
        assert (await here.runner.verify()).ok
