"""The outbox and the inbox of a table on a node, who may use them, and the statements that messages run.

Called by `features.messages.enable`, which makes a table ready, and by the leader, which keeps every node ready. Both
roots are our own, not the table owner's: nobody else can give them triggers or indexes whose code would run with our
rights when we read them. Roles that may write to the table may send and deliver; they cannot write the column with the
sender's role. Called inside a `node_transaction`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.schema.texts import OURS
from balancer.nodes.session.connection import Connection, Cursor, printed, run_single
from balancer.settings.messages import MessageSettings, compiled, values_of

_OUTBOX_COLUMNS = """
    message_id uuid NOT NULL DEFAULT gen_random_uuid(),
    message_number bigint NOT NULL,
    message_target text NOT NULL,
    message_key text[] NOT NULL,
    message_name text NOT NULL,
    message_body jsonb NOT NULL,
    message_role text NOT NULL DEFAULT CURRENT_USER,
    message_sent timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_state text NOT NULL DEFAULT 'pending' CHECK (message_state IN ('pending', 'failed')),
    message_tries integer NOT NULL DEFAULT 0,
    message_due timestamptz NOT NULL DEFAULT clock_timestamp() + interval '{ours}',
    message_reason text
""".replace("{ours}", OURS)
_INBOX_COLUMNS = """
    message_id uuid NOT NULL,
    message_outcome text NOT NULL CHECK (message_outcome IN ('applied', 'failed')),
    message_reason text,
    message_name text NOT NULL,
    message_sender text NOT NULL,
    message_sender_key text[] NOT NULL,
    message_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_gone timestamptz,
    message_gone_by text,
    message_dismissed boolean NOT NULL DEFAULT false
"""
_SENT = ("message_number", "message_target", "message_key", "message_name", "message_body")
_RECEIVED = ("message_id", "message_outcome", "message_name", "message_sender", "message_sender_key")

# Full names: the same name in another schema is another type or collation.
_KEY = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attcollation <> t.typcollation
            THEN (SELECT format('%%I.%%I', n.nspname, l.collname) FROM pg_collation l
                  JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END
FROM pg_partitioned_table p
CROSS JOIN LATERAL unnest(p.partattrs) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.number
JOIN pg_type t ON t.oid = a.atttypid
WHERE p.partrelid = to_regclass(%s) ORDER BY k.place
"""
_WRITERS = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g
WHERE c.oid = to_regclass(%s) AND g.privilege_type IN ('INSERT', 'UPDATE', 'DELETE')
ORDER BY 1
"""
# The rights granted directly to a role, or to everybody: what it has as a member of others may be revoked from those.
_ON_TABLE = """
SELECT g.privilege_type FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g
WHERE c.oid = to_regclass(%(root)s)
  AND g.grantee = coalesce((SELECT oid FROM pg_roles WHERE rolname = %(role)s::text), 0)
"""
_ON_COLUMNS = """
SELECT g.privilege_type, a.attname FROM pg_attribute a, aclexplode(a.attacl) g
WHERE a.attrelid = to_regclass(%(root)s)
  AND g.grantee = coalesce((SELECT oid FROM pg_roles WHERE rolname = %(role)s::text), 0)
"""


CLOSED = "balancer_closed"
"""The constraint that lets no row in."""
_IS_CLOSED = "SELECT FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s"


@dataclass(frozen=True, slots=True)
class MessageRoots:
    """One table's first root, which says how it is partitioned, and its two roots for messages."""

    table: str
    first: Name
    outbox: Name
    inbox: Name


KeyColumns = Sequence[tuple[str, str]]
"""Names and SQL types."""


def key_of_root(cursor: Connection | Cursor, first: Name) -> list[tuple[str, str, str | None]]:
    """The key's columns as the table has them: name, type, and the collation where it is not the type's own."""
    return [(str(name), str(kind), collation) for name, kind, collation in cursor.execute(_KEY, (str(first),))]


def make_message_roots(cursor: Cursor, roots: MessageRoots) -> bool:
    """Makes the two roots, without partitions, where the table exists and they do not; False: nothing to do."""
    key = key_of_root(cursor, roots.first)
    there = [_is_there(cursor, name) for name in (roots.outbox, roots.inbox)]
    if not key or all(there):
        return False
    taken = [name for name, _, _ in key if name.startswith("message_")]
    if taken:
        raise Refused(f"key column {taken[0]!r} of {roots.first} has a name that the columns of messages have")
    for name, columns, present in zip(
        (roots.outbox, roots.inbox), (_OUTBOX_COLUMNS, _INBOX_COLUMNS), there, strict=True
    ):
        if not present:
            _make_root(cursor, roots, name, columns, key)
    if not there[0]:
        names = sql.SQL(", ").join(sql.Identifier(name) for name, _, _ in key)
        cursor.execute(sql.SQL("ALTER TABLE {} ADD UNIQUE ({}, message_number)").format(roots.outbox.identifier, names))
        cursor.execute(_index(roots.outbox, "message_due", "message_state = 'pending'"))
        cursor.execute(_index(roots.outbox, "message_sent", "message_state = 'failed'"))
    if not there[1]:
        cursor.execute(_index(roots.inbox, "message_at", "message_gone IS NULL"))
        cursor.execute(_index(roots.inbox, "message_gone", "message_gone IS NOT NULL"))
    return True


def open_message_roots(cursor: Cursor, roots: MessageRoots) -> None:
    """Removes what closes them (`features.messages.enable`), if an interruption has left it."""
    for root in (roots.outbox, roots.inbox):
        found = cursor.execute(_IS_CLOSED, (str(root), CLOSED)).fetchone()
        if found is not None:
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            cursor.execute(drop.format(root.identifier, sql.Identifier(CLOSED)))


def _index(root: Name, column: str, where: str) -> sql.Composed:
    text = "CREATE INDEX ON {} ({}) WHERE " + where
    return sql.SQL(text).format(root.identifier, sql.Identifier(column))


def _is_there(cursor: Cursor, name: Name) -> bool:
    row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (str(name),)).fetchone()
    return bool(row and row[0])


def _make_root(
    cursor: Cursor, roots: MessageRoots, name: Name, columns: str, key: Sequence[tuple[str, str, str | None]]
) -> None:
    (by,) = cursor.execute("SELECT pg_get_partkeydef(to_regclass(%s))", (str(roots.first),)).fetchone() or ("",)
    written = sql.SQL(", ").join(
        sql.Identifier(column) + printed(f" {kind}{f' COLLATE {collation}' if collation else ''} NOT NULL")
        for column, kind, collation in key
    )
    names = sql.SQL(", ").join(sql.Identifier(column) for column, _, _ in key)
    create = sql.SQL("CREATE TABLE {} ({}, {}, PRIMARY KEY ({}, message_id)) PARTITION BY {}")
    run_single(cursor, create.format(name.identifier, written, printed(columns), names, printed(by)))
    what = f"Messages of table {roots.table}, made by tablet-balancer"
    cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name.identifier, sql.Literal(what)))


def grant_messages(cursor: Cursor, roots: MessageRoots) -> bool:
    """Lets everybody who may write to the table send and deliver. What was given before stays.

    False: there was nothing to do. Then nothing is written: a running migration takes every GRANT for a change of the
    table that it copies.
    """
    key = [name for name, _, _ in key_of_root(cursor, roots.first)]
    settled = ("message_state", "message_reason")
    wanted = (
        (roots.outbox, ("SELECT", "DELETE"), {"INSERT": (*key, *_SENT), "UPDATE": settled}),
        (roots.inbox, ("SELECT",), {"INSERT": (*key, *_RECEIVED)}),
    )
    given = False
    for (role,) in cursor.execute(_WRITERS, (str(roots.first),)).fetchall():
        for root, whole, columns in wanted:
            if not _has(cursor, root, role, whole, columns):
                _grant(cursor, root, role, whole, columns)
                given = True
    return given


def _has(
    cursor: Cursor, root: Name, role: str | None, whole: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> bool:
    asked = {"root": str(root), "role": role}
    on_table = {str(right) for (right,) in cursor.execute(_ON_TABLE, asked)}
    on_columns = {(str(right), str(name)) for right, name in cursor.execute(_ON_COLUMNS, asked)}
    needed = {(right, name) for right, names in columns.items() for name in names if right not in on_table}
    return on_table.issuperset(whole) and needed <= on_columns


def _grant(
    cursor: Cursor, root: Name, role: str | None, whole: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> None:
    rights: list[sql.Composable] = [sql.SQL(right) for right in whole]
    rights += [sql.SQL(right + " ({})").format(_names(names)) for right, names in columns.items()]
    whom = sql.SQL("PUBLIC") if role is None else sql.Identifier(role)
    cursor.execute(sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(", ").join(rights), root.identifier, whom))


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def tell_message_tables(cursor: Cursor, tables: Sequence[tuple[MessageRoots, KeyColumns]]) -> None:
    """Records which tables take part, with their names and keys as SQL. Leaves those that are gone."""
    for roots, key in tables:
        names = [sql.Identifier(name).as_string(cursor) for name, _ in key]
        values = [f"($1)[{number}]::{kind}" for number, (_, kind) in enumerate(key, 1)]
        matches = " AND ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        cursor.execute(
            "INSERT INTO balancer.message_table AS t VALUES (%(name)s, %(outbox)s, %(inbox)s, %(schema)s, %(columns)s,"
            " %(key)s, %(matches)s) ON CONFLICT (name) DO UPDATE SET outbox = excluded.outbox, inbox = excluded.inbox,"
            " schema = excluded.schema, columns = excluded.columns, key = excluded.key, matches = excluded.matches"
            " WHERE t IS DISTINCT FROM excluded",
            {
                "name": roots.table,
                "outbox": roots.outbox.identifier.as_string(cursor),
                "inbox": roots.inbox.identifier.as_string(cursor),
                "schema": roots.first.schema,
                "columns": ", ".join(names),
                "key": ", ".join(values),
                "matches": matches,
            },
        )


Handlers = Mapping[str, Mapping[str, MessageSettings]]
"""By table and name."""


def tell_handlers(cursor: Cursor, handlers: Handlers, keys: Mapping[str, KeyColumns]) -> None:
    """Records what messages do, for every table that may send them; removes what is no longer declared."""
    wanted = [row for target, messages in handlers.items() for row in _rows(target, messages, keys)]
    cursor.execute(
        "DELETE FROM balancer.message_handler h WHERE NOT EXISTS ("
        "SELECT FROM unnest(%s::text[], %s::text[], %s::text[]) AS w (target, name, sender)"
        " WHERE (w.target, w.name, w.sender) = (h.target, h.name, h.sender))",
        ([row[0] for row in wanted], [row[1] for row in wanted], [row[2] for row in wanted]),
    )
    cursor.executemany(
        "INSERT INTO balancer.message_handler AS h VALUES (%s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (target, name, sender) DO UPDATE SET apply = excluded.apply, reverse = excluded.reverse,"
        " needs = excluded.needs, attempts = excluded.attempts WHERE h IS DISTINCT FROM excluded",
        wanted,
    )


def _rows(
    target: str, messages: Mapping[str, MessageSettings], keys: Mapping[str, KeyColumns]
) -> list[tuple[str, str, str, str, str | None, list[str], int]]:
    if target not in keys:
        return []
    mine = {name for name, _ in keys[target]}
    rows = []
    for name, message in messages.items():
        for sender, key in keys.items():
            needs = values_of(message.apply) - mine | values_of(message.reverse) - {column for column, _ in key}
            back = compiled(message.reverse, key) if message.reverse else None
            rows.append(
                (target, name, sender, compiled(message.apply, keys[target]), back, sorted(needs), message.attempts)
            )
    return rows
