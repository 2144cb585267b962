"""What in a table would run its owner's code with our rights, found by walking the catalog from the table outwards.

Migrations ask before they copy; `owners_code` asks before anything else reads rows or makes partitions. When we copy
rows, PostgreSQL evaluates checks, generated columns, index expressions and the constraints of domains as us; merely
planning a query folds constants in index and statistics expressions; and a cast of a type is called where values are
compared as text. All of that is harmless as long as it ends in functions that nobody but a superuser or our own role
can change. Two things are not: functions, operators and domains of other owners, and those of PostgreSQL's own
functions that run a query or touch the server (they are volatile, or make XML of a table).

Plain defaults are left out, because every column has a value when we write it, and so are triggers, which come to a
partition when it is attached. Reads only catalogs: asking evaluates nothing of the table.

Checked before anything outside a migration reads rows of a table or makes partitions of it: whether that would run
its owner's code with our rights (see `owners_code`).

PostgreSQL folds the constants of index, predicate and statistics expressions whenever it plans a query, so a count or a
sample is enough to call an owner's function. The table is locked first: no index, check, statistics or rule is added to
it between the check and the end of the transaction, and it cannot become a view. Writers are not held back; VACUUM and
other DDL are. A name that an owner has given to a view or a foreign table meanwhile is refused as well.
"""

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.session.connection import Cursor, lock_timeout, run_together

# `found` has every object reachable from the table. PostgreSQL records no dependencies on its own objects, so what an
# expression calls of them is read from the expression itself.
_FOUND = r"""
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
        -- What compares and hashes in an index or a partition key, where it is not PostgreSQL's own.
        UNION ALL SELECT 'pg_opclass'::regclass, o.id FROM pg_index i, unnest(i.indclass) AS o (id)
            WHERE f.class = 'pg_class'::regclass AND i.indexrelid = f.id AND o.id >= 16384
        UNION ALL SELECT 'pg_opclass'::regclass, o.id FROM pg_partitioned_table p, unnest(p.partclass) AS o (id)
            WHERE f.class = 'pg_class'::regclass AND p.partrelid = f.id AND o.id >= 16384
        UNION ALL SELECT 'pg_proc'::regclass, a.amproc::oid FROM pg_opclass o
            JOIN pg_amproc a ON a.amprocfamily = o.opcfamily
            WHERE f.class = 'pg_opclass'::regclass AND o.oid = f.id
        UNION ALL SELECT 'pg_operator'::regclass, a.amopopr FROM pg_opclass o
            JOIN pg_amop a ON a.amopfamily = o.opcfamily
            WHERE f.class = 'pg_opclass'::regclass AND o.oid = f.id
        UNION ALL SELECT p.refclassid, p.refobjid FROM pg_depend p
            WHERE p.classid = f.class AND p.objid = f.id
              AND p.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
              AND f.class IN ('pg_constraint'::regclass, 'pg_attrdef'::regclass, 'pg_class'::regclass,
                              'pg_statistic_ext'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
    ) AS next (class, id)
)
"""

_STRANGE = (
    _FOUND  # noqa: S608 - constants of this module
    + r""", expression (code) AS (
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
)

_NAMED = (
    _FOUND  # noqa: S608 - the same
    + """
SELECT 'function', p.oid::regprocedure::text FROM found f
    JOIN pg_proc p ON f.class = 'pg_proc'::regclass AND p.oid = f.id AND p.oid >= 16384
UNION SELECT 'operator', o.oid::regoperator::text FROM found f
    JOIN pg_operator o ON f.class = 'pg_operator'::regclass AND o.oid = f.id AND o.oid >= 16384
UNION SELECT 'domain', t.oid::regtype::text FROM found f
    JOIN pg_type t ON f.class = 'pg_type'::regclass AND t.oid = f.id AND t.typtype = 'd' AND t.oid >= 16384
ORDER BY 1, 2
"""
)

_OF_OTHERS = """
SELECT kind || ' ' || name FROM unnest(%s::text[], %s::text[]) AS used (kind, name)
WHERE EXISTS (
    SELECT FROM pg_roles r WHERE NOT rolsuper AND rolname <> current_user AND r.oid IN (
        (SELECT proowner FROM pg_proc p WHERE kind = 'function' AND p.oid = to_regprocedure(name)),
        (SELECT oprowner FROM pg_operator o WHERE kind = 'operator' AND o.oid = to_regoperator(name)),
        (SELECT typowner FROM pg_type t WHERE kind = 'domain' AND t.oid = to_regtype(name))))
"""

# By the catalog: the preflight, not an error here, tells a role that it may not enter a schema. `plain`: all that
# `found` would have for this table are built-in types and its indexes, so nothing has another owner and there is no
# expression. Most tables are plain, and planning `_STRANGE` costs a server ten times as much as this. Below 12000
# PostgreSQL pins its objects: no domain is there. Whatever a table uses above that is a dependency as well, so its
# types are checked twice.
_TABLES = """
SELECT c.oid, NOT (
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND (a.atttypid >= 12000 OR a.attgenerated <> ''))
    OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'x'))
    OR EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = c.oid)
    OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (
                   i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR 12000 <= ANY (i.indclass::oid[])))
    OR EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partrelid = c.oid AND 12000 <= ANY (p.partclass::oid[]))
    OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
               AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass))
) AS plain
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON wanted.schema = n.nspname AND wanted.name = c.relname
"""

_LEAVES = """
SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = i.inhparent JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE rn.nspname = %s AND r.relname = %s ORDER BY 1, 2
"""


def owners_code(cursor: Cursor, tables: Sequence[Name]) -> list[str]:
    """What these tables would run with our rights, by kind and name; tables that are not there are left out."""
    there = cursor.execute(_TABLES, ([table.schema for table in tables], [table.name for table in tables])).fetchall()
    if all(plain for _, plain in there):
        return []
    return [str(name) for (name,) in cursor.execute(_STRANGE, {"tables": [oid for oid, _ in there]})]


def code_named(cursor: Cursor, root: int) -> tuple[tuple[str, str], ...]:
    """Kind and full name of everything reachable from a table that is not PostgreSQL's own, regardless of its owner."""
    return tuple((str(kind), str(name)) for kind, name in cursor.execute(_NAMED, {"tables": [root]}))


def check_named(cursor: Cursor, table: Name, used: Sequence[tuple[str, str]]) -> None:
    """Raises `Refused` if a table that is to be made here would use what belongs to others here."""
    kinds, names = [kind for kind, _ in used], [name for _, name in used]
    if found := [str(name) for (name,) in cursor.execute(_OF_OTHERS, (kinds, names))]:
        raise Refused(owners_code_words(table, found))


def owners_code_words(table: Name, found: Sequence[str]) -> str:
    """One sentence: what, and what to do about it."""
    return (
        f"{table} uses {', '.join(found)}, which would run with the balancer's rights: give it a superuser as owner,"
        " or say trust_table_owners = true under [migration]"
    )


def owners_findings(cursor: Cursor, roots: Sequence[Name]) -> Iterator[tuple[Name, str]]:
    """Each root that a move would refuse, and each partition that uses more than its root does, in words."""
    for root in roots:
        mine = owners_code(cursor, [root])
        if mine:
            yield root, owners_code_words(root, mine)
        leaves = [Name(*row) for row in cursor.execute(_LEAVES, root).fetchall()]
        if set(owners_code(cursor, leaves)) - set(mine):
            for leaf in leaves:
                if more := [name for name in owners_code(cursor, [leaf]) if name not in mine]:
                    yield leaf, owners_code_words(leaf, more)


def check_owners_code(cursor: Cursor, tables: Sequence[Name]) -> None:
    """Raises `Refused` naming what would run with our rights."""
    for table in tables:
        if found := owners_code(cursor, [table]):
            raise Refused(owners_code_words(table, found))


LOCK_TIMEOUT = 0.9
"""Seconds: below a server's deadlock_timeout, after which an autovacuum in the way would be ended for us."""

_KINDS = """
SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON wanted.schema = n.nspname AND wanted.name = c.relname
"""
_TABLE, _PARTITIONED = "r", "p"


def check_readable(cursor: Cursor, partitions: Sequence[Name], *, trusted: bool) -> None:
    """Raises `Refused` unless these partitions can be read without running their owners' code as us."""
    _check(cursor, partitions, _TABLE, trusted=trusted)


def check_extendable(cursor: Cursor, roots: Sequence[Name], *, trusted: bool) -> None:
    """The same for roots that will get new partitions: their indexes and checks come with them."""
    _check(cursor, roots, _PARTITIONED, trusted=trusted)


def _check(cursor: Cursor, tables: Sequence[Name], kind: str, *, trusted: bool) -> None:
    if trusted:
        return
    _hold_still(cursor, tables)
    found = cursor.execute(_KINDS, ([table.schema for table in tables], [table.name for table in tables])).fetchall()
    for schema, name, relkind in found:
        if relkind != kind:
            raise Refused(f"{Name(schema, name)} is not an ordinary table: it is not read")
    check_owners_code(cursor, tables)


def _hold_still(cursor: Cursor, tables: Sequence[Name]) -> None:
    """Until the end of the transaction. The only lock that a standby has against its primary's DDL is the weakest."""
    row = cursor.execute("SELECT pg_is_in_recovery()").fetchone()
    mode = "ACCESS SHARE" if row is not None and row[0] else "SHARE UPDATE EXCLUSIVE"
    for table in tables:
        lock = sql.SQL("LOCK TABLE ONLY {} IN " + mode + " MODE").format(table.identifier)
        try:
            run_together(cursor, [lock_timeout(LOCK_TIMEOUT), lock])
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise Refused(f"there is no partition {table}") from None
