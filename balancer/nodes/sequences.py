"""Sequences behind the columns of roots: they do not travel with rows, so the new owner's are raised to the old one's.

Without it a moved tablet would get ids that it has already. Called by migrations.
"""

from collections.abc import Sequence

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

_FIND = """
    SELECT DISTINCT s.oid::regclass::text
    FROM pg_class r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
    JOIN pg_depend p ON (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass)
        OR (p.classid = 'pg_class'::regclass AND p.refobjid = r.oid AND p.refobjsubid = a.attnum
            AND p.deptype IN ('a', 'i'))
    JOIN pg_class s ON s.relkind = 'S' AND s.oid IN (p.objid, p.refobjid)
    WHERE r.oid = ANY(%s::regclass[]) ORDER BY 1
"""


def read_sequences(cursor: Cursor, roots: Sequence[Name]) -> tuple[tuple[str, int], ...]:
    """The sequences that the roots' columns draw from, with the last value given out."""
    names = [str(row[0]) for row in cursor.execute(_FIND, ([str(root) for root in roots],))]
    found = []
    for name in names:
        row = cursor.execute("SELECT pg_sequence_last_value(%s::regclass)", (name,)).fetchone()
        if row is not None and row[0] is not None:
            found.append((name, int(row[0])))
    return tuple(found)


def raise_sequences(cursor: Cursor, values: Sequence[tuple[str, int]]) -> None:
    """Makes each sequence here give out nothing up to its value. One that is not here is passed over.

    It goes on in its own steps: nodes whose sequences do not meet (odd here, even there) must not begin to. Where it
    would go beyond its end it is put there: whoever draws next is told by PostgreSQL, and the tablet opens.
    """
    for name, value in values:
        cursor.execute(
            """
            SELECT setval(oid, least(greatest(base + steps * step, least_value), greatest_value)::bigint)
            FROM (SELECT oid, step, base, least_value, greatest_value,
                         floor((%(value)s - base)::numeric / step) AS steps
                  FROM (SELECT seqrelid::regclass AS oid, seqincrement::numeric AS step, seqmin AS least_value,
                               seqmax AS greatest_value,
                               coalesce(pg_sequence_last_value(seqrelid), seqstart - seqincrement)::numeric AS base
                        FROM pg_sequence WHERE seqrelid = to_regclass(%(name)s)) AS here) AS ahead
            WHERE steps > 0
            """,
            {"name": name, "value": value},
        )
