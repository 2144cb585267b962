"""The publications that a table is in, carried to another table that takes its name. Only reads.

Subscribers know the table by its name. A partition is published under its root's name only where the publication says
so (`publish_via_partition_root`), which is therefore set; where that would change what subscribers get from other
partitioned tables, the publication is refused by name.
"""

from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement, printed
from balancer.nodes.names import Name

_PUBLICATIONS = """
SELECT p.pubname, p.pubviaroot, r.oid IS NOT NULL, pg_has_role(p.pubowner, 'USAGE'), pg_get_userbyid(p.pubowner),
       pg_get_expr(r.prqual, r.prrelid),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM unnest(r.prattrs::int2[]) AS u (attnum)
        JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = u.attnum),
       EXISTS (SELECT FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
               JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
               WHERE t.pubname = p.pubname AND c.relispartition)
FROM pg_publication p
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(oid)s
WHERE r.oid IS NOT NULL OR p.puballtables OR EXISTS (
    SELECT FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
    WHERE n.pnpubid = p.oid AND c.oid = %(oid)s)
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Published:
    """What carries the publications of one table."""

    before: tuple[Statement, ...]
    after: tuple[Statement, ...]
    refusals: tuple[str, ...]
    names: tuple[str, ...]


def carry_publications(cursor: Cursor, oid: int, name: Name) -> Published:
    """Of the table with this oid and name."""
    before: list[Statement] = []
    after: list[Statement] = []
    refusals: list[str] = []
    rows = cursor.execute(_PUBLICATIONS, {"oid": oid}).fetchall()
    for publication, via_root, listed, acts, owner, condition, columns, others in rows:
        called = sql.Identifier(publication)
        if not acts:
            refusals.append(
                f"the balancer's role does not act for {owner}, who owns publication {publication} with {name} in it"
            )
            continue
        if not via_root and others:
            refusals.append(
                f"publication {publication} publishes partitions under their own names, and {name} would become one:"
                f" ALTER PUBLICATION {called.as_string(None)} SET (publish_via_partition_root = true)"
            )
            continue
        if not via_root:
            before.append(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(called))
        if listed:
            before.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(called, name.identifier))
            add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(called, name.identifier)
            if columns:
                add += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
            if condition is not None:
                add += sql.SQL(" WHERE ({})").format(printed(condition))
            after.append(add)
    return Published(tuple(before), tuple(after), tuple(refusals), tuple(f"publication {row[0]}" for row in rows))
