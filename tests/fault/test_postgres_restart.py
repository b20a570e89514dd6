"""A database that restarts, or fails over to its standby, in the middle of appends: each one is stored once."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from postgres_server import QUICK, TEMPLATE, VERSIONS, own_server

from local_postgres import LocalPostgres
from pursuit.ledger.contract import ANY, Draft
from pursuit.ledger.postgres import PostgresLedger

STREAMS = 12


def two_hosts(first: int, second: int) -> str:
    return f"postgresql://pursuit@127.0.0.1:{first},127.0.0.1:{second}/{TEMPLATE}?target_session_attrs=read-write"


async def appends_meanwhile(address: str, befalls: Callable[[], None]) -> None:
    """Appends to many streams while it happens, and after it; each append that was acknowledged is there, once."""
    ledger = PostgresLedger.open(address, patience=60)
    over, counts = anyio.Event(), dict.fromkeys((f"m{number}" for number in range(STREAMS)), 0)

    async def append(stream: str) -> None:
        last = None
        while last is None or counts[stream] < last:
            if over.is_set() and last is None:
                last = counts[stream] + 5
            number = counts[stream] + 1
            # At the head: an append that was sent twice would not be noticed by its expected number.
            head = await ledger.append(stream, ANY, [Draft("numbered", b"%d" % number)])
            assert head.seq == number
            counts[stream] = number

    try:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for stream in counts:
                    tasks.start_soon(append, stream)
                while min(counts.values()) < 5:
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(befalls)
                over.set()
        for stream, count in counts.items():
            bodies = [event.body for event in await ledger.read(stream)]
            assert bodies == [b"%d" % number for number in range(1, count + 1)]
        found = await ledger.verify()
        assert found.ok, found.faults
    finally:
        await ledger.close()


@pytest.mark.guarantee("appends-in-doubt-are-settled")
async def test_the_database_restarts_in_the_middle_of_appends() -> None:
    with own_server() as server:

        def restarts() -> None:
            for mode in ("fast", "immediate"):
                server.stop(mode)
                server.start()

        # The first of its hosts, where nothing listens, is passed over each time.
        await appends_meanwhile(two_hosts(1, server.port), restarts)


@pytest.mark.soak
@pytest.mark.guarantee("appends-in-doubt-are-settled")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_database_fails_over_to_its_standby_in_the_middle_of_appends(version: int) -> None:
    """The standby takes each commit before it is acknowledged, so none is lost."""
    folder = Path(tempfile.mkdtemp(prefix="pursuit-standby-"))
    with own_server(version) as primary:
        standby = LocalPostgres(folder, version)
        standby.run("pg_basebackup", "--write-recovery-conf", f"--dbname={primary.address('')}", "--checkpoint=fast")
        standby.configure((*QUICK, f"primary_conninfo='{primary.address('')}'"))
        standby.start()
        try:
            with (primary.folder / "data" / "postgresql.auto.conf").open("a") as file:
                file.write("synchronous_standby_names='*'\n")
            primary.run("pg_ctl", "reload", "--silent")

            def fails_over() -> None:
                primary.stop()
                standby.run("pg_ctl", "promote", "--wait", "--silent")

            anyio.run(appends_meanwhile, two_hosts(primary.port, standby.port), fails_over)
        finally:
            standby.stop()
            shutil.rmtree(folder)
            primary.start()  # it is stopped again with its fixture


@pytest.mark.soak
def test_of_two_hosts_the_one_that_never_answers_is_passed_over() -> None:
    """A machine that is gone answers nothing: the connection to it is given up in time for the other one."""
    with own_server() as server, socket.create_server(("127.0.0.1", 0), backlog=0) as silent:

        async def story() -> None:
            ledger = PostgresLedger.open(two_hosts(silent.getsockname()[1], server.port))
            try:
                assert (await ledger.append("m1", 0, [Draft("numbered", b"1")])).seq == 1
            finally:
                await ledger.close()

        anyio.run(story)
