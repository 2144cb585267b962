"""Fingerprints of tables, which reveal that somebody has changed a definition or a name, even if it was changed back.

Migrations take them before they read a definition, and compare them under the locks of the fence, the seal, ATTACH and
the swap. A fingerprint goes by the `xmin` of the catalog's rows, the transaction that wrote each: `DISABLE TRIGGER` and
`ENABLE TRIGGER` leave the definition as it was and two new rows behind. Of `pg_class` only those columns count that DDL
changes: ATTACH of another tablet, VACUUM and ANALYZE write to the others. Only reads.
"""

from collections.abc import Mapping, Sequence

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

# Our own fence comes and goes (its own xmin is checked when it is sealed); what captures changes must stay. Foreign
# keys: a root has one more per partition of every root it references, which come and go with tablets; so does a
# partition. Their own rows are those that refer to no partition.
_FACTS = """
    SELECT n.name, md5(string_agg(f.fact, E'\\n' ORDER BY f.fact))
    FROM unnest({}::text[]) AS n (name)
    CROSS JOIN LATERAL (SELECT to_regclass(n.name)::oid AS oid) AS t
    CROSS JOIN LATERAL (
        SELECT format('table %s %s %s %s %s %s %s %s %s', c.oid, c.relfilenode, c.relreplident, c.relowner, c.relacl,
                      c.relrowsecurity, c.relforcerowsecurity, c.reloptions, c.reltablespace) AS fact
        FROM pg_class c WHERE c.oid = t.oid
        -- Rows are read by name: while a table is called something else, they may be another's. A rename also writes
        -- the row of its row type; renaming its schema writes the schema's row, as GRANT on it does.
        UNION ALL SELECT format('name %s', y.xmin) FROM pg_type y WHERE y.typrelid = t.oid
        UNION ALL SELECT format('schema %s', s.xmin) FROM pg_namespace s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.oid = t.oid
        UNION ALL SELECT format('column %s %s', a.attnum, a.xmin) FROM pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0
        UNION ALL SELECT format('default %s %s', d.adnum, d.xmin) FROM pg_attrdef d WHERE d.adrelid = t.oid
        UNION ALL SELECT format('constraint %s %s', k.oid, k.xmin) FROM pg_constraint k
        WHERE k.conrelid = t.oid AND k.conname !~ '^tb_m[0-9a-z]+_bound$'
          AND (k.contype <> 'f' OR NOT EXISTS (
              SELECT FROM pg_class r WHERE r.oid = k.confrelid AND r.relispartition))
        UNION ALL SELECT format('index %s %s', i.indexrelid, i.xmin) FROM pg_index i
        WHERE i.indrelid = t.oid AND i.indisvalid
        UNION ALL SELECT format('trigger %s %s', g.oid, g.xmin) FROM pg_trigger g
        WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgname !~ '^!balancer_'
        -- PostgreSQL evaluates their expressions with the rights of the role that plans a query: ours.
        UNION ALL SELECT format('statistics %s %s', s.oid, s.xmin) FROM pg_statistic_ext s WHERE s.stxrelid = t.oid
        UNION ALL SELECT format('policy %s %s', p.oid, p.xmin) FROM pg_policy p WHERE p.polrelid = t.oid
        UNION ALL SELECT format('rule %s %s', r.oid, r.xmin) FROM pg_rewrite r WHERE r.ev_class = t.oid
    ) AS f GROUP BY n.name
"""


def fingerprints(cursor: Cursor, names: Sequence[Name]) -> Mapping[Name, str]:
    """The fingerprint of each table, all in one query; an empty text for one that does not exist."""
    cursor.execute(fingerprint_statement(names))
    return read_fingerprints(names, cursor.fetchall())


def fingerprint_statement(names: Sequence[Name]) -> sql.Composed:
    """What `read_fingerprints` reads, for a message that asks for more."""
    return sql.SQL(_FACTS).format(sql.Literal([str(name) for name in names]))


def read_fingerprints(names: Sequence[Name], rows: Sequence[TupleRow]) -> Mapping[Name, str]:
    """The fingerprint of each table, from the rows of `fingerprint_statement`."""
    found = {str(name): str(digest) for name, digest in rows}
    return {name: found.get(str(name), "") for name in names}
