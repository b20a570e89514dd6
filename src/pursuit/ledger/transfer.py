"""Copies a whole ledger into an empty one, between SQLite and PostgreSQL in either direction, and proves it.

Numbers, times, hashes and roots are copied unchanged, so the copy has the same root. Invariant: an interrupted copy
cannot be opened as a ledger; the same command continues it, or starts again if the source has changed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast

from pursuit.errors import Conflict, InvalidArgument, LedgerUnavailable
from pursuit.ledger import schema
from pursuit.ledger.chain import SqlConnection
from pursuit.ledger.contract import Folds, Ledger, Verification, every_stream
from pursuit.ledger.opening import address_of, open_ledger

ROWS = 500
"""Rows to copy together, and the maximum that an interrupted copy repeats."""

_STREAMS = "id, name, kind, status, created_at, updated_at, head_seq, head_hash, summary"
_TABLES = {
    # table: the key in whose order it is copied, and the other columns
    "events": ("stream, seq", "at, type, body, hash, position"),
    "tombstones": ("stream, seq", "hash, position"),
    "sealed": ("stream, seq", "number"),
    "roots": ("number", "events, at, hash"),
    "blobs": ("digest", "size, body"),
    "blob_refs": ("stream, digest", ""),
    "texts": ("rowid", "text"),
}


_LAST_POSITION = (
    "SELECT coalesce(max(position), 0) FROM "
    "(SELECT position FROM events UNION ALL SELECT position FROM tombstones) AS ever"
)


async def transfer(source: Path, target: Path, folds: Folds | None = None) -> Verification:
    """Copies one ledger into another, and returns the verification of the copy.

    Raises `InvalidArgument` if the target is a ledger with events, and `Conflict` if a mission of the source is driven.
    """
    ledger = _existing(source, target)
    try:
        root = await _quiet_root(ledger)
        with _reading(source) as rows, _writing(target) as copy:
            if copy.begun() != root:
                copy.begin(root, rows.execute(_LAST_POSITION).fetchone()[0])
            for table in _TABLES:
                _copy(rows, copy, table)
            streams = "streams" if address_of(source) is None else "listing"
            copy.finish(rows.execute(f"SELECT {_STREAMS} FROM {streams} ORDER BY id").fetchall())  # noqa: S608
        if await ledger.root() != root:
            raise Conflict("the ledger grew during the copy; stop the processes that use it, then copy it again")
    finally:
        await ledger.close()
    copied = open_ledger(target)
    try:
        found = await copied.verify(expect=root, folds=folds)
    finally:
        await copied.close()
    if found.root != root:
        raise LedgerUnavailable(f"the root of the copy is {found.root}, not {root}; do not use it", path=str(target))
    return found


def _existing(source: Path, target: Path) -> Ledger:
    if source.resolve() == target.resolve():
        raise InvalidArgument("the ledgers to copy from and to are the same", field="--to")
    if address_of(source) is None and not source.is_file():
        raise InvalidArgument(f"ledger {source} does not exist", field="--from")
    return open_ledger(source)


async def _quiet_root(ledger: Ledger) -> str:
    async for row in every_stream(ledger, kind="mission", status="running"):
        if await ledger.is_claimed(row.name):
            raise Conflict(f"{row.name} is being driven; stop that process before you copy its ledger", stream=row.name)
    return await ledger.root()


def _copy(rows: SqlConnection, copy: _IntoSqlite | _IntoPostgres, table: str) -> None:
    """Copies the rows of a table after the last one in the target."""
    key, others = _TABLES[table]
    columns, width = f"{key}, {others}" if others else key, len(key.split(", "))
    marks = ", ".join("?" * width)
    backwards = ", ".join(f"{name} DESC" for name in key.split(", "))
    last = copy.rows().execute(f"SELECT {key} FROM {table} ORDER BY {backwards} LIMIT 1").fetchone()  # noqa: S608
    while True:
        after = "" if last is None else f"WHERE ({key}) > ({marks})"
        query = f"SELECT {columns} FROM {table} {after} ORDER BY {key} LIMIT {ROWS}"  # noqa: S608 - the table above
        some = rows.execute(query, () if last is None else tuple(last)).fetchall()
        if not some:
            return
        copy.put(table, columns, some)
        last = some[-1][:width]


@contextmanager
def _reading(path: Path) -> Generator[SqlConnection]:
    address = address_of(path)
    if address is None:
        with closing(schema.open_reader(path)) as connection:
            yield connection
        return
    from pursuit.ledger.postgres import snapshot  # noqa: PLC0415 - psycopg loads only when needed

    with snapshot(address) as rows:
        yield rows


@contextmanager
def _writing(path: Path) -> Generator[_IntoSqlite | _IntoPostgres]:
    address = address_of(path)
    if address is None:
        with _into_sqlite(path) as target:
            yield target
        return
    from pursuit.ledger.postgres import index_words, unavailable  # noqa: PLC0415
    from pursuit.ledger.postgres_schema import psycopg  # noqa: PLC0415

    try:
        with _into_postgres(address, index_words) as target:
            yield target
    except psycopg.Error as error:
        raise unavailable(address, error) from error


class _IntoSqlite:
    """A copy in a file beside the target, which is renamed to it in the end."""

    def __init__(self, path: Path, partial: Path) -> None:
        self._path = path
        self._partial = partial
        self._connection: sqlite3.Connection | None = None

    def begun(self) -> str | None:
        """The root of the source whose copy was begun here; None without a copy."""
        if not self._partial.exists():
            return None
        row = self._open().execute("SELECT root FROM copying").fetchone()
        return None if row is None else row[0]

    def begin(self, root: str, position: int) -> None:
        """Removes an older copy, and records the source of this one; events without a position get later ones."""
        self.close()
        for suffix in ("", "-wal", "-shm", "-gate"):
            self._partial.with_name(self._partial.name + suffix).unlink(missing_ok=True)
        connection = self._open()
        connection.execute("CREATE TABLE copying (root TEXT NOT NULL)")
        connection.execute("INSERT INTO copying VALUES (?)", (root,))
        connection.execute("INSERT INTO sqlite_sequence VALUES ('events', ?)", (position,))

    def rows(self) -> SqlConnection:
        return self._open()

    def put(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        names = columns.split(", ")
        if table == "texts":
            rows = [(place, text.decode() if isinstance(text, bytes) else text) for place, text in rows]
        elif table == "roots":
            names, rows = [*names, "position"], [(*row, 0) for row in rows]
        connection = self._open()
        connection.execute("BEGIN")
        marks = ", ".join("?" for _ in names)
        connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)  # noqa: S608
        connection.execute("COMMIT")

    def finish(self, streams: Sequence[Sequence[Any]]) -> None:
        """Stores the streams, and makes the copy a sealed ledger."""
        connection = self._open()
        self.put("streams", _STREAMS, streams)
        connection.execute("UPDATE roots SET position = (SELECT seq FROM sqlite_sequence WHERE name = 'events')")
        connection.execute("DROP TABLE copying")
        self.close()
        self._partial.rename(self._path)
        self._partial.with_name(f"{self._partial.name}-gate").unlink(missing_ok=True)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            schema.open_file(self._partial).close()
            self._connection = schema.connect(self._partial)
        return self._connection


@contextmanager
def _into_sqlite(path: Path) -> Generator[_IntoSqlite | _IntoPostgres]:
    if path.exists():
        raise InvalidArgument(f"{path} already exists; name a new file", field="--to")
    target = _IntoSqlite(path, path.with_name(f"{path.name}.partial"))
    try:
        yield target
    except sqlite3.Error as error:
        raise schema.unavailable(path, error) from error
    finally:
        target.close()


class _IntoPostgres:
    """A copy in a schema that `prepare` refuses to open until it is complete."""

    def __init__(self, connection: Any, index_words: Callable[[str], Iterable[str]]) -> None:
        self._connection = connection
        self._index_words = index_words

    def begun(self) -> str | None:
        if self._value("SELECT to_regclass('pursuit.copying') IS NOT NULL"):
            return self._value("SELECT root FROM pursuit.copying")
        return None

    def begin(self, root: str, _position: int) -> None:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL pursuit.forgetting = 'on'")
            self._connection.execute("DROP TABLE IF EXISTS pursuit.copying")
            self._connection.execute("CREATE TABLE pursuit.copying (root text NOT NULL)")
            self._connection.execute("INSERT INTO pursuit.copying VALUES (%s)", (root,))
            tables = ", ".join(f"pursuit.{name}" for name in ("streams", *_TABLES, "grown", "writers", "leases"))
            self._connection.execute(f"TRUNCATE {tables}")
            self._connection.execute("UPDATE pursuit.sealing SET seen = NULL")

    def rows(self) -> SqlConnection:
        return self

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """A query of `_copy`; see `chain.Connection`."""
        return self._connection.execute(cast("LiteralString", query.replace("?", "%s")), values)

    def put(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if table == "texts":
                for place, text in rows:
                    plain: str = text.decode() if isinstance(text, bytes) else text
                    counts = Counter(self._index_words(plain))
                    values = (place, plain.encode(), list(counts), list(counts.values()))
                    cursor.execute("SELECT pursuit.put_text(%s, %s, %s::text[], %s::bigint[])", values)
                return
            if table == "streams":
                columns = columns.replace("head_seq, head_hash", "summary_seq")
                rows = [(*row[:7], row[8]) for row in rows]
            marks = ", ".join("%s" for _ in columns.split(", "))
            cursor.executemany(
                f"INSERT INTO pursuit.{table} ({columns}) OVERRIDING SYSTEM VALUE VALUES ({marks})",  # noqa: S608
                rows,
            )

    def finish(self, streams: Sequence[Sequence[Any]]) -> None:
        with self._connection.transaction():
            self.put("streams", _STREAMS, streams)
            last = max((row[0] for row in streams), default=0)
            self._connection.execute(f"ALTER TABLE pursuit.streams ALTER COLUMN id RESTART WITH {int(last) + 1}")
            self._connection.execute("DROP TABLE pursuit.copying")

    def _value(self, query: LiteralString) -> Any:
        return self._connection.execute(query).fetchone()[0]


@contextmanager
def _into_postgres(address: str, index_words: Callable[[str], Iterable[str]]) -> Generator[_IntoSqlite | _IntoPostgres]:
    from pursuit.ledger.postgres_schema import connection_settings, migrate_up, psycopg, shown  # noqa: PLC0415

    migrate_up(address)
    with psycopg.connect(connection_settings(address), autocommit=True) as connection:
        connection.execute("SET search_path = pursuit, pg_catalog")
        target = _IntoPostgres(connection, index_words)
        if target.begun() is None and connection.execute("SELECT 1 FROM pursuit.streams LIMIT 1").fetchone():
            raise InvalidArgument(f"{shown(address)} has a ledger with events; name an empty database", field="--to")
        yield target
