"""What is special about the ledger in an SQLite file: its files, its refusals and what `verify` finds."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from pursuit.errors import LedgerTooNew, LedgerUnavailable
from pursuit.ledger.contract import ANY, Draft, Head, Verification
from pursuit.ledger.sqlite import SqliteLedger

BLOB = b"a large attachment"
DIGEST = sha256(BLOB).hexdigest()


def draft(text: str) -> Draft:
    return Draft("said", text.encode())


@asynccontextmanager
async def on_ledger(path: Path, *, patience: float = 10.0) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger.open(path, patience=patience)
    try:
        yield ledger
    finally:
        await ledger.close()


async def verified(path: Path) -> Verification:
    async with on_ledger(path) as ledger:
        return await ledger.verify()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A closed ledger with two streams, one of them with a blob."""
    path = tmp_path / "ledger.db"

    async def fill() -> None:
        async with on_ledger(path) as ledger:
            for number in range(5):
                await ledger.append("m1", number, [draft(f"word {number}")])
            await ledger.append("m2", 0, [draft("other")], blobs={DIGEST: BLOB})

    anyio.run(fill)
    return path


def tamper(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("umask", [0o000, 0o277])
async def test_files_are_the_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new" / "deeper" / "ledger.db"
    before = os.umask(umask)
    try:
        async with on_ledger(path) as ledger:
            await ledger.append("m1", 0, [draft("hello")])
            claim = await ledger.claim("m1")
            assert claim is not None
            files = [file for file in path.parent.rglob("*") if file.is_file()]
            expected = {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-gate", "m1.lock"}
            assert {file.name for file in files} == expected
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
            for folder in (path.parent.parent, path.parent, path.parent / "locks"):
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            await claim.release()
            assert list((path.parent / "locks").iterdir()) == []
    finally:
        os.umask(before)


def test_a_ledger_of_a_newer_release_is_refused_and_left_alone(written: Path) -> None:
    tamper(written, "PRAGMA user_version = 999")
    before = written.read_bytes()
    with pytest.raises(LedgerTooNew) as refusal:
        SqliteLedger.open(written)
    assert "version 999" in refusal.value.message
    assert f"version {refusal.value.details['known']}" in refusal.value.message
    assert "upgrade" in refusal.value.message
    assert written.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    tamper(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable, match=r"theirs\.db is an SQLite database of another program"):
        SqliteLedger.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"x", b"hello, world\n" * 3, b"\x00" * 5000 + b"x", b"word " * 2000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(LedgerUnavailable, match=r"notes\.txt.* not an SQLite database"):
        SqliteLedger.open(path)
    assert path.read_bytes() == content


def test_places_that_cannot_hold_a_ledger_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "folder.db", tmp_path / "file" / "ledger.db"):
        with pytest.raises(LedgerUnavailable, match=path.name):
            SqliteLedger.open(path)


async def test_a_new_file_can_be_opened_by_many_processes_at_once(tmp_path: Path) -> None:
    source = (
        "import sys, anyio\nfrom pathlib import Path\nfrom pursuit.ledger.sqlite import SqliteLedger\n"
        "from pursuit.ledger.contract import ANY, Draft\nsys.stdin.readline()\n"
        "ledger = SqliteLedger.open(Path(sys.argv[1]))\nanyio.run(ledger.append, 'm1', ANY, [Draft('x', b'y')])\n"
    )
    path = tmp_path / "ledger.db"
    command = [sys.executable, "-c", source, str(path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    found = await verified(path)
    assert (found.events, found.faults) == (3, ())


@contextmanager
def full_disk(ledger: SqliteLedger) -> Iterator[None]:
    connection = ledger._handles.writer
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    connection.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def read_only(ledger: SqliteLedger) -> Iterator[None]:
    ledger._handles.writer.execute("PRAGMA query_only = ON")
    yield
    ledger._handles.writer.execute("PRAGMA query_only = OFF")


@contextmanager
def files_cannot_grow(ledger: SqliteLedger) -> Iterator[None]:
    size = ledger._path.with_name("ledger.db-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("trouble", [full_disk, read_only, files_cannot_grow])
async def test_a_disk_that_refuses_stores_nothing_and_can_be_tried_again(
    tmp_path: Path, trouble: Callable[[SqliteLedger], contextmanager[None]]
) -> None:
    async with on_ledger(tmp_path / "ledger.db") as ledger:
        await ledger.append("m0", 0, [draft("first")])
        refused: list[str] = []

        async def append(stream: str) -> None:
            try:
                await ledger.append(stream, 0, [draft("x" * 20_000)], status="new", blobs={DIGEST: BLOB})
            except LedgerUnavailable as error:
                refused.append(stream)
                assert "ledger.db" in error.message

        with trouble(ledger):
            async with anyio.create_task_group() as tasks:
                for stream in ("m1", "m2"):
                    tasks.start_soon(append, stream)
        assert sorted(refused) == ["m1", "m2"]
        assert [row.name for row in (await ledger.streams()).rows] == ["m0"]
        assert await ledger.blob(DIGEST) is None
        refused.clear()
        await append("m1")
        assert (await ledger.append("m0", 1, [draft("second")])).seq == 2
        found = await ledger.verify()
        assert (refused, found.events, found.faults) == ([], 3, ())


@pytest.mark.parametrize("good", [2, 49], ids=["rows one by one", "rows of one statement"])
async def test_a_value_that_sqlite_refuses_fails_its_own_append_only(tmp_path: Path, good: int) -> None:
    async with on_ledger(tmp_path / "ledger.db") as ledger:
        ledger._handles.writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        outcomes: dict[int, str] = {}

        async def append(number: int, size: int) -> None:
            try:
                await ledger.append(f"m{number}", 0, [draft("x" * size)])
                outcomes[number] = "stored"
            except LedgerUnavailable:
                outcomes[number] = "refused"

        async with anyio.create_task_group() as tasks:
            for number, size in enumerate((10, 20_000, *[10] * (good - 1))):
                tasks.start_soon(append, number, size)
        assert outcomes == {number: "refused" if number == 1 else "stored" for number in range(good + 1)}
        found = await ledger.verify()
        assert (found.events, found.faults) == (good, ())


async def test_a_plain_task_cancel_of_the_first_harms_nobody(tmp_path: Path) -> None:
    async with on_ledger(tmp_path / "ledger.db") as ledger:

        async def append(stream: str) -> Head:
            return await ledger.append(stream, 0, [draft("1")])

        leader = asyncio.create_task(append("leader"))
        follower = asyncio.create_task(append("follower"))
        await asyncio.sleep(0)
        leader.cancel()
        assert (await follower).seq == 1
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert (await ledger.append("follower", 1, [draft("2")])).seq == 2


async def test_an_append_waits_for_a_foreign_writer_without_stopping_the_loop(written: Path) -> None:
    async with on_ledger(written) as ledger:
        heads: list[int] = []

        async def append() -> None:
            heads.append((await ledger.append("m1", 5, [draft("late")])).seq)

        with closing(sqlite3.connect(written, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append)
                for _ in range(10):
                    await anyio.sleep(0.002)
                assert heads == []
                foreign.execute("ROLLBACK")
        assert heads == [6]


async def test_a_foreign_writer_that_never_ends_is_named(written: Path) -> None:
    async with on_ledger(written, patience=0.05) as ledger:
        with closing(sqlite3.connect(written, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable, match="locked"):
                await ledger.append("m1", 5, [draft("never")])
        assert (await ledger.append("m1", 5, [draft("now")])).seq == 6


@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_forgotten_bytes_are_gone_from_the_disk(tmp_path: Path) -> None:
    secret = "do not keep this"
    async with on_ledger(tmp_path / "ledger.db") as ledger:
        blobs = {sha256(secret.encode() * 500).hexdigest(): secret.encode() * 500}
        await ledger.append("m1", 0, [draft(secret), draft(secret * 1000)], summary={"goal": secret * 20}, blobs=blobs)
        await ledger.append("m1", ANY, [draft("x")], summary={"goal": "shorter"})
        assert any(secret.encode() in file.read_bytes() for file in tmp_path.glob("ledger.db*"))
        await ledger.forget("m1")
        assert not any(secret.encode() in file.read_bytes() for file in tmp_path.glob("ledger.db*"))


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE events SET body = x'00' WHERE seq = 3", "stream m1: event 3 does not match its hash"),
        ("UPDATE events SET body = 'word 2' WHERE seq = 3", "stream m1: event 3 does not match its hash"),
        ("UPDATE events SET type = 'heard' WHERE seq = 2", "stream m1: event 2 does not match its hash"),
        ("UPDATE events SET at = at + 1 WHERE seq = 5", "stream m1: event 5 does not match its hash"),
        ("UPDATE events SET at = 'never' WHERE seq = 5", "stream m1: event 5 does not match its hash"),
        ("DELETE FROM events WHERE seq = 3", "stream m1: event 3 is missing"),
        ("DELETE FROM events WHERE seq IN (2, 3)", "stream m1: events 2 to 3 are missing"),
        ("DELETE FROM events WHERE seq = 5", "stream m1: the head is at event 5 but the events end at 4"),
        ("UPDATE streams SET head_hash = x'00' WHERE name = 'm1'", "stream m1: the head's hash is not the hash of"),
        ("DELETE FROM streams WHERE name = 'm1'", "stream number 1: it has 5 events, but its row is missing"),
        ("DELETE FROM events WHERE stream = 1", "stream m1: the head is at event 5 but the events end at 0"),
        ("UPDATE streams SET status = 'forgotten' WHERE name = 'm1'", "stream m1: it was forgotten and still has 5"),
        ("UPDATE streams SET name = 'm9' WHERE name = 'm1'", "stream m9: event 1 does not match its hash"),
        ("UPDATE streams SET head_hash = 5 WHERE name = 'm1'", "stream m1: its row was changed"),
        ("UPDATE streams SET head_seq = -1 WHERE name = 'm1'", "stream m1: its row was changed"),
        ("UPDATE streams SET head_seq = 'five' WHERE name = 'm1'", "stream m1: its row was changed"),
        ("UPDATE streams SET name = x'ff00' WHERE name = 'm1'", "stream 1: its row was changed"),
        ("UPDATE events SET seq = 'three' WHERE seq = 3", "stream m1: the number of one of its events was changed"),
        ("UPDATE blobs SET body = x'00'", f"blob {DIGEST}: its bytes were changed"),
        ("DELETE FROM blobs", f"stream m2: its blob {DIGEST} is missing"),
        ("DELETE FROM blob_refs", f"blob {DIGEST}: it does not belong to a stream"),
    ],
)
@pytest.mark.damaged_ledger("edits the database")
async def test_verify_finds_what_was_changed(written: Path, statement: str, fault: str) -> None:
    tamper(written, statement)
    found = await verified(written)
    assert not found.ok
    assert found.faults[0].startswith(fault), found.faults


@pytest.mark.damaged_ledger("edits the database")
async def test_a_row_of_the_wrong_types_is_left_out_of_the_root(written: Path) -> None:
    tamper(written, "UPDATE streams SET head_hash = 5 WHERE name = 'm1'")
    found = await verified(written)
    assert len(found.faults) == 1
    async with on_ledger(written) as ledger:
        assert await ledger.root() == found.root
    tamper(written, "DELETE FROM streams WHERE name = 'm1'")
    assert (await verified(written)).root == found.root


@pytest.mark.damaged_ledger("edits the database")
async def test_what_stays_of_a_forgotten_stream_is_checked(written: Path) -> None:
    async with on_ledger(written) as ledger:
        await ledger.forget("m1")
        assert (await ledger.verify()).ok
    tamper(written, "DELETE FROM tombstones WHERE seq = 3")
    assert (await verified(written)).faults == ("stream m1: it was forgotten, and its tombstones were changed",)


async def test_a_file_reached_through_a_link_has_the_same_claims(written: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(written)
    async with on_ledger(written) as ledger:
        other = SqliteLedger.open(link)
        try:
            claim = await ledger.claim("m1")
            assert claim is not None
            assert await other.claim("m1") is None
            await claim.release()
            again = await other.claim("m1")
            assert again is not None
            assert await ledger.claim("m1") is None
            await again.release()
        finally:
            await other.close()
        assert [path.name for path in link.parent.iterdir()] == ["link.db"]


def damage(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.damaged_ledger("edits the database")
async def test_damage_is_told_by_verify_and_by_whoever_reads_it(written: Path) -> None:
    damage(written, "blobs")
    async with on_ledger(written) as ledger:
        found = await ledger.verify()
        assert found.faults[0].startswith("the database cannot be read to its end")
        with pytest.raises(LedgerUnavailable, match="damaged"):
            await ledger.blob(DIGEST)
        assert len(await ledger.read("m1")) == 5


@pytest.mark.damaged_ledger("edits the database")
def test_a_ledger_too_damaged_to_open_is_named(written: Path) -> None:
    damage(written, "events")
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db is unavailable: it is damaged"):
        SqliteLedger.open(written)


@pytest.mark.damaged_ledger("edits the database")
async def test_words_that_every_text_has_are_looked_for_among_the_newest_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    async with on_ledger(path) as ledger:
        await ledger.append("first", 0, [draft("x")], text="nightly nightly checkout zebra")
    row = "INSERT INTO streams SELECT ?, ?, kind, status, 1, 1, 1, head_hash, summary FROM streams WHERE name = 'first'"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(row, ((number, f"m{number}") for number in range(2, 4_002)))
        text = "INSERT INTO texts (rowid, text) VALUES (?, 'the nightly run of the checkout lowered its latency')"
        connection.executemany(text, ((number,) for number in range(2, 4_002)))
    async with on_ledger(path) as ledger:

        async def names(words: str) -> list[str]:
            return [one.row.name for one in await ledger.search(words, limit=3)]

        # The first one has the word more often than all others: it would be the best if all of them were ranked.
        assert await names("nightly checkout latency") == ["m4001", "m4000", "m3999"]
        assert await names("nightly checkout latency") == await names("latency, checkout: nightly")
        assert (await names("nightly checkout zebra"))[0] == "first", "a word that tells finds it all the same"
