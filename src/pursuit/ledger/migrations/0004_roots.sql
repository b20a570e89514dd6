-- Each root is hashed onto the one before it, over the heads of the streams that grew meanwhile (`sealed`). `events`
-- counts all events that were ever stored; up to `position` everything is sealed.
CREATE TABLE roots (
    number   INTEGER PRIMARY KEY,
    events   INTEGER NOT NULL,
    at       REAL    NOT NULL,
    hash     BLOB    NOT NULL,
    position INTEGER NOT NULL
);
CREATE TABLE sealed (
    stream INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (stream, seq)
) WITHOUT ROWID;

-- Positions of an older release stay, so its roots and the digests of its tombstones can be checked.
ALTER TABLE tombstones RENAME TO placed_tombstones;
CREATE TABLE tombstones (
    stream   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    hash     BLOB    NOT NULL,
    position INTEGER,
    PRIMARY KEY (stream, seq)
) WITHOUT ROWID;
INSERT OR IGNORE INTO tombstones (stream, seq, hash, position)
SELECT stream, seq, hash, position FROM placed_tombstones;
DROP TABLE placed_tombstones;
