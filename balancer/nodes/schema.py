"""Our schema `balancer` on a node: installed and upgraded here, in one transaction, and nowhere else.

`node` (one row) says which node of which cluster this database is and which leader it has seen; `tablet` says what it
owns. It is the node's copy, which fences and clients' proofs rely on; the directory is the truth. Tables change by
steps, which are only ever appended; functions have one text, which every new version replaces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes import (
    client_functions,
    ddl_journal,
    decisions,
    expired_functions,
    fence_functions,
    locks,
    message_functions,
    own_schema,
    proof,
    proven_views,
    reference_functions,
    rekey_functions,
    rewind_functions,
    sequences,
)
from balancer.nodes.connection import UNAWARE, Connection, Cursor, Statement, run_together
from balancer.nodes.names import Name

LEADER_LOCK = 0x7461626C  # classid of our advisory locks ("tabl"); objid 0: leaders


class OwnState(StrEnum):
    """What a node says about a tablet."""

    OWNED = "owned"
    FENCED = "fenced"
    INCOMING = "incoming"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which node of which cluster a database is, and the newest leader it has seen."""

    cluster: str
    node: str
    leader_epoch: int
    schema_version: int
    mark: int = 0
    """When the leader last told it the time, in seconds since 1970; 0: never."""
    identity: str = ""
    """Of the directory, if it was asked for; empty: no leader that has one has worked there yet."""
    changed_hands: bool = False
    """Whether another directory has handed it over, if that was asked for."""


@dataclass(frozen=True, slots=True)
class OwnedTablet:
    """A row of `balancer.tablet`."""

    id: int
    epoch: int
    state: OwnState
    partitions: tuple[Name, ...]
    migration: str | None = None
    deadline: datetime | None = None
    moved_to: str | None = None


STEPS: tuple[str, ...] = (
    """
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

    """,
    fence_functions.STEP,
    "SELECT",  # was the first version of `hold`: replaced below
    # A proof after reading proves nothing: the tablet may have arrived between the two. `hold` comes first.
    "DROP FUNCTION IF EXISTS balancer.prove(bigint, bigint)",
    locks.STEP + client_functions.STEP,
    "SELECT",  # functions have changed: refusals that a retry cures are 40001
    "SELECT",  # functions have changed: a lock that is not granted in time is such a refusal too
    # The transaction that wrote the fence, and the one whose fence somebody has switched off: see `set_aside`.
    "ALTER TABLE balancer.tablet ADD COLUMN IF NOT EXISTS closed_by text, ADD COLUMN IF NOT EXISTS breached_since text",
    ddl_journal.STEP,
    decisions.STEP,
    "SELECT",  # functions have changed: what refuses writes to expired keys
    "SELECT",  # functions have changed: those of reference tables
    message_functions.STEP,
    "SELECT",  # functions have changed: what an UPDATE of the key through balancer_all is told
    "SELECT",  # functions have changed: a further proof in a transaction sees partitions that arrived meanwhile
    "SELECT",  # functions have changed: a sequence that was restarted is not put back
    "SELECT",  # functions have changed: what guards the home of a reference table has the writer's rights
    # The directory that the node belongs to, and whether it belonged to another before: names may be the same.
    """
    ALTER TABLE balancer.node ADD COLUMN IF NOT EXISTS identity text,
        ADD COLUMN IF NOT EXISTS changed_hands boolean NOT NULL DEFAULT false
    """,
    # What undoes a step of a schema change on this very node: what was there before stays.
    "ALTER TABLE balancer.ddl_step ADD COLUMN IF NOT EXISTS undo text[]",
    "SELECT",  # functions have changed: a trigger on the roots may concern SERIALIZABLE writers alone
)
"""What brings a node's tables from version n to n + 1."""

_ENTER = """
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
            PERFORM pg_advisory_xact_lock(1952539244, 0);
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
"""

FUNCTIONS = _ENTER + fence_functions.FUNCTIONS + locks.FUNCTIONS + client_functions.FUNCTIONS
FUNCTIONS += proof.FUNCTIONS + proven_views.FUNCTIONS + rewind_functions.FUNCTIONS + decisions.FUNCTIONS
FUNCTIONS += expired_functions.FUNCTIONS + reference_functions.FUNCTIONS + message_functions.FUNCTIONS
FUNCTIONS += rekey_functions.FUNCTIONS + sequences.FUNCTIONS
"""What the newest version has; a change to these appends a step, even if it is empty."""


def install_schema(connection: Connection, cluster: str, node: str) -> int:
    """Installs or upgrades; returns the version. Idempotent. Refuses a database that is another node's."""
    with connection.transaction(), connection.cursor() as cursor:
        # If two start at once, the second waits here and then finds it done.
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 1)", (LEADER_LOCK,))
        known = read_identity(cursor)
        if known is not None and (known.cluster, known.node) != (cluster, node):
            raise Refused(
                f"this database is node {known.node} of cluster {known.cluster}; it cannot be node {node} of {cluster}"
            )
        if known is None:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS balancer")
            cursor.execute(own_schema.IF_THERE)  # after it: somebody else may have been faster
            for step in (*STEPS, FUNCTIONS):
                cursor.execute(step)
            cursor.execute(
                "INSERT INTO balancer.node (cluster, node, schema_version) VALUES (%s, %s, %s)",
                (cluster, node, len(STEPS)),
            )
        else:
            upgrade_schema(cursor)
    UNAWARE.discard(connection)
    return len(STEPS)


def upgrade_schema(cursor: Cursor) -> None:
    """Brings our schema up to this program's version, if it is there and older; inside the caller's transaction."""
    known = read_identity(cursor)
    if known is None or known.schema_version == len(STEPS):
        return
    if known.schema_version > len(STEPS):
        raise Refused(
            f"node {known.node} has version {known.schema_version} of the balancer's schema;"
            f" this program knows {len(STEPS)}"
        )
    for step in (*STEPS[known.schema_version :], FUNCTIONS):
        cursor.execute(step)
    cursor.execute("UPDATE balancer.node SET schema_version = %s", (len(STEPS),))
    UNAWARE.discard(cursor.connection)  # if this is rolled back, its next transaction fails, and it is closed


def read_identity(cursor: Cursor) -> NodeIdentity | None:
    """Which node this database is, or None if our schema is not there."""
    if not installed(cursor):
        return None
    cursor.execute(
        "SELECT cluster, node, leader_epoch, schema_version, 0, coalesce(to_jsonb(n) ->> 'identity', ''),"
        " coalesce((to_jsonb(n) ->> 'changed_hands')::boolean, false) FROM balancer.node n"
    )
    row = cursor.fetchone()
    return NodeIdentity(*row) if row else None


def installed(cursor: Cursor) -> bool:
    """Whether our schema is there; an error if it is there and not ours."""
    cursor.execute("SELECT to_regclass('balancer.node') IS NOT NULL")
    row = cursor.fetchone()
    if row is None or not row[0]:
        return False
    cursor.execute(own_schema.REQUIRED)
    return True


def read_tablets(cursor: Cursor) -> list[OwnedTablet]:
    """Everything the node says about its tablets, by id."""
    cursor.execute(
        "SELECT id, epoch, state, schemas, partitions, migration, deadline, moved_to FROM balancer.tablet ORDER BY id"
    )
    return [
        OwnedTablet(
            number, epoch, OwnState(state), tuple(map(Name, schemas, partitions)), migration, deadline, moved_to
        )
        for number, epoch, state, schemas, partitions, migration, deadline, moved_to in cursor
    ]


def of_the_old_map(row: OwnedTablet, rows: Sequence[OwnedTablet]) -> bool:
    """Whether this is a tablet that a split, merge or expiry has replaced on its node, which answers for it until the
    directory has followed: its partitions are those of the tablets in its place."""
    if row.state is not OwnState.OWNED or row.migration is None:
        return False
    own = (one.partitions for one in rows if one.state is OwnState.OWNED and one.migration is None)
    return {name for partitions in own for name in partitions}.issuperset(row.partitions)


_INSERT = """
INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions, migration, deadline, moved_to)
"""
# Not ON CONFLICT DO UPDATE: that leaves its own lock in the row's xmax, and `balancer.hold` would take the long way.
_REPLACE = """
WITH new AS (
    SELECT {}::bigint AS id, {}::bigint AS epoch, {}::text AS state, {}::text[] AS schemas, {}::text[] AS partitions,
        {}::text AS migration, {}::timestamptz AS deadline, {}::text AS moved_to
), replaced AS (
    UPDATE balancer.tablet AS t SET
        epoch = new.epoch, state = new.state, schemas = new.schemas, partitions = new.partitions,
        migration = new.migration, deadline = new.deadline, moved_to = new.moved_to, changed = now(),
        -- Only fences write it; but one that comes back has none yet, whatever stood here when it left.
        until = CASE WHEN new.state <> 'incoming' THEN t.until END,
        closed_by = CASE WHEN new.state <> 'incoming' THEN t.closed_by END,
        breached_since = CASE WHEN new.state <> 'incoming' THEN t.breached_since END
    FROM new WHERE t.id = new.id RETURNING t.id
)
"""
_OTHERWISE = " SELECT * FROM new WHERE NOT EXISTS (SELECT FROM replaced)"


def add_tablets(cursor: Cursor, tablets: Sequence[OwnedTablet]) -> None:
    """Creates the rows that are missing and leaves the others alone; inside the caller's `node_transaction`."""
    values = sql.SQL(", ").join([sql.Placeholder()] * 8)
    statement = sql.SQL(_INSERT + "VALUES ({}) ON CONFLICT (id) DO NOTHING").format(values)
    cursor.executemany(statement, [_row(tablet) for tablet in tablets])


def write_tablets(cursor: Cursor, tablets: Sequence[OwnedTablet]) -> None:
    """Creates or replaces rows; inside the caller's `node_transaction`."""
    run_together(cursor, tablet_statements(tablets))


def tablet_statements(tablets: Sequence[OwnedTablet]) -> list[Statement]:
    """What `write_tablets` sends, for those who send more with it."""
    replacing = sql.SQL(_REPLACE + _INSERT + _OTHERWISE)
    return [replacing.format(*map(sql.Literal, _row(tablet))) for tablet in tablets]


def touch_statement(tablet: int) -> Statement:
    """Writes to a tablet's row without changing it; returns its id, if it exists."""
    update = sql.SQL("UPDATE balancer.tablet SET changed = now() WHERE id = {} RETURNING id")
    return update.format(sql.Literal(tablet))


def forget_tablets(cursor: Cursor, ids: Sequence[int]) -> None:
    """Removes rows of tablets that no longer exist; inside the caller's `node_transaction`."""
    cursor.execute("DELETE FROM balancer.tablet WHERE id = ANY(%s)", (list(ids),))


def _row(tablet: OwnedTablet) -> tuple[object, ...]:
    return (
        tablet.id,
        tablet.epoch,
        str(tablet.state),
        [name.schema for name in tablet.partitions],
        [name.name for name in tablet.partitions],
        tablet.migration,
        tablet.deadline,
        tablet.moved_to,
    )
