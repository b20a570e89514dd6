"""What only a ledger on PostgreSQL has: leases that can be lost, connections that break, a schema with roles."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import psycopg
import pytest
from ledger_backends import GENEROUS, drafts
from postgres_server import NewDatabase

from pursuit.errors import Fenced, LedgerTooNew, LedgerUnavailable
from pursuit.ledger.contract import ANY, Head
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.postgres_schema import migrate_up, prepare
from pursuit.ledger.tombstones import own_audit


@asynccontextmanager
async def opened(address: str, **named: float) -> AsyncIterator[PostgresLedger]:
    # In a thread, since the proxy runs in this one.
    ledger = await anyio.to_thread.run_sync(lambda: PostgresLedger.open(address, **named))  # pyright: ignore
    try:
        yield ledger
    finally:
        await ledger.close()


@pytest.mark.guarantee("old-drivers-are-fenced")
async def test_a_holder_that_does_not_renew_in_time_is_fenced(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address, lease=0.3) as slow, opened(address, lease=30) as next_:
        first = await slow.claim("m1")
        assert first is not None
        await slow.append("m1", 0, drafts(1), claim=first)
        assert await next_.claim("m1") is None
        renewed = anyio.current_time() + 0.6
        while anyio.current_time() < renewed:  # it is renewed meanwhile, so nobody gets it
            assert await next_.claim("m1") is None
            await anyio.sleep(0.05)
        await slow._leases.close()  # it stands still from here on: nothing renews
        with anyio.fail_after(GENEROUS):
            while (second := await next_.claim("m1")) is None:
                await anyio.sleep(0.02)
        assert second.epoch > first.epoch
        assert first.expired
        with pytest.raises(Fenced, match="lost its lease"):
            await slow.append("m1", 1, drafts(2), claim=first)
        with pytest.raises(Fenced):
            await slow.append("m1", ANY, drafts(2), claim=first)
        with pytest.raises(Fenced):
            await first.confirm()
        assert first.lost.is_set()
        await first.release()
        assert await slow.claim("m1") is None, "the release of an old holder frees nothing"
        assert (await next_.append("m1", 1, drafts(3), claim=second)).seq == 2
        await next_.append("m1", ANY, drafts(4))


async def test_a_lease_is_lost_when_the_database_cannot_be_reached(new_database: NewDatabase) -> None:
    address = new_database()
    async with Proxy.before(address) as proxy, opened(proxy.address, lease=0.3, patience=0.3) as ledger:
        claim = await ledger.claim("m1")
        proxy.swallow = True
        with anyio.fail_after(GENEROUS):
            await claim.lost.wait()
        with pytest.raises(Fenced):
            await claim.confirm()
        with pytest.raises(LedgerUnavailable):
            await ledger.append("m1", 0, drafts(1), claim=claim)


class Proxy:
    """Stands between the ledger and the server, and breaks what passes."""

    def __init__(self, address: str) -> None:
        self._there = psycopg.conninfo.conninfo_to_dict(address)
        self.address = ""
        self.swallow = False
        """Nothing passes any more, in either direction, and no connection ends."""
        self.fault: str | None = None
        """What happens to the next statement: it is cut off before it arrives, or its answer is, or it comes late."""
        self.stored: list[bytes] = []
        self.go_late = anyio.Event()
        self.pooler = False
        """It shows a number of its own for the process of the server, as a pooler does."""

    @classmethod
    @asynccontextmanager
    async def before(cls, address: str) -> AsyncIterator[Proxy]:
        proxy = cls(address)
        there = proxy._there
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as tasks,
        ):
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            proxy.address = f"postgresql://{there['user']}@127.0.0.1:{port}/{there['dbname']}"
            tasks.start_soon(listener.serve, proxy._serve)
            yield proxy
            tasks.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        port = int(self._there["port"])
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._answers, server, client)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    data = await client.receive()
                    if self.swallow:
                        await anyio.sleep_forever()
                    fault, self.fault = self.fault, None
                    if fault is not None:
                        tasks.cancel_scope.cancel()
                        with anyio.CancelScope(shield=True):
                            await self._break(fault, data, client, server)
                        return
                    await server.send(data)
            tasks.cancel_scope.cancel()

    async def _break(
        self, fault: str, data: bytes, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream
    ) -> None:
        if fault == "late":
            await client.aclose()
            await self.go_late.wait()
        if fault in ("after", "late"):
            await server.send(data)
            self.stored.append(await server.receive())

    async def _answers(self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await server.receive()
                if self.pooler and (at := data.find(b"K\0\0\0\x0c")) >= 0:
                    data = data[: at + 5] + b"\0\0\0\x01" + data[at + 9 :]
                if self.swallow:
                    await anyio.sleep_forever()
                await client.send(data)
        with suppress(OSError):
            await client.aclose()


@pytest.mark.guarantee("appends-in-doubt-are-settled")
@pytest.mark.parametrize("fault", ["before", "after", "late"])
async def test_an_append_whose_connection_breaks_is_stored_once(new_database: NewDatabase, fault: str) -> None:
    address = new_database()
    async with Proxy.before(address) as proxy, opened(proxy.address) as ledger:
        await ledger.append("m1", 0, drafts(1))
        proxy.fault = fault
        with anyio.fail_after(GENEROUS):
            head = await ledger.append("m1", ANY, drafts(2))
            assert head.seq == 2
            if fault == "late":  # the lost statement arrives after the one that was sent again
                proxy.go_late.set()
                while not proxy.stored:
                    await anyio.sleep(0.01)
            assert (await ledger.append("m1", 2, drafts(3))).seq == 3
        events = await ledger.read("m1")
        assert [event.body for event in events] == [b"1", b"2", b"3"]
        assert head == Head(2, events[1].hash)
        assert (await ledger.verify()).ok


async def test_a_server_that_never_answers_fails_the_append_and_says_that_its_outcome_is_unknown(
    new_database: NewDatabase,
) -> None:
    address = new_database()
    async with Proxy.before(address) as proxy, opened(proxy.address, patience=0.2) as ledger:
        await ledger.append("m1", 0, drafts(1))
        proxy.swallow = True
        with anyio.fail_after(GENEROUS):
            with pytest.raises(LedgerUnavailable, match="not known whether it was stored"):
                await ledger.append("m1", 1, drafts(2))
            with pytest.raises(LedgerUnavailable):
                await ledger.read("m1")


async def test_connections_that_the_server_ends_are_opened_again(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address) as ledger, opened(address) as other:
        with ledger.wakeup("m1") as wakeup, anyio.fail_after(GENEROUS):
            for number in range(30):
                if number % 10 == 5:
                    with psycopg.connect(address, autocommit=True) as connection:
                        connection.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                        )
                await ledger.append("m1", number, drafts(number), by=wakeup)
            await other.append("m1", ANY, drafts(30))
            await wakeup.wait()
        assert [int(event.body) for event in await ledger.read("m1")] == list(range(31))


async def test_behind_a_pooler_wakeups_ring_by_looking(new_database: NewDatabase) -> None:
    address = new_database()
    async with Proxy.before(address) as proxy, opened(address) as other:
        proxy.pooler = True
        async with opened(proxy.address) as ledger:
            await ledger.append("m1", 0, drafts(1))
            with ledger.wakeup("m1") as wakeup, anyio.fail_after(GENEROUS):
                await other.append("m1", 1, drafts(2))
                await wakeup.wait()
            assert ledger.pooled
            assert len(await ledger.read("m1")) == 2


async def test_an_idle_process_asks_little(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address) as ledger:
        for number in range(20):
            await ledger.append(f"m{number}", 0, drafts(1))
        asked: list[str] = []
        ask = ledger._reader.ask

        async def counted(query: str, *rest: object, **named: object) -> list[object]:
            asked.append(query)
            return await ask(query, *rest, **named)  # pyright: ignore[reportArgumentType]

        claims = [await ledger.claim(f"m{number}") for number in range(20)]
        async with anyio.create_task_group() as tasks:
            for number in range(20):

                async def wait(name: str) -> None:
                    with ledger.wakeup(name) as wakeup:
                        await wakeup.wait()

                tasks.start_soon(wait, f"m{number}")
            await anyio.sleep(0.3)  # all are waiting
            ledger._reader.ask = counted  # pyright: ignore[reportAttributeAccessIssue]
            await anyio.sleep(1.2)
            tasks.cancel_scope.cancel()
        assert len(asked) <= 2, asked
        assert all(claims)


async def test_the_runtime_role_can_append_and_change_nothing(new_database: NewDatabase) -> None:
    address = new_database()
    role = f"runtime_{os.getpid()}"
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(f"DROP ROLE IF EXISTS {role}")
        owner.execute(f"CREATE ROLE {role} LOGIN")
        migrate_up(address, role)
        runtime = address.replace("pursuit@", f"{role}@")

        async def story() -> None:
            async with opened(runtime) as ledger:
                claim = await ledger.claim("m1")
                await ledger.append("m1", 0, drafts(1, 2), text="a word", claim=claim)
                await ledger.append("m2", 0, drafts(1))
                await ledger.forget("m2")
                assert [one.row.name for one in await ledger.search("words")] == ["m1"]
                assert (await ledger.verify()).ok

        await story()
        with psycopg.connect(runtime, autocommit=True) as connection:
            connection.execute("SELECT pursuit.forget('m2', 0, 'audit')")  # it is forgotten already
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="audit cannot be forgotten"):
                connection.execute("SELECT pursuit.forget(%s, 0, 'audit')", (own_audit(),))
            for statement in (
                "UPDATE pursuit.events SET body = ''",
                "DELETE FROM pursuit.events",
                "TRUNCATE pursuit.events",
                "INSERT INTO pursuit.events SELECT * FROM pursuit.events",
                "UPDATE pursuit.streams SET status = 'x'",
                "SELECT pursuit.grant_runtime('postgres')",
                "SELECT pursuit.put_text(1, '', '{}', '{}')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
        for statement in ("UPDATE pursuit.events SET body = ''", "DELETE FROM pursuit.events"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
                owner.execute(statement)
        owner.execute(f"DROP OWNED BY {role}")
        owner.execute(f"DROP ROLE {role}")


def test_a_schema_is_made_once_and_a_newer_one_is_refused(new_database: NewDatabase) -> None:
    address = new_database()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA pursuit CASCADE")
        with pytest.raises(LedgerUnavailable, match="pursuit migrate up"):
            prepare(address, migrate=False)
        faults: list[BaseException] = []

        def first_use() -> None:
            try:
                prepare(address)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=first_use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        connection.execute("INSERT INTO pursuit.version VALUES (999)")
    with pytest.raises(LedgerTooNew, match="version 999"):
        PostgresLedger.open(address)
    with pytest.raises(LedgerUnavailable) as refused:
        PostgresLedger.open("postgresql://pursuit:secret@127.0.0.1:1/nothing?connect_timeout=1")
    assert "secret" not in str(refused.value)


async def test_a_changed_event_is_found(new_database: NewDatabase, tmp_path: Path) -> None:
    address = new_database()
    async with opened(address) as ledger:
        await ledger.append("m1", 0, drafts(1, 2))
        root = await ledger.root()
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("ALTER TABLE pursuit.events DISABLE TRIGGER append_only")
            connection.execute("UPDATE pursuit.events SET body = 'other' WHERE seq = 2")
        found = await ledger.verify(expect=root)
        assert any("does not match its hash" in fault for fault in found.faults)
        assert any("triggers" in fault for fault in found.faults)
