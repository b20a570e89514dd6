-- The functions and views of the schema, made anew after each migration; after a release a change of one needs a new
-- migration, also if that has no statement. Writers call functions and change no table in
-- any other way; each function that decides under a lock needs `read committed`, where each statement sees what was
-- committed before it.
--
-- Order of locks: a writer, the blobs, the seal, streams by name, then leases, then jobs by name. Advisory locks have the class 1347768915
-- ('PURS': 1 the blobs, 2 the seal) or 1347768916 (a writer).

DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT oid FROM pg_proc WHERE pronamespace = 'pursuit'::regnamespace AND proname <> 'refuse_change' LOOP
        EXECUTE format('DROP FUNCTION %s', one);
    END LOOP;
END
$$;

-- Jobs, and whether nobody does them: they are due, or their worker was silent for too long. By the time of the
-- transaction: with a volatile time a query could not use the order of an index.
CREATE VIEW pursuit.job_list AS
SELECT j.*, CASE WHEN j.worker IS NULL THEN j.due <= now() ELSE NOT EXISTS (
    SELECT 1 FROM pursuit.workers w WHERE w.process = j.worker AND w.until > now()
) END AS free FROM pursuit.jobs j;

-- Streams with their ends; of a forgotten one the last tombstone.
CREATE VIEW pursuit.listing AS
SELECT s.id, s.name, s.kind, s.status, s.created_at, coalesce(e.at, s.updated_at) AS updated_at,
       coalesce(e.seq, t.seq) AS head_seq, coalesce(e.hash, t.hash) AS head_hash, s.summary, s.summary_seq
FROM pursuit.streams s
LEFT JOIN LATERAL (
    SELECT one.seq, one.hash, one.at FROM pursuit.events one WHERE one.stream = s.id ORDER BY one.seq DESC LIMIT 1
) e ON true
LEFT JOIN LATERAL (
    SELECT one.seq, one.hash FROM pursuit.tombstones one WHERE s.status = 'forgotten' AND one.stream = s.id
    ORDER BY one.seq DESC LIMIT 1
) t ON true;

CREATE FUNCTION pursuit.require_read_committed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the transaction is % and must be read committed', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

CREATE FUNCTION pursuit.stem(word text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((ts_lexize('pg_catalog.english_stem', word))[1], word)
$$;

-- Replaces the text by which a stream is found; `stated` are its words, `times` how often each occurs.
CREATE FUNCTION pursuit.put_text(place bigint, text bytea, stated text[], times bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO pursuit.texts AS t (rowid, text, length, words)
    SELECT place, put_text.text, coalesce(sum(one.times), 0), coalesce(string_agg(format('''%s'':%s', one.stem,
        (SELECT string_agg(n::text, ',') FROM generate_series(1, least(one.times, 255)) n)), ' '), '')::tsvector
    FROM (
        SELECT pursuit.stem(given.word) AS stem, sum(given.times)::bigint AS times
        FROM unnest(stated, put_text.times) AS given (word, times) GROUP BY 1
    ) AS one
    ON CONFLICT (rowid) DO UPDATE SET text = EXCLUDED.text, length = EXCLUDED.length, words = EXCLUDED.words
$$;

-- Stores a batch of appends in one transaction; the requests are sorted by stream. Request i has counts[i] of the events,
-- in order; a NULL in `expected` is an append at the head, in `epochs` one without a claim, in the others no change.
-- A summary is that of event marks[i], or of the new head. `owners`, `speakers` and `queued` number the requests of the
-- blobs, of the words and of the jobs that come with the events. A batch that is sent again gets the outcome of the first one.
CREATE FUNCTION pursuit.commit(
    writer uuid, number bigint, now double precision, holder text,
    names text[], expected bigint[], epochs bigint[], kinds text[], statuses text[], summaries text[], marks bigint[],
    texts bytea[], counts bigint[], types text[], bodies bytea[],
    owners bigint[], digests text[], blobs bytea[],
    speakers bigint[], words text[], times bigint[],
    queued bigint[], needs text[], callers text[]
) RETURNS TABLE (seqs bigint[], hashes bytea[], refusals text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    genesis constant bytea := decode(repeat('00', 32), 'hex');
    tip      record;
    place    bigint;
    known    bigint;
    standing text;
    refusal  text;
    head     bigint;
    link     bytea;
    event    integer := 0;
    places   bigint[] := '{}';
    numbers  bigint[] := '{}';
    links    bytea[] := '{}';
    kept     integer[] := '{}';
    homes    bigint[] := '{}';
BEGIN
    PERFORM pursuit.require_read_committed();
    -- The same batch that is sent again waits here for the lost one.
    PERFORM pg_advisory_xact_lock(1347768916, hashtext(writer::text));
    SELECT w.seqs, w.hashes, w.refusals INTO tip FROM pursuit.writers w
    WHERE w.id = writer AND w.batch >= number ORDER BY w.batch LIMIT 1;
    IF FOUND THEN
        RETURN QUERY SELECT tip.seqs, tip.hashes, tip.refusals;
        RETURN;
    END IF;
    IF cardinality(digests) > 0 THEN
        PERFORM pg_advisory_xact_lock_shared(1347768915, 1);  -- `forget_blobs` takes it alone
    END IF;
    seqs := '{}';
    hashes := '{}';
    refusals := '{}';
    FOR i IN 1 .. cardinality(names) LOOP
        LOOP
            SELECT s.id, s.status INTO place, standing FROM pursuit.streams s WHERE s.name = names[i] FOR NO KEY UPDATE;
            IF place IS NULL THEN
                head := 0;
                link := genesis;
            ELSIF place IS DISTINCT FROM known THEN
                known := place;
                SELECT e.seq, e.hash INTO tip FROM pursuit.events e WHERE e.stream = place ORDER BY e.seq DESC LIMIT 1;
                IF standing = 'forgotten' THEN
                    SELECT t.seq, t.hash INTO tip FROM pursuit.tombstones t WHERE t.stream = place
                    ORDER BY t.seq DESC LIMIT 1;
                END IF;
                head := tip.seq;
                link := tip.hash;
            END IF;
            refusal := CASE
                WHEN expected[i] <> head THEN 'conflict'
                WHEN place IS NULL AND counts[i] = 0 THEN 'unborn'
                WHEN standing = 'forgotten' THEN 'forgotten'
            END;
            -- In a statement after the lock, which sees each claim that was committed before. `claim` of a stream that
            -- has not begun waits for the lock on the lease.
            IF epochs[i] IS NOT NULL THEN
                IF place IS NULL THEN
                    PERFORM 1 FROM pursuit.leases l
                    WHERE l.stream = names[i] AND l.epoch = epochs[i] AND l.process = holder FOR SHARE;
                ELSE
                    PERFORM 1 FROM pursuit.leases l
                    WHERE l.stream = names[i] AND l.epoch = epochs[i] AND l.process = holder;
                END IF;
                IF NOT FOUND THEN
                    refusal := 'fenced';
                END IF;
            END IF;
            EXIT WHEN refusal IS NOT NULL OR place IS NOT NULL;
            INSERT INTO pursuit.streams AS s (name, kind, status, created_at, updated_at, summary_seq, summary)
            VALUES (names[i], kinds[i], coalesce(statuses[i], ''), now, now, counts[i], coalesce(summaries[i], '{}'))
            ON CONFLICT DO NOTHING RETURNING s.id, s.status INTO place, standing;
            known := place;
            EXIT WHEN FOUND;  -- else another process began it meanwhile: look again
        END LOOP;
        refusals[i] := refusal;
        homes[i] := CASE WHEN refusal IS NULL THEN place END;
        IF refusal IS NOT NULL THEN
            seqs[i] := head;
            hashes[i] := link;
            event := event + counts[i];
            CONTINUE;
        END IF;
        FOR j IN 1 .. counts[i] LOOP
            event := event + 1;
            head := head + 1;
            -- As `chain.link` computes it; the tag is 'pursuit event 1' and a NUL.
            link := sha256(
                '\x70757273756974206576656e74203100'::bytea || link || int8send(head) || float8send(now)
                || int4send(octet_length(names[i])) || int4send(octet_length(types[event]))
                || int8send(octet_length(bodies[event]))
                || convert_to(names[i], 'UTF8') || convert_to(types[event], 'UTF8') || bodies[event]
            );
            places := places || place;
            numbers := numbers || head;
            links := links || link;
            kept := kept || event;
        END LOOP;
        seqs[i] := head;
        hashes[i] := link;
        IF statuses[i] <> standing THEN
            UPDATE pursuit.streams s SET status = statuses[i] WHERE s.id = place;
        END IF;
        IF summaries[i] IS NOT NULL THEN
            UPDATE pursuit.streams s SET
                summary = summaries[i],
                summary_seq = coalesce(marks[i], head),
                updated_at = CASE WHEN counts[i] > 0 THEN now ELSE coalesce((
                    SELECT e.at FROM pursuit.events e WHERE e.stream = place AND e.seq = coalesce(marks[i], head)
                ), now) END
            WHERE s.id = place AND s.summary_seq <= coalesce(marks[i], head);
        END IF;
        IF texts[i] IS NOT NULL THEN
            PERFORM pursuit.put_text(
                place, texts[i],
                (SELECT array_agg(one.word) FROM unnest(speakers, words) AS one (speaker, word) WHERE one.speaker = i),
                (SELECT array_agg(one.times) FROM unnest(speakers, times) AS one (speaker, times) WHERE one.speaker = i)
            );
        END IF;
    END LOOP;
    IF cardinality(places) > 0 THEN
        INSERT INTO pursuit.events (stream, seq, at, type, body, hash)
        SELECT one.stream, one.seq, now, types[one.event], bodies[one.event], one.hash
        FROM unnest(places, numbers, links, kept) AS one (stream, seq, hash, event);
        INSERT INTO pursuit.grown
        SELECT pg_current_xact_id(), one.stream, max(one.seq) FROM unnest(places, numbers) AS one (stream, seq) GROUP BY 2;
    END IF;
    IF cardinality(digests) > 0 THEN
        INSERT INTO pursuit.blobs
        SELECT DISTINCT ON (one.digest) one.digest, octet_length(one.body), one.body
        FROM unnest(owners, digests, blobs) AS one (owner, digest, body)
        WHERE homes[one.owner] IS NOT NULL ORDER BY one.digest ON CONFLICT DO NOTHING;
        INSERT INTO pursuit.blob_refs
        SELECT DISTINCT homes[one.owner], one.digest FROM unnest(owners, digests) AS one (owner, digest)
        WHERE homes[one.owner] IS NOT NULL ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(queued) > 0 THEN
        PERFORM pursuit.enqueue(one.name, one.needs, one.caller, 0) FROM (
            SELECT names[o.owner] AS name, o.needs, o.caller FROM unnest(queued, needs, callers) AS o (owner, needs, caller)
            WHERE homes[o.owner] IS NOT NULL ORDER BY 1
        ) AS one;
    END IF;
    INSERT INTO pursuit.writers VALUES (writer, number, seqs, hashes, refusals, clock_timestamp());
    IF number % 64 = 0 THEN
        -- Not all that are older: beside a long snapshot it would pass the removed ones again each time.
        DELETE FROM pursuit.writers w WHERE w.id = writer AND w.batch >= number - 128 AND w.batch < number;
    END IF;
    RETURN NEXT;
END
$$;

-- Whether the database was restored, or is another server's, since the last seal: then transaction ids began again.
CREATE FUNCTION pursuit.is_restored() RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.seen IS NULL OR s.server IS DISTINCT FROM (SELECT c.system_identifier FROM pg_control_system() c)
        OR pg_snapshot_xmax(s.seen) > pg_snapshot_xmax(pg_current_snapshot())
        OR coalesce((SELECT max(g.xact) FROM pursuit.grown g) >= pg_snapshot_xmax(pg_current_snapshot()), false)
    FROM pursuit.sealing s
$$;

-- Hashes the heads of the streams that grew since the last root onto it, or the head of one stream alone. Sealers wait for
-- each other, writers for nobody; without `patient` nothing happens while another process seals.
CREATE FUNCTION pursuit.seal(patient boolean, alone bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tip   pursuit.roots;
    state pursuit.sealing;
    whole boolean;
BEGIN
    PERFORM pursuit.require_read_committed();
    IF patient THEN
        PERFORM pg_advisory_xact_lock(1347768915, 2);
    ELSIF NOT pg_try_advisory_xact_lock(1347768915, 2) THEN
        RETURN;
    END IF;
    SELECT * INTO tip FROM pursuit.roots r ORDER BY r.number DESC LIMIT 1;
    IF NOT FOUND THEN
        tip := ROW(0, 0, 0, decode(repeat('00', 32), 'hex'));
    END IF;
    SELECT * INTO state FROM pursuit.sealing;
    whole := pursuit.is_restored();
    -- One statement, so one snapshot: the next seal goes on exactly where this one ends.
    WITH grown AS MATERIALIZED (
        SELECT g.stream, max(g.seq) AS seq FROM pursuit.grown g
        WHERE alone IS NULL AND NOT whole AND (
            g.xact >= pg_snapshot_xmax(state.seen) OR g.xact = ANY (ARRAY(SELECT pg_snapshot_xip(state.seen)))
        ) GROUP BY g.stream
        UNION ALL
        SELECT one.stream, max(one.seq) FROM (
            SELECT e.stream, e.seq FROM pursuit.events e WHERE e.stream = alone OR (alone IS NULL AND whole)
            UNION ALL
            SELECT t.stream, t.seq FROM pursuit.tombstones t WHERE alone IS NULL AND whole
        ) AS one GROUP BY one.stream
    ), fresh AS MATERIALIZED (
        SELECT s.name, g.stream, g.seq, g.seq - coalesce(last.seq, 0) AS events, coalesce(
            (SELECT e.hash FROM pursuit.events e WHERE e.stream = g.stream AND e.seq = g.seq),
            (SELECT t.hash FROM pursuit.tombstones t WHERE t.stream = g.stream AND t.seq = g.seq)
        ) AS hash
        FROM grown g JOIN pursuit.streams s ON s.id = g.stream
        LEFT JOIN LATERAL (
            SELECT x.seq FROM pursuit.sealed x WHERE x.stream = g.stream ORDER BY x.seq DESC LIMIT 1
        ) last ON true
        WHERE g.seq > coalesce(last.seq, 0)
    ), headed AS (
        INSERT INTO pursuit.sealed SELECT f.stream, f.seq, tip.number + 1 FROM fresh f
    ), moved AS (
        UPDATE pursuit.sealing SET seen = pg_current_snapshot(), server = (SELECT system_identifier FROM pg_control_system())
        WHERE alone IS NULL
    ), cleared AS (  -- not what others commit meanwhile
        DELETE FROM pursuit.grown WHERE whole AND alone IS NULL
    )
    INSERT INTO pursuit.roots
    SELECT tip.number + 1, tip.events + sum(f.events), extract(epoch FROM clock_timestamp()), sha256(
        -- 'pursuit root 2' and a NUL
        '\x7075727375697420726f6f74203200'::bytea || tip.hash || int8send(tip.number + 1)
        || int8send((tip.events + sum(f.events))::bigint)
        || string_agg(int4send(octet_length(f.name)) || convert_to(f.name, 'UTF8') || int8send(f.seq) || f.hash,
                      ''::bytea ORDER BY f.name)
    ) FROM fresh f HAVING count(*) > 0;
    IF alone IS NOT NULL OR NOT whole AND state.since > clock_timestamp() - interval '10 minutes' THEN
        RETURN;
    ELSIF NOT whole THEN
        DELETE FROM pursuit.grown g
        WHERE g.xact < pg_snapshot_xmax(state.below) AND pg_visible_in_snapshot(g.xact, state.below);
        DELETE FROM pursuit.writers w WHERE w.committed < clock_timestamp() - interval '1 day';
        -- Missions that ended without a worker: a server drove them, or they were forgotten.
        DELETE FROM pursuit.jobs j USING pursuit.streams s
        WHERE s.name = j.key AND s.status IN ('completed', 'terminated', 'forgotten')
            AND j.worker IS NULL AND j.due < clock_timestamp() - interval '1 day';
    END IF;
    UPDATE pursuit.sealing SET below = seen, since = clock_timestamp();
END
$$;

-- Takes the lease of a stream if it is free, has run out, or belongs to the `dead` epoch; `epoch` is NULL if another
-- holder has it. No append under the old epoch is under way when this returns.
CREATE FUNCTION pursuit.claim(
    wanted text, seconds double precision, host text, pid integer, process text, since double precision, dead bigint
) RETURNS TABLE (epoch bigint, held bigint, held_host text, held_pid integer, held_process text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder record;
    begun  boolean;
BEGIN
    PERFORM pursuit.require_read_committed();
    PERFORM 1 FROM pursuit.streams s WHERE s.name = wanted FOR NO KEY UPDATE;
    begun := FOUND;
    LOOP
        INSERT INTO pursuit.leases VALUES (wanted, 0, '-infinity', host, pid, process, since) ON CONFLICT DO NOTHING;
        SELECT * INTO holder FROM pursuit.leases l WHERE l.stream = wanted FOR UPDATE;
        EXIT WHEN FOUND;  -- else its holder has just released it
    END LOOP;
    IF NOT begun THEN
        -- It may have begun while we waited for the lease. Who holds the stream's lock waits for no lease.
        PERFORM 1 FROM pursuit.streams s WHERE s.name = wanted FOR NO KEY UPDATE;
    END IF;
    IF holder.until > clock_timestamp() AND holder.epoch IS DISTINCT FROM dead THEN
        RETURN QUERY SELECT NULL::bigint, holder.epoch, holder.host, holder.pid, holder.process;
        RETURN;
    END IF;
    DELETE FROM pursuit.leases l WHERE l.stream = (
        SELECT o.stream FROM pursuit.leases o WHERE o.until < clock_timestamp() - interval '1 day' AND o.stream <> wanted
        LIMIT 1 FOR UPDATE SKIP LOCKED
    );
    epoch := nextval('pursuit.epochs');
    UPDATE pursuit.leases l SET epoch = claim.epoch, until = clock_timestamp() + seconds * interval '1 second',
        host = claim.host, pid = claim.pid, process = claim.process, since = claim.since
    WHERE l.stream = wanted;
    RETURN NEXT;
END
$$;

-- Renews the leases of a process; returns the epochs that still hold. One that has run out holds until another holder
-- takes it.
CREATE FUNCTION pursuit.renew(held bigint[], holder text, seconds double precision) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE pursuit.leases l SET until = clock_timestamp() + seconds * interval '1 second'
    FROM (
        SELECT o.stream FROM pursuit.leases o WHERE o.epoch = ANY (held) AND o.process = holder
        ORDER BY o.stream FOR NO KEY UPDATE
    ) AS mine WHERE l.stream = mine.stream RETURNING l.epoch
$$;

CREATE FUNCTION pursuit.release(wanted text, held bigint, holder text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM pursuit.leases l WHERE l.stream = wanted AND l.epoch = held AND l.process = holder
$$;

-- A time as the SQLite ledger writes it into JSON, so that both ledgers have the same hashes.
CREATE FUNCTION pursuit.number(value double precision) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT CASE WHEN value::text ~ '[.e]' THEN value::text ELSE value::text || '.0' END
$$;

-- Seals the head of a stream, then removes its events and its text and appends a `Forgotten` event to the stream `audit`,
-- as `tombstones.forget` does. Its blobs are left to `forget_blobs`.
CREATE FUNCTION pursuit.forget(wanted text, now double precision, audit text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tip    record;
    head   record;
    buried text;
    event  text;
BEGIN
    PERFORM pursuit.require_read_committed();
    PERFORM pg_advisory_xact_lock(1347768915, 2);
    PERFORM 1 FROM pursuit.streams s WHERE s.name IN (wanted, audit) ORDER BY s.name FOR NO KEY UPDATE;
    SELECT * INTO tip FROM pursuit.streams s WHERE s.name = wanted AND s.status <> 'forgotten';
    IF tip.id IS NULL THEN
        RETURN;
    ELSIF tip.kind NOT IN ('mission', 'attempt', 'task') OR audit !~ '^audit(-|$)' THEN
        RAISE insufficient_privilege USING MESSAGE = format('a stream of the kind %s cannot be forgotten', tip.kind);
    END IF;
    PERFORM pursuit.seal(true, tip.id);
    SELECT e.seq, e.hash INTO head FROM pursuit.events e WHERE e.stream = tip.id ORDER BY e.seq DESC LIMIT 1;
    PERFORM set_config('pursuit.forgetting', 'on', true);
    INSERT INTO pursuit.tombstones (position, stream, seq, hash)
    SELECT e.position, e.stream, e.seq, e.hash FROM pursuit.events e WHERE e.stream = tip.id;
    SELECT '2:' || encode(sha256(convert_to(coalesce(string_agg(
        format(E'%s %s\n', t.seq, encode(t.hash, 'hex')), '' ORDER BY t.seq), ''), 'UTF8')), 'hex')
    INTO buried FROM pursuit.tombstones t WHERE t.stream = tip.id;
    DELETE FROM pursuit.events e WHERE e.stream = tip.id;
    DELETE FROM pursuit.texts t WHERE t.rowid = tip.id;
    PERFORM set_config('pursuit.forgetting', '', true);
    UPDATE pursuit.streams s SET status = 'forgotten', summary = '{}', updated_at = now WHERE s.id = tip.id;
    INSERT INTO pursuit.grown VALUES (pg_current_xact_id(), tip.id, head.seq);
    event := format(
        '{"type":"Forgotten","at":%s,"stream":%s,"kind":%s,"status":%s,"created_at":%s,"seq":%s,"hash":"%s","tombstones":"%s"}',
        pursuit.number(now), to_json(tip.name), to_json(tip.kind), to_json(tip.status), pursuit.number(tip.created_at),
        head.seq, encode(head.hash, 'hex'), buried);
    PERFORM pursuit.commit(
        gen_random_uuid(), 1, now, '', ARRAY[audit], '{NULL}', '{NULL}', '{audit}', '{open}', '{NULL}', '{NULL}', '{NULL}',
        '{1}', '{Forgotten}', ARRAY[convert_to(event, 'UTF8')], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'
    );
END
$$;

-- Removes blobs of forgotten streams that no other stream has, at most so many; returns how many references went.
CREATE FUNCTION pursuit.forget_blobs(most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone text[];
BEGIN
    PERFORM pursuit.require_read_committed();
    PERFORM pg_advisory_xact_lock(1347768915, 1);
    WITH chosen AS (
        SELECT r.stream, r.digest FROM pursuit.streams s JOIN pursuit.blob_refs r ON r.stream = s.id
        WHERE s.status = 'forgotten' LIMIT least(most, 1000)
    ), removed AS (
        DELETE FROM pursuit.blob_refs r USING chosen c WHERE r.stream = c.stream AND r.digest = c.digest
        RETURNING r.digest
    )
    SELECT array_agg(removed.digest) INTO gone FROM removed;
    DELETE FROM pursuit.blobs b WHERE b.digest = ANY (gone)
        AND NOT EXISTS (SELECT 1 FROM pursuit.blob_refs r WHERE r.digest = b.digest);
    RETURN coalesce(cardinality(gone), 0);
END
$$;

-- Start-time fair queueing: the tag of a job is one more than that of its caller's last one, and at least that of the jobs
-- that are next, so a caller with a thousand jobs delays others by one. A job that comes back after a wait counts from the
-- tag that it had (`last`): it goes neither before all others again and again, nor behind a thousand of its caller's.
CREATE FUNCTION pursuit.turn(whose text, last bigint, wanted text) RETURNS bigint LANGUAGE sql AS $$
    SELECT greatest(
        coalesce(
            (SELECT j.tag FROM pursuit.jobs j WHERE j.key <> wanted AND j.worker IS NULL AND j.due <= clock_timestamp()
             ORDER BY j.tag, j.key LIMIT 1),
            (SELECT max(j.tag) FROM pursuit.jobs j WHERE j.key <> wanted AND j.worker IS NOT NULL), 0
        ),
        coalesce(last, (SELECT max(j.tag) FROM pursuit.jobs j WHERE j.caller = whose AND j.key <> wanted), -1) + 1
    )
$$;

-- Makes a job due after so many seconds, unless it is due sooner. One that is being done is done once more.
CREATE FUNCTION pursuit.enqueue(wanted text, required text, whose text, delay double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pursuit.require_read_committed();
    INSERT INTO pursuit.jobs AS j (key, needs, caller, tag, due, attempts)
    VALUES (wanted, required, whose, pursuit.turn(whose, NULL, wanted),
            clock_timestamp() + greatest(delay, 0) * interval '1 second', 0)
    ON CONFLICT (key) DO UPDATE SET
        again = j.worker IS NOT NULL,
        due = CASE WHEN j.worker IS NULL THEN least(j.due, EXCLUDED.due)
                   WHEN j.again THEN least(j.due, EXCLUDED.due) ELSE EXCLUDED.due END,
        tag = CASE WHEN j.worker IS NULL AND j.due > EXCLUDED.due THEN EXCLUDED.tag ELSE j.tag END,
        attempts = CASE WHEN j.worker IS NULL AND j.due > EXCLUDED.due THEN 0 ELSE j.attempts END,
        needs = EXCLUDED.needs;
END
$$;

-- Takes the next job that is due, for a worker that serves these requirements and has no place for these callers. In the
-- order of `commit`: stream, lease, job. A mission whose lease lives is left alone. `held` are the jobs of the worker: one
-- that is its own and not among them was taken by a call whose answer was lost.
CREATE FUNCTION pursuit.take(holder text, held text[], served text[], full_callers text[])
RETURNS TABLE (key text, needs text, caller text, attempts integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one  record;
    last record;
BEGIN
    PERFORM pursuit.require_read_committed();
    SELECT -1::bigint AS tag, '' COLLATE "C" AS key INTO last;
    LOOP
        FOR one IN
            SELECT j.tag, j.key, j.worker FROM pursuit.job_list j
            WHERE (j.tag, j.key) > (last.tag, last.key COLLATE "C")
                AND (j.free OR j.worker = holder) AND NOT j.key = ANY (held)
                AND j.needs = ANY (served) AND NOT j.caller = ANY (full_callers)
            ORDER BY j.tag, j.key LIMIT 20
        LOOP
            last := one;
            PERFORM 1 FROM pursuit.streams s WHERE s.name = one.key FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                PERFORM 1 FROM pursuit.streams s WHERE s.name = one.key;
                CONTINUE WHEN FOUND;
            END IF;
            PERFORM 1 FROM pursuit.leases l WHERE l.stream = one.key AND l.until > clock_timestamp();
            CONTINUE WHEN FOUND;
            UPDATE pursuit.jobs j SET worker = holder, again = false
            WHERE j.key = (
                SELECT o.key FROM pursuit.jobs o
                WHERE o.key = one.key AND o.worker IS NOT DISTINCT FROM one.worker
                    AND (o.worker IS NOT NULL OR o.due <= clock_timestamp())
                FOR UPDATE SKIP LOCKED
            ) RETURNING j.key, j.needs, j.caller, j.attempts INTO key, needs, caller, attempts;
            IF FOUND THEN
                RETURN NEXT;
                RETURN;
            END IF;
        END LOOP;
        EXIT WHEN NOT FOUND;  -- the loop found no row
    END LOOP;
END
$$;

-- Ends a job of a worker, or makes it due again after so many seconds; another worker that has taken it keeps it.
CREATE FUNCTION pursuit.finish(
    wanted text, holder text, seconds double precision, required text, tries integer, next_turn boolean
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pursuit.jobs j WHERE j.key = wanted AND j.worker = holder AND seconds IS NULL AND NOT j.again;
    IF NOT FOUND THEN
        UPDATE pursuit.jobs j SET
            worker = NULL, again = false,
            attempts = CASE WHEN j.again THEN 0 ELSE tries END,
            needs = CASE WHEN j.again THEN j.needs ELSE required END,
            tag = CASE WHEN next_turn OR j.again THEN pursuit.turn(j.caller, j.tag, wanted) ELSE j.tag END,
            due = least(
                clock_timestamp() + seconds * interval '1 second', CASE WHEN j.again THEN j.due END
            )
        WHERE j.key = wanted AND j.worker = holder;
    END IF;
END
$$;

-- Says that a worker is there, with what it has: so it keeps its jobs.
CREATE FUNCTION pursuit.announce(holder text, said jsonb, seconds double precision) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pursuit.workers VALUES (holder, said, clock_timestamp(), clock_timestamp() + seconds * interval '1 second')
    ON CONFLICT (process) DO UPDATE SET about = EXCLUDED.about, seen = EXCLUDED.seen, until = EXCLUDED.until
$$;

CREATE FUNCTION pursuit.leave(holder text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM pursuit.workers w WHERE w.process = holder OR w.seen < clock_timestamp() - interval '1 day'
$$;

-- A role that may run Pursuit reads the tables and calls these functions; it changes no row in any other way.
CREATE FUNCTION pursuit.grant_runtime(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pursuit TO %I', role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA pursuit TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION pursuit.commit, pursuit.seal, pursuit.is_restored, pursuit.forget, '
                   'pursuit.forget_blobs, pursuit.claim, pursuit.renew, pursuit.release, pursuit.stem, pursuit.enqueue, '
                   'pursuit.take, pursuit.finish, pursuit.announce, pursuit.leave TO %I', role);
END
$$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pursuit FROM PUBLIC;
SELECT pursuit.seal(true);
