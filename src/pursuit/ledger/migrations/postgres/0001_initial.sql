-- The first shape of a ledger on PostgreSQL. Tables and columns that SQLite has, too, have the same names and meanings.

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

-- The hash of one event, as `chain.link` computes it; the tag is 'pursuit event 1' and a NUL.
CREATE FUNCTION pursuit.link(
    previous bytea, stream text, seq bigint, at double precision, type text, body bytea
) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(
        '\x70757273756974206576656e74203100'::bytea || previous || int8send(seq) || float8send(at)
        || int4send(octet_length(stream)) || int4send(octet_length(type)) || int8send(octet_length(body))
        || convert_to(stream, 'UTF8') || convert_to(type, 'UTF8') || body
    )
$$;

CREATE FUNCTION pursuit.stem(word text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((ts_lexize('pg_catalog.english_stem', word))[1], word)
$$;

-- Stores a batch of appends in one transaction. Request i has counts[i] of the events, in order; a NULL in `expected` is
-- an append at the head, in `epochs` one without a claim, in the others no change. `owners` and `speakers` number the
-- requests of the blobs and of the words.
CREATE FUNCTION pursuit.commit(
    writer uuid, number bigint, now double precision,
    names text[], expected bigint[], epochs bigint[], kinds text[], statuses text[], summaries text[], texts bytea[],
    counts bigint[], types text[], bodies bytea[],
    owners bigint[], digests text[], blobs bytea[],
    speakers bigint[], words text[], times bigint[]
) RETURNS TABLE (first bigint, last bigint, seqs bigint[], hashes bytea[], refusals text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tip      record;
    known    boolean;
    refusal  text;
    seq      bigint;
    hash     bytea;
    event    integer := 0;
    positions bigint[] := '{}';
    places   bigint[] := '{}';
    numbers  bigint[] := '{}';
    links    bytea[] := '{}';
    kept     integer[] := '{}';
    total    integer := cardinality(types);
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Locks the head. Most batches are stored whole; where some of it is refused, the position is put right below.
    UPDATE pursuit.ledger SET position = ledger.position + total RETURNING ledger.position - total INTO last;
    SELECT * INTO tip FROM pursuit.writers WHERE id = writer;
    known := FOUND;
    IF known AND tip.batch >= number THEN
        UPDATE pursuit.ledger SET position = commit.last;
        RETURN QUERY SELECT tip.first, tip.last, tip.seqs, tip.hashes, tip.refusals;
        RETURN;
    END IF;
    first := last + 1;
    seqs := '{}';
    hashes := '{}';
    refusals := '{}';
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT id, head_seq, head_hash, status INTO tip FROM pursuit.streams WHERE name = names[i];
        seq := coalesce(tip.head_seq, 0);
        hash := coalesce(tip.head_hash, decode(repeat('00', 32), 'hex'));
        refusal := CASE
            WHEN expected[i] <> seq THEN 'conflict'
            WHEN tip.id IS NULL AND counts[i] = 0 THEN 'unborn'
            WHEN tip.status = 'forgotten' THEN 'forgotten'
        END;
        IF epochs[i] IS NOT NULL THEN
            PERFORM 1 FROM pursuit.leases WHERE stream = names[i] AND epoch = epochs[i];
            IF NOT FOUND THEN
                refusal := 'fenced';
            END IF;
        END IF;
        refusals[i] := refusal;
        seqs[i] := seq;
        hashes[i] := hash;
        IF refusal IS NOT NULL THEN
            event := event + counts[i];
            CONTINUE;
        END IF;
        IF tip.id IS NULL THEN
            INSERT INTO pursuit.streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary)
            VALUES (names[i], kinds[i], coalesce(statuses[i], ''), now, now, 0, hash, '{}')
            RETURNING id, status INTO tip.id, tip.status;
        END IF;
        FOR j IN 1 .. counts[i] LOOP
            event := event + 1;
            seq := seq + 1;
            last := last + 1;
            -- As `pursuit.link`, written out: a call of it costs more than all of its work.
            hash := sha256(
                '\x70757273756974206576656e74203100'::bytea || hash || int8send(seq) || float8send(now)
                || int4send(octet_length(names[i])) || int4send(octet_length(types[event]))
                || int8send(octet_length(bodies[event]))
                || convert_to(names[i], 'UTF8') || convert_to(types[event], 'UTF8') || bodies[event]
            );
            positions := positions || last;
            places := places || tip.id;
            numbers := numbers || seq;
            links := links || hash;
            kept := kept || event;
        END LOOP;
        seqs[i] := seq;
        hashes[i] := hash;
        UPDATE pursuit.streams SET
            head_seq = seq,
            head_hash = hash,
            updated_at = CASE WHEN counts[i] > 0 THEN now ELSE updated_at END,
            summary = coalesce(summaries[i], summary)
        WHERE id = tip.id;
        IF statuses[i] <> tip.status THEN
            UPDATE pursuit.streams SET status = statuses[i] WHERE id = tip.id;
        END IF;
        FOR j IN 1 .. cardinality(owners) LOOP
            IF owners[j] = i THEN
                INSERT INTO pursuit.blobs VALUES (digests[j], octet_length(blobs[j]), blobs[j]) ON CONFLICT DO NOTHING;
                INSERT INTO pursuit.blob_refs VALUES (tip.id, digests[j]) ON CONFLICT DO NOTHING;
            END IF;
        END LOOP;
        IF texts[i] IS NOT NULL THEN
            PERFORM pursuit.drop_text(tip.id);
            PERFORM pursuit.put_text(
                tip.id, texts[i],
                (SELECT array_agg(one.word) FROM unnest(speakers, words) AS one (speaker, word) WHERE one.speaker = i),
                (SELECT array_agg(one.times) FROM unnest(speakers, times) AS one (speaker, times) WHERE one.speaker = i)
            );
        END IF;
    END LOOP;
    IF last >= first THEN
        IF last = first THEN
            INSERT INTO pursuit.events
            VALUES (last, places[1], numbers[1], now, types[kept[1]], bodies[kept[1]], links[1]);
        ELSE
            INSERT INTO pursuit.events
            SELECT one.position, one.stream, one.seq, now, types[one.event], bodies[one.event], one.hash
            FROM unnest(positions, places, numbers, links, kept) AS one (position, stream, seq, hash, event);
        END IF;
        PERFORM pg_notify('pursuit', last::text);
    END IF;
    IF last - first + 1 <> total THEN
        UPDATE pursuit.ledger SET position = commit.last;
    END IF;
    IF last < first THEN
        first := 0;
        last := 0;
    END IF;
    IF known THEN
        UPDATE pursuit.writers SET
            batch = number, first = commit.first, last = commit.last, seqs = commit.seqs, hashes = commit.hashes,
            refusals = commit.refusals, committed = clock_timestamp()
        WHERE id = writer;
    ELSE
        DELETE FROM pursuit.writers WHERE committed < clock_timestamp() - interval '30 days';
        DELETE FROM pursuit.leases WHERE until < clock_timestamp() - interval '1 day';
        INSERT INTO pursuit.writers VALUES (writer, number, first, last, seqs, hashes, refusals, clock_timestamp());
    END IF;
    RETURN NEXT;
END
$$;

CREATE FUNCTION pursuit.drop_text(place bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM pursuit.texts WHERE rowid = place RETURNING length INTO gone;
    IF FOUND THEN
        DELETE FROM pursuit.words WHERE stream = place;
        UPDATE pursuit.ledger SET texts = texts - 1, words = words - gone;
    END IF;
END
$$;

CREATE FUNCTION pursuit.put_text(place bigint, text bytea, stated text[], times bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    total integer := coalesce((SELECT sum(one) FROM unnest(times) AS one), 0);
BEGIN
    INSERT INTO pursuit.texts VALUES (place, text, total);
    INSERT INTO pursuit.words
    SELECT pursuit.stem(one.word), place, sum(one.times) FROM unnest(stated, times) AS one (word, times) GROUP BY 1;
    UPDATE pursuit.ledger SET texts = ledger.texts + 1, words = ledger.words + total;
END
$$;

-- Removes what `tombstones.forget` removes, and appends the `Forgotten` event that the caller made for the head at
-- `seen`; false if the stream has grown since.
CREATE FUNCTION pursuit.forget(
    wanted text, seen bigint, now double precision, audit text, type text, body bytea
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tip  record;
    head record;
    next bigint;
    hash bytea;
BEGIN
    SELECT position + 1 INTO next FROM pursuit.ledger FOR UPDATE;
    SELECT id, head_seq INTO tip FROM pursuit.streams WHERE name = wanted AND status <> 'forgotten';
    IF tip.id IS NULL THEN
        RETURN true;
    ELSIF tip.head_seq <> seen THEN
        RETURN false;
    END IF;
    PERFORM set_config('pursuit.forgetting', 'on', true);
    INSERT INTO pursuit.tombstones SELECT e.position, e.stream, e.seq, e.hash FROM pursuit.events e WHERE e.stream = tip.id;
    DELETE FROM pursuit.blobs b WHERE b.digest IN (SELECT r.digest FROM pursuit.blob_refs r WHERE r.stream = tip.id)
        AND NOT EXISTS (SELECT 1 FROM pursuit.blob_refs r WHERE r.digest = b.digest AND r.stream <> tip.id);
    DELETE FROM pursuit.blob_refs r WHERE r.stream = tip.id;
    DELETE FROM pursuit.events e WHERE e.stream = tip.id;
    PERFORM pursuit.drop_text(tip.id);
    UPDATE pursuit.streams SET status = 'forgotten', summary = '{}', updated_at = now WHERE id = tip.id;
    INSERT INTO pursuit.streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary)
    VALUES (audit, audit, 'open', now, now, 0, decode(repeat('00', 32), 'hex'), '{}') ON CONFLICT (name) DO NOTHING;
    SELECT s.id, s.head_seq + 1 AS seq, s.head_hash AS hash INTO head FROM pursuit.streams s WHERE s.name = audit;
    hash := pursuit.link(head.hash, audit, head.seq, now, type, body);
    INSERT INTO pursuit.events VALUES (next, head.id, head.seq, now, type, body, hash);
    UPDATE pursuit.streams SET head_seq = head.seq, head_hash = hash, updated_at = now WHERE id = head.id;
    UPDATE pursuit.ledger SET position = next;
    PERFORM set_config('pursuit.forgetting', '', true);
    PERFORM pg_notify('pursuit', next::text);
    RETURN true;
END
$$;

-- Takes the lease of a stream if it is free, has run out, or belongs to the `dead` epoch; `epoch` is NULL if another
-- holder has it. The head row is locked, so no append under the old epoch is under way when this returns.
CREATE FUNCTION pursuit.claim(
    wanted text, seconds double precision, host text, pid integer, process text, since double precision, dead bigint
) RETURNS TABLE (epoch bigint, held bigint, held_host text, held_pid integer, held_process text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder record;
BEGIN
    PERFORM 1 FROM pursuit.ledger FOR UPDATE;
    SELECT * INTO holder FROM pursuit.leases l WHERE l.stream = wanted;
    IF FOUND AND holder.until > clock_timestamp() AND holder.epoch IS DISTINCT FROM dead THEN
        RETURN QUERY SELECT NULL::bigint, holder.epoch, holder.host, holder.pid, holder.process;
        RETURN;
    END IF;
    DELETE FROM pursuit.leases l WHERE l.stream = wanted;
    epoch := nextval('pursuit.epochs');
    INSERT INTO pursuit.leases
    VALUES (wanted, epoch, clock_timestamp() + seconds * interval '1 second', host, pid, process, since);
    RETURN NEXT;
END
$$;

-- Renews leases; returns the epochs that still hold. One that has run out holds until another holder takes it.
CREATE FUNCTION pursuit.renew(held bigint[], seconds double precision) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pursuit.leases SET until = clock_timestamp() + seconds * interval '1 second'
    WHERE epoch = ANY (held) RETURNING epoch
$$;

CREATE FUNCTION pursuit.release(wanted text, held bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM pursuit.leases WHERE stream = wanted AND epoch = held
$$;

-- A role that may run Pursuit reads the tables and calls these functions; it changes no row in any other way.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pursuit FROM PUBLIC;
CREATE FUNCTION pursuit.grant_runtime(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pursuit TO %I', role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA pursuit TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION pursuit.commit, pursuit.forget, pursuit.claim, pursuit.renew, '
                   'pursuit.release, pursuit.stem TO %I', role);
END
$$;
REVOKE ALL ON FUNCTION pursuit.grant_runtime FROM PUBLIC;
