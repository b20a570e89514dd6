"""A ledger on PostgreSQL whose writers share no row: what each lock keeps, and what readers of everything see."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, LiteralString, cast

import anyio
import anyio.to_thread
import psycopg
import pytest
from ledger_backends import GENEROUS, digest, drafts
from postgres_server import NewDatabase
from test_postgres import opened

from pursuit.errors import Fenced
from pursuit.ledger import postgres
from pursuit.ledger.contract import ANY, Folded, QueuedJob
from pursuit.ledger.placement import Requirements, Reschedule
from pursuit.ledger.postgres import PostgresLedger
from pursuit.ledger.queue import PostgresPlacement
from pursuit.ledger.tombstones import own_audit
from pursuit.testing import RecordingWorker

COMMIT: LiteralString = "SELECT pursuit.commit({}, '{{m1}}', {}, '{{{}}}', '{{mission}}', '{{NULL}}', '{{NULL}}', "
COMMIT += "'{{NULL}}', '{{NULL}}', '{{1}}', '{{numbered}}', '{{x}}'" + ", '{{}}'" * 9 + ")"


def commit(number: int, *, expected: str = "'{NULL}'", epoch: str = "NULL", holder: str = "me") -> LiteralString:
    """The statement of a batch with one event for the stream m1."""
    first = f"'00000000-0000-0000-0000-{number:012}', 1, 5.0, '{holder}'"
    return cast("LiteralString", COMMIT.format(first, expected, epoch))


@contextmanager
def connected(address: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_what_decides_under_a_lock_needs_read_committed(new_database: NewDatabase, level: str) -> None:
    with connected(new_database()) as connection:
        connection.execute(cast("LiteralString", f"SET default_transaction_isolation = '{level}'"))
        for statement in (
            commit(1),
            "SELECT pursuit.claim('m1', 10, 'h', 1, 'p', 0, NULL)",
            "SELECT pursuit.forget('m1', 5, 'audit-1')",
            "SELECT pursuit.forget_blobs(10)",
            "SELECT pursuit.seal(true)",
            "SELECT pursuit.enqueue('m1', '[]', '', 0)",
            "SELECT pursuit.take('me', '{}', '{}', '{}')",
        ):
            with pytest.raises(psycopg.errors.InvalidTransactionState, match="must be read committed"):
                connection.execute(cast("LiteralString", statement))


def test_a_fence_compares_the_holder_too(new_database: NewDatabase) -> None:
    """The sequence of epochs goes back when a standby that lagged behind takes over: two holders have one epoch."""
    with connected(new_database()) as connection:
        ((epoch, *_),) = connection.execute("SELECT * FROM pursuit.claim('m1', 10, 'h', 1, 'me', 0, NULL)").fetchall()
        for holder, refusal in (("another", "fenced"), ("me", None)):
            statement = (
                f"SELECT refusals[1] FROM ({commit(1 + (refusal is None), epoch=str(epoch), holder=holder)}) AS x"
            )
            ((found,),) = connection.execute(
                cast("LiteralString", statement.replace("SELECT pursuit", "SELECT * FROM pursuit"))
            ).fetchall()
            assert found == refusal
        assert connection.execute("SELECT pursuit.renew(%s, 'another', 10)", ([epoch],)).fetchall() == []
        connection.execute("SELECT pursuit.release('m1', %s, 'another')", (epoch,))
        assert connection.execute("SELECT pursuit.renew(%s, 'me', 10)", ([epoch],)).fetchall() == [(epoch,)]


def waits(watcher: psycopg.Connection[Any]) -> None:
    """Returns when a statement of another connection waits for a lock."""
    until = time.monotonic() + GENEROUS
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while watcher.execute(waiting).fetchone() is None:
        assert time.monotonic() < until
        time.sleep(0.005)


@contextmanager
def meanwhile(address: str, statement: LiteralString, found: list[Any]) -> Iterator[None]:
    """Runs a statement in another connection, which the block lets go on."""

    def execute() -> None:
        with connected(address) as connection:
            found.extend(connection.execute(statement).fetchall())

    thread = threading.Thread(target=execute)
    thread.start()
    yield
    thread.join(GENEROUS)
    assert not thread.is_alive()


@pytest.mark.parametrize("first_is", ["stored", "rolled back"])
def test_of_two_that_begin_a_stream_the_second_checks_again(new_database: NewDatabase, first_is: str) -> None:
    address, found = new_database(), []
    second = commit(2, expected="'{0}'").replace("SELECT pursuit", "SELECT * FROM pursuit")
    with psycopg.connect(address) as first, connected(address) as watcher:
        first.execute(commit(1))
        with meanwhile(address, cast("LiteralString", second), found):
            waits(watcher)
            first.commit() if first_is == "stored" else first.rollback()
        ((seqs, _, refusals),) = found
        assert (seqs, refusals) == (([1], ["conflict"]) if first_is == "stored" else ([1], [None]))


@pytest.mark.guarantee("old-drivers-are-fenced")
@pytest.mark.parametrize("begun", [False, True])
def test_a_claim_returns_when_no_append_of_the_holder_before_is_under_way(
    new_database: NewDatabase, begun: bool
) -> None:
    address, found = new_database(), []
    with psycopg.connect(address) as zombie, connected(address) as watcher:
        if begun:
            watcher.execute(commit(1))
        ((epoch, *_),) = watcher.execute("SELECT * FROM pursuit.claim('m1', 0, 'h', 1, 'me', 0, NULL)").fetchall()
        zombie.execute(commit(2, epoch=str(epoch)))
        with meanwhile(address, "SELECT epoch FROM pursuit.claim('m1', 10, 'h', 2, 'next', 0, NULL)", found):
            waits(watcher)
            zombie.commit()
        assert found[0][0] > epoch
        late = f"SELECT refusals FROM ({commit(3, epoch=str(epoch))}) AS x".replace(
            "SELECT pursuit", "SELECT * FROM pursuit"
        )
        assert watcher.execute(cast("LiteralString", late)).fetchall() == [(["fenced"],)]
        assert watcher.execute("SELECT max(seq) FROM pursuit.events").fetchone() == (1 + begun,)


async def take_turns(ledger: PostgresLedger, names: list[str]) -> None:
    """Claims and releases streams, in both orders."""
    for number in range(24):
        held = [await ledger.claim(name) for name in names[:: (-1) ** number]]
        await ledger._leases.renew()
        for lease in held:
            if lease is not None:
                await lease.release()


@asynccontextmanager
async def working_on(address: str, names: list[str]) -> AsyncIterator[None]:
    """Two workers, which do the jobs of the streams, each more than once."""
    placements = [PostgresPlacement(address, dequeue=0.01) for _ in range(2)]
    workers = [RecordingWorker(name, answers=dict.fromkeys(names, Reschedule(0.001))) for name in "ab"]
    async with anyio.create_task_group() as running:
        for placement, worker in zip(placements, workers, strict=True):
            running.start_soon(placement.run, worker, 4)
        yield
        while (health := await placements[0].health()).queued or health.running:
            await anyio.sleep(0.02)
        for worker in workers:
            worker.stopping.set()
    assert {key for worker in workers for key in worker.jobs} == set(names)
    for placement in placements:
        await placement.close()


async def test_batches_in_any_order_beside_forgets_seals_claims_and_workers_do_not_deadlock(
    new_database: NewDatabase,
) -> None:
    address, names = new_database(), [f"m{number}" for number in range(8)]
    async with opened(address) as one, opened(address) as two, opened(address) as three:

        async def append(ledger: PostgresLedger, order: list[str]) -> None:
            for number in range(12):
                body = b"%d" % (number % 5)
                async with anyio.create_task_group() as together:
                    for name in order:
                        blobs = {digest(body): body} if number % 3 == 0 else None
                        job = QueuedJob(str(Requirements()), name)
                        together.start_soon(
                            lambda n=name, b=blobs, j=job: ledger.append(n, ANY, drafts(1), blobs=b, job=j)
                        )

        async def clean() -> None:
            for number in range(12):
                name = f"gone{number}"
                await three.append(name, 0, drafts(1), blobs={digest(b"1"): b"1"})
                await three.forget(name)
                await three.root()

        with anyio.fail_after(GENEROUS):
            async with working_on(address, names), anyio.create_task_group() as tasks:
                tasks.start_soon(append, one, names)
                tasks.start_soon(append, two, names[::-1])
                tasks.start_soon(clean)
                tasks.start_soon(take_turns, two, names)
        found = await one.verify()
        assert found.ok, found.faults
        with connected(address) as connection:
            deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert connection.execute(deadlocks).fetchone() == (0,)


async def test_a_commit_updates_no_row_that_another_commit_updated(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address) as ledger:
        for number in range(20):
            claim = await ledger.claim("m1") if number == 0 else None
            await ledger.append("m1", number, drafts(number), status="running", summary={"n": number}, claim=claim)
        row = await ledger.row("m1")
        assert (row.head.seq, dict(row.summary)) == (20, {"n": 19}), "its own process reads what it gave last"
        updated = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = 'pursuit' AND relname = %s"
        with connected(address) as connection:
            ((first,),) = connection.execute("SELECT summary FROM pursuit.streams").fetchall()
            assert first == '{"n":0}', "the row is written once a second"
            with anyio.fail_after(GENEROUS):  # and once more when the last summary has waited long enough
                while connection.execute("SELECT summary FROM pursuit.streams").fetchone() != ('{"n":19}',):
                    await anyio.sleep(0.05)
            for table in ("events", "grown", "writers", "roots", "sealed", "tombstones", "blobs"):
                assert connection.execute(updated, (table,)).fetchone() == (0,), table


class Told:
    """A fold whose summary is the number of events."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, stream: str) -> Told:
        return Told()

    def has_ended(self, kind: str, status: str) -> bool:
        return True

    def step(self, type_: str, body: bytes) -> None:
        self.count += 1

    def result(self) -> Folded:
        return Folded(kind="mission", statuses=frozenset(("running", "ended")), summary={"n": self.count})


async def test_verify_accepts_a_summary_of_an_earlier_event_and_no_other(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_SUMMARY_SECONDS", 3600.0)
    address = new_database()
    async with opened(address) as ledger, opened(address) as other:
        for number in range(1, 6):
            await ledger.append("m1", number - 1, drafts(number), status="running", summary={"n": number})
        row = await other.row("m1")
        assert (row.head.seq, row.summary_seq, dict(row.summary)) == (5, 1, {"n": 1})
        assert (await ledger.verify(folds=Told())).ok
        await ledger.append("m1", 5, drafts(6), status="ended", summary={"n": 6})
        row = await other.row("m1")
        assert row is not None and (row.status, dict(row.summary)) == ("ended", {"n": 6}), "a status is never late"
        with connected(address) as connection:
            for change in ("summary = '{\"n\": 3}'", "summary_seq = 4", "status = 'else'", "updated_at = 7"):
                with psycopg.connect(address) as edit:
                    edit.execute(cast("LiteralString", f"UPDATE pursuit.streams SET {change}"))
                    edit.commit()
                assert not (await ledger.verify(folds=Told())).ok, change
                connection.execute(
                    "UPDATE pursuit.streams SET status = 'ended', summary = '{\"n\":6}', summary_seq = 6"
                )
                connection.execute(
                    "UPDATE pursuit.streams SET updated_at = (SELECT at FROM pursuit.events WHERE seq = 6)"
                )


async def test_a_reader_of_everything_misses_no_commit_whose_transaction_was_long(new_database: NewDatabase) -> None:
    """Its id is lower than those of commits that were seen before it: a cursor over ids would skip it."""
    address = new_database()
    async with opened(address) as ledger:
        with psycopg.connect(address) as slow, ledger.wakeup() as wakeup, anyio.fail_after(GENEROUS):
            await anyio.to_thread.run_sync(slow.execute, commit(7))
            for number in range(3):
                await ledger.append("m2", number, drafts(1), by=wakeup)
                await anyio.sleep(0.3)  # it looks meanwhile
            seen = ledger._seen.split(":")
            assert seen[2], "the slow transaction is among those that run"
            with anyio.move_on_after(0.4) as silence:
                await wakeup.wait()
            assert silence.cancelled_caught
            slow.commit()
            await wakeup.wait()
            assert len(await ledger.read("m1")) == 1


async def test_a_reader_that_stood_still_for_long_compares_the_ends(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_COMPARE_SECONDS", 0.5)
    address = new_database()
    async with opened(address) as ledger, opened(address) as other:
        await other.append("m1", 0, drafts(1))
        with ledger.wakeup("m1") as wakeup, anyio.fail_after(GENEROUS):
            await wakeup.wait()  # its end is not known yet
            with connected(address) as connection:
                connection.execute(
                    "ALTER TABLE pursuit.grown RENAME TO hidden; CREATE TABLE pursuit.grown (LIKE pursuit.hidden)"
                )
                await other.append("m1", 1, drafts(2))
                connection.execute("DROP TABLE pursuit.grown; ALTER TABLE pursuit.hidden RENAME TO grown")
            await wakeup.wait()


async def test_what_grew_is_kept_until_it_is_sealed_and_ten_minutes_old(new_database: NewDatabase) -> None:
    address, other = new_database(), new_database()
    async with opened(address) as ledger:
        count = "SELECT count(*) FROM pursuit.grown"
        with connected(address) as connection:
            for number in range(3):
                await ledger.append("m1", number, drafts(number))
                await ledger.seal()
            assert connection.execute(count).fetchone() == (3,)
            with psycopg.connect(other) as long:  # it is in each snapshot of the server, and delays nothing
                long.execute("SELECT pg_current_xact_id()")
                for left in (3, 1):  # the first seal after ten minutes marks, the second one removes what was marked
                    connection.execute("UPDATE pursuit.sealing SET since = since - interval '11 minutes'")
                    await ledger.append("m2", ANY, drafts(1))
                    await ledger.seal()
                    assert cast("tuple[int]", connection.execute(count).fetchone())[0] <= left + 1
        assert await ledger.stored() == 5
        assert (await ledger.verify()).ok


async def test_jobs_of_missions_that_ended_long_ago_go(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address) as ledger:
        for name, status in (("ended", "completed"), ("open", "running"), ("new", "completed"), ("gone", "completed")):
            job = QueuedJob(str(Requirements()), "")
            await ledger.append(name, 0, drafts(1), status=status, job=job)
        await ledger.forget("gone")
        with connected(address) as connection:
            connection.execute("UPDATE pursuit.jobs SET due = due - interval '25 hours' WHERE key <> 'new'")
            connection.execute("UPDATE pursuit.sealing SET since = since - interval '11 minutes'")
            await ledger.seal()
            assert connection.execute("SELECT key FROM pursuit.jobs ORDER BY key").fetchall() == [("new",), ("open",)]


def test_a_full_seal_keeps_what_is_committed_beside_it(new_database: NewDatabase) -> None:
    address, found = new_database(), []
    with psycopg.connect(address) as holder, connected(address) as watcher:
        watcher.execute(commit(1))
        watcher.execute("UPDATE pursuit.sealing SET server = 1")  # as after a restore
        watcher.execute(
            "CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
        )
        watcher.execute("CREATE TRIGGER held AFTER INSERT ON pursuit.roots EXECUTE FUNCTION held()")
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        with meanwhile(address, "SELECT pursuit.seal(true)", found):
            waits(watcher)
            watcher.execute(commit(2))
            holder.commit()
        watcher.execute("SELECT pursuit.seal(true)")
        assert watcher.execute("SELECT max(events) FROM pursuit.roots").fetchone() == (2,)
        watcher.execute("DROP FUNCTION held CASCADE")


async def test_blobs_of_a_forget_that_was_cut_off_are_removed_later(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address) as ledger:
        bodies = [b"%d" % number for number in range(2500)]
        await ledger.append("m1", 0, drafts(1), blobs={digest(one): one for one in bodies})
        await ledger.append("m2", 0, drafts(1), blobs={digest(bodies[0]): bodies[0]})
        with connected(address) as connection:
            connection.execute("SELECT pursuit.forget('m1', 5, %s)", (own_audit(),))
            assert connection.execute("SELECT pursuit.forget_blobs(1000000)").fetchone() == (1000,)
        await ledger.seal()
        assert await ledger.digests("m1") == []
        assert await ledger.blob(digest(bodies[0])) == bodies[0]
        assert await ledger.blob(digest(bodies[1])) is None
        assert (await ledger.verify()).ok


async def test_a_summary_that_waits_under_a_lost_lease_is_dropped(new_database: NewDatabase) -> None:
    address = new_database()
    async with opened(address, lease=0.3) as slow, opened(address, lease=30) as next_:
        claim = await slow.claim("m1")
        await slow.append("m1", 0, drafts(1), summary={"n": 1}, claim=claim)
        await slow.append("m1", 1, drafts(2), summary={"n": 2}, claim=claim)
        await slow._leases.close()
        with anyio.fail_after(GENEROUS):
            while (taken := await next_.claim("m1")) is None:
                await anyio.sleep(0.02)
        await next_.append("m1", 2, drafts(3), summary={"n": 3}, claim=taken)
        with pytest.raises(Fenced):
            await slow.append("m1", 2, drafts(3), summary={"n": 9}, claim=claim)
        await anyio.sleep(1.3)
        row = await next_.row("m1")
        assert row is not None and dict(row.summary) == {"n": 3}
