-- The first shape of a ledger. `stream` in events and blob_refs is streams.id: a number is shorter than a name.

-- 'PURS': a database of another program is told apart by it.
PRAGMA application_id = 1347768915;

CREATE TABLE streams (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL UNIQUE,
    kind       TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    created_at REAL    NOT NULL,
    updated_at REAL    NOT NULL,
    head_seq   INTEGER NOT NULL,
    head_hash  BLOB    NOT NULL,
    summary    TEXT    NOT NULL
);
CREATE INDEX streams_by_creation ON streams (created_at, id);
CREATE INDEX streams_by_kind ON streams (kind, created_at, id);
CREATE INDEX streams_by_status ON streams (status, created_at, id);

-- AUTOINCREMENT: a position is never given twice, so `position > last seen` is a safe cursor even after a forget.
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    stream   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    at       REAL    NOT NULL,
    type     TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    hash     BLOB    NOT NULL,
    UNIQUE (stream, seq)
);

-- What stays of the events of a forgotten stream: their places and hashes, so that an earlier root can still be checked.
CREATE TABLE tombstones (
    position INTEGER PRIMARY KEY,
    stream   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    hash     BLOB    NOT NULL
);
CREATE INDEX tombstones_by_stream ON tombstones (stream);

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    size   INTEGER NOT NULL,
    body   BLOB    NOT NULL
);

-- Which streams stored which blob: the last one to be forgotten takes the blob along.
CREATE TABLE blob_refs (
    stream INTEGER NOT NULL,
    digest TEXT    NOT NULL,
    PRIMARY KEY (stream, digest)
) WITHOUT ROWID;
CREATE INDEX blob_refs_by_digest ON blob_refs (digest);
