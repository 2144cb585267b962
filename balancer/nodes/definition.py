"""The definition of a root as statements, so that a node that lacks it can be given the same one.

Read from the catalog, without partitions. What a table needs beyond itself (types, functions, tables that foreign keys
point to) must be on the other node already; sequences do not travel, because two nodes would hand out the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.catalog import Root, find_root
from balancer.nodes.connection import Cursor, run_single
from balancer.nodes.names import Name

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
       pg_get_expr(d.adbin, d.adrelid),
       CASE WHEN a.attcollation <> t.typcollation THEN l.collname END, ln.nspname
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# NOT NULL is a constraint of its own since PostgreSQL 18; it is written with its column here.
_CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid), contype = 'f'
FROM pg_constraint
WHERE conrelid = %s AND contype NOT IN ('n', 't') AND conparentid = 0
ORDER BY contype = 'f', contype <> 'p', conname
"""

_INDEXES = """
SELECT pg_get_indexdef(i.indexrelid)
FROM pg_index i
WHERE i.indrelid = %s AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)
ORDER BY i.indexrelid
"""

_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END, g.privilege_type
FROM pg_class c, aclexplode(c.relacl) g
WHERE c.oid = %s AND g.grantee <> c.relowner
"""


Statement = sql.SQL | sql.Composed


@dataclass(frozen=True, slots=True)
class Definition:
    """Statements that make a root, in order; foreign keys apart, because they need the other roots first."""

    root: Name
    statements: tuple[Statement, ...]
    foreign_keys: tuple[Statement, ...]


def read_definition(cursor: Cursor, root: Root) -> Definition:
    """What makes the same root elsewhere. Refuses columns that draw from a sequence."""
    table = root.name.identifier
    statements: list[Statement] = [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(root.name.schema)),
        sql.SQL("CREATE TABLE {} ({}) PARTITION BY {}").format(table, _columns(cursor, root), _key(cursor, root)),
        sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(root.owner)),
    ]
    foreign_keys: list[Statement] = []
    for name, text, foreign in cursor.execute(_CONSTRAINTS, (root.oid,)).fetchall():
        statement = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(table, sql.Identifier(name), sql.SQL(text))
        (foreign_keys if foreign else statements).append(statement)
    statements += [sql.SQL(text) for (text,) in cursor.execute(_INDEXES, (root.oid,)).fetchall()]
    for grantee, privilege in cursor.execute(_GRANTS, (root.oid,)).fetchall():
        to = sql.Identifier(grantee) if grantee else sql.SQL("PUBLIC")
        statements.append(sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privilege), table, to))
    return Definition(root.name, tuple(statements), tuple(foreign_keys))


def make_roots(cursor: Cursor, definitions: Sequence[Definition]) -> None:
    """Makes the roots that are missing, then their foreign keys; inside the caller's transaction."""
    missing = [definition for definition in definitions if find_root(cursor, definition.root) is None]
    for definition in missing:
        for statement in definition.statements:
            run_single(cursor, statement)
    for definition in missing:
        for statement in definition.foreign_keys:
            run_single(cursor, statement)


def _columns(cursor: Cursor, root: Root) -> sql.Composable:
    return sql.SQL(", ").join(_column(root, row) for row in cursor.execute(_COLUMNS, (root.oid,)).fetchall())


def _column(root: Root, row: tuple[object, ...]) -> sql.Composable:
    name, type_name, not_null, identity, generated, default, collation, collation_schema = row
    if identity or "nextval(" in str(default):
        raise Refused(
            f'column "{name}" of {root.name} draws from a sequence, and two nodes would hand out the same numbers:'
            f" make the table on the other nodes yourself, with sequences that do not meet"
        )
    parts: list[sql.Composable] = [sql.Identifier(str(name)), sql.SQL(str(type_name))]
    if collation is not None:
        parts.append(sql.SQL("COLLATE {}").format(sql.Identifier(str(collation_schema), str(collation))))
    if generated:
        kept = "STORED" if generated == "s" else "VIRTUAL"
        parts.append(sql.SQL("GENERATED ALWAYS AS ({}) {}").format(sql.SQL(str(default)), sql.SQL(kept)))
    elif default is not None:
        parts.append(sql.SQL("DEFAULT {}").format(sql.SQL(str(default))))
    if not_null:
        parts.append(sql.SQL("NOT NULL"))
    return sql.SQL(" ").join(parts)


def _key(cursor: Cursor, root: Root) -> sql.Composable:
    row = cursor.execute("SELECT pg_get_partkeydef(%s)", (root.oid,)).fetchone()
    assert row is not None
    return sql.SQL(row[0])
