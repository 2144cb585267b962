-- The newest leader this node has seen, after raising it to mine. Two transactions of one leader share the row;
-- raising it waits for the former leader's transactions (row) and commands outside of transactions (advisory).
--
-- Epochs are one directory's own: first of all the node must be that directory's, by the identity for which the
-- caller's connection was opened. A node that has none yet takes that of the first who comes; a caller without
-- one (a former version, or a connection from before there was any) is let in as long as the node has never
-- changed hands. The last look is under the row's lock, which a change of hands waits for, and so is decisive.
CREATE OR REPLACE FUNCTION balancer.enter(mine bigint, expected_node text, directory text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen balancer.node;
BEGIN
    SELECT * INTO seen FROM balancer.node;
    IF expected_node <> '' AND seen.node <> expected_node THEN
        RAISE EXCEPTION 'this database is node %, not node %', seen.node, expected_node USING ERRCODE = 'TB003';
    END IF;
    PERFORM balancer.check_directory(seen, directory);
    IF seen.leader_epoch < mine OR seen.identity IS NULL AND directory <> '' AND seen.leader_epoch = mine THEN
        PERFORM pg_advisory_xact_lock({LEADER_LOCK}, 0);
        UPDATE balancer.node SET leader_epoch = mine, identity = coalesce(identity, nullif(directory, ''))
        WHERE (leader_epoch < mine OR leader_epoch = mine AND identity IS NULL)
          AND (CASE WHEN directory = '' THEN NOT changed_hands ELSE coalesce(identity, directory) = directory END);
    END IF;
    SELECT * INTO seen FROM balancer.node FOR SHARE;
    PERFORM balancer.check_directory(seen, directory);
    RETURN seen.leader_epoch;
END $$;

CREATE OR REPLACE FUNCTION balancer.check_directory(seen balancer.node, directory text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (CASE WHEN directory = '' THEN seen.changed_hands ELSE seen.identity <> directory END) THEN
        RAISE EXCEPTION 'node % belongs to another directory: cluster %, identity %',
            seen.node, seen.cluster, seen.identity USING ERRCODE = 'TB003';
    END IF;
END $$;

-- As former versions call it.
CREATE OR REPLACE FUNCTION balancer.enter(mine bigint, expected_node text) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$ SELECT balancer.enter(mine, expected_node, '') $$;
REVOKE ALL ON FUNCTION balancer.enter(bigint, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION balancer.enter(bigint, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION balancer.check_directory(balancer.node, text) FROM PUBLIC;
