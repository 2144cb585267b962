-- What brings a node's tables from version n to n + 1. Steps are only ever appended; one without a statement
-- says that functions have changed.

-- Step 1
CREATE TABLE balancer.node (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster text NOT NULL,
    node text NOT NULL,
    leader_epoch bigint NOT NULL DEFAULT 0,
    schema_version integer NOT NULL
);
CREATE TABLE balancer.tablet (
    id bigint PRIMARY KEY,
    epoch bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('owned', 'fenced', 'incoming', 'moved')),
    schemas text[] NOT NULL,
    partitions text[] NOT NULL,
    migration text,
    deadline timestamptz,
    moved_to text,
    changed timestamptz NOT NULL DEFAULT now(),
    CHECK (cardinality(schemas) = cardinality(partitions)),
    CHECK ((state = 'moved') = (moved_to IS NOT NULL))
);
COMMENT ON TABLE balancer.tablet IS 'What this node owns; written by tablet-balancer only';
GRANT USAGE ON SCHEMA balancer TO PUBLIC;
GRANT SELECT ON balancer.node, balancer.tablet TO PUBLIC;

-- Step 2
-- Counts the writes that an expired fence let through. A sequence, because it knows neither rollback nor snapshot:
-- a fence is sealed only if this number has not changed since it was raised, whatever the clock said meanwhile.
CREATE SEQUENCE balancer.breaches;

-- A row here travels through a move's stream behind everything before it.
CREATE TABLE balancer.marker (
    migration text NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (migration, number)
);
REVOKE ALL ON balancer.marker FROM PUBLIC;

-- Step 3: was the first version of `hold`: replaced below

-- Step 4
-- A proof after reading proves nothing: the tablet may have arrived between the two. `hold` comes first.
DROP FUNCTION IF EXISTS balancer.prove(bigint, bigint);

-- Step 5
ALTER TABLE balancer.tablet ADD COLUMN until text;
COMMENT ON COLUMN balancer.tablet.until IS 'The word of the fence that stands on its partitions; see refuse_write';
-- A fence that stands while this is installed: any word sends clients to look at its trigger.
UPDATE balancer.tablet SET until = '' WHERE state = 'fenced' OR state = 'owned' AND migration IS NOT NULL;
CREATE INDEX ON balancer.tablet USING gin (partitions);

DROP FUNCTION IF EXISTS balancer.hold(bigint, bigint, boolean);

-- Step 6: functions have changed: refusals that a retry cures are 40001

-- Step 7: functions have changed: a lock that is not granted in time is such a refusal too

-- Step 8
-- The transaction that wrote the fence, and the one whose fence somebody has switched off: see `nodes/tablets/leftovers`.
ALTER TABLE balancer.tablet ADD COLUMN IF NOT EXISTS closed_by text, ADD COLUMN IF NOT EXISTS breached_since text;

-- Step 9
CREATE TABLE IF NOT EXISTS balancer.ddl_step (
    change text NOT NULL,
    number integer NOT NULL,
    digest text NOT NULL,
    done timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (change, number)
);
COMMENT ON TABLE balancer.ddl_step IS 'Steps of schema changes that were carried out here';

-- Step 10
CREATE TABLE IF NOT EXISTS balancer.decision (
    id text PRIMARY KEY,
    commits boolean NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text
);
COMMENT ON TABLE balancer.decision IS 'How transactions over several nodes ended whose home this node is';

-- Step 11: functions have changed: what refuses writes to expired keys

-- Step 12: functions have changed: those of reference tables

-- Step 13
CREATE TABLE IF NOT EXISTS balancer.message_table (
    name text PRIMARY KEY,
    outbox text NOT NULL,
    inbox text NOT NULL,
    schema text NOT NULL,
    columns text NOT NULL,
    key text NOT NULL,
    matches text NOT NULL
);
COMMENT ON TABLE balancer.message_table IS 'Tables that take part in messages, with their names and keys as SQL';
CREATE TABLE IF NOT EXISTS balancer.message_handler (
    target text NOT NULL,
    name text NOT NULL,
    sender text NOT NULL,
    apply text NOT NULL,
    reverse text,
    needs text[] NOT NULL,
    attempts integer NOT NULL,
    PRIMARY KEY (target, name, sender)
);
COMMENT ON TABLE balancer.message_handler IS 'What messages do, by the bundles'' files; $1: the body, $2: the key';
GRANT SELECT ON balancer.message_table, balancer.message_handler TO PUBLIC;

-- Step 14: functions have changed: what an UPDATE of the key through balancer_all is told

-- Step 15: functions have changed: a further proof in a transaction sees partitions that arrived meanwhile

-- Step 16: functions have changed: a sequence that was restarted is not put back

-- Step 17: functions have changed: what guards the home of a reference table has the writer's rights

-- Step 18
-- The directory that the node belongs to, and whether it belonged to another before: names may be the same.
ALTER TABLE balancer.node ADD COLUMN IF NOT EXISTS identity text,
    ADD COLUMN IF NOT EXISTS changed_hands boolean NOT NULL DEFAULT false;

-- Step 19
-- What undoes a step of a schema change on this very node: what was there before stays.
ALTER TABLE balancer.ddl_step ADD COLUMN IF NOT EXISTS undo text[];

-- Step 20: functions have changed: a trigger on the roots may concern SERIALIZABLE writers alone
