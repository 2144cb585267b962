"""What of a table would run its owner's code with our rights, found by walking the catalog from the table outwards.

When we copy rows, PostgreSQL evaluates checks, generated columns, index expressions and the constraints of domains as
us; when we so much as plan a query, it folds constants in index and statistics expressions; and a cast of a type is
called where values are compared as text. All of that is harmless as long as it ends in functions that nobody but a
superuser or our own role can change. Two things are not: functions, operators and domains of other owners, and those of
PostgreSQL's own functions that run a query or touch the server (they are volatile, or make XML of a table).

Plain defaults are left out, because every column has a value when we write it, and so are triggers, which come to a
partition when it is attached. Reading only, and only catalogs: nothing of the table is evaluated by asking.
"""

from collections.abc import Sequence

from balancer.errors import Refused
from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

# `found` has every object that the table leads to. PostgreSQL records no dependencies on its own objects, so what an
# expression calls of them is read from the expression itself.
_WALK = r"""
WITH RECURSIVE us AS MATERIALIZED (
    SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
), found (class, id) AS (
    SELECT 'pg_class'::regclass::oid, c.oid FROM pg_class c WHERE c.oid = ANY(%(tables)s::oid[])
    UNION
    SELECT next.class, next.id FROM found f CROSS JOIN LATERAL (
        SELECT 'pg_constraint'::regclass::oid, k.oid FROM pg_constraint k
            WHERE f.class = 'pg_class'::regclass AND k.conrelid = f.id AND k.contype IN ('c', 'x')
        UNION ALL SELECT 'pg_attrdef'::regclass, d.oid FROM pg_attrdef d
            JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated <> ''
            WHERE f.class = 'pg_class'::regclass AND d.adrelid = f.id
        UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i
            WHERE f.class = 'pg_class'::regclass AND i.indrelid = f.id
        UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid FROM pg_statistic_ext s
            WHERE f.class = 'pg_class'::regclass AND s.stxrelid = f.id
        UNION ALL SELECT 'pg_type'::regclass, a.atttypid FROM pg_attribute a
            WHERE f.class = 'pg_class'::regclass AND a.attrelid = f.id AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k
            WHERE f.class = 'pg_type'::regclass AND k.contypid = f.id
        UNION ALL SELECT 'pg_type'::regclass, r.id FROM pg_type t, unnest(ARRAY[t.typbasetype, t.typelem]) AS r (id)
            WHERE f.class = 'pg_type'::regclass AND t.oid = f.id AND r.id <> 0
        -- The columns of a composite type; of a table's row type no more is evaluated than those.
        UNION ALL SELECT 'pg_type'::regclass, a.atttypid FROM pg_type t
            JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            WHERE f.class = 'pg_type'::regclass AND t.oid = f.id AND t.oid >= 16384
        UNION ALL SELECT 'pg_proc'::regclass, c.castfunc FROM pg_cast c
            WHERE f.class = 'pg_type'::regclass AND f.id >= 16384 AND f.id IN (c.castsource, c.casttarget)
              AND c.castfunc <> 0
        UNION ALL SELECT p.refclassid, p.refobjid FROM pg_depend p
            WHERE p.classid = f.class AND p.objid = f.id
              AND p.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
              AND f.class IN ('pg_constraint'::regclass, 'pg_attrdef'::regclass, 'pg_class'::regclass,
                              'pg_statistic_ext'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
    ) AS next (class, id)
), expression (code) AS (
    SELECT k.conbin::text FROM found f JOIN pg_constraint k ON f.class = 'pg_constraint'::regclass AND k.oid = f.id
    UNION ALL SELECT d.adbin::text FROM found f JOIN pg_attrdef d ON f.class = 'pg_attrdef'::regclass AND d.oid = f.id
    UNION ALL SELECT concat(i.indexprs, i.indpred) FROM found f
        JOIN pg_index i ON f.class = 'pg_class'::regclass AND i.indexrelid = f.id
    UNION ALL SELECT s.stxexprs::text FROM found f
        JOIN pg_statistic_ext s ON f.class = 'pg_statistic_ext'::regclass AND s.oid = f.id
)
SELECT 'function ' || p.oid::regprocedure FROM found f JOIN pg_proc p ON f.class = 'pg_proc'::regclass AND p.oid = f.id
    WHERE NOT EXISTS (SELECT FROM us WHERE us.oid = p.proowner)
UNION SELECT 'operator ' || o.oid::regoperator FROM found f
    JOIN pg_operator o ON f.class = 'pg_operator'::regclass AND o.oid = f.id
    WHERE NOT EXISTS (SELECT FROM us WHERE us.oid = o.oprowner)
-- A domain's owner can give it another constraint at any moment.
UNION SELECT 'domain ' || t.oid::regtype FROM found f
    JOIN pg_type t ON f.class = 'pg_type'::regclass AND t.oid = f.id AND t.typtype = 'd'
    WHERE NOT EXISTS (SELECT FROM us WHERE us.oid = t.typowner)
UNION SELECT 'function ' || p.oid::regprocedure FROM expression e
    CROSS JOIN LATERAL regexp_matches(e.code, ':(?:funcid|opfuncid) (\d+)', 'g') AS called
    JOIN pg_proc p ON p.oid = called[1]::oid
    WHERE p.oid < 16384 AND (p.provolatile = 'v' OR p.proname ~ 'to_xml')
      AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY(%(tables)s::oid[])
                  AND NOT EXISTS (SELECT FROM us WHERE us.oid = c.relowner))
ORDER BY 1
"""

# By the catalog: a role that may not enter a schema is told so by the preflight, and not by an error here.
_TABLES = """
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON wanted.schema = n.nspname AND wanted.name = c.relname
"""


def owners_code(cursor: Cursor, tables: Sequence[Name]) -> list[str]:
    """What these tables would run with our rights, by kind and name; tables that are not there are left out."""
    there = cursor.execute(_TABLES, ([table.schema for table in tables], [table.name for table in tables])).fetchall()
    if not there:
        return []
    return [str(name) for (name,) in cursor.execute(_WALK, {"tables": [oid for (oid,) in there]})]


def owners_code_words(table: Name, found: Sequence[str]) -> str:
    """One sentence: what, and what to do about it."""
    return (
        f"{table} uses {', '.join(found)}, which would run with the balancer's rights: give it a superuser as owner,"
        " or say trust_table_owners = true under [migration]"
    )


def check_owners_code(cursor: Cursor, tables: Sequence[Name]) -> None:
    """Raises `Refused` naming what would run with our rights."""
    for table in tables:
        if found := owners_code(cursor, [table]):
            raise Refused(owners_code_words(table, found))
