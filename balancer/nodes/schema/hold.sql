/*
The part of our schema that client transactions call.

`CALL balancer.hold(tablet, epoch, writing)` is the first thing in a transaction of the client library (and of any
client that the coordinator's answer tells to call it). Silence means: this node owns the tablet with that epoch, and
the transaction will not learn otherwise until it ends. Refusals have the SQLSTATE 40001 and say in the detail's first
word why: `TB001`, the tablet is moving, try again; `TB002`, it is not here, and the rest of the detail says where it
went, if that is known.

The argument
============

*The locks.* A tablet has two advisory locks (see `proof`): writers hold the one, readers the other, shared, from `hold`
until they end. A fence is raised, renewed, sealed, lifted and marked `moved` under the writers' lock, exclusively; old
partitions are swapped for new ones under both; a partition is detached under the readers'. Whichever of these comes
first is committed before `hold` has its lock; the rest waits for the end of the transaction, as it would for a writer
in flight. The price: an open transaction delays a switch, so the mover asks with a short lock_timeout, and retries.
Nobody overtakes a waiting mover: then the lock is not granted at once, and `hold` goes the long way.

*The row.* Each of those steps changes the tablet's row in `balancer.tablet`, in its own transaction or, for a
detachment, in one before it. So a row that is `owned`, with our epoch and no fence in it (`until`), read after the lock
is taken, says that none of them has happened, if it is the newest version of the row. In READ COMMITTED a statement
sees the newest. A transaction with one snapshot may see an older one; but that has been superseded on its page by then,
and its xmax tells: it is 0 only for a row that nobody has touched since. (A step that was rolled back also leaves an
xmax. That, too, goes the long way.)

*Writing* (and everything in READ COMMITTED, where each statement has its own snapshot): no fence can be raised, so no
owner changes, and after `hold` no statement of the transaction meets a fence, an absent partition or a former owner's
rows.

*Reading only, with one snapshot for the whole transaction.* The rows are those of the moment of the snapshot, so the
node must have been the owner then, which the row tells. Fences and the change of owner do not wait for such readers;
swaps and detachments do, and until then the planner finds every partition that had the rows.

*A further tablet in the same transaction.* It may have arrived since the transaction began. PostgreSQL does not refresh
what it knows about a relation that the transaction has locked already, so a prepared statement over the root would not
find the new partition, and say "0 rows" (tried on 15 and 18). A lock that is new to the transaction makes it refresh.
So a proof that neither comes first nor in the same message as the first goes the long way, which locks the partition.
(Proofs and reads in turns within one message of several statements are not told apart from proofs alone: a client that
sends such messages uses a transaction for each.)

*Deadlocks.* Advisory locks come first, then roots, then partitions, both in the table's order; the mover does the same.

The long way (`hold_slowly`) is for everything else: a lock that is not free, a fence, an old snapshot, a standby (where
the mover's advisory locks are not seen). It waits for the lock, but not forever; it takes ROW EXCLUSIVE or ACCESS SHARE
on roots and partitions, and goes by the catalog.

*Writing.* Fences are made under SHARE ROW EXCLUSIVE on the partitions, and swaps under ACCESS EXCLUSIVE on the root, so
what was said about the writers' lock holds for these locks as well; the row and the fence's trigger are read after
them.

*Reading with one snapshot.* A *sealed* fence is refused, because the new owner may have taken writes by then; an
unsealed one is not, so readers do not notice a drain. DETACH CONCURRENTLY waits for ACCESS SHARE before it finishes,
and until then the planner goes by the snapshot and still finds the partition. Only a detachment between the snapshot
and the locks remains: `pg_partition_root` answers from the catalog as it is now, and shows it.

*Writing with one snapshot*. The look after the locks would be blind to what was committed since the snapshot. So the
catalog is asked in ways that do not go by snapshots: `pg_partition_root` for a detachment, `pg_get_object_address`
for a fence. A fence that is there at all is refused; a moment later it is gone or the tablet is.
*/

-- A procedure, because CALL needs no plan. With the caller's own rights, and without settings of its own: each of
-- those would cost as much as all the rest.
CREATE OR REPLACE PROCEDURE balancer.hold(wanted bigint, known_epoch bigint, writing boolean)
LANGUAGE plpgsql AS $$
DECLARE
    exclusive boolean := writing OR current_setting('transaction_isolation') LIKE 'read%';
    earlier text := current_setting('balancer.held_at', true);
    -- Whether something may have come between an earlier proof of this transaction and this one.
    again boolean := pg_current_xact_id_if_assigned() IS NOT NULL
        OR earlier <> '' AND earlier <> statement_timestamp()::text;
    unchanged boolean;
BEGIN
    IF again IS NOT TRUE AND pg_try_advisory_xact_lock_shared(
            wanted + CASE WHEN exclusive THEN {WRITERS} ELSE {READERS} END) THEN
        -- After the lock, and in READ COMMITTED by a snapshot of its own.
        SELECT t.state = 'owned' AND t.epoch = known_epoch AND t.until IS NULL AND t.xmax = 0
            AND NOT pg_is_in_recovery()
        INTO unchanged FROM balancer.tablet t WHERE t.id = wanted;
    END IF;
    IF unchanged IS NOT TRUE THEN
        PERFORM balancer.hold_slowly(wanted, known_epoch, writing);
    END IF;
    -- The mark for `require_proof`, only where a write may follow: without `writing`, a transaction with one
    -- snapshot does not keep the owner from changing.
    -- (Assignments, because an expression is cheaper than a query.)
    IF exclusive THEN
        earlier := set_config('balancer.held', 'yes', true);
        earlier := set_config('balancer.held_at', statement_timestamp()::text, true);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION balancer.hold_slowly(wanted bigint, known_epoch bigint, writing boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s' AS $$
DECLARE
    one_snapshot boolean := current_setting('transaction_isolation') NOT LIKE 'read%';
    exclusive boolean := writing OR NOT one_snapshot;
    mine record;
    locked boolean := false;
    plain boolean := false;
    leaf regclass;
    root regclass;
    held regclass[] := '{}';
    roots text := '';
    leaves text := '';
    until text;
BEGIN
    SELECT state, epoch, schemas, partitions INTO mine FROM balancer.tablet WHERE id = wanted;
    -- One that is not here, by the caller's own map, is not waited for.
    IF mine.state IN ('owned', 'fenced') AND mine.epoch = known_epoch THEN
        -- A lock that is not had in time, a mover's or that of anybody who took its number, passes: try again.
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(
                wanted + CASE WHEN exclusive THEN {WRITERS} ELSE {READERS} END);
            FOR i IN 1 .. cardinality(mine.partitions) LOOP
                leaf := to_regclass(format('%I.%I', mine.schemas[i], mine.partitions[i]));
                root := pg_partition_root(leaf);
                -- A reference table is its own partition; its home is known by the guard on it.
                IF root IS NULL AND EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = leaf
                        AND g.tgname = '!balancer_home_truncate' AND g.tgenabled <> 'D') THEN
                    root := leaf;
                    plain := true;
                END IF;
                IF root IS NULL OR root = leaf AND NOT plain THEN
                    RAISE EXCEPTION 'tablet % is not attached here', wanted
                        USING ERRCODE = '40001', DETAIL = 'TB002';
                END IF;
                held := held || leaf;
                roots := roots || ', ONLY ' || root::text;
                leaves := leaves || ', ONLY ' || leaf::text;
            END LOOP;
            EXECUTE 'LOCK TABLE ' || substr(roots || leaves, 3)
                || CASE WHEN exclusive THEN ' IN ROW EXCLUSIVE MODE' ELSE ' IN ACCESS SHARE MODE' END;
        EXCEPTION WHEN lock_not_available THEN
            RAISE EXCEPTION 'tablet % is held by another session, try again', wanted
                USING ERRCODE = '40001', DETAIL = 'TB001';
        END;
        locked := true;
    END IF;

    SELECT t.epoch, t.state, t.migration, t.moved_to, encode(f.tgargs, 'escape') AS fence INTO mine
    FROM balancer.tablet t LEFT JOIN pg_trigger f
        ON f.tgrelid = held[1] AND f.tgname = '!balancer_fence' AND f.tgenabled <> 'D'
    WHERE t.id = wanted;
    IF mine.migration = 'rewound' THEN
        RAISE EXCEPTION 'tablet % is closed: its node has gone back in time', wanted
            USING ERRCODE = 'TB004', HINT = 'An operator decides: balancer node rejoin';
    END IF;
    IF mine.state = 'incoming' THEN
        RAISE EXCEPTION 'tablet % is arriving here, try again', wanted
            USING ERRCODE = '40001', DETAIL = format('TB001 migration=%s', mine.migration);
    END IF;
    until := split_part(mine.fence, '\000', 3);
    IF mine.state IS NULL OR mine.state = 'moved' OR mine.epoch <> known_epoch OR until = 'moved' THEN
        RAISE EXCEPTION 'tablet % is not here with epoch %', wanted, known_epoch
            USING ERRCODE = '40001', DETAIL = format('TB002 node=%s epoch=%s', mine.moved_to, mine.epoch);
    END IF;
    -- Not locked: it has arrived between the two looks.
    IF NOT locked OR until = 'sealed' OR (exclusive AND extract(epoch FROM clock_timestamp()) < until::float8) THEN
        RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = '40001', DETAIL = 'TB001';
    END IF;

    IF one_snapshot THEN
        FOREACH leaf IN ARRAY held LOOP
            root := pg_partition_root(leaf);
            IF (root IS NULL OR root = leaf) AND NOT plain THEN
                RAISE EXCEPTION 'tablet % has left while the transaction began', wanted
                    USING ERRCODE = '40001', DETAIL = 'TB002';
            END IF;
        END LOOP;
        IF writing AND mine.fence IS NULL AND balancer.fenced_now(held[1]) THEN
            RAISE EXCEPTION 'tablet % is moving, try again', wanted USING ERRCODE = '40001', DETAIL = 'TB001';
        END IF;
    END IF;
END $$;

-- Whether a fence is there, by the catalog as it is and not as the transaction's snapshot has it.
CREATE OR REPLACE FUNCTION balancer.fenced_now(leaf regclass) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_get_object_address('trigger', parse_ident(leaf::text) || '!balancer_fence'::text, '{}');
    RETURN true;
EXCEPTION WHEN undefined_object THEN
    RETURN false;
END $$;
