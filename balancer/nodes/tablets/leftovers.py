"""What migrations may leave on a node when everything dies at once: found by name alone, removed one by one.

Called by `balancer.features.repair.doctor`, which knows from the directory which of these belong to a migration that is
still running. Finding only reads; removing is for a leader, and each removal is idempotent.

What becomes of a former owner's rows: dropped, or set aside if somebody may have written to them after the switch.

A former owner can have taken writes after the switch in two ways; what was written there was acknowledged and is
nowhere else. The table's owner may switch the fence off (`ALTER TABLE … DISABLE TRIGGER`, as import scripts do): the
transaction that closes a partition leaves its number in `balancer.tablet.closed_by`, and a trigger that another
transaction wrote has been switched since. And the server may be replaced by a standby that lagged behind the seal
(`was_open`). Such rows are moved into a schema of their own, with a comment that says whose they were, and `doctor`
names it until a person has looked at them and dropped it. Called by migrations when they retire, and by the guard,
inside their `node_transaction`.

Sessions whose snapshot is older than a transaction: they do not see what it, or others before it, wrote. Only reads.

A transaction in REPEATABLE READ or SERIALIZABLE, and so pg_dump, reads by one snapshot to its end, but finds the
partitions of a root by the newest catalog. Where new partitions have replaced old ones since, or one was detached, its
rows silently disappear. So a swap and a detach wait for such sessions, and name them to anyone who asks why. Nobody is
held back meanwhile.

Which physical standbys have not replayed a position yet. Statements only; the caller decides what to wait for.

A failover to a standby that lags takes a node back in time. So before dropping anything that such a node would need
again, the connected standbys must have replayed the change. Standbys of standbys, and those that are not connected at
this moment, are not seen from here: a node that is known to have had one has it
somewhere else, perhaps promoted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import check_owners_code
from balancer.nodes.schema.blockers import Blocker
from balancer.nodes.schema.proof import bury
from balancer.nodes.session.connection import Connection, Cursor
from balancer.nodes.tablets import replication
from balancer.nodes.tablets.fence import MOVED, SEALED
from balancer.nodes.tablets.object_names import (
    CLOSED,
    FENCE_TRIGGER,
    FENCE_TRUNCATE_TRIGGER,
    KEPT_SCHEMA,
    SNAPSHOT_TRIGGER,
    TRIGGERS,
    owner_of,
)
from balancer.nodes.tablets.partition import detach_pending, drop_partition, exists


class LeftoverKind(StrEnum):
    """Kinds of objects, in the order in which they can be removed."""

    SUBSCRIPTION = "subscription"
    SLOT = "replication slot"
    PUBLICATION = "publication"
    TRIGGER = "trigger"
    LOG = "table of changes"
    NOTES = "table of chunks"
    FUNCTION = "function"
    MARKER = "marker"
    CONSTRAINT = "constraint"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object of a migration on a node."""

    kind: LeftoverKind
    name: str
    migration: str | None  # None: it cannot be told (a trigger whose function is gone)
    table: Name | None = None

    def __str__(self) -> str:
        where = f" on {self.table}" if self.table else ""
        return f"{self.kind} {self.name}{where}"


_QUERIES: dict[LeftoverKind, str] = {
    LeftoverKind.SUBSCRIPTION: """
        SELECT subname, NULL, NULL FROM pg_subscription WHERE subname LIKE 'tb\\_m%'
        AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())""",
    LeftoverKind.SLOT: """
        SELECT slot_name, NULL, NULL FROM pg_replication_slots
        WHERE slot_name LIKE 'tb\\_m%' AND database = current_database()""",
    LeftoverKind.PUBLICATION: "SELECT pubname, NULL, NULL FROM pg_publication WHERE pubname LIKE 'tb\\_m%'",
    LeftoverKind.LOG: """
        SELECT relname, NULL, NULL FROM pg_class
        WHERE relnamespace = 'balancer'::regnamespace AND relkind = 'r' AND relname LIKE 'changes\\_m%'""",
    LeftoverKind.NOTES: """
        SELECT relname, NULL, NULL FROM pg_class
        WHERE relnamespace = 'balancer'::regnamespace AND relkind = 'r' AND relname LIKE 'chunks\\_m%'""",
    LeftoverKind.FUNCTION: """
        SELECT proname, NULL, NULL FROM pg_proc
        WHERE pronamespace = 'balancer'::regnamespace
        AND (proname LIKE 'capture\\_m%' OR proname LIKE 'mirror\\_m%')""",
    LeftoverKind.MARKER: "SELECT DISTINCT 'tb_' || migration, NULL, NULL FROM balancer.marker",
    LeftoverKind.CONSTRAINT: """
        SELECT k.conname, n.nspname, c.relname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE k.conname ~ '^tb_m[0-9a-z]+_bound$'""",
}

_TRIGGERS = """
    SELECT t.tgname, n.nspname, c.relname, t.tgargs, p.proname
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE (t.tgname = ANY(%s) OR starts_with(t.tgname, %s)) AND NOT t.tgisinternal AND NOT starts_with(n.nspname, %s)
"""


def find_leftovers(connection: Connection) -> list[Leftover]:
    """Every object that migrations have on this node, whether they still run or not."""
    return [*_named(connection), *_triggers(connection)]


def remove_leftover(cursor: Cursor, leftover: Leftover) -> None:
    """Removes one object, or fails while the application's sessions are in the way. Idempotent.

    Inside the caller's `node_transaction`.
    """
    name = sql.Identifier(leftover.name)
    migration = leftover.migration or ""
    match leftover.kind:
        case LeftoverKind.SUBSCRIPTION:
            replication.drop_subscription(cursor, migration)
        case LeftoverKind.SLOT:
            replication.drop_slot(cursor, migration)
        case LeftoverKind.PUBLICATION:
            replication.drop_publication(cursor, migration)
        case LeftoverKind.LOG | LeftoverKind.NOTES:
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS balancer.{}").format(name))
        case LeftoverKind.FUNCTION:
            cursor.execute(sql.SQL("DROP FUNCTION IF EXISTS balancer.{}() CASCADE").format(name))
        case LeftoverKind.MARKER:
            replication.delete_markers(cursor, migration)
            replication.forget_switch(cursor, migration)
        case LeftoverKind.TRIGGER if leftover.table is not None:
            cursor.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(name, leftover.table.identifier))
        case LeftoverKind.CONSTRAINT if leftover.table is not None:
            cursor.execute(
                sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(leftover.table.identifier, name)
            )


def _named(connection: Connection) -> Iterator[Leftover]:
    for kind, query in _QUERIES.items():
        for name, schema, table in connection.execute(sql.SQL(query)):
            owner = owner_of(name.removesuffix("_bound"))
            if owner is not None:  # somebody else's may begin like ours
                yield Leftover(kind, name, owner, Name(schema, table) if schema else None)


def _triggers(connection: Connection) -> Iterator[Leftover]:
    for name, schema, table, arguments, function in connection.execute(
        _TRIGGERS, (list(TRIGGERS), SNAPSHOT_TRIGGER, KEPT_SCHEMA)
    ):
        words = bytes(arguments).decode().split("\0")
        owner = words[0] or owner_of(function)
        if owner == CLOSED:
            continue  # it keeps writers from a node that has gone back in time
        yield Leftover(LeftoverKind.TRIGGER, name, owner or None, Name(schema, table))


_UNKNOWN = "unknown"
"""In place of the transaction since which somebody may have written."""
_SWITCHED = """
    SELECT count(t) <> 2 OR NOT bool_and(t.tgenabled = 'A' AND t.xmin::text = ANY (%(closed_by)s))
    FROM pg_trigger t WHERE t.tgrelid = to_regclass(%(partition)s) AND t.tgname = ANY (%(triggers)s)
"""


def switched_off(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name]) -> bool:
    """Whether somebody has switched off a fence of these since it was written; records it for `drop_or_set_aside`."""
    rows = cursor.execute(
        "SELECT closed_by FROM balancer.tablet WHERE id = ANY (%s) AND closed_by IS NOT NULL FOR UPDATE",
        (list(tablets),),
    ).fetchall()
    closed_by = [by for (by,) in rows]
    if not closed_by:  # by a version that did not record it
        return False
    found = any(_switched(cursor, partition, closed_by) for partition in partitions)
    if found:
        cursor.execute(
            "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, closed_by) WHERE id = ANY (%s)",
            (list(tablets),),
        )
    return found


def was_open(cursor: Cursor, tablets: Sequence[int]) -> bool:
    """Whether a former owner is found without what the switch had sealed, or with what the guard closed it with when it
    was found so: it went back in time, and may have taken writes since."""
    row = cursor.execute(
        "SELECT bool_or(until IS NULL OR until <> ALL (%s) OR migration IS NOT DISTINCT FROM %s) FROM"
        " (SELECT until, migration FROM balancer.tablet WHERE id = ANY (%s) FOR UPDATE) AS t",
        ([SEALED, MOVED], CLOSED, list(tablets)),
    ).fetchone()
    return row is None or row[0] is not False  # no row: it forgot the tablet itself


def note_open(cursor: Cursor, tablets: Sequence[int]) -> None:
    """Remembers it for `drop_or_set_aside`; once the rows of `balancer.tablet` are there."""
    cursor.execute(
        "UPDATE balancer.tablet SET breached_since = coalesce(breached_since, %s) WHERE id = ANY (%s)",
        (_UNKNOWN, list(tablets)),
    )


def was_switched_off(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name]) -> bool:
    """Whether that has ever happened: their rows may have been acknowledged."""
    return switched_off(cursor, tablets, partitions) or _breached(cursor, tablets)


def _breached(cursor: Cursor, tablets: Sequence[int]) -> bool:
    row = cursor.execute(
        "SELECT bool_or(breached_since IS NOT NULL) FROM balancer.tablet WHERE id = ANY (%s)", (list(tablets),)
    ).fetchone()
    return bool(row and row[0])


def _switched(cursor: Cursor, partition: Name, closed_by: Sequence[str]) -> bool:
    if not exists(cursor, partition):
        return False
    given = {
        "partition": str(partition),
        "closed_by": list(closed_by),
        "triggers": [FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER],
    }
    row = cursor.execute(_SWITCHED, given).fetchone()
    return bool(row and row[0])


def drop_or_set_aside(
    cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str, lock_timeout: float
) -> str:
    """Drops detached partitions that are closed, in this order; returns what was set aside instead, in words, or ''."""
    cursor.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, round(lock_timeout * 1000))}ms",))
    for partition in partitions:
        if exists(cursor, partition):  # from here on nobody can switch anything
            cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(partition.identifier))
    if not was_switched_off(cursor, tablets, partitions):
        for partition in partitions:
            drop_partition(cursor, partition)
        return ""
    there = [partition for partition in partitions if exists(cursor, partition)]
    return _set_aside(cursor, tablets, there, migration) if there else ""


def copy_aside(cursor: Cursor, tablets: Sequence[int], tables: Sequence[Name], migration: str) -> str:
    """The same for tables that stay where they are, under their lock: a copy of their rows, if they may have been
    written to; in words, or ''."""
    if not (was_open(cursor, tablets) or was_switched_off(cursor, tablets, tables)):
        return ""
    schema, text = _kept_schema(cursor, tablets, tables, migration)
    for table in tables:
        copy = sql.SQL("CREATE TABLE {} AS TABLE ONLY {}").format(sql.Identifier(schema, table.name), table.identifier)
        cursor.execute(copy)
    return f"{schema}: {text}"


def _set_aside(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str) -> str:
    schema, text = _kept_schema(cursor, tablets, partitions, migration)
    for partition in partitions:
        if detach_pending(cursor, partition) is not None:
            raise Refused(f"{partition} is still attached and is not set aside")
        bury(cursor, partition)
        cursor.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(partition.identifier, sql.Identifier(schema)))
    return f"{schema}: {text}"


def _kept_schema(cursor: Cursor, tablets: Sequence[int], partitions: Sequence[Name], migration: str) -> tuple[str, str]:
    """The schema that a migration's rows are set aside in, and its comment."""
    schema = f"{KEPT_SCHEMA}{migration}"
    cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    mine = cursor.execute(
        "SELECT nspowner = current_user::regrole FROM pg_namespace WHERE nspname = %s", (schema,)
    ).fetchone()
    if mine != (True,):
        raise Refused(f"schema {schema} is not the balancer's: drop it, rows will be set aside there")
    written = _written_since(cursor, partitions, tablets)
    named = " and ".join(map(str, tablets))
    text = (
        f"rows of tablet {named} as they were when migration {migration} had ended: after the switch they could be"
        " written here, because somebody had switched the fence off or the server had gone back in time, and"
        f" {written} were written here since; rows may have been deleted, too"
    )
    cursor.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(schema), sql.Literal(text)))
    return schema, text


def _written_since(cursor: Cursor, partitions: Sequence[Name], tablets: Sequence[int]) -> str:
    """How many rows were inserted or updated after the partitions were first closed, in words."""
    try:
        if _since_unknown(cursor, tablets):
            return "an unknown number of rows"
        check_owners_code(cursor, partitions)
        with cursor.connection.transaction():
            return f"{_count_since(cursor, partitions, tablets)} rows"
    except (Refused, psycopg.Error):
        return "an unknown number of rows"  # counting them would run their owner's code as us, or fails


def _since_unknown(cursor: Cursor, tablets: Sequence[int]) -> bool:
    row = cursor.execute(
        "SELECT bool_or(breached_since = %s) FROM balancer.tablet WHERE id = ANY (%s)", (_UNKNOWN, list(tablets))
    ).fetchone()
    return bool(row and row[0])


def _count_since(cursor: Cursor, partitions: Sequence[Name], tablets: Sequence[int]) -> int:
    counted = sql.SQL(" + ").join(
        sql.SQL("(SELECT count(*) FROM ONLY {} AS r WHERE age(r.xmin) < closed)").format(partition.identifier)
        for partition in partitions
    )
    query = sql.SQL("SELECT {} FROM (SELECT max(age(breached_since::xid)) AS closed FROM balancer.tablet")
    row = cursor.execute(query.format(counted) + sql.SQL(" WHERE id = ANY (%s)) AS t"), (list(tablets),)).fetchone()
    return int(row[0]) if row else 0


def kept_rows(connection: Connection) -> list[tuple[str, str]]:
    """Schemas with rows that were set aside, and what is known about them. Ours only: a person is told to drop them."""
    rows = connection.execute(
        "SELECT nspname, coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace"
        " WHERE nspname ~ %s AND nspowner = current_user::regrole ORDER BY nspname",
        (f"^{KEPT_SCHEMA}[a-z0-9_]+$",),
    ).fetchall()
    return [(str(name), str(text)) for name, text in rows]


# A snapshot that does not see a transaction was taken with an xmin that is no newer. That is shown of every backend, of
# every role, and also where `track_activities` is off; when its transaction began, and what it is, may not be. One
# without a role is of an autovacuum worker; it, VACUUM, and CREATE INDEX CONCURRENTLY read by no root, and are in no
# transaction that could do so later. Migrations read partitions by their own names.
_OLDER = """
    SELECT a.pid, a.xact_start, a.backend_xmin::text,
           coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
           coalesce(nullif(a.application_name, ''), 'a client'),
           extract(epoch FROM clock_timestamp() - CASE WHEN a.state = 'active' THEN a.query_start END)::float8
    FROM pg_stat_activity a
    WHERE a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND a.pid <> pg_backend_pid()
      AND a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(%(transaction)s::xid8::xid)
      AND a.usesysid IS NOT NULL AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
      AND NOT (a.usename = current_user AND starts_with(coalesce(a.application_name, ''), 'tablet-balancer migration '))
      AND NOT (%(but_dumps)s AND a.application_name IS NOT DISTINCT FROM 'pg_dump')
      AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
      AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index i
                      WHERE i.pid = a.pid AND i.command LIKE '%% CONCURRENTLY')
    ORDER BY a.xact_start NULLS LAST
"""


class OlderSnapshots:
    """Sessions that may have a snapshot older than a transaction that has committed: listed once, at the first look.

    One that begins later sees it, unless it imports the snapshot of another session: such a snapshot's xmin is of a
    transaction that had ended already. A session leaves the list for good when it is seen in another transaction,
    without a snapshot, or with one that is newer; no clocks are compared. `but_dumps`: pg_dump reads partitions by
    their own names, those that it found when it began.
    """

    def __init__(self, transaction: str, *, but_dumps: bool = False) -> None:
        self.transaction = transaction
        self._given = {"transaction": transaction, "but_dumps": but_dumps}
        self._listed: dict[int, datetime | None] | None = None
        self._running: frozenset[str] = frozenset()

    def left(self, connection: Connection | Cursor) -> list[Blocker]:
        """Those that are left, oldest first."""
        if self._listed is None:
            running = connection.execute("SELECT x::xid::text FROM pg_snapshot_xip(pg_current_snapshot()) AS x")
            self._running = frozenset(str(number) for (number,) in running.fetchall())
        rows = connection.execute(_OLDER, self._given).fetchall()
        known = {int(pid): since for pid, since, *_ in rows} if self._listed is None else self._listed
        self._listed = {
            int(pid): since
            for pid, since, xmin, *_ in rows
            if (pid in known and known[pid] == since) or xmin not in self._running
        }
        return [
            Blocker(pid, age, f"{what}, with an older snapshot", query)
            for pid, _, _, age, what, query in rows
            if pid in self._listed
        ]


def this_transaction(cursor: Cursor) -> str:
    """The cursor's own, which gets a number by that: whoever does not see it may not see what was before it either."""
    row = cursor.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])


@dataclass(frozen=True, slots=True)
class Standby:
    """A connected physical standby that is behind."""

    name: str
    """Its application name, as the standby chose it."""
    address: str
    """Empty: it is connected through a local socket, or we may not know."""
    lag_bytes: int | None
    """None: it has not said yet how far it is, or we may not know."""

    def __str__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        lag = "an unknown amount of WAL" if self.lag_bytes is None else f"{self.lag_bytes} bytes of WAL"
        return f"standby {self.name!r}{where} is behind by {lag}"


# The insert position is past the header of a page that has no record yet. No standby replays a bare header, so on an
# idle server the end of the last record has to be reached: the page's start.
_POSITION = """
SELECT ('0/0'::pg_lsn
        + CASE WHEN mod(at, segment) = 40 THEN at - 40 WHEN mod(at, block) = 24 THEN at - 24 ELSE at END)::text
FROM (SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS at, current_setting('wal_block_size')::numeric AS block,
             (SELECT setting::numeric FROM pg_settings WHERE name = 'wal_segment_size') AS segment) AS here
"""

# Logical decoding needs a slot, so the type of the slot that a walsender holds says what it does. A base backup streams
# files, not WAL. A receiver of WAL (pg_receivewal) answers but replays nothing: it can never take over.
_PHYSICAL = (
    "NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')"
    " AND r.state IS DISTINCT FROM 'backup'"
)
CONNECTED_STANDBYS: Final = (
    "SELECT array_agg(DISTINCT r.application_name ORDER BY r.application_name) FROM pg_stat_replication r"  # noqa: S608
    " WHERE " + _PHYSICAL + " AND r.replay_lsn IS NOT NULL"
)
"""A query with one value: the names of the physical standbys that are connected; NULL: none that we may see."""
_BEHIND = (
    """
SELECT r.application_name, host(r.client_addr), pg_wal_lsn_diff(%(position)s::pg_lsn, r.replay_lsn)::bigint
FROM pg_stat_replication r
WHERE """
    + _PHYSICAL
    + """
  AND (r.replay_lsn < %(position)s::pg_lsn OR r.replay_lsn IS NULL AND r.reply_time IS NULL)
ORDER BY r.application_name, r.pid
"""
)
_FOLLOWS = (
    "SELECT EXISTS (SELECT FROM pg_stat_replication r WHERE "  # noqa: S608 - nothing here comes from outside
    + _PHYSICAL
    + " AND r.replay_lsn >= %s::pg_lsn)"
)
_SERVER = (
    "SELECT NOT pg_is_in_recovery(), pg_postmaster_start_time()::text,"
    " (SELECT system_identifier::text FROM pg_control_system())"
)


class Server(NamedTuple):
    """One process that answers for a node."""

    leads: bool
    started: str
    system: str


def server_of(connection: Connection) -> Server:
    """Who answers on this connection."""
    row = connection.execute(_SERVER).fetchone()
    assert row is not None
    return Server(*row)


def position(cursor: Cursor) -> str:
    """Where the server's WAL ends now. Everything committed before is below it."""
    cursor.execute(_POSITION)
    row = cursor.fetchone()
    assert row is not None
    return str(row[0])


def not_replayed(connection: Connection, position: str) -> list[Standby]:
    """The connected standbys that have not replayed up to this position.

    A role without pg_monitor may not see how far a standby is: such a standby counts as behind.
    """
    rows = connection.execute(_BEHIND, {"position": position}).fetchall()
    return [Standby(name or "", address or "", lag) for name, address, lag in rows]


def follows(connection: Connection, position: str) -> bool:
    """Whether at least one standby is connected and has replayed up to this position."""
    row = connection.execute(_FOLLOWS, (position,)).fetchone()
    return row is not None and bool(row[0])
