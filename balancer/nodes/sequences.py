"""Sequences behind the columns of roots: they do not travel with rows, so the new owner's are raised to the old one's.

Without it a moved tablet would get ids that it has already. Called by migrations.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.nodes.connection import Cursor, Statement
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


def find_sequences(cursor: Cursor, roots: Sequence[Name]) -> tuple[str, ...]:
    """The sequences that the roots' columns draw from."""
    return tuple(str(row[0]) for row in cursor.execute(_FIND, ([str(root) for root in roots],)))


def read_sequences(cursor: Cursor, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Those of them that were used, with the last value given out."""
    if not names:
        return ()
    found = cursor.execute(
        "SELECT name, pg_sequence_last_value(name::regclass) FROM unnest(%s::text[]) AS name", (list(names),)
    )
    return tuple((str(name), int(value)) for name, value in found if value is not None)


def raise_statements(values: Sequence[tuple[str, int]]) -> list[Statement]:
    """Make each sequence here give out nothing up to its value. One that is not here is passed over.

    It goes on in its own steps: nodes whose sequences do not meet (odd here, even there) must not begin to. Where it
    would go beyond its end it is put there: the next nextval is told by PostgreSQL, and the tablet opens.
    """
    return [sql.SQL(_RAISE).format(name=sql.Literal(name), value=sql.Literal(value)) for name, value in values]


_RAISE = """
    SELECT setval(oid, least(greatest(base + steps * step, least_value), greatest_value)::bigint)
    FROM (SELECT oid, step, base, least_value, greatest_value, floor(({value} - base)::numeric / step) AS steps
          FROM (SELECT seqrelid::regclass AS oid, seqincrement::numeric AS step, seqmin AS least_value,
                       seqmax AS greatest_value,
                       coalesce(pg_sequence_last_value(seqrelid), seqstart - seqincrement)::numeric AS base
                FROM pg_sequence WHERE seqrelid = to_regclass({name})) AS here) AS ahead
    WHERE steps > 0
"""
