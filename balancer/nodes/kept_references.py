"""Rows of a copy that others refer to must not disappear when the copy is filled again.

A copy is filled with triggers off, so PostgreSQL does not look at the foreign keys that point to it. Usually nothing
disappears. But a home that went back in time, and was accepted that way, has forgotten rows that its copies have, and
tablets on the copies' nodes may refer to them. Then filling such a copy is refused: nothing is changed, and a person
decides.

The caller holds the copy's lock against writers. A row that is inserted meanwhile holds the row that it refers to,
which our DELETE waits for, so it is counted; or it waits for us, and then finds that row gone. Everything is inside the
caller's transaction. Called by `migration.reference_copying`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.nodes.readable import check_readable

_KEYS = """
SELECT k.oid::bigint, f.nspname, fc.relname, r.nspname, rc.relname,
       array_agg(fa.attname::text ORDER BY u.place), array_agg(ra.attname::text ORDER BY u.place)
FROM pg_constraint k
JOIN pg_class fc ON fc.oid = k.conrelid JOIN pg_namespace f ON f.oid = fc.relnamespace
JOIN pg_class rc ON rc.oid = k.confrelid JOIN pg_namespace r ON r.oid = rc.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u (mine, theirs, place)
JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
JOIN pg_attribute ra ON ra.attrelid = k.confrelid AND ra.attnum = u.theirs
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.confrelid = ANY(%(tables)s::regclass[])
  AND NOT k.conrelid = ANY(%(tables)s::regclass[])
GROUP BY k.oid, 2, 3, 4, 5 ORDER BY k.oid
"""
_LEAVES = """
SELECT n.nspname, c.relname FROM pg_partition_tree(%s::regclass) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.isleaf
UNION SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %s::regclass AND c.relkind = 'r'
"""


@dataclass(frozen=True, slots=True)
class IncomingKey:
    """A foreign key that points to a copy, and what the copy had of its columns before it was filled."""

    table: Name
    columns: tuple[str, ...]
    copy: Name
    copy_columns: tuple[str, ...]
    before: sql.Identifier
    """A temporary table with those values."""

    def matches(self, one: str, columns: Sequence[str], other: str) -> sql.Composable:
        """That the values of one equal those of the other, by alias; the second side has the copy's columns."""
        pairs = zip(columns, self.copy_columns, strict=True)
        same = [sql.SQL("{} = {}").format(sql.Identifier(one, a), sql.Identifier(other, b)) for a, b in pairs]
        return sql.SQL(" AND ").join(same)


def remember_references(cursor: Cursor, copies: Sequence[Name]) -> list[IncomingKey]:
    """Before the copies are filled."""
    found = []
    for oid, schema, table, to_schema, to, mine, theirs in cursor.execute(
        _KEYS, {"tables": [str(name) for name in copies]}
    ).fetchall():
        before = sql.Identifier(f"tb_before_{oid}")
        key = IncomingKey(Name(schema, table), tuple(mine), Name(to_schema, to), tuple(theirs), before)
        cursor.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT DISTINCT {} FROM {}").format(
                before, sql.SQL(", ").join(map(sql.Identifier, theirs)), key.copy.identifier
            )
        )
        found.append(key)
    return found


def check_references_kept(cursor: Cursor, keys: Sequence[IncomingKey], home: str, *, trusted: bool) -> None:
    """After they were filled: raises `Refused` if rows that others refer to are gone."""
    for key in keys:
        cursor.execute(
            sql.SQL("DELETE FROM pg_temp.{} AS b WHERE EXISTS (SELECT FROM {} AS c WHERE {})").format(
                key.before, key.copy.identifier, key.matches("b", key.copy_columns, "c")
            )
        )
        gone = cursor.execute(sql.SQL("SELECT count(*) FROM pg_temp.{}").format(key.before)).fetchone()
        if gone and gone[0]:
            _check_unreferred(cursor, key, home, trusted=trusted)


def _check_unreferred(cursor: Cursor, key: IncomingKey, home: str, *, trusted: bool) -> None:
    leaves = cursor.execute(_LEAVES, (str(key.table), str(key.table))).fetchall()
    check_readable(cursor, [Name(schema, name) for schema, name in leaves], trusted=trusted)
    row = cursor.execute(
        sql.SQL("SELECT count(*), count(DISTINCT b) FROM {} AS f JOIN pg_temp.{} AS b ON {}").format(
            key.table.identifier, key.before, key.matches("f", key.columns, "b")
        )
    ).fetchone()
    if row is not None and row[0]:
        raise Refused(
            f"{row[0]} rows of {key.table} refer to {row[1]} rows of {key.copy} that its home {home} does not have any"
            " more; they are still in this copy, which stays as it is and does not follow: put them back at the home,"
            " or delete what refers to them"
        )
