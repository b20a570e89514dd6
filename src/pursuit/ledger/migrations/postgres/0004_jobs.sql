-- Which missions have something to do, and which workers there are. A job is a hint to look at a mission; the lease on its
-- stream decides who drives. The queue of older releases goes: what it held is found by the sweep of the workers.

CREATE TABLE pursuit.jobs (
    key      text        COLLATE "C" PRIMARY KEY,
    needs    text        COLLATE "C" NOT NULL,
    caller   text        COLLATE "C" NOT NULL,
    tag      bigint      NOT NULL,
    due      timestamptz NOT NULL,
    attempts integer     NOT NULL,
    -- Whether it was enqueued again while it is being done.
    again    boolean     NOT NULL DEFAULT false,
    -- The process of the worker that does it.
    worker   text        COLLATE "C"
) WITH (fillfactor = 70);
CREATE INDEX jobs_by_turn ON pursuit.jobs (tag, key);
CREATE INDEX jobs_by_caller ON pursuit.jobs (caller, tag);
CREATE INDEX jobs_by_worker ON pursuit.jobs (worker) WHERE worker IS NOT NULL;

CREATE TABLE pursuit.workers (
    process text        COLLATE "C" PRIMARY KEY,
    about   jsonb       NOT NULL,
    seen    timestamptz NOT NULL,
    -- Until then it keeps its jobs.
    until   timestamptz NOT NULL
);

DO $$
BEGIN
    DROP SCHEMA IF EXISTS pursuit_queue CASCADE;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'the schema pursuit_queue is not needed any more; its owner can drop it';
END
$$;
