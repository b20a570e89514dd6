"""Opens the ledger that a path names: an SQLite file, or a file with the address of a PostgreSQL database.

Each database has a folder of this user and machine for the files beside a ledger: output of tasks, tokens, reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from pursuit.errors import ExtraMissing, LedgerUnavailable

if TYPE_CHECKING:
    from pursuit.ledger.contract import Ledger
    from pursuit.ledger.queue import PostgresPlacement

SUFFIX = ".postgres"
_ADDRESS = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PASSWORDS = (re.compile(r"(?<=//)([^:/@?#]*):[^@/?#]*(?=@)"), re.compile(r"(?<=[?&])password=[^&]*&?"))

_given: dict[Path, str] = {}
"""The addresses that this process was given, by their files: no file contains a password."""


def is_address(text: str) -> bool:
    """True if a state is the address of a database, not a path."""
    return _ADDRESS.match(text) is not None


def without_password(address: str) -> str:
    return _PASSWORDS[1].sub("", _PASSWORDS[0].sub(r"\1", address)).rstrip("?&")


def file_of(address: str, folder: Path) -> Path:
    """The file that stands for a database, in a separate folder under `folder`; created if missing.

    It holds the address without a password: another process takes that from the environment or a password file.
    """
    from pursuit.ledger.locks import PRIVATE_FILE, make_private_folder  # noqa: PLC0415 - most ledgers are files

    plain = without_password(address)
    path = folder / sha256(plain.encode()).hexdigest()[:16] / f"ledger{SUFFIX}"
    try:
        if not path.exists():
            make_private_folder(path.parent)
            path.touch(PRIVATE_FILE)
            path.write_text(f"{plain}\n")
    except OSError as error:
        raise LedgerUnavailable(f"cannot write {path}: {error.strerror}; set XDG_DATA_HOME", path=str(path)) from error
    _given[path] = address
    return path


def address_of(path: Path) -> str | None:
    """The address of the database that a file stands for; None for a ledger in a file."""
    if path.suffix != SUFFIX:
        return None
    try:
        return _given.get(path) or path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerUnavailable(f"cannot read {path}, which names a database: {error}", path=str(path)) from error


def open_ledger(path: Path, *, lease: float | None = None, migrate: bool = True) -> Ledger:
    """Opens the ledger; raises `LedgerUnavailable`, and `ExtraMissing` without the driver of a database.

    On PostgreSQL a claim is a lease of `lease` seconds. If `migrate` is false, a schema of an older release is refused
    and not migrated.
    """
    address = address_of(path)
    if address is None:
        from pursuit.ledger.sqlite import SqliteLedger  # noqa: PLC0415 - the configuration imports this module

        return SqliteLedger.open(path)
    try:
        from pursuit.ledger.contract import LEASE_SECONDS  # noqa: PLC0415 - the configuration imports this module
        from pursuit.ledger.postgres import PostgresLedger  # noqa: PLC0415 - most have no psycopg
    except ImportError as error:
        words = f"a ledger on PostgreSQL needs a package: pip install 'pursuit[postgres]' ({error})"
        raise ExtraMissing(words, extra="postgres") from None
    return PostgresLedger.open(address, migrate=migrate, lease=lease or LEASE_SECONDS)


async def wait_for_database(path: Path, seconds: float, tell: Callable[[str], None]) -> None:
    """Returns once the database of a ledger answers, or when the time is over; `tell` gets one note if it must wait."""
    address = address_of(path)
    if address is None:
        return
    try:
        from pursuit.ledger.postgres_schema import is_down  # noqa: PLC0415 - most have no psycopg
    except ImportError:
        return  # opening the ledger says which package is missing
    until, told = anyio.current_time() + seconds, False
    while (why := await anyio.to_thread.run_sync(is_down, address, abandon_on_cancel=True)) is not None:
        if anyio.current_time() >= until:
            return
        if not told:
            tell(f"waiting for the database: {why}")
        told = True
        await anyio.sleep(min(1.0, until - anyio.current_time()))


def open_placement(path: Path, **settings: float) -> PostgresPlacement | None:
    """Opens the jobs for workers of an open ledger; None for a ledger in a file, which has no workers.

    `settings` are `heartbeat` and `dequeue`, in seconds.
    """
    address = address_of(path)
    if address is None:
        return None
    from pursuit.ledger.queue import PostgresPlacement  # noqa: PLC0415 - most have no psycopg

    return PostgresPlacement(address, **settings)
