-- Whether a tablet is here with this partition; never false: it refuses. Without a column of the view in it, and
-- stable, so that it is asked once per statement. It waits for a switch only shortly: the session at the other end
-- keeps its snapshot meanwhile, and a swap waits for snapshots.
CREATE OR REPLACE FUNCTION balancer.here(wanted bigint, leaf text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms' AS $$
DECLARE
    key bigint := wanted + CASE WHEN current_setting('transaction_isolation') LIKE 'read%'
                                THEN {WRITERS} ELSE {READERS} END;
    mine record;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(key) THEN
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(key);
        EXCEPTION WHEN lock_not_available THEN
            RAISE EXCEPTION 'tablet % is moving, try again', wanted
                USING ERRCODE = '40001', DETAIL = 'TB001', HINT = 'Run the transaction again.';
        END;
    END IF;
    -- After the lock. An older snapshot may see an older row, whose xmax then tells.
    PERFORM FROM balancer.tablet t WHERE t.id = wanted AND t.state = 'owned' AND t.until IS NULL AND t.xmax = 0
        AND leaf = ANY (t.partitions) AND NOT pg_is_in_recovery();
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT t.state, t.epoch, t.moved_to, t.partitions INTO mine FROM balancer.tablet t WHERE t.id = wanted;
    IF mine.state IS NULL OR mine.state = 'moved' OR NOT leaf = ANY (mine.partitions) THEN
        RAISE EXCEPTION 'tablet % is not here any more', wanted
            USING ERRCODE = '40001', DETAIL = format('TB002 node=%s epoch=%s', mine.moved_to, mine.epoch),
                  HINT = 'Run the transaction again.';
    END IF;
    PERFORM balancer.hold_slowly(wanted, mine.epoch, false);
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION balancer.refuse_here() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM balancer.here(TG_ARGV[0]::bigint, TG_ARGV[1]);
    RAISE EXCEPTION 'tablet % is not here any more', TG_ARGV[0] USING ERRCODE = '40001', DETAIL = 'TB002';
END $$;
