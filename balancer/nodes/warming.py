"""Reads a partition into its server's cache before its first query comes: called by moves of in-memory tables.

pg_prewarm does it where it is installed. Without it, a plain scan would not be enough: for a table larger than a
quarter of the shared buffers it reuses a few of them over and over. A scan by row addresses goes through the cache in
the ordinary way, and so does a walk along an index; indexes that cannot be walked in the order of columns stay as they
are.
"""

from collections.abc import Iterator

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

_INDEXES = """
    SELECT array_agg(a.attname::text ORDER BY o.place), array_agg(o.option::int ORDER BY o.place)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
    CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indoption::int2[]) WITH ORDINALITY AS o (attnum, option, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = o.attnum
    WHERE i.indrelid = %s::regclass AND i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL
      AND o.place <= i.indnkeyatts
    GROUP BY i.indexrelid
"""
_ONE_WAY = ("enable_seqscan", "enable_bitmapscan", "enable_tidscan", "enable_sort", "enable_incremental_sort")


def warm(cursor: Cursor, partition: Name) -> None:
    """Rows, their TOAST where that may be read, and indexes."""
    row = cursor.execute(
        "SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE extname = 'pg_prewarm'"
    ).fetchone()
    if row is not None:
        _prewarm(cursor, row[0], partition)
        return
    for table in (partition, *_aside(cursor, partition)):
        cursor.execute(sql.SQL("SELECT count(*) FROM ONLY {} WHERE ctid >= '(0,0)'").format(table.identifier))
    _walk_indexes(cursor, partition)


def _prewarm(cursor: Cursor, schema: str, partition: Name) -> None:
    cursor.execute(
        sql.SQL(
            """
            SELECT {}.pg_prewarm(r) FROM (
                SELECT oid::regclass FROM pg_class WHERE oid = %(name)s::regclass
                UNION ALL SELECT reltoastrelid::regclass FROM pg_class
                    WHERE oid = %(name)s::regclass AND reltoastrelid <> 0
                UNION ALL SELECT indexrelid::regclass FROM pg_index WHERE indrelid = %(name)s::regclass
            ) AS all_of_it (r)
            """
        ).format(sql.Identifier(schema)),
        {"name": str(partition)},
    )


def _aside(cursor: Cursor, partition: Name) -> Iterator[Name]:
    row = cursor.execute(
        """
        SELECT n.nspname, t.relname FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
        JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE c.oid = %s::regclass AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(t.oid, 'SELECT')
        """,
        (str(partition),),
    ).fetchone()
    if row is not None:
        yield Name(*row)


def _walk_indexes(cursor: Cursor, partition: Name) -> None:
    orders = cursor.execute(_INDEXES, (str(partition),)).fetchall()
    before = {name: _setting(cursor, name) for name in _ONE_WAY}
    try:
        for name in _ONE_WAY:
            _set(cursor, name, "off")
        for names, options in orders:
            columns = sql.SQL(", ").join(map(_order, names, options))
            statement = sql.SQL("SELECT count(*) FROM (SELECT FROM ONLY {} ORDER BY {} OFFSET 0) AS walked")
            cursor.execute(statement.format(partition.identifier, columns))
    finally:
        for name, value in before.items():
            _set(cursor, name, value)


def _order(name: str, option: int) -> sql.Composable:
    """A column as an index has it: bit 0 of `indoption` is DESC, bit 1 NULLS FIRST."""
    direction = sql.SQL(" DESC" if option & 1 else " ASC")
    return sql.Identifier(name) + direction + sql.SQL(" NULLS FIRST" if option & 2 else " NULLS LAST")


def _setting(cursor: Cursor, name: str) -> str:
    row = cursor.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def _set(cursor: Cursor, name: str, value: str) -> None:
    cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
