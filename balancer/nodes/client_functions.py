"""The part of our schema that client transactions call, as a step that `schema.py` installs.

`balancer.hold(tablet, epoch, writing)` is the first thing in a transaction of the client library (and of any client
that is told to by the coordinator's answer). Silence means: this node owns the tablet with that epoch, and the
transaction will not learn otherwise until it ends. TB001: the tablet is moving, try again. TB002: it is not here; the
detail says where it went, if that is known.

The argument
============

*Writing* (and everything in READ COMMITTED). `hold` takes ROW EXCLUSIVE on the roots and on the tablet's partitions,
what any write would take, and looks at the tablet's row and fence after that. A fence is raised, sealed and marked
`moved` under SHARE ROW EXCLUSIVE on the partitions; a split swaps under ACCESS EXCLUSIVE on the root. Both conflict
with ROW EXCLUSIVE, so each is either committed before `hold` looks, and is seen, or waits for the end of the
transaction, as it would for a writer in flight. No owner changes without a fence. Hence after `hold` no statement of
the transaction meets a fence, an absent partition or a former owner's rows. The price: an open transaction delays
a switch, so the mover asks with a short lock_timeout and asks again.

*Order of locks*: roots first, then partitions, both in the table's order, as every statement and the mover do.

*Reading only, with one snapshot for the whole transaction.* The rows are those of the moment of the snapshot, so the
node must have been the owner then: the row and the fence are read in that very snapshot. A *sealed* fence is refused,
because the new owner may have taken writes by then; an unsealed one is not, so readers do not notice a drain. ACCESS
SHARE on roots and partitions keeps them from being dropped, or detached in one step; DETACH CONCURRENTLY waits for it
before it finishes, and until then the planner goes by the snapshot and still finds the partition. Only a detachment
between the snapshot and the locks remains: `pg_partition_root` answers from the catalog as it is, and shows it.

*Writing with one snapshot*. The look after the locks would be blind to what was committed since the snapshot. So the
catalog is asked in ways that do not go by snapshots: `pg_partition_root` for a detachment, `pg_get_object_address`
for a fence. A fence that is there at all is refused; a moment later it is gone or the tablet is.
"""

STEP = r"""
    CREATE FUNCTION balancer.hold(wanted bigint, known_epoch bigint, writing boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '1s' AS $$
    DECLARE
        one_snapshot boolean := current_setting('transaction_isolation') NOT LIKE 'read%';
        exclusive boolean := writing OR NOT one_snapshot;
        mine record;
        leaf regclass;
        root regclass;
        held regclass[] := '{}';
        roots text := '';
        leaves text := '';
        until text;
    BEGIN
        SELECT state, schemas, partitions INTO mine FROM balancer.tablet WHERE id = wanted;
        IF mine.state IN ('owned', 'fenced') THEN
            FOR i IN 1 .. cardinality(mine.partitions) LOOP
                leaf := to_regclass(format('%I.%I', mine.schemas[i], mine.partitions[i]));
                root := pg_partition_root(leaf);
                IF root IS NULL OR root = leaf THEN
                    RAISE EXCEPTION 'tablet % is not attached here', wanted USING ERRCODE = 'TB002';
                END IF;
                held := held || leaf;
                roots := roots || ', ONLY ' || root::text;
                leaves := leaves || ', ONLY ' || leaf::text;
            END LOOP;
            EXECUTE 'LOCK TABLE ' || substr(roots || leaves, 3)
                || CASE WHEN exclusive THEN ' IN ROW EXCLUSIVE MODE' ELSE ' IN ACCESS SHARE MODE' END;
        END IF;

        SELECT t.epoch, t.state, t.migration, t.moved_to, encode(f.tgargs, 'escape') AS fence INTO mine
        FROM balancer.tablet t LEFT JOIN pg_trigger f
            ON f.tgrelid = held[1] AND f.tgname = '!balancer_fence' AND f.tgenabled <> 'D'
        WHERE t.id = wanted;
        IF mine.state = 'incoming' THEN
            RAISE EXCEPTION 'tablet % is arriving here, try again', wanted
                USING ERRCODE = 'TB001', DETAIL = format('migration=%s', mine.migration);
        END IF;
        until := split_part(mine.fence, '\000', 3);
        IF mine.state IS NULL OR mine.state = 'moved' OR mine.epoch <> known_epoch OR until = 'moved' THEN
            RAISE EXCEPTION 'tablet % is not here with epoch %', wanted, known_epoch
                USING ERRCODE = 'TB002', DETAIL = format('node=%s epoch=%s', mine.moved_to, mine.epoch);
        END IF;
        IF until = 'sealed' OR (exclusive AND extract(epoch FROM clock_timestamp()) < until::float8) THEN
            RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = 'TB001';
        END IF;

        IF one_snapshot THEN
            FOREACH leaf IN ARRAY held LOOP
                root := pg_partition_root(leaf);
                IF root IS NULL OR root = leaf THEN
                    RAISE EXCEPTION 'tablet % has left while the transaction began', wanted USING ERRCODE = 'TB002';
                END IF;
            END LOOP;
            IF writing AND mine.fence IS NULL AND balancer.fenced_now(held[1]) THEN
                RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = 'TB001';
            END IF;
        END IF;
    END $$;

    -- Whether a fence is there, by the catalog as it is and not as the transaction's snapshot has it.
    CREATE FUNCTION balancer.fenced_now(leaf regclass) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        PERFORM pg_get_object_address('trigger', parse_ident(leaf::text) || '!balancer_fence'::text, '{}');
        RETURN true;
    EXCEPTION WHEN undefined_object THEN
        RETURN false;
    END $$;
"""
