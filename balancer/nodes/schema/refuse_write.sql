/*
The part of our schema that fences and replicated moves are made of.

`refuse_write` is the body of every fence; its arguments are: migration, leader's epoch, `sealed` | `moved` | the
deadline in seconds since 1970, the count of breaches when it was raised, tablet, node, epoch. It never looks anything
up: in an old snapshot a lookup would be blind.

What a retry of the transaction can cure has the SQLSTATE that every retry loop knows, 40001. The first word of the
detail says which it is: `TB001` (the tablet is moving, try again soon) or `TB002` (it is no longer here; the detail
names node and epoch).
*/

CREATE OR REPLACE FUNCTION balancer.refuse_write() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_ARGV[2] = 'moved' THEN
        RAISE EXCEPTION 'tablet % is not here any more: it is on node %', TG_ARGV[4], TG_ARGV[5]
            USING ERRCODE = '40001', DETAIL = format('TB002 node=%s epoch=%s', TG_ARGV[5], TG_ARGV[6]),
                  HINT = 'Run the transaction again on the new owner.';
    END IF;
    IF TG_ARGV[2] = 'sealed' OR extract(epoch FROM clock_timestamp()) < TG_ARGV[2]::float8 THEN
        RAISE EXCEPTION 'tablet % is moving, try again', TG_ARGV[4]
            USING ERRCODE = '40001', DETAIL = format('TB001 migration=%s', TG_ARGV[0]),
                  HINT = 'Run the transaction again.';
    END IF;
    PERFORM nextval('balancer.breaches');
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_write() FROM PUBLIC;

-- After a swap, on the roots: what a SERIALIZABLE transaction has read of the old partitions is not compared with
-- what others, that began before the swap, write to the new ones: they are refused. The arguments are the
-- migration, the transaction of the swap and `serializable`; without that word (as former versions made it) the
-- new partitions' rows are newer than these snapshots, which would find none to change.
CREATE OR REPLACE FUNCTION balancer.refuse_old_snapshot() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pg_visible_in_snapshot(TG_ARGV[1]::xid8, pg_current_snapshot())
       AND (TG_NARGS < 3 OR current_setting('transaction_isolation') = TG_ARGV[2]) THEN
        RAISE EXCEPTION 'the partitions of %.% were replaced since this transaction began', TG_TABLE_SCHEMA,
            TG_TABLE_NAME
            USING ERRCODE = '40001', DETAIL = format('TB001 migration=%s', TG_ARGV[0]),
                  HINT = 'Run the transaction again.';
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION balancer.refuse_old_snapshot() FROM PUBLIC;
