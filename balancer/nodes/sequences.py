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
    """Those of them that were used, with the last value handed out."""
    if not names:
        return ()
    found = cursor.execute(
        "SELECT name, pg_sequence_last_value(name::regclass) FROM unnest(%s::text[]) AS name", (list(names),)
    )
    return tuple((str(name), int(value)) for name, value in found if value is not None)


def raise_statements(values: Sequence[tuple[str, int]]) -> list[Statement]:
    """Keep each sequence here from handing out anything up to its value. Skips one that is not here.

    It continues in its own steps: nodes whose sequences do not collide (odd here, even there) must not begin to. Where
    it would go beyond its end, it is set to the end: PostgreSQL refuses the next nextval, and the tablet opens.
    """
    raised = sql.SQL("SELECT balancer.raise_sequence({name}, {value})")
    return [raised.format(name=sql.Literal(name), value=sql.Literal(value)) for name, value in values]


FUNCTIONS = """
    -- Lets a sequence give out nothing up to a value. Where it stands is read from itself: one that was restarted and
    -- not used since is not where it began.
    CREATE OR REPLACE FUNCTION balancer.raise_sequence(name text, value bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        sequence regclass := to_regclass(name);
        shape pg_sequence;
        base numeric;
        steps numeric;
    BEGIN
        SELECT * INTO shape FROM pg_sequence WHERE seqrelid = sequence;
        IF NOT found THEN
            RETURN;
        END IF;
        EXECUTE format('SELECT last_value - CASE WHEN is_called THEN 0 ELSE %s::numeric END FROM %s',
                       shape.seqincrement, sequence) INTO base;
        steps := floor((value - base) / shape.seqincrement);
        IF steps > 0 THEN
            base := base + steps * shape.seqincrement;
            PERFORM setval(sequence, least(greatest(base, shape.seqmin), shape.seqmax)::bigint);
        END IF;
    END $$;
    REVOKE ALL ON FUNCTION balancer.raise_sequence(text, bigint) FROM PUBLIC;
"""
