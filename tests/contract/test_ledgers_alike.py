"""Property: an SQLite file and a PostgreSQL database that are fed the same operations stay equal, roots included."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import NewDatabase

from pursuit.errors import PursuitError
from pursuit.ledger import transfer as transferring
from pursuit.ledger.contract import ANY, Draft, Ledger
from pursuit.ledger.opening import file_of, open_ledger
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.sqlite import SqliteLedger
from pursuit.ledger.transfer import transfer

NAMES = st.sampled_from(["m1", "m2", "m3", "t1"])
WORDS = st.lists(st.sampled_from(["latency", "deploy", "search", "Größe", "p95_ms", "the", "\0"])).map(" ".join)
DRAFTS = st.lists(
    st.builds(Draft, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.binary()),
    max_size=3,
)
APPENDS = st.fixed_dictionaries(
    {"stream": NAMES, "expected": st.one_of(st.just(ANY), st.integers(0, 4)), "events": DRAFTS},
    optional={
        "kind": st.sampled_from(["mission", "task"]),
        "status": st.sampled_from(["", "running", "ended"]),
        "summary": st.dictionaries(st.text("ab\0é", max_size=2), st.floats(allow_nan=False) | st.text("x\0")),
        "blobs": st.lists(st.binary(max_size=3), max_size=2).map(lambda some: {sha256(b).hexdigest(): b for b in some}),
        "text": WORDS,
    },
)
OPERATIONS = st.lists(st.one_of(APPENDS, APPENDS, APPENDS, NAMES), max_size=8)


async def outcome(ledger: Ledger, operation: Any) -> Any:
    try:
        if isinstance(operation, str):
            return await ledger.forget(operation)
        return await ledger.append(**operation)
    except PursuitError as error:
        return type(error), error.message, error.details


async def everything(ledger: Ledger) -> list[Any]:
    rows = (await ledger.streams()).rows
    found: list[Any] = [await ledger.root(), rows]
    for row in rows:
        found += [await ledger.read(row.name), await ledger.digests(row.name)]
    for words in ("latency", "deploying searches", "grosse große größe", "p95"):
        found.append([(one.row.name, one.text) for one in await ledger.search(words)])
    return found


@pytest.mark.guarantee("two-databases-one-ledger")
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
def test_the_same_operations_leave_the_same_ledger(tmp_path: Path, new_database: NewDatabase) -> None:
    """One pair of ledgers for all examples: each goes on where the one before has stopped."""
    now = [1_000.0]
    sqlite = SqliteLedger.open(tmp_path / "ledger.db", clock=lambda: now[0])
    postgres = PostgresLedger.open(new_database(), clock=lambda: now[0])

    async def feed(operations: list[Any]) -> None:
        for operation in operations:
            now[0] += 0.1
            assert await outcome(postgres, operation) == await outcome(sqlite, operation), operation
        assert await everything(postgres) == await everything(sqlite)

    with start_blocking_portal() as portal:

        @settings(max_examples=200 if os.environ.get("PURSUIT_SOAK") else 25, suppress_health_check=list(HealthCheck))
        @given(OPERATIONS)
        def hunt(operations: list[Any]) -> None:
            prefix = f"r{int(now[0] * 10)}-"  # streams of its own: a forgotten name cannot be used again
            portal.call(feed, [renamed(one, prefix) for one in operations])

        hunt()
        assert portal.call(postgres.verify) == portal.call(sqlite.verify)
        portal.call(postgres.close)
        portal.call(sqlite.close)


def renamed(operation: Any, prefix: str) -> Any:
    return prefix + operation if isinstance(operation, str) else {**operation, "stream": prefix + operation["stream"]}


@pytest.mark.guarantee("a-ledger-can-be-moved")
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_a_copy_that_is_interrupted_anywhere_goes_on(
    tmp_path: Path, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transferring, "ROWS", 3)
    there, back = file_of(new_database(), tmp_path), tmp_path / "back.db"
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    for number in range(7):
        body = b"%d" % number
        drafts = [Draft("numbered", body)] * (number + 1)
        await ledger.append(f"m{number}", 0, drafts, text=f"word{number} \0", blobs={sha256(body).hexdigest(): body})
    await ledger.forget("m3")
    await ledger.forget("m6")
    root = await ledger.root()
    await ledger.close()
    for source, target in ((tmp_path / "ledger.db", there), (there, back)):
        interruptions = 0
        while True:
            left = interruptions

            into = transferring._IntoSqlite if target is back else transferring._IntoPostgres

            def interrupted(self: Any, table: str, columns: str, rows: Any, put: Any = into.put) -> None:
                nonlocal left
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1
                put(self, table, columns, rows)

            with monkeypatch.context() as patch:
                patch.setattr(into, "put", interrupted)
                try:
                    found = await transfer(source, target)
                    break
                except KeyboardInterrupt:
                    # Two parts at a time: it ends only because each run goes on where the one before stopped.
                    interruptions = min(interruptions + 1, 2)
            if target is there:
                with pytest.raises(PursuitError, match="not finished"):
                    open_ledger(there)
        assert found.ok, found.faults
        assert found.root == root
    copied = open_ledger(back)
    assert [one.text for one in await copied.search("word1")] == ["word1 \0"]
    await copied.close()
    assert not list(tmp_path.glob("*.partial*"))
    with closing(sqlite3.connect(back)) as connection, connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
