"""Connections to a ledger on PostgreSQL, and its schema: creates and migrates it, or refuses a newer one.

Invariant: a connection that writes keeps no transaction open across a round trip, so a stopped client holds no lock.
Each request has a time limit: a server that does not answer in time counts as lost.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final, LiteralString, Self, cast

import anyio
import anyio.lowlevel
import psycopg
import psycopg.errors
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format

from pursuit.errors import InvalidArgument, LedgerTooNew, LedgerUnavailable, advice

_LOST = ("08", "57P", "53300", "25006", "40")
"""Error codes after which a new connection or another try may succeed: connection, shutdown, too many, a standby, a
collision.
"""
_STANDBY = "25006"

LOCK: Final = int.from_bytes(b"PURSUIT1", "big") >> 1
"""The advisory lock for migrating a schema, which only one process at a time may do."""

_CONNECT_SECONDS = 10
_CONNECT_SECONDS_OF_SEVERAL = 2
"""Seconds for each of several hosts: a host that does not answer must leave time for the next."""
RETRY_SECONDS = 0.1
_SESSION = (
    "SELECT set_config('idle_in_transaction_session_timeout', '10s', false), "
    "set_config('default_transaction_isolation', 'read committed', false), pg_backend_pid()"
)

SETTLE: Final = "SELECT pursuit.seal(true) WHERE NOT pg_is_in_recovery() AND pursuit.is_restored()"
"""Seals a whole database whose transaction ids have restarted, so that nothing is compared with old ids."""
_ROLES = (
    "SELECT DISTINCT g.grantee::regrole::name FROM pg_namespace n, aclexplode(n.nspacl) g "
    "WHERE n.nspname = 'pursuit' AND g.grantee NOT IN (0, n.nspowner)"
)


def shown(address: str) -> str:
    """The address without its password, for messages."""
    try:
        parts = conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        return "postgresql://…"
    host = parts.get("host") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{host}{port}/{parts.get('dbname') or ''}"


def connection_settings(address: str) -> str:
    """The address for libpq, with limits on the time until a dead connection is noticed."""
    try:
        given = conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise InvalidArgument(
            f"the state {shown(address)} is not an address of PostgreSQL: {str(error).strip()}; "
            "write postgresql://USER@HOST/DATABASE",
            field="state",
        ) from error
    several = "," in str(given.get("host", "")) + str(given.get("hostaddr", ""))
    usual = {
        "connect_timeout": _CONNECT_SECONDS_OF_SEVERAL if several else _CONNECT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "application_name": "pursuit",
    }
    return make_conninfo(**cast("dict[str, Any]", {**usual, **given}))


def unavailable(address: str, error: BaseException) -> LedgerUnavailable:
    """An error of the database, with its address; the SQL that failed is not shown."""
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    reason = " ".join((said or str(error)).split()) or type(error).__name__
    if isinstance(error, psycopg.errors.DiskFull):
        reason += "; free some space on the disk of the database, then try again"
    return LedgerUnavailable(
        f"the ledger {shown(address)} is unavailable: {reason}", path=shown(address), reason=reason
    )


def is_lost(error: psycopg.Error) -> bool:
    """True if the connection is lost or the server shuts down; an error of the statement alone is not a loss."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_LOST)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


_NOT_YET = ("starting up", "shutting down", "recovery", "not yet accepting", "too many")


def is_down(address: str) -> str | None:
    """Why a database cannot be reached now; None if it answers, even with a permanent refusal."""
    try:
        psycopg.connect(connection_settings(address)).close()
    except psycopg.OperationalError as error:
        text = " ".join(str(error).split())
        if "FATAL" not in text or any(one in text for one in _NOT_YET):
            return unavailable(address, error).message
    return None


def prepare(address: str, *, migrate: bool = True) -> str:
    """Migrates the schema to the version of this release, seals a restored database, and returns a snapshot.

    Raises `LedgerTooNew` for a schema of a newer release. If `migrate` is false, raises `LedgerUnavailable` for an
    older one.
    """
    try:
        with psycopg.connect(connection_settings(address), autocommit=True) as connection:
            found, latest = _version(connection, address), max(_migrations())
            if _has_table(connection, "copying"):
                raise LedgerUnavailable(
                    f"the copy in {shown(address)} is not finished; run the same migration again",
                    path=shown(address),
                )
            if found < latest and not migrate:
                raise LedgerUnavailable(
                    f"the ledger {shown(address)} has schema version {found}, and this release needs {latest}; "
                    f"run `{advice('pursuit migrate up')}` with a role that owns the schema",
                    path=shown(address),
                )
            if found < latest:
                _migrate(connection, address)
            connection.execute(SETTLE)
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            return "" if row is None else row[0]
    except psycopg.errors.InsufficientPrivilege as error:
        raise LedgerUnavailable(
            f"this role may not use or migrate the schema of {shown(address)}; "
            f"run `{advice('pursuit migrate up --role {}', 'NAME')}` with the role that owns it",
            path=shown(address),
        ) from error
    except psycopg.Error as error:
        raise unavailable(address, error) from error


def migrate_up(address: str, role: str | None = None) -> tuple[int, int]:
    """Migrates the schema; returns the versions before and after. `role` gets only the rights to run Pursuit."""
    try:
        with psycopg.connect(connection_settings(address), autocommit=True) as connection:
            before = _version(connection, address)
            if before < max(_migrations()):
                _migrate(connection, address)
            if role is not None:
                connection.execute("SELECT pursuit.grant_runtime(%s)", (role,))
            return before, max(_migrations())
    except psycopg.Error as error:
        raise unavailable(address, error) from error


def _version(connection: psycopg.Connection[Any], address: str) -> int:
    if not _has_table(connection, "version"):
        return 0
    row = connection.execute("SELECT max(number) FROM pursuit.version").fetchone()
    found: int = 0 if row is None or row[0] is None else row[0]
    latest = max(_migrations())
    if found > latest:
        raise LedgerTooNew(
            f"{shown(address)} was written by a newer release of Pursuit: its schema is version {found} and this "
            f"release knows up to version {latest}; upgrade Pursuit, or name another ledger",
            path=shown(address),
            found=found,
            known=latest,
        )
    return found


def _has_table(connection: psycopg.Connection[Any], name: str) -> bool:
    # A scan, because `to_regclass` may answer from a cache that another process's migration has outdated.
    query = "SELECT 1 FROM pg_tables WHERE schemaname = 'pursuit' AND tablename = %s"
    return connection.execute(query, (name,)).fetchone() is not None


def _migrate(connection: psycopg.Connection[Any], address: str) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        found = _version(connection, address)
        if found == max(_migrations()):
            return  # another process has already migrated it
        if not found:
            connection.execute("CREATE SCHEMA IF NOT EXISTS pursuit")
            connection.execute("CREATE TABLE pursuit.version (number integer PRIMARY KEY)")
        roles = connection.execute(_ROLES).fetchall()
        connection.execute("DROP VIEW IF EXISTS pursuit.listing, pursuit.job_list")
        for number, script in sorted(_migrations().items()):
            if number > found:
                connection.execute(cast("LiteralString", script))
                connection.execute("INSERT INTO pursuit.version VALUES (%s)", (number,))
        connection.execute(cast("LiteralString", files("pursuit.ledger").joinpath("functions.sql").read_text("utf-8")))
        for (role,) in roles:
            connection.execute("SELECT pursuit.grant_runtime(%s)", (role,))


def _migrations() -> dict[int, str]:
    folder = files("pursuit.ledger").joinpath("migrations", "postgres")
    return {int(entry.name[:4]): entry.read_text(encoding="utf-8") for entry in folder.iterdir()}


_EMPTY, _HEADER, _LENGTH = struct.Struct(">iii"), struct.Struct(">iiiii"), struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Array(bytes):
    """A one-dimensional array in PostgreSQL's binary format; psycopg's own conversion costs 80 µs per commit."""

    @classmethod
    def of(cls, element: int, values: Sequence[bytes | None]) -> Self:
        """Packs the values; the number is the type's."""
        if not values:
            return cls(_EMPTY.pack(0, 0, element))
        parts = [_HEADER.pack(1, None in values, element, len(values), 1)]
        for one in values:
            parts += [_NULL] if one is None else [_LENGTH.pack(len(one)), one]
        return cls(b"".join(parts))


class Texts(Array):
    """A `text[]`."""


class Bodies(Array):
    """A `bytea[]`."""


class Numbers(Array):
    """A `bigint[]`."""


def texts(values: Iterable[str | None]) -> Texts:
    return Texts.of(25, [None if one is None else one.encode() for one in values])


def bodies(values: Iterable[bytes | None]) -> Bodies:
    return Bodies.of(17, list(values))


def numbers(values: Iterable[int | None]) -> Numbers:
    return Numbers.of(20, [None if one is None else one.to_bytes(8, "big", signed=True) for one in values])


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj


class _TextsDumper(_ArrayDumper):
    oid = 1009


class _BodiesDumper(_ArrayDumper):
    oid = 1001


class _NumbersDumper(_ArrayDumper):
    oid = 1016


def register_arrays(adapters: AdaptersMap) -> None:
    """Lets a connection send arrays as they are packed."""
    for kind, dumper in ((Texts, _TextsDumper), (Bodies, _BodiesDumper), (Numbers, _NumbersDumper)):
        adapters.register_dumper(kind, dumper)


class Link:
    """One connection, opened when first needed and reopened after a loss; it runs one statement at a time."""

    def __init__(self, address: str, patience: float) -> None:
        self._address = address
        self._settings = connection_settings(address)
        self._patience = patience
        self._turn = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self.backend: int | None = None
        """The process id of the server behind the connection: the sender of its notifications."""
        self.pooled = False
        """True if a pooler answers: it gives each transaction another session, so notifications do not arrive."""

    async def ask(self, query: str, values: Sequence[Any] = (), *, within: float | None = None) -> list[Any]:
        """The rows that a statement returns; raises one of `Lost` if the connection is lost."""
        async with self._turn:
            within = within or self._patience
            connection = await self.connected(within)
            cut = asyncio.get_running_loop().call_later(within, cut_off, connection)
            try:
                prepare = None if self.pooled else True
                cursor = await connection.execute(cast("LiteralString", query), values, prepare=prepare, binary=True)
                # Not `description`, which makes an object for each column.
                return await cursor.fetchall() if cursor.rownumber is not None else []
            except BaseException as error:
                # A statement that was cancelled, or failed without an answer of the server, may still be running: the
                # next statement on the same connection would always fail.
                answered = isinstance(error, psycopg.Error) and error.sqlstate not in (None, _STANDBY)
                if connection.closed or connection.broken or not answered:
                    await self._drop()
                raise
            finally:
                cut.cancel()

    async def read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Executes a statement that may be sent twice; uses new connections while there is time."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        # Shielded: psycopg answers a cancellation with a request to the server, which a second cancellation would
        # interrupt.
        with anyio.CancelScope(shield=True):
            return await self._read(query, values)
        raise AssertionError("nothing cancels this scope")

    async def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        until = time.monotonic() + self._patience
        while True:
            try:
                return await self.ask(query, values)
            except psycopg.DataError as error:
                why = " ".join(str(error).split())
                raise InvalidArgument(f"the database does not accept a value: {why}") from error
            except psycopg.Error as error:
                if not is_lost(error) or time.monotonic() > until:
                    raise unavailable(self._address, error) from error
                await asyncio.sleep(RETRY_SECONDS)

    async def connected(self, within: float | None = None) -> psycopg.AsyncConnection[Any]:
        """The connection, without waiting in the queue: for its only user."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        within = within or self._patience
        try:
            async with asyncio.timeout(within):
                connection = await psycopg.AsyncConnection.connect(self._settings, autocommit=True)
        except TimeoutError:
            raise psycopg.OperationalError(f"the server did not answer within {within:g} s") from None
        cut = asyncio.get_running_loop().call_later(within, cut_off, connection)
        try:
            row = await (await connection.execute(_SESSION)).fetchone()
        except BaseException:
            await connection.close()
            raise
        finally:
            cut.cancel()
        register_arrays(connection.adapters)
        self.backend = None if row is None else row[2]
        # A pooler shows its own number instead of the server's.
        self.pooled = self.backend != connection.pgconn.backend_pid
        if self.pooled:
            connection.prepare_threshold = None
        self._connection = connection
        return connection

    async def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def close(self) -> None:
        """Closes the connection after its statement."""
        async with self._turn:
            await self._drop()


def cut_off(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Aborts a connection whose server does not answer: every waiter gets an error immediately."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)
