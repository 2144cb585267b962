"""Foreign keys that a sharded table cannot have: they would tie its tablets to rows that stay where they are.

From a table outside: the tablet's rows cannot leave the node, and a committed move would never end. To another sharded
table, or to other tablets of the same one: the row it points to may be on another node. Asked before a table is adopted
or made, and before every migration. Only reads.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.session.connection import Cursor, installed

# Partitions that come and go with migrations have keys of their own for a while; the node's own list includes them.
_OURS = """
    SELECT to_regclass(format('%I.%I', u.schema, u.partition))::oid AS oid
    FROM balancer.tablet, unnest(schemas, partitions) AS u (schema, partition)
"""
_NOBODY = "SELECT NULL::oid AS oid WHERE false"

_KEYS = """
    WITH roots AS (SELECT to_regclass(name)::oid AS oid FROM unnest({roots}::text[]) AS name),
    members AS (SELECT oid FROM roots UNION SELECT inhrelid FROM pg_inherits JOIN roots ON inhparent = roots.oid),
    ours AS ({ours}),
    others AS (
        SELECT to_regclass(name)::oid AS oid FROM unnest({others}::text[]) AS name
        UNION SELECT pg_partition_root(oid)::oid FROM ours  -- a reference table is no partition
    )
    SELECT k.conname, fn.nspname, f.relname, tn.nspname, t.relname,
           k.conrelid IN (SELECT oid FROM members), k.confrelid IN (SELECT oid FROM members),
           coalesce(pg_partition_root(k.confrelid), k.confrelid)::oid IN (SELECT oid FROM others WHERE oid IS NOT NULL),
           ARRAY(SELECT fa.attname || '=' || ta.attname FROM unnest(k.conkey, k.confkey) AS u (mine, theirs)
                 JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
                 JOIN pg_attribute ta ON ta.attrelid = k.confrelid AND ta.attnum = u.theirs)
    FROM pg_constraint k
    JOIN pg_class f ON f.oid = k.conrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
    JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace
    WHERE k.contype = 'f' AND k.conparentid = 0
      AND (k.conrelid IN (SELECT oid FROM members)
           OR k.confrelid IN (SELECT oid FROM members)
              AND k.conrelid NOT IN (SELECT oid FROM ours WHERE oid IS NOT NULL))
    ORDER BY 2, 3, 1
"""


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    table: Name
    referenced: Name
    from_inside: bool
    to_inside: bool
    to_sharded: bool
    pairs: frozenset[str]


def outside_keys(
    cursor: Cursor, roots: Sequence[Name], key: Sequence[str], others: Set[Name] = frozenset()
) -> list[str]:
    """What is wrong with the foreign keys of these colocated roots, in words. `others`: roots of other tables."""
    statement = sql.SQL(_KEYS).format(
        roots=sql.Literal([str(root) for root in roots]),
        others=sql.Literal([str(other) for other in others if other not in roots]),
        ours=sql.SQL(_OURS if installed(cursor) else _NOBODY),
    )
    found = [
        _Key(name, Name(schema, table), Name(to_schema, to_table), inside, to_inside, to_sharded, frozenset(pairs))
        for name, schema, table, to_schema, to_table, inside, to_inside, to_sharded, pairs in cursor.execute(statement)
    ]
    return [text for one in found for text in _judge(one, key)]


def check_outside_keys(
    cursor: Cursor, roots: Sequence[Name], key: Sequence[str], others: Set[Name] = frozenset()
) -> None:
    """Raises `Refused` naming every foreign key that is in the way."""
    found = outside_keys(cursor, roots, key, others)
    if found:
        raise Refused("; ".join(found))


def _judge(one: _Key, key: Sequence[str]) -> Iterator[str]:
    if not one.from_inside:
        yield (
            f"foreign key {one.name} of {one.table} points to {one.referenced}, whose tablets could then not leave this"
            f" node: drop it, or make {one.table} a colocated root"
        )
    elif one.to_inside and not one.pairs.issuperset(f"{column}={column}" for column in key):
        columns = ", ".join(key)
        yield (
            f"foreign key {one.name} of {one.table} points to rows of other tablets of {one.referenced}, which may be"
            f" on other nodes: drop it, or let it pair ({columns}) with ({columns})"
        )
    elif one.to_sharded and not one.to_inside:
        yield (
            f"foreign key {one.name} of {one.table} points to {one.referenced}, which is another sharded table with"
            " rows on other nodes: drop it"
        )
