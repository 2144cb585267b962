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
    """Makes each sequence here give out nothing up to its value. One that is not here is passed over."""
    for name, value in values:
        cursor.execute(
            """
            SELECT CASE WHEN increment_by > 0 THEN setval(oid, greatest(%(value)s, coalesce(last, %(value)s)))
                        ELSE setval(oid, least(%(value)s, coalesce(last, %(value)s))) END
            FROM (SELECT seqrelid::regclass AS oid, seqincrement AS increment_by,
                         pg_sequence_last_value(seqrelid) AS last
                  FROM pg_sequence WHERE seqrelid = to_regclass(%(name)s)) AS here
            """,
            {"name": name, "value": value},
        )
