"""Opens the SQLite file: creates and migrates it, refuses foreign files, and explains SQLite's errors.

Invariant: every connection from this module is to a ledger of exactly the version that this release knows; a foreign
file is never changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import msgspec

from pursuit.core.lessons import remembered
from pursuit.errors import LedgerTooNew, LedgerUnavailable
from pursuit.ledger import tombstones
from pursuit.ledger.locks import PRIVATE_FILE, FileId, WriteQueue, file_id, make_private_folder
from pursuit.ledger.roots import seal

APPLICATION_ID = int.from_bytes(b"PURS", "big")
PATIENCE_SECONDS = 10.0
"""Seconds to wait while another process keeps the ledger locked."""

_SMALLEST_DATABASE = 512
_CHECKPOINT_PAGES = 2000
"""8 MB of log: with fifty writers a tenth faster than SQLite's 4 MB, and a checkpoint still stalls only briefly."""

_LEAST_FREE = 64 * 1024
"""SQLite extends the index of its log by 32 KB at a time."""
DISK_FULL = "the disk is full; free some space and try again"
_NEXT_STEP = {
    sqlite3.SQLITE_FULL: DISK_FULL,
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its folder writable",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check it, then try again",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that it is a file and that its folder is writable",
    sqlite3.SQLITE_PERM: "the system refuses access; check the owner and mode of the file",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process or try again",
    sqlite3.SQLITE_TOOBIG: "a value is too large to be stored; make it smaller",
}

_PROOF = 3
"""The first version in which rows and tombstones derive from events."""
_ROOTS = 4
"""The first version with stored roots."""
UNREADABLE_REPORT = (msgspec.MsgspecError, LookupError, TypeError, AttributeError)
"""The errors of `remembered` for a report in a form that no release wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """The open files and connections of a ledger."""

    file: FileId
    writer: sqlite3.Connection
    reader: sqlite3.Connection
    queue: WriteQueue

    def close(self) -> None:
        """Closes the connections; the last one to close folds the write-ahead log into the file."""
        self.reader.close()
        self.writer.close()
        self.queue.close()


def real_path(path: Path) -> Path:
    """The resolved path. The locks are beside the file, so every path to it finds the same locks."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # Python 3.12 and older report a loop of links this way
        reason = getattr(error, "strerror", None) or "its links lead nowhere"
        raise LedgerUnavailable(f"cannot open the ledger {path}: {reason}", path=str(path)) from error


def open_file(path: Path) -> Handles:
    """Opens the ledger at `path`; creates it, its folder and its tables if they are missing."""
    try:
        make_private_folder(path.parent)
        _make_private_file(path)
        # Read before SQLite opens the file: if it is replaced in between, the first commit is refused.
        file = file_id(path)
        queue = WriteQueue.beside(path)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and path.is_file():
            return _open_to_read(path)
        raise LedgerUnavailable(f"cannot open the ledger {path}: {_why(path, error)}", path=str(path)) from error
    writer: sqlite3.Connection | None = None
    try:
        wait_for_turn(queue)
        writer = connect(path)
        _prepare(writer, path)
        handles = Handles(file=file, writer=writer, reader=open_reader(path), queue=queue)
    except BaseException as error:
        if writer is not None:
            writer.close()
        queue.close()
        if isinstance(error, sqlite3.Error):
            raise unavailable(path, error) from error
        raise
    queue.leave()
    return handles


def _open_to_read(path: Path) -> Handles:
    """Opens a ledger that is not writable here; each append to it is refused."""
    try:
        writer = _connect_to_read(path)
        try:
            found, latest = _version(writer, path), max(_migrations())
            _refuse_newer(path, found, latest)
            if found < latest:
                raise LedgerUnavailable(
                    f"the ledger {path} has an older format and is read-only; copy it to a writable folder",
                    path=str(path),
                )
            return Handles(file=file_id(path), writer=writer, reader=open_reader(path), queue=WriteQueue(None))
        except BaseException:
            writer.close()
            raise
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection to a file that is not writable.

    In WAL mode SQLite needs the files of its log even to read, unless the file cannot change: the file system is
    read-only and a log does not exist.
    """
    log = path.with_name(f"{path.name}-wal")
    fixed = os.statvfs(path).f_flag & os.ST_RDONLY and not (log.exists() and log.stat().st_size)
    address = f"file:{quote(str(path.absolute()))}?{'immutable=1' if fixed else 'mode=ro'}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, cached_statements=64)


def _why(path: Path, error: OSError) -> str:
    """Why a ledger cannot be created or opened, with the faulty part of its path."""
    if error.errno == errno.ENOSPC:
        return DISK_FULL
    place = Path(error.filename) if isinstance(error.filename, str) else path
    return f"{place}: {error.strerror}" if place != path else str(error.strerror)


def open_reader(path: Path) -> sqlite3.Connection:
    reader = connect(path)
    try:
        reader.execute("PRAGMA query_only = ON")
        reader.execute("SELECT count(*) FROM sqlite_master")  # only now does SQLite open the file
    except sqlite3.Error as error:
        reader.close()
        if _primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or not path.is_file():
            raise
        reader = _connect_to_read(path)
    return reader


def connect(path: Path) -> sqlite3.Connection:
    """A connection without Python's own transactions; any thread may use it, but only one at a time."""
    return sqlite3.connect(
        path, timeout=PATIENCE_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )


def is_busy(error: sqlite3.Error) -> bool:
    """True if SQLite refused only because another connection is writing."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def unavailable(path: Path, error: sqlite3.Error) -> LedgerUnavailable:
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and is_disk_full(path):
        code = sqlite3.SQLITE_FULL  # SQLite reports it so if it cannot extend the log or its index
    advice = _NEXT_STEP.get(code, str(error))
    return LedgerUnavailable(f"the ledger {path} is unavailable: {advice}", path=str(path), reason=str(error))


def is_disk_full(path: Path) -> bool:
    """True if the disk of a file, or of its future folder, lacks space for a page of the ledger."""
    with suppress(OSError):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        return shutil.disk_usage(folder).free < _LEAST_FREE
    return False


def _primary_code(error: sqlite3.Error) -> int:
    # Errors of Python's module itself, without SQLite, lack a code.
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _make_private_file(path: Path) -> None:
    # SQLite takes a file of one byte for an empty one, and would overwrite it.
    if path.exists() and 0 < path.stat().st_size < _SMALLEST_DATABASE:
        advice = _NEXT_STEP[sqlite3.SQLITE_NOTADB]
        raise LedgerUnavailable(f"the ledger {path} is unavailable: {advice}", path=str(path))
    # An existing file is not opened: closing any descriptor of a database drops this process's SQLite locks on it.
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        os.fchmod(descriptor, PRIVATE_FILE)
        os.close(descriptor)


def wait_for_turn(queue: WriteQueue) -> None:
    """Waits in the queue, blocking the thread, and after a while continues anyway: SQLite's lock remains."""
    # Two processes that open a new file concurrently would otherwise collide in the switch to WAL, which cannot wait.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not queue.try_enter() and time.monotonic() < deadline:
        time.sleep(0.001)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    found = _version(connection, path)
    steps = _migrations()
    latest = max(steps)
    _refuse_newer(path, found, latest)
    mode = _single_value(connection, "PRAGMA journal_mode = WAL")
    if mode != "wal":
        why = f"the ledger {path} requires SQLite's WAL mode, which its file system does not support"
        raise LedgerUnavailable(why, path=str(path))
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {4 * _CHECKPOINT_PAGES * 4096}")
    connection.execute("PRAGMA cache_size = -16000")
    for number in sorted(steps):
        if number > found:
            _migrate(connection, number, steps[number])
    # From here on the writer waits in the event loop and not inside SQLite.
    connection.execute("PRAGMA busy_timeout = 0")


def _refuse_newer(path: Path, found: int, latest: int) -> None:
    if found > latest:
        raise LedgerTooNew(
            f"{path} was written by a newer release of Pursuit: its format is version {found} and this release "
            f"knows up to version {latest}; upgrade Pursuit, or name another ledger",
            path=str(path),
            found=found,
            known=latest,
        )


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the ledger in this file, 0 for an empty file; a database of another program is refused."""
    application = _single_value(connection, "PRAGMA application_id")
    version = _single_value(connection, "PRAGMA user_version")
    tables = _single_value(connection, "SELECT count(*) FROM sqlite_master")
    if application != APPLICATION_ID and (application or version or tables):
        raise LedgerUnavailable(
            f"{path} is an SQLite database of another program, not a Pursuit ledger; name another file", path=str(path)
        )
    return int(version)


def _migrations() -> dict[int, str]:
    folder = files("pursuit.ledger").joinpath("migrations")
    return {
        int(entry.name[:4]): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }


def _migrate(connection: sqlite3.Connection, number: int, script: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated it since the version was read.
        if int(_single_value(connection, "PRAGMA user_version")) < number:
            for statement in _statements(script):
                connection.execute(statement)
            if number == _PROOF:
                _write_texts(connection)
                tombstones.cover_all(connection, time.time())
            if number == _ROOTS:
                seal(connection, time.time())
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_texts(connection: sqlite3.Connection) -> None:
    """Rewrites the text of each ended mission: a migration in SQL wrote the oldest ones in another form."""
    for identity, body in connection.execute(
        "SELECT written.stream, blobs.body FROM "
        "(SELECT stream, body, max(seq) FROM events WHERE type = 'ReportWritten' GROUP BY stream) AS written "
        "JOIN blobs ON blobs.digest = json_extract(CAST(written.body AS TEXT), '$.digest') "
        "JOIN texts ON texts.rowid = written.stream WHERE json_valid(CAST(written.body AS TEXT))"
    ).fetchall():
        try:
            text = remembered(msgspec.json.decode(body))
        except UNREADABLE_REPORT:
            continue
        connection.execute("UPDATE texts SET text = ? WHERE rowid = ?", (text, identity))


def layout(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """The tables, indexes, triggers and views, without SQLite's own and those of its search index."""
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return {tuple(row) for row in found if not str(row[1]).startswith(("sqlite_", "texts_"))}


def own_layout() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in sorted(_migrations().items()):
            for statement in _statements(script):
                connection.execute(statement)
        return layout(connection)


def _statements(script: str) -> list[str]:
    """The statements of a script one by one: `executescript` would commit before it starts."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found


def _single_value(connection: sqlite3.Connection, query: str) -> int | str:
    return connection.execute(query).fetchone()[0]
