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
from balancer.naming import Name
from balancer.nodes.schema import texts
from balancer.nodes.session import own_schema
from balancer.nodes.session.connection import UNAWARE, Connection, Cursor, Statement, installed, run_together


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


STEPS = texts.steps()
"""What brings a node's tables from version n to n + 1."""

FUNCTIONS = texts.functions()
"""What the newest version has; a change to these appends a step, even if it is empty."""


def install_schema(connection: Connection, cluster: str, node: str) -> int:
    """Installs or upgrades; returns the version. Idempotent. Refuses a database that is another node's."""
    with connection.transaction(), connection.cursor() as cursor:
        # If two start at once, the second waits here and then finds it done.
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 1)", (texts.LEADER_LOCK,))
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
