"""A ledger that is restored from a dump, and one that is read on a standby: transaction ids mean nothing there."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import anyio
import psycopg
import pytest
from postgres_server import QUICK, TEMPLATE, VERSIONS, NewDatabase, own_server

from local_postgres import LocalPostgres
from pursuit.ledger.contract import ANY, Draft
from pursuit.ledger.postgres import PostgresLedger

GENEROUS = 60


def drafts(*numbers: int) -> list[Draft]:
    return [Draft("numbered", b"%d" % number) for number in numbers]


@pytest.mark.guarantee("root-survives-growth")
async def test_a_dump_that_is_restored_into_a_new_server_verifies_and_goes_on(new_database: NewDatabase) -> None:
    """Its transaction ids begin again far below those of the dump: what is new there must not count as old."""
    address = new_database()
    ledger = PostgresLedger.open(address)
    with psycopg.connect(address, autocommit=True) as connection:
        for _ in range(3000):
            connection.execute("SELECT pg_current_xact_id()")
    for number in range(5):
        await ledger.append(f"m{number}", 0, drafts(1, 2))
    await ledger.forget("m4")
    root = await ledger.root()
    await ledger.append("m0", 2, drafts(3))
    await ledger.close()
    with own_server() as server:
        restored = server.create_database("restored")
        dump = server.folder / "ledger.dump"
        server.run("pg_dump", "--format=custom", f"--file={dump}", address, on_data=False)
        server.run("pg_restore", "--no-owner", f"--dbname={restored}", str(dump), on_data=False)
        ledger, other = PostgresLedger.open(restored), PostgresLedger.open(restored)
        try:
            with psycopg.connect(restored) as connection:
                ((restored_to,),) = connection.execute("SELECT count(*) FROM pursuit.grown").fetchall()
                assert restored_to == 0, "what grew there before says nothing here"
            found = await ledger.verify(expect=root)
            assert found.ok, found.faults
            with ledger.wakeup("m1") as wakeup, anyio.fail_after(GENEROUS):
                await other.append("m1", 2, drafts(3))
                await wakeup.wait()
            after = await ledger.root()
            assert int(after.partition(":")[0]) == int(found.root.partition(":")[0]) + 1
            found = await ledger.verify(expect=[root, after])
            assert found.ok, found.faults
        finally:
            await ledger.close()
            await other.close()


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_standby_is_read_and_its_watchers_miss_nothing(version: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pursuit-standby-"))
    with own_server(version) as primary:
        writer = PostgresLedger.open(primary.address(TEMPLATE))
        await writer.append("m1", 0, drafts(1))
        root = await writer.root()
        standby = LocalPostgres(folder, version)
        standby.run("pg_basebackup", "--write-recovery-conf", f"--dbname={primary.address('')}", "--checkpoint=fast")
        standby.configure((*QUICK, f"primary_conninfo='{primary.address('')}'"))
        standby.start()
        try:
            reader = PostgresLedger.open(standby.address(TEMPLATE))
            assert (await reader.verify(expect=root)).ok
            with reader.wakeup("m1") as wakeup, anyio.fail_after(GENEROUS):
                for number in range(1, 6):
                    await writer.append("m1", ANY, drafts(number))
                    while len(await reader.read("m1")) <= number:
                        await wakeup.wait()
            assert await writer.root() != root
            await reader.close()
        finally:
            await writer.close()
            standby.stop()
            shutil.rmtree(folder)
