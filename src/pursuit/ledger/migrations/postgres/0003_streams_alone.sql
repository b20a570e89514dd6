-- A stream has an order, the ledger has none: no row is left that all writers share, and a commit updates no row that
-- another commit updated. Functions and views are in `functions.sql`.

-- Positions of an older release stay, so its roots and the digests of its tombstones can be checked.
ALTER TABLE pursuit.events DROP CONSTRAINT events_pkey, ALTER COLUMN position DROP NOT NULL;
ALTER TABLE pursuit.events DROP CONSTRAINT events_stream_seq_key, ADD PRIMARY KEY (stream, seq);
ALTER TABLE pursuit.tombstones DROP CONSTRAINT tombstones_pkey, ALTER COLUMN position DROP NOT NULL;
DROP INDEX pursuit.tombstones_by_stream;
ALTER TABLE pursuit.tombstones ADD PRIMARY KEY (stream, seq);

-- The end of a stream is its last event. `summary` and `updated_at` are those of the event `summary_seq`, which may be
-- an earlier one; `status` is always that of the last event.
ALTER TABLE pursuit.streams RENAME COLUMN head_seq TO summary_seq;
ALTER TABLE pursuit.streams DROP COLUMN head_hash;

-- Which streams grew in which transaction, up to which event: one row for each stream and commit, for readers of
-- everything and for `seal`. Events have no transaction id: after a dump and a restore ids begin again.
CREATE TABLE pursuit.grown (
    xact   xid8   NOT NULL,
    stream bigint NOT NULL,
    seq    bigint NOT NULL,
    PRIMARY KEY (xact, stream) INCLUDE (seq)
);

-- Each root is hashed onto the one before it, over the heads of the streams that grew meanwhile (`sealed`). `events`
-- counts all events that were ever stored.
CREATE TABLE pursuit.roots (
    number bigint           PRIMARY KEY,
    events bigint           NOT NULL,
    at     double precision NOT NULL,
    hash   bytea            NOT NULL
);
CREATE TABLE pursuit.sealed (
    stream bigint NOT NULL,
    seq    bigint NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (stream, seq)
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON pursuit.roots
    FOR EACH ROW EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON pursuit.roots EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON pursuit.sealed
    FOR EACH ROW EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON pursuit.sealed EXECUTE FUNCTION pursuit.refuse_change();

-- Where the last seal stopped reading `grown`, on which server; the rows that `below` sees go ten minutes after `since`.
-- Only `seal` changes it. NULL in `seen`: the next seal compares all streams with their last root.
CREATE TABLE pursuit.sealing (
    one    boolean     PRIMARY KEY DEFAULT true CHECK (one),
    seen   pg_snapshot,
    server bigint,
    below  pg_snapshot,
    since  timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO pursuit.sealing DEFAULT VALUES;

-- The last batches of each writing process, with their outcomes.
DROP TABLE pursuit.writers;
CREATE TABLE pursuit.writers (
    id        uuid        NOT NULL,
    batch     bigint      NOT NULL,
    seqs      bigint[]    NOT NULL,
    hashes    bytea[]     NOT NULL,
    refusals  text[]      NOT NULL,
    committed timestamptz NOT NULL,
    PRIMARY KEY (id, batch)
);

-- The stems of a text, each with as many positions as it occurs: candidates come from the index, ranks from the vector.
ALTER TABLE pursuit.texts ADD COLUMN words tsvector NOT NULL DEFAULT '';
UPDATE pursuit.texts SET words = (
    SELECT coalesce(string_agg(format('''%s'':%s', w.word,
        (SELECT string_agg(n::text, ',') FROM generate_series(1, least(w.times, 255)) n)), ' '), '')::tsvector
    FROM pursuit.words w WHERE w.stream = texts.rowid
);
CREATE INDEX texts_by_words ON pursuit.texts USING gin (words);
CREATE INDEX texts_by_length ON pursuit.texts (length);
DROP TABLE pursuit.words;
DROP TABLE pursuit.ledger;
