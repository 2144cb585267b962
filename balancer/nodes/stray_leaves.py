"""The partitions attached on a node, no matter who attached them, and the keys in one of them. Only reads.

For the consistency checker: a partition that the directory does not give to the node accepts and shows rows of keys
that another node owns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.nodes.objects import FENCE_TRIGGER

MOST_COUNTED = 100_000
MOST_KEYS = 200


class AttachedLeaf(NamedTuple):
    """One partition of a root, as the node has it."""

    root: Name
    name: Name
    bound: str
    """As the catalog prints it."""
    closed: bool
    """Whether a fence without an end keeps writers out: a former owner's, which the mover removes."""


_ATTACHED = r"""
SELECT rn.nspname, rc.relname, n.nspname, c.relname, pg_get_expr(c.relpartbound, c.oid), EXISTS (
    SELECT FROM pg_trigger f WHERE f.tgrelid = c.oid AND f.tgname = %(fence)s AND f.tgenabled <> 'D'
    AND split_part(encode(f.tgargs, 'escape'), '\000', 3) IN ('sealed', 'moved'))
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS wanted (schema, name)
JOIN pg_namespace rn ON rn.nspname = wanted.schema
JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = wanted.name
JOIN pg_inherits i ON i.inhparent = rc.oid AND NOT i.inhdetachpending
JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2, 3, 4
"""


def attached_leaves(cursor: Cursor, roots: Sequence[Name]) -> list[AttachedLeaf]:
    """All partitions of these roots on this node."""
    named = {"schemas": [root.schema for root in roots], "names": [root.name for root in roots]}
    rows = cursor.execute(_ATTACHED, {**named, "fence": FENCE_TRIGGER}).fetchall()
    return [AttachedLeaf(Name(*row[:2]), Name(*row[2:4]), str(row[4]), bool(row[5])) for row in rows]


def rows_up_to(cursor: Cursor, leaf: Name) -> int:
    """How many rows it has; `MOST_COUNTED` stands for as many or more."""
    statement = sql.SQL("SELECT count(*) FROM (SELECT FROM ONLY {} LIMIT {}) AS few")
    row = cursor.execute(statement.format(leaf.identifier, sql.Literal(MOST_COUNTED))).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0])


def some_keys(cursor: Cursor, leaf: Name, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some keys of it, each once."""
    wanted = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("SELECT DISTINCT {} FROM (SELECT {} FROM ONLY {} LIMIT {}) AS few")
    found = cursor.execute(statement.format(wanted, wanted, leaf.identifier, sql.Literal(MOST_KEYS))).fetchall()
    return [tuple(row) for row in found]


def keys_present(cursor: Cursor, leaf: Name, columns: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> int:
    """How many of these keys have rows here too."""
    found = 0
    same = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in columns)
    statement = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {} WHERE {})").format(leaf.identifier, same)
    for key in keys:
        row = cursor.execute(statement, key).fetchone()
        found += bool(row and row[0])
    return found
