"""Each ledger that a test leaves behind must verify, unless the test is marked `damaged_ledger`.

`tmp_path` verifies the SQLite ledgers of a test, `new_database` those on PostgreSQL; what module- and session-wide
folders hold is verified at the end of the session.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pursuit.ledger.schema import open_reader
from pursuit.ledger.verify import verify_snapshot
from pursuit.service.proof import FOLDS

SKIPPED = {".git", ".venv", "node_modules"}


def faults_below(folder: Path) -> list[str]:
    """The faults of all ledgers below a folder."""
    return [f"{path}: {fault}" for path in ledgers_below(folder) for fault in faults_of(path)]


def ledgers_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (path for name in files if name.endswith(".db") and is_ledger(path := Path(parent, name)))


def is_ledger(path: Path) -> bool:
    if path.is_symlink() or path.stat().st_size < 512:
        return False
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        except sqlite3.DatabaseError:  # a test that damages a ledger on purpose says so; others have other files
            return path.name == "ledger.db"
    return {"streams", "events", "blob_refs"} <= tables


def is_marked(request: pytest.FixtureRequest) -> bool:
    """Whether the test may leave a damaged ledger behind."""
    return request.node.get_closest_marker("damaged_ledger") is not None


def fail_for(faults: list[str]) -> None:
    """Fails the test for the faults of its ledgers."""
    if faults:
        pytest.fail("A ledger of this test does not verify:\n" + "\n".join(faults), pytrace=False)


def faults_of(path: Path) -> tuple[str, ...]:
    with closing(open_reader(path)) as connection:
        connection.execute("BEGIN")
        try:
            return verify_snapshot(connection, (), folds=FOLDS).faults
        except sqlite3.Error as error:
            return (str(error),)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's own, whose ledgers verify at the end of the test."""
    yield tmp_path
    if not is_marked(request):
        fail_for(faults_below(tmp_path))


@pytest.fixture(scope="session", autouse=True)
def _shared_ledgers_verify(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The folders that several tests share hold no ledger that does not verify; those of failed tests say nothing."""
    yield
    if not request.session.testsfailed and (faults := faults_below(tmp_path_factory.getbasetemp())):
        pytest.fail("A ledger that tests share does not verify:\n" + "\n".join(faults), pytrace=False)
