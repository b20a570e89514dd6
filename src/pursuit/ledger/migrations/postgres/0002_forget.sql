-- Only missions, attempts and tasks can be forgotten, and the function writes the `Forgotten` event itself: a role that
-- may run Pursuit can neither erase the audit nor choose the audit's words. Roles keep their right to call it.

CREATE TEMPORARY TABLE may_forget ON COMMIT DROP AS
SELECT g.grantee::regrole::name AS role FROM pg_proc p, aclexplode(p.proacl) g
WHERE p.oid = 'pursuit.forget'::regproc AND g.privilege_type = 'EXECUTE' AND g.grantee <> p.proowner;

DROP FUNCTION pursuit.forget;

-- A time as the SQLite ledger writes it into JSON, so that both ledgers have the same hashes.
CREATE FUNCTION pursuit.number(value double precision) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT CASE WHEN value::text ~ '[.e]' THEN value::text ELSE value::text || '.0' END
$$;

-- Removes what `tombstones.forget` removes, and appends the same `Forgotten` event.
CREATE FUNCTION pursuit.forget(wanted text, now double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tip    record;
    head   record;
    next   bigint;
    buried text;
    event  bytea;
    hash   bytea;
BEGIN
    SELECT position + 1 INTO next FROM pursuit.ledger FOR UPDATE;
    SELECT * INTO tip FROM pursuit.streams WHERE name = wanted AND status <> 'forgotten';
    IF tip.id IS NULL THEN
        RETURN;
    ELSIF tip.kind NOT IN ('mission', 'attempt', 'task') THEN
        RAISE insufficient_privilege USING MESSAGE = format('a stream of the kind %s cannot be forgotten', tip.kind);
    END IF;
    PERFORM set_config('pursuit.forgetting', 'on', true);
    INSERT INTO pursuit.tombstones SELECT e.position, e.stream, e.seq, e.hash FROM pursuit.events e WHERE e.stream = tip.id;
    SELECT encode(sha256(convert_to(coalesce(string_agg(
        format(E'%s %s \'%s\'\n', t.position, t.seq, encode(t.hash, 'hex')), '' ORDER BY t.seq), ''), 'UTF8')), 'hex')
    INTO buried FROM pursuit.tombstones t WHERE t.stream = tip.id;
    DELETE FROM pursuit.blobs b WHERE b.digest IN (SELECT r.digest FROM pursuit.blob_refs r WHERE r.stream = tip.id)
        AND NOT EXISTS (SELECT 1 FROM pursuit.blob_refs r WHERE r.digest = b.digest AND r.stream <> tip.id);
    DELETE FROM pursuit.blob_refs r WHERE r.stream = tip.id;
    DELETE FROM pursuit.events e WHERE e.stream = tip.id;
    PERFORM pursuit.drop_text(tip.id);
    UPDATE pursuit.streams SET status = 'forgotten', summary = '{}', updated_at = now WHERE id = tip.id;
    INSERT INTO pursuit.streams (name, kind, status, created_at, updated_at, head_seq, head_hash, summary)
    VALUES ('audit', 'audit', 'open', now, now, 0, decode(repeat('00', 32), 'hex'), '{}') ON CONFLICT (name) DO NOTHING;
    SELECT s.id, s.head_seq + 1 AS seq, s.head_hash AS hash INTO head FROM pursuit.streams s WHERE s.name = 'audit';
    event := convert_to(format(
        '{"type":"Forgotten","at":%s,"stream":%s,"kind":%s,"status":%s,"created_at":%s,"seq":%s,"hash":"%s","tombstones":"%s"}',
        pursuit.number(now), to_json(tip.name), to_json(tip.kind), to_json(tip.status), pursuit.number(tip.created_at),
        tip.head_seq, encode(tip.head_hash, 'hex'), buried), 'UTF8');
    hash := pursuit.link(head.hash, 'audit', head.seq, now, 'Forgotten', event);
    INSERT INTO pursuit.events VALUES (next, head.id, head.seq, now, 'Forgotten', event, hash);
    UPDATE pursuit.streams SET head_seq = head.seq, head_hash = hash, updated_at = now WHERE id = head.id;
    UPDATE pursuit.ledger SET position = next;
    PERFORM set_config('pursuit.forgetting', '', true);
    PERFORM pg_notify('pursuit', next::text);
END
$$;

REVOKE ALL ON FUNCTION pursuit.forget, pursuit.number FROM PUBLIC;
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT role FROM may_forget LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION pursuit.forget TO %I', one.role);
    END LOOP;
END
$$;
