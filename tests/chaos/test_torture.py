"""Readers of a stream, of a list and of everything, beside long transactions, cut connections, forgets and seals."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import AsyncExitStack

import anyio
import psycopg
import pytest
from postgres_server import NewDatabase
from test_postgres import Proxy, opened

from pursuit.ledger import postgres
from pursuit.ledger.contract import ANY, Draft, Ledger, every_stream
from pursuit.ledger.postgres import PostgresLedger

SECONDS = 120.0 if os.environ.get("PURSUIT_SOAK") else 4.0
STREAMS = [f"m{number}" for number in range(6)]
GENEROUS = 60


class Torture:
    """What the writers were told, and what each reader has seen."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.over = anyio.Event()
        self.acknowledged: dict[tuple[str, int], bytes] = {}
        self.followed: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.listed: dict[str, int] = {}
        self.everything: dict[str, int] = {}
        self.cuts = 0
        self.forgotten = 0

    async def write(self, ledger: Ledger, by: int) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            drafts = [Draft("numbered", b"%d %d %d" % (by, number, part)) for part in range(self.chance.randint(1, 3))]
            name = self.chance.choice(STREAMS)
            head = await ledger.append(name, ANY, drafts, status=self.chance.choice(["running", "waiting"]), summary={})
            for part, draft in enumerate(drafts):
                self.acknowledged[name, head.seq - len(drafts) + 1 + part] = draft.body

    async def cut(self, proxy: Proxy) -> None:
        while not self.over.is_set():
            await anyio.sleep(self.chance.uniform(0.05, 0.3))
            proxy.fault = self.chance.choice(["before", "after"])
            self.cuts += 1
        proxy.fault = None

    async def forget(self, ledger: Ledger) -> None:
        while not self.over.is_set():
            self.forgotten += 1
            await ledger.append(f"gone{self.forgotten}", 0, [Draft("numbered", b"0")])
            await ledger.forget(f"gone{self.forgotten}")
            await ledger.root()

    async def hold(self, *addresses: str) -> None:
        """Long transactions with an id: those of another database are in each snapshot, too."""
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(await psycopg.AsyncConnection.connect(a)) for a in addresses]
            while not self.over.is_set():
                for connection in connections:
                    await connection.execute("SELECT pg_current_xact_id()")
                    await anyio.sleep(self.chance.uniform(0.1, 1.0))
                    await connection.rollback()

    async def follow(self, ledger: Ledger, name: str) -> None:
        async for event in ledger.watch(name):
            self.followed[name].append(event.seq)

    async def list(self, ledger: Ledger) -> None:
        with ledger.wakeup() as wakeup:
            while True:
                self.listed = {row.name: row.head.seq async for row in every_stream(ledger, kind="mission")}
                await wakeup.wait()

    async def read_all(self, ledger: Ledger) -> None:
        with ledger.wakeup() as wakeup:
            while True:
                async for row in every_stream(ledger):
                    for event in await ledger.read(row.name, self.everything.get(row.name, 0)):
                        assert event.seq == self.everything.get(row.name, 0) + 1
                        self.everything[row.name] = event.seq
                await wakeup.wait()

    async def caught_up(self, ledger: Ledger) -> None:
        """Returns when each reader has seen the ends of all streams."""
        ends = {row.name: row.head.seq async for row in every_stream(ledger) if row.status != "forgotten"}
        missions = {name: seq for name, seq in ends.items() if name in STREAMS}
        with anyio.fail_after(GENEROUS):
            while True:
                followed = {name: len(seqs) for name, seqs in self.followed.items() if name in missions}
                read = {name: seq for name, seq in self.everything.items() if name in ends}
                listed = {name: seq for name, seq in self.listed.items() if name in missions}
                if (followed, listed, read) == (missions, missions, ends):
                    return
                await anyio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.guarantee("appends-in-doubt-are-settled")
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_readers_miss_nothing_and_see_nothing_twice(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison that would make up for it: the looks alone find each commit."""
    monkeypatch.setattr(postgres, "_COMPARE_SECONDS", 3600.0)
    seed = int(os.environ.get("PURSUIT_CHAOS_SEED") or random.randrange(1 << 32))
    print(f"PURSUIT_CHAOS_SEED={seed}")
    torture, address, other = Torture(random.Random(seed)), new_database(), new_database()
    async with AsyncExitStack() as stack:
        ledgers: list[PostgresLedger] = [await stack.enter_async_context(opened(address)) for _ in range(3)]
        proxies = [await stack.enter_async_context(Proxy.before(address)) for _ in range(3)]
        cut_off = [await stack.enter_async_context(opened(proxy.address, patience=120)) for proxy in proxies]
        async with anyio.create_task_group() as readers:
            for name in STREAMS:
                readers.start_soon(torture.follow, ledgers[0], name)
            readers.start_soon(torture.list, ledgers[1])
            readers.start_soon(torture.read_all, ledgers[2])
            async with anyio.create_task_group() as writers:
                for by, (ledger, proxy) in enumerate(zip(cut_off, proxies, strict=True)):
                    writers.start_soon(torture.write, ledger, by)
                    writers.start_soon(torture.cut, proxy)
                writers.start_soon(torture.forget, ledgers[0])
                writers.start_soon(torture.hold, address, other)
                await anyio.sleep(SECONDS)
                torture.over.set()
            await torture.caught_up(ledgers[0])
            readers.cancel_scope.cancel()
        for name, seqs in torture.followed.items():
            assert seqs == list(range(1, len(seqs) + 1)), name
            events = await ledgers[0].read(name)
            assert max(Counter(event.body for event in events).values(), default=1) == 1
            stored = {(name, event.seq): event.body for event in events}
            assert {
                place: body for place, body in torture.acknowledged.items() if place[0] == name
            }.items() <= stored.items()
        found = await ledgers[0].verify()
        assert found.ok, found.faults
    print(f"{len(torture.acknowledged)} events, {torture.cuts} cuts, {torture.forgotten} forgets")
    assert torture.cuts > 5 and torture.forgotten > 0 and len(torture.acknowledged) > 50
