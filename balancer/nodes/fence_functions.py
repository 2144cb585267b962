"""The part of our schema that fences and replicated moves are made of, as a step that `schema.py` installs.

`refuse_write` is the body of every fence; its arguments are: migration, leader's epoch, `sealed` | `moved` | the
deadline in seconds since 1970, the count of breaches when it was raised, tablet, node, epoch. It never looks anything
up: a lookup would be blind in an old snapshot.
"""

STEP = """
    -- Counts the writes that an expired fence let through. A sequence, because it knows neither rollback nor snapshot:
    -- a fence is sealed only if this number has not changed since it was raised, whatever the clock said meanwhile.
    CREATE SEQUENCE balancer.breaches;

    -- A row here travels through a move's stream behind everything before it.
    CREATE TABLE balancer.marker (
        migration text NOT NULL,
        number bigint NOT NULL,
        PRIMARY KEY (migration, number)
    );

    CREATE FUNCTION balancer.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF TG_ARGV[2] = 'moved' THEN
            RAISE EXCEPTION 'tablet % is not here any more: it is on node %', TG_ARGV[4], TG_ARGV[5]
                USING ERRCODE = 'TB002', DETAIL = format('node=%s epoch=%s', TG_ARGV[5], TG_ARGV[6]);
        END IF;
        IF TG_ARGV[2] = 'sealed' OR extract(epoch FROM clock_timestamp()) < TG_ARGV[2]::float8 THEN
            RAISE EXCEPTION 'tablet % is moving, try again', TG_ARGV[4]
                USING ERRCODE = 'TB001', DETAIL = format('migration=%s', TG_ARGV[0]);
        END IF;
        PERFORM nextval('balancer.breaches');
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END $$;
    REVOKE ALL ON FUNCTION balancer.refuse_write() FROM PUBLIC;
    REVOKE ALL ON balancer.marker FROM PUBLIC;

    -- A client's proof of ownership, in the transaction that used the tablet and after it did: silence means yes.
    -- A transaction with one snapshot for all its statements sees the row as it was; but its statements were planned
    -- with the catalog as it is, where the partition may be detached already and is read as if it were empty. So
    -- there the catalog is asked, which functions read as it is now.
    CREATE OR REPLACE FUNCTION balancer.prove(wanted bigint, known_epoch bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        mine balancer.tablet;
    BEGIN
        SELECT * INTO mine FROM balancer.tablet WHERE id = wanted;
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND mine.state <> 'moved'
                AND (SELECT count(*) FROM pg_partition_ancestors(
                        to_regclass(format('%I.%I', mine.schemas[1], mine.partitions[1])))) < 2 THEN
            mine.state := 'moved';
        END IF;
        IF mine.state = 'incoming' THEN
            RAISE EXCEPTION 'tablet % is arriving here, try again', wanted
                USING ERRCODE = 'TB001', DETAIL = format('migration=%s', mine.migration);
        END IF;
        IF mine.id IS NULL OR mine.state = 'moved' OR mine.epoch <> known_epoch THEN
            RAISE EXCEPTION 'tablet % is not here with epoch %', wanted, known_epoch
                USING ERRCODE = 'TB002', DETAIL = format('node=%s epoch=%s', mine.moved_to, mine.epoch);
        END IF;
    END $$;
"""
