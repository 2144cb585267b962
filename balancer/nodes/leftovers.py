"""What migrations may leave on a node when everything dies at once: found by name alone, removed one by one.

Called by `balancer.migration.doctor`, which knows from the directory which of these belong to a migration that is still
running. Finding only reads; removing is for a leader, and each removal is idempotent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from balancer.nodes import replication
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.names import Name
from balancer.nodes.objects import CLOSED, KEPT_SCHEMA, SNAPSHOT_TRIGGER, TRIGGERS, owner_of


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
