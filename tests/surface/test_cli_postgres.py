"""The command line over a ledger on PostgreSQL: the same commands, with another `--state`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import psycopg
import pytest
from cli_stage import Place, marks, mission, recorded, until_marked
from postgres_server import NewDatabase
from problem_stage import client, problem
from quick_start import quick

from pursuit import Problem

COPYING = Path(__file__).parents[1] / "fault" / "copying.py"
OLD_LEDGER = Path(__file__).parents[1] / "data" / "ledger-0.1.db"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Place(tmp_path).configured()


def test_a_mission_runs_and_is_proved_over_a_database(place: Place, new_database: NewDatabase) -> None:
    address = new_database()
    place.write("m.toml", mission(target=100))
    ran = place.json("run", "m.toml", "--state", address)
    assert ran["status"] == "completed"
    assert [row["session_id"] for row in place.json("list", "--state", address)["sessions"]] == [ran["session_id"]]
    assert place.json("verify", "--state", address)["ok"]
    assert f"verified: {address}\nintact: yes" in place.ask("verify", "--state", address)[0]
    assert any("intact" in one["what"] for one in place.json("doctor", "--state", address, code=None)["findings"])
    assert ran["session_id"] in place.ask("report", "last", "--state", address)[0]


def test_a_full_disk_of_the_database_is_named_without_the_sql_that_failed(
    place: Place, new_database: NewDatabase
) -> None:
    address = new_database()
    place.write("m.toml", mission(target=100))
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE disk_full USING MESSAGE = 'could not extend file \"base/1/2\": No space left on device'; END $$"
        )
        owner.execute("CREATE TRIGGER full_disk BEFORE INSERT ON pursuit.events EXECUTE FUNCTION full_disk()")
        notes = place.ask("run", "m.toml", "--state", address, code=1)[1]
        owner.execute("DROP FUNCTION full_disk CASCADE")
    assert "the disk is full; free some space on the disk of the database, then try again" in notes
    assert "PL/pgSQL" not in notes and "INSERT" not in notes


@pytest.mark.guarantee("old-drivers-are-fenced")
def test_a_driver_that_was_stopped_for_too_long_stores_and_sends_nothing_more(
    place: Place, new_database: NewDatabase, tmp_path: Path
) -> None:
    address, record = new_database(), tmp_path / "record"
    place.write("pursuit.toml", f'state = "{address}"\n[policy]\nmode = "auto"\n[settings]\nlease_seconds = 1\n')
    place.write("m.toml", recorded(record, steps=4, needed=4, ms=300))
    driver = place.begin("run", "m.toml")
    until_marked(record, "k1")
    os.kill(driver.process.pid, signal.SIGSTOP)
    try:
        (row,) = place.json("list")["sessions"]
        mission_id = row["session_id"]
        while "is driven by process" in place.ask("resume", mission_id, code=None)[1]:
            time.sleep(0.05)  # its lease has not run out yet
        assert place.json("status", mission_id)["verdict_reason"] == "max_iterations"
    finally:
        os.kill(driver.process.pid, signal.SIGCONT)
    code, _, notes = driver.end()
    assert code == 2, notes
    assert f"this process lost its lease on {mission_id}" in notes
    assert sorted(marks(record)) == ["k0", "k1", "k2", "k3"], "nothing ran twice, and nothing after the takeover"
    assert place.json("verify")["ok"]


def of_all_kinds(place: Place) -> None:
    """A ledger with missions, blobs, a forgotten one, a task, an attempt, and an approval that waits."""
    place.ledger.parent.mkdir()
    shutil.copy(OLD_LEDGER, place.ledger)
    ended = place.json("list", "--status", "completed")["sessions"]
    place.ask("forget", ended[-1]["session_id"], "--yes")
    place.ask("task", "run", "--", "echo", "done")
    place.write("pursuit.toml", '[policy]\nmode = "ask"\n')
    place.write("m.toml", recorded(place.folder / "record", steps=1, needed=1, ms=1))
    place.ask("run", "m.toml", code=4)
    problem(place.folder / "exam")

    async def attempt() -> None:
        exam = Problem.from_manifest(place.folder / "exam")
        async with client(exam, place.ledger.parent, "legacy") as agent:
            await agent.call_tool("submit_final", {"x": 3})

    anyio.run(attempt)


@pytest.mark.guarantee("a-ledger-can-be-moved")
def test_a_ledger_is_copied_there_and_back_with_the_same_root_by_processes_that_are_killed(
    place: Place, new_database: NewDatabase
) -> None:
    address, back = new_database(), place.folder / "back.db"
    of_all_kinds(place)
    before = place.json("verify")
    kept = place.json("list"), place.json("task", "list"), place.json("approvals")
    assert all(next(iter(some.values())) for some in kept)

    def copy(source: object, target: object) -> int:
        words = [sys.executable, quick(str(COPYING)), "3", "migrate", "--from", str(source), "--to", str(target)]
        where = {"cwd": place.folder, "env": place.environment}
        return subprocess.run(words, stdout=subprocess.DEVNULL, check=False, **where).returncode

    for source, target in ((place.ledger, address), (address, back)):
        killed = 0
        # Each run stores two parts more and dies in the third: it ends only because each goes on where the last one
        # stopped.
        while (code := copy(source, target)) == -signal.SIGKILL:
            killed += 1
            assert killed < 20
            if target == address:
                assert "is not finished" in place.ask("list", "--state", target, code=1)[1]
            assert not back.exists()
        assert (code, killed >= 2) == (0, True)
    assert "name an empty database" in place.ask("migrate", "--from", place.ledger, "--to", address, code=2)[1]
    assert "already exists" in place.ask("migrate", "--from", address, "--to", back, code=2)[1]
    for state in (address, back):
        proved = place.json("verify", "--state", state, "--expect", before["root"])
        assert proved == before
        assert kept == tuple(
            place.json(*words, "--state", state) for words in (("list",), ("task", "list"), ("approvals",))
        )


def test_what_is_wrong_with_a_copy_is_said(place: Place) -> None:
    assert "--from" in place.ask("migrate", "--to", "x.db", code=2)[1]
    assert "does not exist" in place.ask("migrate", "--from", "none.db", "--to", "x.db", code=2)[1]
    assert "files are migrated when they are opened" in place.ask("migrate", "up", code=2)[1]
    unreachable = "postgresql://pursuit:secret@127.0.0.1:1/none"
    _, notes = place.ask("list", "--state", unreachable, code=1)
    assert "127.0.0.1:1/none is unavailable" in notes
    assert "secret" not in notes


def test_a_schema_is_migrated_for_a_role(place: Place, new_database: NewDatabase) -> None:
    address = new_database()
    assert place.json("migrate", "up", "--state", address) == {"before": 4, "after": 4, "role": None}
    assert "does not exist" in place.ask("migrate", "up", "--role", "no_such_role", "--state", address, code=1)[1]


def test_what_is_wrong_with_a_worker_is_said_and_nothing_is_made(place: Place, new_database: NewDatabase) -> None:
    place.write("m.toml", mission())
    for words in (("worker",), ("workers",), ("workers", "drain", "x"), ("run", "m.toml", "--detach")):
        assert "postgresql://" in place.ask(*words, code=2)[1]
    assert not place.ledger.exists()
    address = new_database()
    notes = place.ask("worker", "--queue", "No!", "--name", "_", "--state", address, code=2)[1]
    assert "--queue" in notes
    assert "--name" in notes
    assert place.json("workers", "--state", address) == {"workers": [], "queued": 0, "running": 0}
    assert "no live worker is called 'x'" in place.ask("workers", "drain", "x", "--state", address, code=2)[1]
    started = place.json("start", "m.toml", "--state", address)
    assert started["placement"] == "no worker runs; start one with `pursuit worker`"
    assert place.json("workers", "--state", address)["queued"] == 1
    status = place.ask("status", started["session_id"], "--state", address)[0]
    assert "no worker runs" in status
    assert place.json("resume", started["session_id"], "--state", address, code=3)["status"] == "terminated"
