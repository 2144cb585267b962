"""Questions of the consistency checker about the rows of one partition, some pages at a time. Only reads.

Each is one statement, so that its answer is of one moment. The planner must not answer from constraints instead of
rows: it would trust the very promise that is being checked. (It does so for NOT (…) where constraint_exclusion is on;
for IS NOT TRUE no version up to 18 does.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.bounds import check_expression
from balancer.nodes.checksum import pages
from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.nodes.partition import Place
from balancer.nodes.references import Reference

PAGES = 2048
"""Pages (8 kB) that one statement reads: 16 MB, a few dozen milliseconds."""
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """What some pages of a partition have."""

    rows: int
    bad: int
    examples: tuple[str, ...]
    """Some of the bad rows' keys, as text."""
    next_page: int
    """0: these were the last."""


def outside_rows(cursor: Cursor, place: Place, root_oid: int, first: int) -> Counted:
    """Rows that the partition must not have, by the tablet's part of the key space."""
    bad = sql.SQL("({}) IS NOT TRUE").format(check_expression(place.columns, place.part, root_oid))
    return _counted(cursor, place.partition, [column.name for column in place.columns], bad, first)


def orphan_rows(cursor: Cursor, child: Name, parent: Name, reference: Reference, first: int) -> Counted:
    """Rows of a partition that refer to a row which the parent does not have. A NULL refers to nothing."""
    columns = reference.columns
    pairs = zip(columns, reference.referenced_columns, strict=True)
    same = [sql.SQL("p.{} = t.{}").format(sql.Identifier(theirs), sql.Identifier(mine)) for mine, theirs in pairs]
    filled = [sql.SQL("t.{} IS NOT NULL").format(sql.Identifier(mine)) for mine in columns]
    bad = sql.SQL("{} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})").format(
        sql.SQL(" AND ").join(filled), parent.identifier, sql.SQL(" AND ").join(same)
    )
    return _counted(cursor, child, columns, bad, first)


def largest_id(cursor: Cursor, partition: Name, column: str, bits: int, first: int) -> tuple[Counted, int]:
    """The largest number in a column, without the bits above these; 0 if there is none."""
    largest = sql.SQL("max(t.{}::pg_catalog.int8 & {})").format(sql.Identifier(column), sql.Literal((1 << bits) - 1))
    end = page_after(cursor, partition, first)
    statement = sql.SQL("SELECT count(*), coalesce({}, 0) FROM ONLY {} AS t WHERE {}")
    row = cursor.execute(statement.format(largest, partition.identifier, pages(first, end or None))).fetchone()
    assert row is not None, "an aggregate has one row"
    return Counted(int(row[0]), 0, (), end), int(row[1])


def _counted(cursor: Cursor, table: Name, shown: Sequence[str], bad: sql.Composable, first: int) -> Counted:
    cursor.execute("SELECT set_config('constraint_exclusion', 'off', true), set_config('jit', 'off', true)")
    end = page_after(cursor, table, first)
    key = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in shown)
    statement = sql.SQL(
        "WITH bad AS MATERIALIZED (SELECT left(ROW({key})::text, 100) AS key FROM ONLY {table} AS t"
        " WHERE {pages} AND {bad})"
        " SELECT (SELECT count(*) FROM ONLY {table} AS t WHERE {pages}), (SELECT count(*) FROM bad),"
        " ARRAY(SELECT key FROM bad LIMIT {most})"
    ).format(
        key=key,
        table=table.identifier,
        pages=pages(first, end or None),
        bad=bad,
        most=sql.Literal(_EXAMPLES),
    )
    row = cursor.execute(statement).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return Counted(int(row[0]), int(row[1]), tuple(row[2]), end)


def page_after(cursor: Cursor, table: Name, first: int, count: int = PAGES) -> int:
    """The page after this many; 0: they reach the end."""
    row = cursor.execute(
        "SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int",
        (str(table),),
    ).fetchone()
    size = int(row[0]) if row and row[0] is not None else 0
    return first + count if first + count < size else 0
