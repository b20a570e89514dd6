-- The first shape of the tables on PostgreSQL. Tables and columns that SQLite has, too, have the same names and meanings.

-- The head of the whole ledger. Each commit locks this row first, so positions are given in the order of commits: with a
-- sequence a reader could see position 7 before position 6 and skip it for ever.
CREATE TABLE pursuit.ledger (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint  NOT NULL DEFAULT 0,
    texts    bigint  NOT NULL DEFAULT 0,
    words    bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO pursuit.ledger DEFAULT VALUES;

CREATE TABLE pursuit.streams (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text   COLLATE "C" NOT NULL UNIQUE,
    kind       text   COLLATE "C" NOT NULL,
    status     text   COLLATE "C" NOT NULL,
    created_at double precision   NOT NULL,
    updated_at double precision   NOT NULL,
    head_seq   bigint NOT NULL,
    head_hash  bytea  NOT NULL,
    summary    text   NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX streams_by_creation ON pursuit.streams (created_at, id);
CREATE INDEX streams_by_kind ON pursuit.streams (kind, created_at, id);
CREATE INDEX streams_by_status ON pursuit.streams (status, created_at, id);

CREATE TABLE pursuit.events (
    position bigint PRIMARY KEY,
    stream   bigint NOT NULL,
    seq      bigint NOT NULL,
    at       double precision NOT NULL,
    type     text   NOT NULL,
    body     bytea  NOT NULL,
    hash     bytea  NOT NULL,
    UNIQUE (stream, seq)
);

CREATE TABLE pursuit.tombstones (
    position bigint PRIMARY KEY,
    stream   bigint NOT NULL,
    seq      bigint NOT NULL,
    hash     bytea  NOT NULL
);
CREATE INDEX tombstones_by_stream ON pursuit.tombstones (stream);

CREATE TABLE pursuit.blobs (
    digest text   COLLATE "C" PRIMARY KEY,
    size   bigint NOT NULL,
    body   bytea  NOT NULL
);

CREATE TABLE pursuit.blob_refs (
    stream bigint NOT NULL,
    digest text   COLLATE "C" NOT NULL,
    PRIMARY KEY (stream, digest)
);
CREATE INDEX blob_refs_by_digest ON pursuit.blob_refs (digest);

-- What streams are found by: the text as UTF-8, since a `text` of PostgreSQL holds no NUL, and the stems of its words.
CREATE TABLE pursuit.texts (
    rowid  bigint  PRIMARY KEY,
    text   bytea   NOT NULL,
    length integer NOT NULL
);
CREATE TABLE pursuit.words (
    word   text    COLLATE "C" NOT NULL,
    stream bigint  NOT NULL,
    times  integer NOT NULL,
    PRIMARY KEY (word, stream)
);
CREATE INDEX words_by_stream ON pursuit.words (stream);

-- The last batch of each writing process, with its outcome. A batch that is sent again because the connection was lost
-- before the answer came is not stored again.
CREATE TABLE pursuit.writers (
    id        uuid        PRIMARY KEY,
    batch     bigint      NOT NULL,
    first     bigint      NOT NULL,
    last      bigint      NOT NULL,
    seqs      bigint[]    NOT NULL,
    hashes    bytea[]     NOT NULL,
    refusals  text[]      NOT NULL,
    committed timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE SEQUENCE pursuit.epochs;
CREATE TABLE pursuit.leases (
    stream  text             COLLATE "C" PRIMARY KEY,
    epoch   bigint           NOT NULL,
    until   timestamptz      NOT NULL,
    host    text             NOT NULL,
    pid     integer          NOT NULL,
    process text             NOT NULL,
    since   double precision NOT NULL
);

-- An event leaves its table only through `forget`, also for the owner of the table, whom no grant binds.
CREATE FUNCTION pursuit.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('pursuit.forgetting', true), '') <> 'on' THEN
        RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON pursuit.events
    FOR EACH ROW EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON pursuit.events EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON pursuit.tombstones
    FOR EACH ROW EXECUTE FUNCTION pursuit.refuse_change();
CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON pursuit.tombstones EXECUTE FUNCTION pursuit.refuse_change();
